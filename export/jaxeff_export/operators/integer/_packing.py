"""Weights and numbers per feature in the order a kernel reads them, packed with the bundle."""

from __future__ import annotations

import math
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
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot, together: int
) -> relax.Expr:
    """Packs weights (K, N) or HWIO in the order in which a kernel's tiles read them.

    A tile computes `together` vectors of features at once. Its weights are one piece of memory:
    step after step of its sums, and in each the vectors beside each other, of lanes and products.
    Kernels of few rows are bound by reading them, and one stream is read faster than several.

    Args:
        bb: builder of the module.
        w: weights as they are given.
        geometry: the layer's.
        dot: the instructions.
        together: vectors of a tile; the last tile of a group has those that are left.
    """
    taps, words = [count for count, _ in geometry.taps], words_of(geometry, dot)
    vectors, steps = vectors_of(geometry, dot), math.prod(taps) * words
    inner = (2, dot.lanes, dot.group // 2) if dot.halves else (dot.lanes, dot.group)

    def pack(w: te.Tensor) -> te.Tensor:
        def element(group: Any, at: Any, *lanes: Any) -> tirx.Expr:
            if dot.halves:
                half, lane, one = lanes
                product = half * (dot.group // 2) + one
            else:
                lane, product = lanes
            vector, step = _placed(at, vectors, steps, together)
            word, tap = tirx.indexmod(step, words), tirx.indexdiv(step, words)
            place: list[Any] = []
            for count in reversed(taps):
                place.insert(0, tirx.indexmod(tap, count))
                tap = tirx.indexdiv(tap, count)
            feature = vector * dot.lanes + lane
            along = word * dot.group + product
            # Zeros beyond a stretch cancel what kernels read there of the input.
            inside = tirx.all(feature < geometry.per_group, along < geometry.stretch)
            column = group * geometry.per_group + feature
            found = w(*_source(w, place, along), column)
            zero = tirx.const(0, dot.weight)
            return tirx.if_then_else(inside, tirx.Cast(dot.weight, found), zero)

        shape = (geometry.groups, vectors * steps, *inner)
        return te.compute(shape, element, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_pack", primfunc_attrs={PACKS: True})


def _placed(at: Any, vectors: int, steps: int, together: int) -> tuple[Any, Any]:
    """Returns the vector and the step whose weights lie at a place among those of a group."""
    whole, left = divmod(vectors, together)
    tile, within = tirx.indexdiv(at, together * steps), tirx.indexmod(at, together * steps)
    # What is left at the end is a narrower tile.
    wide = tirx.if_then_else(tile < whole, together, max(1, left))
    vector = tile * together + tirx.indexmod(within, wide)
    return vector, tirx.indexdiv(within, wide)


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
