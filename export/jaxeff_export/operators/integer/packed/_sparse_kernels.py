"""Kernels of products with weights of which two of four inputs are kept, and how these lie.

A vector of values holds neighbours in the sums of as many outputs. Sixteen values of every output
share a dword of places in 2 bits, which one shift after the other moves to where shuffles read.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators.integer._contraction import vectors_of
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._geometry import Geometry
from jaxeff_export.operators.integer.packed._kernels import PackedBuilder, Place, reader
from jaxeff_export.operators.integer.packed._layout import shape_of
from jaxeff_export.operators.integer.packed._sparse_dots import SparseDot
from jaxeff_export.operators.statements import Vector, const, index, load

CHUNK, SHARED = 32, 16
"""Inputs of a turn of a kernel, and the values of them, whose places are a dword."""


class SparseBuilder(PackedBuilder):
    """A kernel of products with values that are kept."""

    def __init__(self, sparse: SparseDot, *operands: Any):
        geometry, dot, epilogue, *rest = operands
        self.places, *starts = epilogue.more
        self.starts = starts[0] if starts else None
        super().__init__(geometry.depth, CHUNK, geometry, dot, epilogue, *rest)
        self.sparse = sparse

    def source(self, n: Any) -> tuple[Any, Any]:
        """Returns rows filled up to whole chunks, of unsigned codes where products take them."""
        if self.starts is None:
            return super().source(n)
        g, code = self.g, self.code
        made = code.local(g.columns * self.line, "uint8", "moved")
        with code.loop(self.width) as row:
            with code.loop(g.depth) as k:
                value = load(self.x, (n * g.columns + row) * g.depth + k)
                moved = tirx.reinterpret("uint8", value) ^ tirx.const(128, "uint8")
                code.store(made, row * self.line + k, moved)
            # Values there are zero, so that any input does.
            for k in range(g.depth, self.line):
                code.store(made, row * self.line + k, const(0, "uint8"))
        return made, tirx.const(0, "int64")

    def totals(self, place: Place) -> dict[tuple[int, int], Vector]:
        """Writes the sums of a tile, of one chunk after the other."""
        code, lanes = self.code, self.dot.lanes
        dtype = "float32" if self.dot.data == "float32" else "int32"
        totals = self.vectors(dtype, place)
        if self.starts is not None:
            for (_, v), total in totals.items():
                total.set(load(self.starts, (place.first + v) * lanes, lanes))
        with code.loop(self.chunks) as chunk:
            held = []
            for v in range(self.tile.vectors):
                at = ((place.first + v) * self.chunks + chunk) * lanes
                held.append(code.vector(load(self.places, at, lanes), lanes, "int32", "places"))
            for turn, v in itertools.product(
                range(SHARED // self.sparse.each), range(self.tile.vectors)
            ):
                self._turn(place, chunk, turn, v, held[v].get(), totals)
        return totals

    def _turn(
        self,
        place: Place,
        chunk: Any,
        turn: int,
        v: int,
        places: Expr,
        totals: dict[tuple[int, int], Vector],
    ) -> None:
        """Writes the products of as many values of a vector as an instruction takes."""
        each, lanes, dot = self.sparse.each, self.dot.lanes, self.dot
        at = (((place.first + v) * self.chunks + chunk) * SHARED + turn * each) * lanes
        values = load(self.w, at, each * lanes)
        shifted = tirx.shift_right(places, const(2 * turn, "int32", lanes))
        # Two values of every block of four inputs.
        start = chunk * CHUNK + (turn * each // 2) * 4
        for p, c in enumerate(place.pixels):
            here = place.base + (place.column + c) * self.line + start
            found = self.sparse.pick(reader(place.source, here), shifted)
            totals[p, v].set(dot.step(totals[p, v].get(), found, values))


def laid_sparse(
    bb: relax.BlockBuilder,
    values: relax.Expr,
    places: relax.Expr,
    geometry: Geometry,
    sparse: SparseDot,
) -> list[relax.Expr]:
    """Lays values as vectors of outputs, chunks, turns, lanes and neighbours; places alike."""
    lanes, each, halves = sparse.dot.lanes, sparse.each, sparse.dot.halves
    kept, columns = shape_of(values)
    vectors, chunks = vectors_of(geometry, sparse.dot), -(-geometry.depth // CHUNK)
    turns, dtype = SHARED // each, str(values.ty.dtype)

    def spot(lane: Any, one: Any) -> tuple[Any, Any]:
        """Finds lane and neighbour of a place in a vector."""
        if not halves:
            return lane, one
        flat = lane * each + one
        half, left = tirx.indexdiv(flat, 2 * lanes), tirx.indexmod(flat, 2 * lanes)
        return tirx.indexdiv(left, 2), 2 * half + tirx.indexmod(left, 2)

    def pack_values(values: te.Tensor) -> te.Tensor:
        def element(v: Any, chunk: Any, turn: Any, lane: Any, one: Any) -> Any:
            lane, one = spot(lane, one)
            k, feature = chunk * SHARED + turn * each + one, v * lanes + lane
            inside = tirx.all(k < kept, feature < columns)
            return tirx.if_then_else(inside, values(k, feature), tirx.const(0, dtype))

        return te.compute((vectors, chunks, turns, lanes, each), element, name="packed")

    def pack_places(places: te.Tensor) -> te.Tensor:
        def of_value(k: Any, feature: Any) -> Any:
            byte = tirx.Cast("int32", places(tirx.indexdiv(k, 4), feature))
            found = tirx.shift_right(byte, tirx.Cast("int32", 2 * tirx.indexmod(k, 4))) & 3
            inside = tirx.all(k < kept, feature < columns)
            return tirx.if_then_else(inside, found, tirx.const(0, "int32"))

        def element(v: Any, chunk: Any, lane: Any) -> Any:
            # A shift by two bits for each turn brings the places of its values to the lowest bits
            # of `each` bytes.
            total: Any = tirx.const(0, "int32")
            for turn, one in itertools.product(range(turns), range(each)):
                mine, neighbour = spot(lane, index(one))
                k = chunk * SHARED + turn * each + neighbour
                found = of_value(k, v * lanes + mine)
                total = total | tirx.shift_left(found, tirx.const(8 * one + 2 * turn, "int32"))
            return total

        return te.compute((vectors, chunks, lanes), element, name="places")

    made = [(pack_values, values, "q_values"), (pack_places, places, "q_places")]
    return [
        bb.emit_te(pack, of, primfunc_name_hint=name, primfunc_attrs={PACKS: True})
        for pack, of, name in made
    ]


def sparse_starts(
    bb: relax.BlockBuilder, values: relax.Expr, geometry: Geometry, dot: Dot
) -> relax.Expr:
    """Computes -128 times the sum of an output's values."""
    kept, columns = shape_of(values)

    def sums(values: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, kept), name="k")
        total = te.compute(
            (columns,), lambda n: te.sum(tirx.Cast("int32", values(k, n)), axis=k), name="sums"
        )
        return te.compute(
            (vectors_of(geometry, dot) * dot.lanes,),
            lambda n: tirx.if_then_else(n < columns, total(n) * -128, tirx.const(0, "int32")),
            name="starts",
        )

    return bb.emit_te(sums, values, primfunc_name_hint="q_starts", primfunc_attrs={PACKS: True})
