"""Convolutions of few features: sixteen pixels in a vector, where features would fill half of it.

The first layer of a network for images of one channel has six features or eight. Lanes are then
pixels of a row: a shuffle of a stretch of the input gives every lane its own group of products, and
the weights of one feature are broadcast. Results come feature by feature, and are woven together
when they are stored.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from .code import const, index, load, splat
from .contraction import Kernel, over
from .dots import Dot
from .geometry import Geometry

_BYTES = 64
MOST_FEATURES = 8


def suits(geometry: Geometry, dot: Dot) -> bool:
    """Whether lanes are better pixels than features."""
    bytes_of = 1 if dot.data in ("uint8", "int8") else 2
    reach = (dot.lanes - 1) * geometry.step[1] + dot.group
    return (
        geometry.groups == 1
        and not geometry.is_dense
        and len(geometry.taps) == 1
        and not dot.halves
        and dot.group > 1
        and geometry.features <= min(MOST_FEATURES, dot.lanes // 2)
        and geometry.walked[1] >= dot.lanes // 2
        and reach * bytes_of <= _BYTES
    )


class PixelsKernel(Kernel):
    """The kernel of such a layer; where it differs from that of other convolutions."""

    def __init__(self, *operands: Any):
        super().__init__(*operands)
        self.copied = True  # whole vectors are read, also beyond the end

    def _image(self, n: Any, cores: int) -> None:
        """An image; several are computed at once, but no parts of one."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        rows, columns = g.walked
        down, right = g.pool
        lanes -= lanes % right
        source, base = self.source(n)
        with code.loop(rows // down) as i:
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
        """Some neighbouring pixels of a row of results, with all their features."""
        g, code, lanes = self.g, self.code, self.dot.lanes
        down, right = g.pool
        zeros = const(0, "int32", lanes)
        sums = [
            [code.vector(zeros, lanes, "int32", "sum") for _ in range(g.features)]
            for _ in range(down)
        ]
        self._sum(source, base, i * down, column, sums)
        made = []
        for f in range(g.features):
            best: Expr | None = None
            for r, row in enumerate(sums):
                at = ((n * g.rows + i * down + r) * g.columns + column) * g.features + f
                take = functools.partial(self._strided, at, g.features)
                value = self.epilogue.scaled(row[f].get(), f, take, lanes, alone=True)
                best = value if best is None else tirx.max(best, value)
            assert best is not None
            for step in range(1, right):
                if step == 1:
                    held = code.vector(best, lanes, self.epilogue.scale_dtype, "largest")
                    best = held.get()
                turned = [tirx.const((p + step) % lanes, "int32") for p in range(lanes)]
                best = tirx.max(best, tirx.Shuffle([held.get()], turned))
            wide = self.epilogue.rounded(best, lanes)
            made.append(code.vector(wide, lanes, self.epilogue.wide_dtype, "wide"))
        pixel = (n * (g.walked[0] // down) + i) * (g.walked[1] // right)
        place = (pixel + over(column, right)) * g.features
        self._weave(made, place, count // right, right)

    def _sum(self, source: Any, base: Any, row: Any, column: Any, sums: Any) -> None:
        g, dot, code, lanes = self.g, self.dot, self.code, self.dot.lanes
        ((taps, distance),) = g.taps
        apart = g.step[0] // distance if distance else 0  # input rows from one result to the next
        whole = _BYTES if dot.data in ("uint8", "int8") else _BYTES // 2
        several = (lanes - 1) * g.step[1] + self.words * dot.group <= whole
        for line in range((len(sums) - 1) * apart + taps):
            start = base + row * g.step[0] + line * distance + column * g.step[1]
            held = None
            if several:
                held = code.vector(load(source, start, whole), whole, dot.data, "line")
            for word in range(self.words):
                if held is None:
                    there = load(source, start + word * dot.group, whole)
                    line_, offset = code.vector(there, whole, dot.data, "line"), 0
                else:
                    line_, offset = held, word * dot.group
                picked = [
                    tirx.const(offset + p * g.step[1] + one, "int32")
                    for p in range(lanes)
                    for one in range(dot.group)
                ]
                many = lanes * dot.group
                x = code.vector(tirx.Shuffle([line_.get()], picked), many, dot.data, "x")
                for r, row_sums in enumerate(sums):
                    tap = line - r * apart
                    if not 0 <= tap < taps:
                        continue
                    for f, total in enumerate(row_sums):
                        at = ((tap * self.words + word) * lanes + f) * dot.group
                        weights = tirx.reinterpret("int32", load(self.w, at, dot.group))
                        w = tirx.reinterpret(f"{dot.weight}x{many}", splat(weights, lanes))
                        total.set(dot.step(total.get(), x.get(), w))

    def _strided(self, at: Any, step: int, buffer: Any, lanes: int) -> Expr:
        """Neighbouring pixels of one feature."""
        place = tirx.Ramp(index(at), index(step), lanes)
        return tirx.BufferLoad(buffer, [index(0)] * (len(buffer.shape) - 1) + [place])

    def _weave(self, made: list[Any], place: Any, pixels: int, every: int) -> None:
        """Stores features of every so many pixels side by side."""
        code, lanes, dtype = self.code, self.dot.lanes, self.epilogue.dtype
        size = 1 if dtype == "uint8" else 4
        packed, per = list(made), 1
        if dtype == "uint8":
            per = 4
            packed = []
            for start in range(0, len(made), per):
                word = made[start].get()
                for shift, one in enumerate(made[start + 1 : start + per], 1):
                    word = word | (one.get() << const(8 * shift, "int32", lanes))
                held = code.vector(word, lanes, "int32", "word")
                bytes_ = tirx.reinterpret(f"uint8x{4 * lanes}", held.get())
                packed.append(code.vector(bytes_, 4 * lanes, "uint8", "bytes"))
        places = [
            (f // per) * lanes * per + p * every * per + f % per
            for p in range(pixels)
            for f in range(len(made))
        ]
        done, vectors = 0, [one.get() for one in packed]
        while done < len(places):
            many = min(_BYTES // size, 2 ** int(math.log2(len(places) - done)))
            picked = [tirx.const(n, "int32") for n in places[done : done + many]]
            code.store(self.y, place + done, tirx.Shuffle(vectors, picked), many)
            done += many
