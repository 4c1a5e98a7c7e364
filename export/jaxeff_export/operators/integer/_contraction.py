"""The kernel of a dense layer or convolution of bytes, for the instructions of a target.

An image is first copied where it has to be: with its padding, with its codes moved to signed ones,
or because dwords would be read beyond its end. Features are walked outermost, a few vectors at a
time, so that their weights stay in the first cache while all pixels pass.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.operators import _statements as statements
from jaxeff_export.operators.integer import _layers as layers
from jaxeff_export.operators.integer._dots import Dot

_WIDE = 64


@dataclasses.dataclass(frozen=True)
class Sharing:
    """The cores that share the work of a kernel.

    Attributes:
        cores: number of cores of the target.
        least: multiply-accumulates that are worth waking threads for.
    """

    cores: int = 1
    least: int = 0


class KernelPlan(NamedTuple):
    """How a kernel walks the products of a layer.

    Attributes:
        geometry: the layer's loops.
        dot: the instructions.
        tile: tile of sums in registers, as the weights were packed for.
        kernel_of: the class that writes the kernel, without what all of them are told; None for
            that of bytes.
    """

    geometry: layers.Geometry
    dot: Dot
    tile: layers.DotTile
    kernel_of: Callable[..., ContractionBuilder] | None = None


def contraction(
    plan: KernelPlan,
    attributes: Any,
    epilogue_of: Any,
    operands: Any,
    shape: Sequence[int],
    sharing: Sharing,
) -> tirx.PrimFunc:
    """Writes the kernel of a layer.

    Args:
        plan: its loops and instructions.
        attributes: the composite's.
        epilogue_of: makes the epilogue of the attributes and the operands after the weights.
        operands: shapes and dtypes of x, the packed weights and what follows.
        shape: shape of the result.
        sharing: among how many cores.
    """
    geometry, dot, tile, kernel_of = plan
    buffers = [
        statements.declare(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(operands)
    ]
    x, w, *rest = buffers
    epilogue = epilogue_of(attributes, *rest)
    y = statements.declare(shape, epilogue.dtype, "y")
    make = kernel_of or ContractionBuilder
    kernel = make(geometry, dot, epilogue, tile, (x, w, y), attributes.get("input_zero", 0))
    sums = (tile.rows, tile.columns, tile.vectors * dot.lanes)
    kernel.write(sharing)
    products = geometry.batch * geometry.macs if isinstance(geometry.batch, int) else None
    return statements.function([*buffers, y], kernel.code.finish(), products, sums)


def words_of(geometry: layers.Geometry, dot: Dot) -> int:
    """Counts the groups of products in a stretch."""
    return -(-geometry.stretch // dot.group)


def vectors_of(geometry: layers.Geometry, dot: Dot) -> int:
    """Counts the vectors of the features of a group."""
    return -(-geometry.per_group // dot.lanes)


class TilePlace(NamedTuple):
    """Where a tile of sums is read and written.

    Attributes:
        source: the buffer that its image is read from.
        base: where the image starts there.
        image: the image's number.
        group: the group of features.
        first: the first vector of features, in the group.
        row: the tile's first row of the result.
        column: its first column.
    """

    source: tirx.Buffer
    base: Any
    image: Any
    group: Any
    first: Any
    row: Any
    column: Any


class ContractionBuilder:
    """A kernel being written, of the buffers of the input, the weights and the result."""

    def __init__(
        self,
        geometry: layers.Geometry,
        dot: Dot,
        epilogue: layers.Epilogue,
        tile: layers.DotTile,
        buffers: tuple[tirx.Buffer, tirx.Buffer, tirx.Buffer],
        zero: int,
    ):
        self.code = statements.StatementBuilder()
        self.g, self.dot, self.epilogue, self.tile = geometry, dot, epilogue, tile
        (self.x, self.w, self.y), self.zero = buffers, zero
        words = words_of(geometry, dot)
        taps = math.prod(count for count, _ in geometry.taps)
        self.words, self.steps = words, words * taps
        # The last group of a stretch reads that far beyond it. Weights there are zero, so it
        # matters only at the image's end, where a copy has room.
        self.slack = words * dot.group - geometry.stretch
        copied = any(geometry.padding) or dot.data != "uint8" or self.slack > 0
        self.copied, self.overlaps = copied, False
        self.width: Any = geometry.image[1]

    def write(self, sharing: Sharing) -> None:
        """Writes all images, one after the other or several at once."""
        g, code, batch = self.g, self.code, self.g.batch
        cores, least = sharing.cores, sharing.least
        if isinstance(batch, int):
            parallel = cores > 1 and batch * g.macs >= least
            # Images are independent. Too few of them for all cores share their parts instead.
            over_images = parallel and batch >= cores
            with code.loop(batch, over_images) as n:
                self._image(n, cores if parallel and not over_images else 1)
            return
        count, each = (
            (batch, g.macs) if g.examples is None else (g.examples, g.macs // layers.BLOCK)
        )
        if cores == 1 or (g.examples is None and each >= least):
            with code.loop(batch) as n:
                self._image(n, cores)
            return
        # Only the call tells whether the work is worth threads: both loops are written.
        with code.branch(count * each >= least) as otherwise:
            with code.loop(batch, True) as n:
                self._image(n, 1)
            next(otherwise)
            with code.loop(batch) as n:
                self._image(n, 1)

    def _image(self, n: Any, cores: int) -> None:
        """Writes an image, with its parts shared by so many cores."""
        g, code = self.g, self.code
        inner = cores > 1
        self.width = self._width(n)
        source, base = self.source(n)
        vectors = vectors_of(g, self.dot)
        at_once = self.tile.vectors
        full, left = vectors // at_once, vectors % at_once
        assert not left or g.groups == 1
        # Pixels of fewer features than lanes are written whole, one over the end of the other.
        one = g.groups == 1 and vectors == 1 and bool(g.per_group % self.dot.lanes)
        self.overlaps = one and not inner and self.tile.rows == g.pool[0]
        # TVM lets a result take the memory of a shortcut that is read for the last time, entry by
        # entry: what spills into the next pixel would stand where its shortcut has yet to be read.
        self.overlaps &= self.epilogue.added is None
        self.overlaps &= g.examples is None
        blocks = g.groups * full
        # Cores share blocks of features, each with weights of its own, unless tiles of rows are far
        # more numerous and so divide the work more evenly.
        by_block = inner and blocks >= cores and blocks * 4 > g.rows // self.tile.rows
        with code.loop(blocks, by_block) as block:
            self._block(source, base, n, block, full, inner and not by_block)
        if left:
            kept, self.tile = self.tile, dataclasses.replace(self.tile, vectors=left)
            self._block(source, base, n, statements.index(0), 1, inner, full * at_once)
            self.tile = kept

    def _width(self, n: Any) -> Any:
        """Returns the columns of the given image: of a dense layer, its examples."""
        if self.g.examples is None:
            return self.g.image[1]
        return tirx.min(statements.index(layers.BLOCK), self.g.examples - n * layers.BLOCK)

    def _runs(self) -> list[tuple[int, Any, Any]]:
        """Lists columns of a tile, how many such tiles lie side by side, and where they start."""
        tiled, wide = self.tile.columns, self.g.walked[1]
        if self.g.examples is None:
            full, left = divmod(wide, tiled)
            runs = [(tiled, full, 0), (left, 1, full * tiled)]
            return [run for run in runs if run[0] and run[1]]
        # The rest of an unknown width in tiles of halving widths, each once at most: the binary
        # digits of what is left.
        runs = [(tiled, tirx.indexdiv(self.width, tiled), 0)]
        while tiled > 1:
            start = tirx.indexdiv(self.width, tiled) * tiled
            tiled //= 2
            left = tirx.indexmod(tirx.indexdiv(self.width, tiled), 2)
            runs.append((tiled, left, start))
        return runs

    def source(self, n: Any) -> tuple[Any, Any]:
        """Returns the buffer that an image is read from, and where it starts."""
        size = math.prod(self.g.padded)
        if not self.copied:
            return self.x, n * size
        # Room for a whole vector that is read from the last pixel on.
        image = self.code.local(size + self.slack + _WIDE, self.dot.data, "padded", "global")
        self._copy(image, n)
        return image, statements.index(0)

    def _block(
        self,
        source: tirx.Buffer,
        base: Any,
        n: Any,
        block: Any,
        parts: int,
        parallel: bool,
        before: int = 0,
    ) -> None:
        """Writes all pixels of some vectors of features, after ``before`` of them."""
        g, tile = self.g, self.tile
        if g.groups == 1:
            group, part = 0, block
        elif parts == 1:
            group, part = block, 0
        else:
            group, part = tirx.indexdiv(block, parts), tirx.indexmod(block, parts)
        first = part * tile.vectors + before  # vector of the group
        with self.code.loop(g.walked[0] // tile.rows, parallel) as i:
            row = i * tile.rows
            for many, count, start in self._runs():
                with self.code.loop(count) as j:
                    at = start + j * many
                    self._tile(TilePlace(source, base, n, group, first, row, at), many)

    def _tile(self, place: TilePlace, columns: int) -> None:
        """Writes the sums of a tile of so many columns, and the results made of them."""
        # All sums first, for a window of a pooling may hold any of them.
        pixels = [(r, c) for r in range(self.tile.rows) for c in range(columns)]
        totals = self.sums(place, pixels)
        (down, right), tile = self.g.pool, self.tile
        corners = [(r, c) for r in range(0, tile.rows, down) for c in range(0, columns, right)]
        for (r, c), v in itertools.product(corners, range(tile.vectors)):
            window = [(r + i, c + j) for i in range(down) for j in range(right)]
            sums = [totals[pixels.index(pixel), v] for pixel in window]
            self._finish(sums, window, place, v)

    def sums(self, place: TilePlace, pixels: list[tuple[int, int]]) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile, by pixel and vector."""
        g, dot, code, tile = self.g, self.dot, self.code, self.tile
        source, base, _, group, first, row, column = place
        entries = list(itertools.product(range(len(pixels)), range(tile.vectors)))
        # Chains are independent sums of one output: a step then need not wait for the last one.
        # Their order is free, since int32 sums are exact modulo 2^32.
        zeros = statements.const(0, "int32", dot.lanes)
        chains = [
            {entry: code.vector(zeros, dot.lanes, "int32", "sum") for entry in entries}
            for _ in range(min(self._chains(len(pixels)), max(1, self.words)))
        ]
        start = base + row * g.step[0] + column * g.step[1] + group * g.channels_per_group
        at_weight = (group * vectors_of(g, dot) + first) * self.steps
        self._steps(source, start, at_weight, pixels, chains)
        totals = {entry: chains[0][entry].get() for entry in entries}
        for chain in chains[1:]:
            totals = {entry: totals[entry] + chain[entry].get() for entry in entries}
        return totals

    def _chains(self, pixels: int) -> int:
        """Counts the sums that an output is split into, in a tile of so many pixels."""
        if pixels == self.tile.pixels:
            return self.tile.chains
        return layers.chains_of(pixels, self.tile.vectors, self.dot.registers - 2)

    def _finish(
        self,
        sums: list[Expr],
        window: list[tuple[int, int]],
        place: TilePlace,
        v: int,
    ) -> None:
        """Writes the largest result of a window, for a vector of features."""
        g, dot = self.g, self.dot
        _, _, n, group, first, row, column = place
        (down, right), (rows, columns) = g.pool, g.walked
        within = (first + v) * dot.lanes
        channel = group * g.per_group + within

        def index_of(r: int, c: int) -> Any:
            pixel = (n * g.rows + row + r) * g.columns + (column + c)
            return pixel * g.features + channel

        r, c = window[0]
        above, beside = (
            window_index(row, down) + r // down,
            window_index(column, right) + c // right,
        )
        pixel = (n * (rows // down) + above) * (columns // right) + beside
        at = pixel * g.features + channel
        feature = group * (vectors_of(g, dot) * dot.lanes) + within
        vectors, short = vectors_of(g, dot), g.per_group % dot.lanes

        def write(used: int) -> None:
            places = [index_of(r, c) for r, c in window]
            taken = layers.Taken(sums, places, feature, used)
            self.epilogue.write(self.code, self.y, taken, at, dot.lanes)

        last = isinstance(first, int) and first + v == vectors - 1
        if not short or v < self.tile.vectors - 1:
            write(dot.lanes)
        elif last and not self.overlaps:
            write(short)
        elif self.overlaps:
            # A whole vector spills into the next pixel, which is written after this one. At the end
            # of the image it would spill into another, which may be written already.
            end = (n + 1) * ((rows // down) * (columns // right) * g.features)
            with self.code.branch(at + dot.lanes <= end) as otherwise:
                write(dot.lanes)
                next(otherwise)
                write(short)
        elif self.tile.vectors == vectors:
            write(short)
        else:
            # Only the last vector of a group has lanes without a feature.
            with self.code.branch(first + v < vectors - 1) as otherwise:
                write(dot.lanes)
                next(otherwise)
                write(short)

    def _steps(
        self,
        source: tirx.Buffer,
        start: Any,
        at_weight: Any,
        pixels: list[tuple[int, int]],
        chains: list[dict[tuple[int, int], statements.Vector]],
    ) -> None:
        g, code = self.g, self.code
        with NestedLoops(code, [count for count, _ in g.taps]) as taps:
            at, tap = start, 0
            for i, (count, distance) in zip(taps, g.taps, strict=True):
                at, tap = at + i * distance, tap * count + i
            rounds, left = divmod(self.words, len(chains))
            with code.loop(rounds) as k:
                for number, sums in enumerate(chains):
                    word = k * len(chains) + number
                    self._step(source, at, at_weight, tap * self.words + word, word, pixels, sums)
            for number in range(left):
                word = rounds * len(chains) + number
                place = tap * self.words + word
                self._step(source, at, at_weight, place, word, pixels, chains[number])

    def _step(
        self,
        source: tirx.Buffer,
        at: Any,
        at_weight: Any,
        place: Any,
        word: Any,
        pixels: list[tuple[int, int]],
        sums: dict[tuple[int, int], statements.Vector],
    ) -> None:
        """Writes one group of products of a tile."""
        g, dot = self.g, self.dot
        many = dot.lanes * dot.group
        # Each weight vector is used for all pixels, each dword of the input for all vectors.
        # Vectors of a tile lie beside each other: one stream, which the processor fetches ahead.
        vectors = self.tile.vectors
        beside = at_weight + place * vectors
        weights = [statements.load(self.w, (beside + v) * many, many) for v in range(vectors)]
        for p, (r, c) in enumerate(pixels):
            here = at + (r * g.step[0] + c * g.step[1]) + word * dot.group
            value = dot.prepare(functools.partial(_from, source, here))
            for v, weight in enumerate(weights):
                sums[p, v].set(dot.step(sums[p, v].get(), value, weight))

    def _copy(self, target: tirx.Buffer, n: Any) -> None:
        """Copies an image with its padding, in the codes that the instructions take."""
        g, code, data = self.g, self.code, self.dot.data
        height, width, channels = g.image
        top, _, left, _ = g.padding
        _, padded_width, _ = g.padded
        line, padded_line = width * channels, padded_width * channels
        row_length = self.width * channels

        def moved(value: Expr) -> Expr:
            if data == "uint8":
                return value
            # Signed instructions take u8 - 128; the bias restores 128 sum(w) (`packed_bias`).
            wide = statements.cast(value, "int32", 1) - statements.const(self.dot.offset, "int32")
            return statements.cast(wide, data, 1)

        if any(g.padding):
            size = math.prod(g.padded)
            with code.loop(size) as i:
                # Padding is the code of zero, moved as all codes are.
                code.store(target, i, statements.const(self.zero - self.dot.offset, data))
        for i in range(self.slack):
            # Meets zero weights only, but has to be defined.
            code.store(target, math.prod(g.padded) + i, statements.const(0, data))
        # Scalar cores count: there a copy is a loop anyway.
        rows = code.unknown(height) if self.dot.lanes > 1 and isinstance(height, int) else height
        with code.loop(rows) as h, code.loop(row_length) as i:
            value = statements.load(self.x, (n * height + h) * line + i)
            code.store(target, (h + top) * padded_line + left * channels + i, moved(value))


def window_index(place: Any, step: int) -> Any:
    """Counts a place in windows."""
    if step == 1:
        return place
    return place // step if isinstance(place, int) else tirx.indexdiv(place, step)


def _from(source: tirx.Buffer, here: Any, offset: int, count: int) -> Expr:
    """Loads neighbours from an offset."""
    return statements.load(source, here + offset, count)


class NestedLoops:
    """Opens loops inside each other."""

    def __init__(self, code: statements.StatementBuilder, extents: list[int]):
        self.code, self.extents = code, extents
        self._open: list[Any] = []

    def __enter__(self) -> list[Expr]:
        self._open = [self.code.loop(extent) for extent in self.extents]
        return [loop.__enter__() for loop in self._open]

    def __exit__(self, *error: Any) -> None:
        for loop in reversed(self._open):
            loop.__exit__(*error)
