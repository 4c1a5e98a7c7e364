"""Convolutions whose lanes aren't features: pixels of few features, and channels of depthwise ones.

The first layer of a network for images of one channel has six features or eight, and so have layers
whose channels were pruned: a vector of features would be half empty. Lanes are then sixteen pixels
of a row, and the weights of one feature are broadcast. A shuffle of a stretch of the input gives
every lane its own group of products; where a group of all lanes doesn't lie in one vector, the
image is copied with its groups of channels apart, so that those of neighbouring pixels are
neighbours. Results come feature by feature, and are woven together when they are stored.

In a depthwise convolution every channel has its own window. A step of the dot products of bytes
adds four products of one output, so the four rows of a window are woven together: one shuffle of
neighbouring channels of up to four rows, which serves every pixel of the tile whose window holds
that column; the windows of two rows of results, of three rows each, have four rows in common. Where
there is no such instruction that takes them from a shuffle (ARM), products are of 16-bit codes,
channel by channel.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators._statements import cast, const, index, load, splat
from jaxeff_export.operators.integer._contraction import (
    ContractionBuilder,
    TilePlace,
    window_index,
)
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._layers import DotTile, Geometry

_BYTES = 64
MOST_FEATURES = 8


def suits(geometry: Geometry, dot: Dot) -> bool:
    """Tells whether pixels fill the lanes better than features."""
    return (
        geometry.groups == 1
        and not geometry.is_dense
        and len(geometry.taps) == 1
        and not dot.halves
        and dot.group > 1
        and geometry.features <= min(MOST_FEATURES, dot.lanes // 2)
        and (_is_narrow(geometry, dot) or _is_turned(geometry, dot))
    )


def _is_narrow(geometry: Geometry, dot: Dot) -> bool:
    """Tells whether the groups of products of all lanes lie in one vector."""
    bytes_of = 1 if dot.data in ("uint8", "int8") else 2
    reach = (dot.lanes - 1) * geometry.step[1] + dot.group
    return geometry.walked[1] >= dot.lanes // 2 and reach * bytes_of <= _BYTES


def _is_turned(geometry: Geometry, dot: Dot) -> bool:
    """Tells whether groups of channels can be copied side by side, pixel by pixel."""
    channels = geometry.image[2]
    aligned = channels % dot.group == 0 and geometry.step[1] == channels
    aligned &= geometry.stretch > channels  # a window of one column would be read once, not more
    return aligned and dot.data == "uint8" and geometry.walked[1] >= dot.lanes


class PixelsKernel(ContractionBuilder):
    """Writes the kernel of a layer of few features; only what differs from other convolutions."""

    def __init__(self, *operands: Any):
        super().__init__(*operands)
        self.copied = True  # whole vectors are read, also beyond the end
        self.turned = not _is_narrow(self.g, self.dot)

    def _image(self, n: Any, cores: int) -> None:
        """Writes an image, row by row."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        rows, columns = g.walked
        down, right = g.pool
        # A window of maxima must not be cut by the end of a vector.
        lanes -= lanes % right
        source, base = self.source(n)
        with code.loop(rows // down, cores > 1) as i:
            full, left = divmod(columns, lanes)
            if full:
                with code.loop(full) as j:
                    self._row(source, base, n, i, j * lanes, lanes)
            if left and full:
                # The last pixels are computed twice rather than in a vector of fewer.
                self._row(source, base, n, i, columns - lanes, lanes)
            elif left:
                self._row(source, base, n, i, 0, left)

    def _row(self, source: Any, base: Any, n: Any, i: Any, column: Any, count: int) -> None:
        """Writes some neighbouring pixels of a row of results, with all their features."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        down, right = g.pool
        zeros = const(0, "int32", lanes)
        sums = [
            [code.vector(zeros, lanes, "int32", "sum") for _ in range(g.features)]
            for _ in range(down)
        ]
        add = self._sum_turned if self.turned else self._sum
        add(source, base, i * down, column, sums)
        results = []
        for f in range(g.features):
            best: Expr | None = None
            for r, row in enumerate(sums):
                at = ((n * g.rows + i * down + r) * g.columns + column) * g.features
                beside = self.turned and right == 1
                take = functools.partial(self._beside if beside else self._strided, at, f)
                value = self.epilogue.scaled(row[f].get(), f, take, lanes, alone=True)
                best = value if best is None else tirx.max(best, value)
            assert best is not None
            for step in range(1, right):
                if step == 1:
                    held = code.vector(best, lanes, self.epilogue.scale_dtype, "largest")
                    best = held.get()
                # Rotated lanes bring neighbours together. Every `right`-th lane then holds a
                # window's maximum; the others are dropped.
                turned = [tirx.const((p + step) % lanes, "int32") for p in range(lanes)]
                best = tirx.max(best, tirx.Shuffle([held.get()], turned))
            wide = self.epilogue.rounded(best, lanes)
            results.append(code.vector(wide, lanes, self.epilogue.wide_dtype, "wide"))
        pixel = (n * (g.walked[0] // down) + i) * (g.walked[1] // right)
        place = (pixel + window_index(column, right)) * g.features
        self._weave(results, place, count // right, right)

    def _sum(self, source: Any, base: Any, row: Any, column: Any, sums: Any) -> None:
        g, dot, code, lanes = self.g, self.dot, self.code, self.dot.lanes
        ((taps, distance),) = g.taps
        apart = g.step[0] // distance if distance else 0  # input rows from one result to the next
        codes = _BYTES if dot.data in ("uint8", "int8") else _BYTES // 2
        # One load serves all groups of a line if the vector reaches the last pixel's last group.
        several = (lanes - 1) * g.step[1] + self.words * dot.group <= codes
        for line in range((len(sums) - 1) * apart + taps):
            start = base + row * g.step[0] + line * distance + column * g.step[1]
            held = None
            if several:
                held = code.vector(load(source, start, codes), codes, dot.data, "line")
            for word in range(self.words):
                if held is None:
                    there = load(source, start + word * dot.group, codes)
                    line_, offset = code.vector(there, codes, dot.data, "line"), 0
                else:
                    line_, offset = held, word * dot.group
                picked = [
                    tirx.const(offset + p * g.step[1] + one, "int32")
                    for p in range(lanes)
                    for one in range(dot.group)
                ]
                many = lanes * dot.group
                x = code.vector(tirx.Shuffle([line_.get()], picked), many, dot.data, "x")
                self._add(x, line, word, apart, sums)

    def _sum_turned(self, source: Any, base: Any, row: Any, column: Any, sums: Any) -> None:
        g, dot, code = self.g, self.dot, self.code
        ((taps, distance),) = g.taps
        apart = g.step[0] // distance  # input rows from one result to the next
        groups = g.image[2] // dot.group
        beside, many = self.words // groups, dot.lanes * dot.group
        # One loop around all rows: LLVM unrolls shorter ones, and keeps their weights in memory.
        with code.loop(groups) as k:
            for line in range((len(sums) - 1) * apart + taps):
                start = base + row * g.step[0] + line * distance + column * dot.group
                for right in range(beside):
                    at = start + (k * g.padded[1] + right) * dot.group
                    x = code.vector(load(source, at, many), many, dot.data, "x")
                    self._add(x, line, right * groups + k, apart, sums)

    def _add(self, x: Any, line: int, word: Any, apart: int, sums: Any) -> None:
        """Adds a group of products of every pixel and feature, of a row of the input."""
        ((taps, _),) = self.g.taps
        dot, lanes = self.dot, self.dot.lanes
        for r, row_sums in enumerate(sums):
            # A row of the input is in the windows of several results: one load for all.
            tap = line - r * apart
            if not 0 <= tap < taps:
                continue
            for f, total in enumerate(row_sums):
                at = ((tap * self.words + word) * lanes + f) * dot.group
                weights = tirx.reinterpret("int32", load(self.w, at, dot.group))
                w = tirx.reinterpret(f"{dot.weight}x{lanes * dot.group}", splat(weights, lanes))
                total.set(dot.step(total.get(), x.get(), w))

    def _copy(self, target: tirx.Buffer, n: Any) -> None:
        """Copies an image with its padding; turned, its order is row, group of channels, pixel."""
        if not self.turned:
            super()._copy(target, n)
            return
        g, code, group = self.g, self.code, self.dot.group
        (height, width, channels), (top, _, left, _) = g.image, g.padding
        if any(g.padding):
            with code.loop(math.prod(g.padded)) as i:
                code.store(target, i, const(self.zero, "uint8"))
        groups, lanes = channels // group, self.dot.lanes
        with code.loop(height) as h:
            source_row = (n * height + h) * width * channels
            target_row = (h + top) * g.padded[1] * channels + left * group
            # Sorting by halves needs a power of two; others are copied group by group.
            if width < lanes or groups & (groups - 1):
                with code.loop(groups) as k, code.loop(width) as w:
                    codes = load(self.x, source_row + w * channels + k * group, group)
                    code.store(target, target_row + (k * g.padded[1] + w) * group, codes, group)
                return
            # The last vector overlaps the one before, which is cheaper than a shorter one.
            starts = [
                *range(0, width - lanes + 1, lanes),
                *([width - lanes] if width % lanes else []),
            ]
            for start in starts:
                self._turn(target, source_row + start * channels, target_row + start * group)

    def _turn(self, target: tirx.Buffer, source_row: Any, target_row: Any) -> None:
        """Sorts the groups of as many pixels as there are lanes."""
        g, code, lanes, group = self.g, self.code, self.dot.lanes, self.dot.group
        groups, many = g.image[2] // group, lanes * group
        vectors = []
        for i in range(groups):
            words = tirx.reinterpret(f"int32x{lanes}", load(self.x, source_row + i * many, many))
            vectors.append(code.vector(words, lanes, "int32", "groups").get())
        for k in range(groups):
            parts, each = vectors, lanes
            if groups > 1:
                picked = [tirx.const(i, "int32") for i in range(k, 2 * lanes, groups)]
                parts, each = self._pairs(parts, picked)
            # Every round joins vectors in pairs: log2(groups) shuffles deep.
            while len(parts) > 1:
                parts, each = self._pairs(parts, [tirx.const(i, "int32") for i in range(2 * each)])
            words = tirx.reinterpret(f"uint8x{many}", parts[0])
            code.store(target, target_row + k * g.padded[1] * group, words, many)

    def _pairs(self, parts: list[Expr], picked: list[Expr]) -> tuple[list[Expr], int]:
        """Picks the same lanes of every two vectors."""
        lanes = len(picked)
        both = [
            tirx.Shuffle(list(pair), picked) for pair in zip(parts[::2], parts[1::2], strict=True)
        ]
        return [self.code.vector(one, lanes, "int32", "part").get() for one in both], lanes

    def _strided(self, at: Any, feature: int, buffer: Any, lanes: int) -> Expr:
        """Loads neighbouring pixels of one feature."""
        place = tirx.Ramp(index(at + feature), index(self.g.features), lanes)
        return tirx.BufferLoad(buffer, [index(0)] * (len(buffer.shape) - 1) + [place])

    def _beside(self, at: Any, feature: int, buffer: Any, lanes: int) -> Expr:
        """Loads neighbouring pixels of one feature by a shuffle; none may lie beyond the end."""
        features = self.g.features
        vector = load(buffer, at, lanes * features)
        picked = [tirx.const(p * features + feature, "int32") for p in range(lanes)]
        return tirx.Shuffle([vector], picked)

    def _weave(self, results: list[Any], place: Any, pixels: int, every: int) -> None:
        """Stores features of every so many pixels side by side."""
        code, lanes, dtype = self.code, self.dot.lanes, self.epilogue.dtype
        size = 1 if dtype == "uint8" else 4
        packed, per = list(results), 1
        if dtype == "uint8":
            # Four features' bytes share a dword by shifts, which takes a quarter of the shuffles.
            per = 4
            packed = []
            for start in range(0, len(results), per):
                word = results[start].get()
                for shift, one in enumerate(results[start + 1 : start + per], 1):
                    word = word | (one.get() << const(8 * shift, "int32", lanes))
                held = code.vector(word, lanes, "int32", "word")
                bytes_ = tirx.reinterpret(f"uint8x{4 * lanes}", held.get())
                packed.append(code.vector(bytes_, 4 * lanes, "uint8", "bytes"))
        places = [
            (f // per) * lanes * per + p * every * per + f % per
            for p in range(pixels)
            for f in range(len(results))
        ]
        done, vectors = 0, [one.get() for one in packed]
        while done < len(places):
            many = min(_BYTES // size, 2 ** int(math.log2(len(places) - done)))
            picked = [tirx.const(n, "int32") for n in places[done : done + many]]
            code.store(self.y, place + done, tirx.Shuffle(vectors, picked), many)
            done += many


_PIXELS, _FEW_REGISTERS = 8, 16


def depthwise_dot(dot: Dot) -> Dot:
    """Adapts the instructions: groups of one product where rows can't be woven."""
    if dot.name in ("vpdpbusd", "vpmaddwd"):
        return dot
    return dataclasses.replace(dot, lanes=8, group=1, weight="int16")


def depthwise_tile(geometry: Geometry, dot: Dot) -> DotTile:
    """Chooses neighbouring pixels of a row, or of the rows that a window of maxima has.

    Two rows where one shuffle serves both.
    """
    down, right = geometry.pool
    high, wide = geometry.walked
    if down == 1 and high % 2 == 0:
        down = _shifts(geometry, dot, 2)
    pixels = _PIXELS * (2 if dot.registers > _FEW_REGISTERS else 1)
    # Whole windows of maxima, which no tile may split.
    columns = max(right, min(wide, _PIXELS, pixels // down) // right * right)
    return DotTile(down, columns, 1)


def _shifts(geometry: Geometry, dot: Dot, rows: int) -> int:
    """Counts the rows of results whose windows lie in one woven group: so many, or one.

    Weights of each lie as far down in the group as the row does in the tile.
    """
    (high, below), _ = geometry.taps
    return rows if geometry.step[0] == below and high + rows - 1 <= dot.group else 1


class DepthwiseKernel(ContractionBuilder):
    """Writes the kernel of a depthwise convolution; only what differs from other convolutions."""

    def __init__(self, geometry: Geometry, *rest: Any):
        super().__init__(dataclasses.replace(geometry, groups=1), *rest)
        # Whole vectors of channels are read, also beyond the end.
        self.copied |= bool(geometry.features % self.dot.lanes)
        self.slack = 0

    def sums(self, place: TilePlace, pixels: list[tuple[int, int]]) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile by pixel, of one vector of channels."""
        g, dot, code, lanes = self.g, self.dot, self.code, self.dot.lanes
        source, base, _, _, first, row, column = place
        (high, below), (wide, beside) = g.taps
        zeros = const(0, "int32", lanes)
        totals = [code.vector(zeros, lanes, "int32", "sum") for _ in pixels]
        start = base + row * g.step[0] + column * g.step[1] + first * lanes
        shifts = _shifts(g, dot, self.tile.rows)
        chunks = -(-high // dot.group)
        # A window's weights are loaded once for all pixels of the tile.
        weights = {}
        many = lanes * dot.group
        for j, chunk, shift in itertools.product(range(wide), range(chunks), range(shifts)):
            at = (((first * wide + j) * chunks + chunk) * shifts + shift) * many
            held = load(self.w, at, many)
            weights[j, chunk, shift] = code.vector(held, many, dot.weight, "w")
        # Each column of a group of rows once, for all windows that hold it.
        readers: dict[tuple[int, int], list[tuple[int, tuple[int, int, int]]]] = {}
        for (p, (r, c)), j, chunk in itertools.product(
            enumerate(pixels), range(wide), range(chunks)
        ):
            shift, top = (r, 0) if shifts > 1 else (0, r)
            at = top * g.step[0] + c * g.step[1] + j * beside + chunk * dot.group * below
            readers.setdefault((at, chunk), []).append((p, (j, chunk, shift)))
        for at, chunk in sorted(readers):
            used = min(dot.group, high - chunk * dot.group + shifts - 1)
            x = self._woven(source, start + at, below, used)
            for p, which in readers[at, chunk]:
                total, w = totals[p], weights[which].get()
                if dot.group == 1:
                    # Words of 16 bits: on ARM, LLVM makes a widening multiply-add of this.
                    product = cast(x, "int32", lanes) * cast(w, "int32", lanes)
                    total.set(total.get() + product)
                else:
                    total.set(dot.step(total.get(), x, w))
        return {(p, 0): total.get() for p, total in enumerate(totals)}

    def _woven(self, source: Any, at: Any, below: int, used: int) -> Expr:
        """Weaves neighbouring channels of some rows, row by row within each channel."""
        dot, code, lanes = self.dot, self.code, self.dot.lanes
        rows = [load(source, at + i * below, lanes) for i in range(used)]
        if dot.group == 1:
            return code.vector(rows[0], lanes, dot.data, "x").get()
        # Weights are zero where a window has no row: any other stands there.
        rows += [rows[-1]] * (dot.group - used)
        order = [
            tirx.const(i * lanes + lane, "int32") for lane in range(lanes) for i in range(dot.group)
        ]
        many = lanes * dot.group
        return code.vector(tirx.Shuffle(rows, order), many, dot.data, "x").get()


def depthwise_weights(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot, tile: DotTile
) -> relax.Expr:
    """Packs weights HW1C as vectors of channels, columns, groups of rows, shifts, lanes and rows.

    Rows of results that share their groups each have weights of their own, shifted down.
    """
    (high, _), (wide, _) = geometry.taps
    channels, lanes = geometry.features, dot.lanes
    shifts = _shifts(geometry, dot, tile.rows)
    shape = (-(-channels // lanes), wide, -(-high // dot.group), shifts, lanes, dot.group)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            vector, j, chunk, shift, lane, one = at
            i, channel = chunk * dot.group + one - shift, vector * lanes + lane
            inside = tirx.all(i >= 0, i < high, channel < channels)
            weight = tirx.Cast(dot.weight, w(i, j, 0, channel))
            return tirx.if_then_else(inside, weight, tirx.const(0, dot.weight))

        return te.compute(shape, element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})
