"""A layer of integers as kernels see it: its loops, its tiles, and what becomes of its sums.

`Geometry` holds the pixels of the result, and for each the stretches of the input it sums. Without
dilation and groups, the taps of a window's row are contiguous in memory: one stretch. Taps and
channels are then one axis, and an image of one channel wastes no lanes. Otherwise every tap is a
stretch of its own. A dense layer is a convolution of one row, whose pixels are its examples.

`Epilogue` turns int32 sums into the layer's results while they are in registers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from jaxeff.compression.integers import ProductSpec
from jaxeff_export.operators._statements import StatementBuilder, cast, const, load, splat

BLOCK = 64
"""Examples of a dense layer that are walked together where their number isn't known."""
FEW = 16
"""Examples of a part of a dense layer at least."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A linear layer as loops over flat arrays; sizes are in elements.

    Attributes:
        batch: images; an expression where any number may come.
        rows: number of rows of the result.
        columns: number of columns of the result.
        features: number of features of the result, of all groups.
        groups: groups of channels that see only their own.
        image: height, width and channels of an image as it is given.
        padding: top, bottom, left, right.
        step: between neighbouring rows and columns of the result, in the padded image.
        taps: taps of the window that are apart: how many, and how far.
        stretch: length of one.
        pool: rows and columns of the windows of which the largest result is taken.
        examples: number of examples of a dense layer of any batch, an expression: images are then
            `BLOCK` of them, the last one fewer.
    """

    batch: Any
    rows: int
    columns: int
    features: int
    groups: int
    image: tuple[int, int, int]
    padding: tuple[int, int, int, int]
    step: tuple[int, int]
    taps: tuple[tuple[int, int], ...]
    stretch: int
    pool: tuple[int, int] = (1, 1)
    examples: Any = None

    @classmethod
    def dense(cls, rows: int, depth: int, columns: int) -> Geometry:
        """Describes a dense layer."""
        image, none = (1, rows, depth), (0, 0, 0, 0)
        return cls(1, 1, rows, columns, 1, image, none, (rows * depth, depth), (), depth)

    @classmethod
    def conv2d(
        cls, x: Sequence[int], w: Sequence[int], attributes: Mapping[str, Any], apart: bool = False
    ) -> Geometry:
        """Describes a convolution of NHWC with HWIO; ``apart`` makes every tap a stretch."""
        batch, height, width, channels = x
        kernel_height, kernel_width, depth, features = w
        top, bottom, left, right = attributes["padding"]
        strides, dilation = attributes["strides"], attributes["dilation"]
        taps = (kernel_height, kernel_width)
        padded = (height + top + bottom, width + left + right)
        sizes = [(padded[d] - dilation[d] * (taps[d] - 1) - 1) // strides[d] + 1 for d in (0, 1)]
        line = padded[1] * channels
        # Contiguous taps of a row are one stretch: fewer loops, and no lanes lost to few channels.
        apart = apart or attributes["groups"] > 1 or (dilation[1] > 1 and kernel_width > 1)
        below, beside = dilation[0] * line, dilation[1] * channels
        distances = [(kernel_height, below)] + ([(kernel_width, beside)] if apart else [])
        stretch = depth if apart else kernel_width * depth
        return cls(
            batch,
            sizes[0],
            sizes[1],
            features,
            attributes["groups"],
            (height, width, channels),
            (top, bottom, left, right),
            (strides[0] * line, strides[1] * channels),
            tuple(distances),
            stretch,
            tuple(attributes.get("pool", (1, 1))),
        )

    def of_any(self, batch: Any) -> Geometry:
        """Describes the layer for any number of images, or of examples of a dense layer."""
        if not self.is_dense:
            return dataclasses.replace(self, batch=batch)
        blocks = Geometry.dense(BLOCK, self.depth, self.features)
        return dataclasses.replace(blocks, batch=(batch + (BLOCK - 1)) // BLOCK, examples=batch)

    def in_parts(self, least: int) -> Geometry:
        """Splits a dense layer's examples into at least so many parts of equal size.

        The layer stays whole if no such number of parts divides them, or parts would have so
        few examples that fetching the weights takes as long as multiplying.
        """
        if not self.is_dense or least == 1:
            return self
        # Equal parts keep all cores busy to the end; a few more than cores still do so nearly.
        for parts in range(least, 3 * least):
            if self.columns % parts == 0 and self.columns // parts >= FEW:
                part = Geometry.dense(self.columns // parts, self.depth, self.features)
                return dataclasses.replace(part, batch=parts)
        return self

    @property
    def is_dense(self) -> bool:
        """Tells whether the layer is dense: its only pixels are examples."""
        return self.image[0] == 1 and self.stretch == self.image[2] and not self.taps

    @property
    def walked(self) -> tuple[int, int]:
        """Returns the rows and columns that whole windows cover."""
        down, right = self.pool
        return self.rows - self.rows % down, self.columns - self.columns % right

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Returns the shape of the result."""
        (down, right), (rows, columns) = self.pool, self.walked
        return self.batch, rows // down, columns // right, self.features

    @property
    def padded(self) -> tuple[int, int, int]:
        """Returns height, width and channels of an image with its padding."""
        (height, width, channels), (top, bottom, left, right) = self.image, self.padding
        return height + top + bottom, width + left + right, channels

    @property
    def per_group(self) -> int:
        """Returns the features of a group."""
        return self.features // self.groups

    @property
    def depth(self) -> int:
        """Returns the products in a sum."""
        return self.stretch * math.prod(count for count, _ in self.taps)

    @property
    def channels_per_group(self) -> int:
        """Returns the channels that a group reads."""
        return self.image[2] // self.groups

    @property
    def macs(self) -> int:
        """Counts the multiply-accumulates of an image."""
        return self.rows * self.columns * self.features * self.depth

    @property
    def is_depthwise(self) -> bool:
        """Tells whether every feature reads one channel of its own."""
        return self.groups == self.features == self.image[2] and self.groups > 1


@dataclasses.dataclass(frozen=True)
class DotTile:
    """The sums that registers hold at once.

    Attributes:
        rows: number of rows of pixels.
        columns: number of columns of pixels.
        vectors: number of vectors of features.
        chains: sums that one output is split into, so that instructions need not wait.
    """

    rows: int
    columns: int
    vectors: int
    chains: int = 1

    @property
    def pixels(self) -> int:
        """Returns the pixels of a tile."""
        return self.rows * self.columns


def tile_of(
    geometry: Geometry,
    lanes: int,
    registers: int,
    apart: int = 4,
    cost_of: Callable[[int, int], float] | None = None,
) -> DotTile:
    """Chooses the tile with the fewest loads for a step that fits the registers.

    Args:
        geometry: the layer's.
        lanes: outputs in a vector.
        registers: for sums and operands.
        apart: sums that wait for each other at least.
        cost_of: instructions of a step by pixels and vectors; by default of products of bytes.
    """
    across = -(-geometry.per_group // lanes)
    wide = geometry.walked[1]
    cost_of = cost_of or functools.partial(_cost, apart=apart)
    cheapest: dict[int, tuple[float, DotTile]] = {}
    for tile in tiles_of(geometry, lanes, registers, apart):
        left = wide % tile.columns
        # Loads and sums of a step, over all tiles of a row, idle pipelines counted.
        cost = wide // tile.columns * cost_of(tile.pixels, tile.vectors)
        cost += cost_of(tile.rows * left, tile.vectors) if left else 0
        if cost / tile.rows < cheapest.get(tile.vectors, (math.inf,))[0]:
            cheapest[tile.vectors] = cost / tile.rows, tile
    best, least = DotTile(*geometry.pool, 1), math.inf
    for vectors, (cost, tile) in cheapest.items():
        full, left = divmod(across, vectors)
        # What is left has the rows and columns of the others.
        after = _row_cost(tile, left, wide, cost_of) if left else 0
        if full * cost + after < least:
            best, least = tile, full * cost + after
    return best


def tiles_of(geometry: Geometry, lanes: int, registers: int, apart: int = 4) -> list[DotTile]:
    """Lists all tiles that fit the registers; the arguments are those of `tile_of`."""
    across = -(-geometry.per_group // lanes)
    alone = geometry.groups == 1 and geometry.per_group < lanes
    (down, right), (high, wide) = geometry.pool, geometry.walked
    widths: Iterable[int] = range(right, min(wide, 14) + 1, right)
    if geometry.examples is not None:
        widths = [1, 2, 4, 8]
    tiles = []
    for vectors in range(1, min(across, 8) + 1):
        # Groups differ in their input, so a block of vectors can't reach from one into the next.
        if geometry.groups > 1 and across % vectors:
            continue
        for columns in widths:
            for rows in range(down, 1 + (down if alone else 4), down):
                pixels = rows * columns
                # Sums, a register for each vector of weights, and one for the broadcast input.
                if high % rows == 0 and pixels * vectors + vectors + 1 <= registers:
                    chains = chains_of(pixels, vectors, registers, apart)
                    tiles.append(DotTile(rows, columns, vectors, chains))
    return tiles


def chains_of(pixels: int, vectors: int, registers: int, apart: int = 4) -> int:
    """Counts the sums that each output of a tile is split into."""
    # About 2 * apart sums keep the pipelines busy. A tile of fewer splits its outputs, so that
    # steps do not wait for each other.
    sums = pixels * vectors
    chains = max(1, min(4, 2 * apart // sums)) if sums < apart * 2 else 1
    while chains > 1 and chains * sums + vectors + 1 > registers:
        chains -= 1
    return chains


def _cost(pixels: int, vectors: int, apart: int) -> float:
    """Estimates the instructions of a step."""
    # Too few sums take as long as the pipelines' depth; loads run beside products, so count less.
    return max(pixels * vectors, apart * 2) + 0.6 * (pixels + vectors)


def _row_cost(
    tile: DotTile, vectors: int, wide: int, cost_of: Callable[[int, int], float]
) -> float:
    full, left = divmod(wide, tile.columns)
    cost = full * cost_of(tile.pixels, vectors)
    return (cost + (cost_of(tile.rows * left, vectors) if left else 0)) / tile.rows


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """The operations on a vector of sums.

    Attributes:
        spec: what the layer's attributes say.
        bias: for each feature, whole vectors of them.
        scale: likewise; or a multiplier and the shifts before and after it.
        added: the shortcut.
        factor: like the scale; or a multiplier and the shift after it.
    """

    spec: ProductSpec
    bias: tirx.Buffer
    scale: Sequence[tirx.Buffer] = ()
    added: tirx.Buffer | None = None
    factor: Sequence[tirx.Buffer] = ()

    @property
    def dtype(self) -> str:
        """Names the dtype of the result."""
        return self.spec.dtype

    @property
    def scale_dtype(self) -> str:
        """Names the dtype of scaled sums."""
        return "float32" if len(self.scale) == 1 else "int32"

    @property
    def wide_dtype(self) -> str:
        """Names the dtype of results before codes become bytes."""
        return "float32" if self.spec.result == "float" else "int32"

    def value(self, sums: Expr, feature: Any, at: Any, lanes: int) -> Expr:
        """Computes the results of a vector of sums.

        Sums are int32. `feature` is the first of them, in vectors that are whole; `at` its index in
        the result.
        """
        return self.narrowed(self.rounded(self.scaled_at(sums, feature, at, lanes), lanes), lanes)

    def scaled_at(self, sums: Expr, feature: Any, at: Any, lanes: int) -> Expr:
        """Scales sums of neighbouring features, with bias and shortcut, to units of the result."""
        return self.scaled(sums, feature, lambda buffer, lanes: load(buffer, at, lanes), lanes)

    def scaled(self, sums: Expr, feature: Any, added: Any, lanes: int, alone: bool = False) -> Expr:
        """Scales sums, with bias and shortcut, to units of the result; order is kept.

        Sums are int32. `feature` is the first of them, or the only one of many pixels (`alone`).
        `added(buffer, lanes)` takes as many of the shortcut's buffer.
        """

        def of(buffer: tirx.Buffer) -> Expr:
            return splat(load(buffer, feature), lanes) if alone else load(buffer, feature, lanes)

        # Bias and shortcut have more bits than products: sums are brought to their units first.
        if self.spec.guard_bits:
            sums = tirx.shift_left(sums, const(self.spec.guard_bits, "int32", lanes))
        total = sums + of(self.bias)
        if self.added is not None:
            factor = [of(buffer) for buffer in self.factor]
            total = total + self._units(added(self.added, lanes), factor, lanes)
        if self.spec.result == "sums":
            return total
        if len(self.scale) > 1:
            multiplier, before, after = (of(buffer) for buffer in self.scale)
            return _multiplied(total, multiplier, before, after, lanes)
        return cast(total, "float32", lanes) * of(self.scale[0])

    def rounded(self, y: Expr, lanes: int) -> Expr:
        """Rounds scaled sums to codes or whole numbers in 32 bits, where the result is such."""
        if self.spec.result in ("float", "sums"):
            return y
        zero = self.spec.zero
        ends = self.spec.lower - zero, self.spec.upper - zero
        if len(self.scale) > 1:
            return _clamped(y, *ends, lanes) + const(zero, "int32", lanes)
        # Clamped as floats: casting a float beyond int32 is undefined.
        low, high = map(float, ends)
        steps = cast(_clamped(tirx.nearbyint(y), low, high, lanes), "int32", lanes)
        return steps + const(zero, "int32", lanes)

    def narrowed(self, wide: Expr, lanes: int) -> Expr:
        """Converts codes to bytes."""
        return cast(wide, self.dtype, lanes) if self.spec.result == "codes" else wide

    def _units(self, value: Expr, factor: Sequence[Expr], lanes: int) -> Expr:
        if self.spec.shortcut == "codes":
            centred = cast(value, "int32", lanes) - const(self.spec.shortcut_zero, "int32", lanes)
            if len(factor) > 1:
                # A code times a multiplier of at most 2^21: below 2^29, so rounding still fits.
                return _shifted(centred * factor[0], factor[1], lanes)
            value = cast(centred, "float32", lanes)
        # Limited, so that it can't overflow int32 beside the products and the bias.
        units, most = tirx.nearbyint(value * factor[0]), float(ProductSpec.LARGEST_ADDED)
        return cast(_clamped(units, -most, most, lanes), "int32", lanes)

    def write(
        self, code: StatementBuilder, y: tirx.Buffer, taken: Taken, at: Any, lanes: int
    ) -> None:
        """Writes a vector of results, whose last lanes may be unused.

        `taken` are the sums, of one place or of several whose largest is taken; `at` is the index
        of the first of them in the result.
        """
        # A shortcut must not be read beyond its last feature: with one, a vector that isn't full is
        # written lane by lane.
        if taken.used >= lanes or self.added is None:
            scaled = [
                self.scaled_at(total, taken.feature, there, lanes)
                for total, there in zip(taken.sums, taken.places, strict=True)
            ]
            # Rounding keeps the order, so that the largest is found first and only one is rounded.
            best = functools.reduce(tirx.max, scaled)
            value = self.narrowed(self.rounded(best, lanes), lanes)
            if taken.used >= lanes:
                code.store(y, at, value, lanes)
                return
            # What is computed for lanes beyond the last feature is of no use.
            results = code.vector(value, lanes, self.dtype, "made")
            done = 0
            while done < taken.used:  # powers of two, which are stored at once
                many = 1 << ((taken.used - done).bit_length() - 1)
                picked = [tirx.const(done + i, "int32") for i in range(many)]
                code.store(y, at + done, tirx.Shuffle([results.get()], picked), many)
                done += many
            return
        kept = [code.vector(total, lanes, "int32", "kept") for total in taken.sums]
        for lane in range(taken.used):
            scaled = [
                self.scaled_at(load(one.buffer, lane), taken.feature + lane, there + lane, 1)
                for one, there in zip(kept, taken.places, strict=True)
            ]
            best = functools.reduce(tirx.max, scaled)
            code.store(y, at + lane, self.narrowed(self.rounded(best, 1), 1))


@dataclasses.dataclass(frozen=True)
class Taken:
    """Sums of a vector of features, at the places of a window.

    Attributes:
        sums: sums of each place.
        places: index of each without a window, for a shortcut.
        feature: the first, in vectors that are whole.
        used: number of features.
    """

    sums: list[Expr]
    places: list[Any]
    feature: Any
    used: int


def epilogue_of(attributes: Mapping[str, Any], *operands: tirx.Buffer) -> Epilogue:
    """Reads an epilogue from a composite's attributes and its operands after the weights."""
    (bias, *rest), spec = operands, ProductSpec.of(attributes)
    scale, shortcut = spec.parted(rest)
    added, *factor = shortcut or [None]
    return Epilogue(spec, bias, scale, added, factor)


def _clamped(x: Expr, low: float, high: float, lanes: int) -> Expr:
    dtype = "float32" if isinstance(low, float) else "int32"
    x = tirx.max(x, const(low, dtype, lanes))
    return tirx.min(x, const(high, dtype, lanes))


def _multiplied(sums: Expr, multiplier: Expr, before: Expr, after: Expr, lanes: int) -> Expr:
    """Scales sums in fixed point, bit for bit as `jaxeff.compression.integers` does."""
    zero, one = const(0, "int32", lanes), const(1, "int32", lanes)
    # The uppermost bit that is shifted out rounds half up; adding half first could overflow.
    # |short| <= 2^15 times 16 bits stays within int32.
    half = tirx.shift_right(sums, tirx.max(before - one, zero)) & tirx.min(before, one)
    most = ProductSpec.LARGEST_SCALED
    short = _clamped(tirx.shift_right(sums, before) + half, -most, most, lanes)
    return _shifted(short * multiplier, after, lanes)


def _shifted(product: Expr, after: Expr, lanes: int) -> Expr:
    one = const(1, "int32", lanes)
    # 2^(after - 1), and 0 where nothing is shifted out.
    half = tirx.shift_right(tirx.shift_left(one, after), one)
    return tirx.shift_right(product + half, after)
