"""The loops of a kernel: pixels of the result, and for each the stretches of the input it sums.

Without dilation and groups, the taps of a window's row are contiguous in memory: one stretch. Taps
and channels are then one axis, and an image of one channel wastes no lanes. Otherwise every tap is
a stretch of its own. A dense layer is a convolution of one row, whose pixels are its examples.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

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
    found: dict[int, tuple[float, DotTile]] = {}
    for tile in tiles_of(geometry, lanes, registers, apart):
        left = wide % tile.columns
        # Loads and sums of a step, over all tiles of a row, idle pipelines counted.
        cost = wide // tile.columns * cost_of(tile.pixels, tile.vectors)
        cost += cost_of(tile.rows * left, tile.vectors) if left else 0
        if cost / tile.rows < found.get(tile.vectors, (math.inf,))[0]:
            found[tile.vectors] = cost / tile.rows, tile
    best, least = DotTile(*geometry.pool, 1), math.inf
    for vectors, (cost, tile) in found.items():
        whole, left = divmod(across, vectors)
        # What is left has the rows and columns of the others.
        after = _row_cost(tile, left, wide, cost_of) if left else 0
        if whole * cost + after < least:
            best, least = tile, whole * cost + after
    return best


def tiles_of(geometry: Geometry, lanes: int, registers: int, apart: int = 4) -> list[DotTile]:
    """Lists all tiles that fit the registers; the arguments are those of `tile_of`."""
    across = -(-geometry.per_group // lanes)
    alone = geometry.groups == 1 and geometry.per_group < lanes
    (down, right), (high, wide) = geometry.pool, geometry.walked
    widths: Iterable[int] = range(right, min(wide, 14) + 1, right)
    if geometry.examples is not None:
        widths = [1, 2, 4, 8]
    found = []
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
                    found.append(DotTile(rows, columns, vectors, chains))
    return found


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
