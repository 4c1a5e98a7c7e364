"""How packed weights and their steps lie for kernels: made once, with the bundle."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from jaxeff_export.compiler.passes import PACKS
from jaxeff_export.operators.integer._contraction import vectors_of
from jaxeff_export.operators.integer._dots import Dot
from jaxeff_export.operators.integer._geometry import Geometry

CODES = 8
"""Codes of an output in a dword."""


def laid_weights(
    bb: relax.BlockBuilder, w: relax.Expr, geometry: Geometry, dot: Dot, chunk: int, codes: bool
) -> relax.Expr:
    """Packs weights as vectors of outputs, dwords and lanes; or as vectors, inputs and lanes."""
    lanes, depth = dot.lanes, geometry.depth
    vectors, padded = vectors_of(geometry, dot), -(-depth // chunk) * chunk
    halved = str(w.ty.dtype) == "uint8"

    def pack(w: te.Tensor) -> te.Tensor:
        def code(k: Any, feature: Any) -> Any:
            """Reads a code as a whole number; zero where there is none."""
            inside = tirx.all(k < depth, feature < geometry.features)
            found = nibble(w, k, feature) if halved else tirx.Cast("int32", w(k, feature))
            return tirx.if_then_else(inside, found, tirx.const(0, "int32"))

        # Bytes lie output beside output: a load that widens is cheaper than unpacking dwords.
        if not halved:
            shape = (vectors, padded, lanes)
            return te.compute(
                shape, lambda v, k, n: tirx.Cast("int8", code(k, v * lanes + n)), name="packed"
            )
        # Unsigned for products with bytes; floats take two's complement, which shifts extend.
        moved = 8 if codes else 0

        def byte(v: Any, d: Any, lane: Any, one: Any) -> Any:
            low, high = (code(d * CODES + at + one, v * lanes + lane) for at in (0, 4))
            both = ((low + moved) & 15) | tirx.shift_left(
                (high + moved) & 15, tirx.const(4, "int32")
            )
            return tirx.Cast("uint8", both)

        dwords = (vectors, padded // CODES)
        if codes and dot.halves:
            return te.compute(
                (*dwords, 2, lanes, 2),
                lambda v, d, h, n, i: byte(v, d, n, 2 * h + i),
                name="packed",
            )
        return te.compute((*dwords, lanes, 4), byte, name="packed")

    return bb.emit_te(pack, w, primfunc_name_hint="q_nibbles", primfunc_attrs={PACKS: True})


def nibble(w: te.Tensor, k: Any, feature: Any) -> Any:
    """Reads a code of 4 bits, of which a byte holds two inputs of an output, each 8 above it."""
    byte = tirx.Cast("int32", w(tirx.indexdiv(k, 2), feature))
    return (tirx.shift_right(byte, 4 * tirx.Cast("int32", tirx.indexmod(k, 2))) & 15) - 8


def laid_steps(
    bb: relax.BlockBuilder, steps: relax.Expr, geometry: Geometry, lanes: int
) -> relax.Expr:
    """Packs steps as vectors of outputs, groups and lanes; float16 as its bits."""
    groups, columns = shape_of(steps)
    half = str(steps.ty.dtype) == "float16"
    # Signed, so that what widens a word extends its sign.
    dtype = "int16" if half else str(steps.ty.dtype)

    def pack(s: te.Tensor) -> te.Tensor:
        def element(v: Any, g: Any, lane: Any) -> Any:
            feature = v * lanes + lane
            found = s(g, feature)
            # Not every processor reads float16, and TVM would call a function for it.
            found = tirx.reinterpret("int16", found) if half else found
            return tirx.if_then_else(feature < columns, found, tirx.const(0, dtype))

        return te.compute((-(-columns // lanes), groups, lanes), element, name="packed")

    return bb.emit_te(pack, steps, primfunc_name_hint="q_steps", primfunc_attrs={PACKS: True})


def shape_of(tensor: relax.Expr) -> tuple[int, ...]:
    """Returns the sizes of a tensor."""
    return tuple(int(n) for n in tensor.ty.shape)
