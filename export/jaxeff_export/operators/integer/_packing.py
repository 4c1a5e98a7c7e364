"""Weights and numbers per feature in the order a kernel reads them, packed with the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators.integer._bits import WORD
from jaxeff_export.operators.integer._contraction import vectors_of, words_of
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._geometry import Geometry
from jaxeff_export.operators.integer._planes import weight_planes


def packed_weights(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot
) -> relax.Expr:
    """Packs weights (K, N) or HWIO as groups, vectors of features, taps, words, lanes, products."""
    taps = [count for count, _ in geometry.taps]
    shape = (geometry.groups, vectors_of(geometry, dot), *taps, words_of(geometry, dot))
    inner = (2, dot.lanes, dot.group // 2) if dot.halves else (dot.lanes, dot.group)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            group, vector, *place = at[: len(shape)]
            tap, word = place[:-1], place[-1]
            if dot.halves:
                half, lane, one = at[len(shape) :]
                product = half * (dot.group // 2) + one
            else:
                lane, product = at[len(shape) :]
            feature = vector * dot.lanes + lane
            along = word * dot.group + product
            # Zeros beyond a stretch cancel what kernels read there of the input.
            inside = tirx.all(feature < geometry.per_group, along < geometry.stretch)
            column = group * geometry.per_group + feature
            found = w(*_source(w, tap, along), column)
            zero = tirx.const(0, dot.weight)
            return tirx.if_then_else(inside, tirx.Cast(dot.weight, found), zero)

        return te.compute((*shape, *inner), element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def packed_planes(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, lanes: int, bits: int
) -> relax.Expr:
    """Packs weights as groups, vectors of features, bit planes, taps, words and outputs."""
    vectors = -(-geometry.per_group // lanes)
    taps = [count for count, _ in geometry.taps]
    planes = weight_planes(bits)
    shape = (geometry.groups, vectors, len(planes), *taps, -(-geometry.stretch // WORD), lanes)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            group, vector, plane, *tap, word, lane = at
            feature = vector * lanes + lane
            column = group * geometry.per_group + feature
            total: Any = tirx.const(0, "int32")
            for bit in range(WORD):
                along = word * WORD + bit
                inside = tirx.all(feature < geometry.per_group, along < geometry.stretch)
                code = tirx.Cast("int32", w(*_source(w, tap, along), column))
                shift = tirx.Cast("int32", plane) + planes[0][0]
                one = tirx.shift_right(code, shift) & tirx.const(1, "int32")
                one = tirx.shift_left(one, tirx.const(bit, "int32"))
                total = total | tirx.if_then_else(inside, one, tirx.const(0, "int32"))
            return total

        return te.compute(shape, element, name="packed")

    attributes = {PACKS: True}
    return bb.emit_te(pack, w, primfunc_name_hint="q_planes", primfunc_attrs=attributes)


def packed_bias(
    bb: relax.BlockBuilder,
    bias: relax.Expr,
    w: relax.Expr,
    geometry: Geometry,
    dot: Dot,
    finer: int = 0,
) -> relax.Expr:
    """Packs biases in whole vectors, corrected for moved codes of the input.

    Products count 2^finer of their units.
    """
    if not dot.offset:
        return packed_vector(bb, bias, geometry, dot.lanes)

    def moved(bias: te.Tensor, w: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(w.shape[:-1])]
        sums = te.compute(
            bias.shape, lambda n: te.sum(tirx.Cast("int32", w(*axes, n)), axis=axes), name="sums"
        )
        # sum x w = sum (x - offset) w + offset * sum w, in the units of the bias.
        return te.compute(
            bias.shape, lambda n: bias(n) + (dot.offset << finer) * sums(n), name="moved"
        )

    attributes = {PACKS: True}
    made = bb.emit_te(moved, bias, w, primfunc_name_hint="q_bias", primfunc_attrs=attributes)
    return packed_vector(bb, made, geometry, dot.lanes)


def packed_vector(
    bb: relax.BlockBuilder, vector: relax.Expr, geometry: Geometry, lanes: int
) -> relax.Expr:
    """Packs a number per feature in whole vectors."""
    vectors = -(-geometry.per_group // lanes)
    if vectors * lanes == geometry.per_group:
        return vector

    def pad(v: te.Tensor) -> te.Tensor:
        def element(group: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
            found = v(group * geometry.per_group + at)
            return tirx.if_then_else(at < geometry.per_group, found, tirx.const(0, v.dtype))

        return te.compute((geometry.groups, vectors * lanes), element, name="padded")

    return bb.emit_te(pad, vector, primfunc_name_hint="q_pad", primfunc_attrs={PACKS: True})


def _source(w: te.Tensor, tap: Sequence[Any], along: tirx.Expr) -> list[tirx.Expr]:
    """Indexes a product's weight, but for its feature."""
    if len(w.shape) == 2:
        return [along]
    if len(tap) == 2:
        return [*tap, along]
    depth = int(w.shape[2])
    return [tap[0], tirx.indexdiv(along, depth), tirx.indexmod(along, depth)]
