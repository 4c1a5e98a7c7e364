"""Products with packed weights as tensor expressions, for groups that no kernel has."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from jaxeff_export.operators.integer.packed._layout import nibble


def written_out(
    bb: relax.BlockBuilder, x: relax.Expr, w: relax.Expr, *steps: relax.Expr, group: int
) -> relax.Expr:
    """Emits the product; the scheduler tiles its loops."""
    halved, dtype = str(w.ty.dtype) == "uint8", "float32"
    if str(x.ty.dtype) == "int8":
        dtype = "int32"

    def product(x: te.Tensor, w: te.Tensor, *steps: te.Tensor) -> te.Tensor:
        rows, depth = x.shape
        columns = w.shape[1]

        def weight(k: Any, n: Any) -> Any:
            value = tirx.Cast(dtype, nibble(w, k, n) if halved else w(k, n))
            for each in steps:
                value = value * tirx.Cast(dtype, each(tirx.indexdiv(k, group), n))
            return value

        made = te.compute((depth, columns), weight, name="weights")
        k = te.reduce_axis((0, depth), name="k")
        return te.compute(
            (rows, columns),
            lambda m, n: te.sum(tirx.Cast(dtype, x(m, k)) * made(k, n), axis=k),
            name="product",
        )

    return bb.emit_te(product, x, w, *steps, primfunc_name_hint="q_product")
