"""Depthwise convolutions: a channel to a lane, each with its own window.

A step of the dot products of bytes adds four products of one output, so the four rows of a window
are woven together: one shuffle of neighbouring channels of up to four rows, which serves every
pixel of the tile whose window holds that column. Where there is no such instruction that takes
them from a shuffle (ARM), products are of 16-bit codes, channel by channel.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators.integer._contraction import ContractionBuilder
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._geometry import DotTile, Geometry
from jaxeff_export.operators.statements import cast, const, load

_PIXELS = 8


def depthwise_dot(dot: Dot) -> Dot:
    """Adapts the instructions: groups of one product where rows can't be woven."""
    if dot.name in ("vpdpbusd", "vpmaddwd"):
        return dot
    return dataclasses.replace(dot, lanes=8, group=1, weight="int16")


def depthwise_tile(geometry: Geometry) -> DotTile:
    """Chooses neighbouring pixels of a row, or of the rows of a window of maxima."""
    down, right = geometry.pool
    _, wide = geometry.walked
    # Whole windows of maxima, which no tile may split.
    columns = max(right, min(wide, _PIXELS // down) // right * right)
    return DotTile(down, columns, 1)


class DepthwiseKernel(ContractionBuilder):
    """Writes the kernel of a depthwise convolution; only what differs from other convolutions."""

    def __init__(self, geometry: Geometry, *rest: Any):
        super().__init__(dataclasses.replace(geometry, groups=1), *rest)
        # Whole vectors of channels are read, also beyond the end.
        self.copied |= bool(geometry.features % self.dot.lanes)
        self.slack = 0

    def sums(
        self,
        source: Any,
        base: Any,
        group: Any,
        first: Any,
        row: Any,
        column: Any,
        pixels: list[tuple[int, int]],
    ) -> dict[tuple[int, int], Expr]:
        """Writes the sums of a tile by pixel, of one vector of channels."""
        g, dot, code, lanes = self.g, self.dot, self.code, self.dot.lanes
        (high, below), (wide, beside) = g.taps
        zeros = const(0, "int32", lanes)
        totals = [code.vector(zeros, lanes, "int32", "sum") for _ in pixels]
        start = base + row * g.step[0] + column * g.step[1] + first * lanes
        chunks = -(-high // dot.group)
        # A window's weights are loaded once for all pixels of the tile.
        weights = {}
        many = lanes * dot.group
        for j in range(wide):
            for chunk in range(chunks):
                at = ((first * wide + j) * chunks + chunk) * many
                held = load(self.w, at, many)
                weights[j, chunk] = code.vector(held, many, dot.weight, "w")
        # Each column of a group of rows once, for all windows that hold it.
        readers: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for p, (r, c) in enumerate(pixels):
            for j in range(wide):
                for chunk in range(chunks):
                    place = r * g.step[0] + c * g.step[1] + j * beside + chunk * dot.group * below
                    readers.setdefault((place, chunk), []).append((p, j, chunk))
        for place, chunk in sorted(readers):
            used = min(dot.group, high - chunk * dot.group)
            x = self._woven(source, start + place, below, used)
            for p, j, _ in readers[place, chunk]:
                total, w = totals[p], weights[j, chunk].get()
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
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot
) -> relax.Expr:
    """Packs weights HW1C as vectors of channels, columns, groups of rows, lanes and rows."""
    (high, _), (wide, _) = geometry.taps
    channels, lanes = geometry.features, dot.lanes
    shape = (-(-channels // lanes), wide, -(-high // dot.group), lanes, dot.group)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            vector, j, chunk, lane, one = at
            i, channel = chunk * dot.group + one, vector * lanes + lane
            inside = tirx.all(i < high, channel < channels)
            found = tirx.Cast(dot.weight, w(i, j, 0, channel))
            return tirx.if_then_else(inside, found, tirx.const(0, dot.weight))

        return te.compute(shape, element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})
