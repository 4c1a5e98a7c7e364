"""The lowering of products with weights of which two of four inputs are kept."""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax, te, tirx
from tvm.target import Target

from jaxeff_export.operators.integer._geometry import Geometry
from jaxeff_export.operators.integer.packed._layout import shape_of
from jaxeff_export.operators.integer.packed._lowering import (
    WrittenKernels,
    packed_tile,
    product_kernel,
)
from jaxeff_export.operators.integer.packed._sparse_dots import bytes_of, floats_of
from jaxeff_export.operators.integer.packed._sparse_kernels import (
    SparseBuilder,
    laid_sparse,
    sparse_starts,
)

SPARSE = "jaxeff.q_sparse"


def sparse_products(target: Target, cores: int, any_batch: bool) -> Any:
    """Returns the lowering of products with weights of 2 of 4 for a target."""
    of_codes, of_floats = bytes_of(target), floats_of(target)
    written = WrittenKernels("q_sparse")

    def lower(
        bb: relax.BlockBuilder,
        x: relax.Expr,
        values: relax.Expr,
        places: relax.Expr,
        *,
        weight_bits: int,
    ) -> relax.Expr:
        del weight_bits  # values of fewer bits are bytes, too
        codes = str(x.ty.dtype) == "int8"
        sparse = of_codes if codes else of_floats
        # A variable batch, and processors without shuffles: loops that the scheduler tiles.
        if sparse is None or any_batch:
            return _written_out(bb, x, values, places)
        (rows, depth), columns = shape_of(x), shape_of(values)[1]
        dot = sparse.dot
        geometry = Geometry.dense(rows, depth, columns)
        operands = [x, *laid_sparse(bb, values, places, geometry, sparse)]
        # Inputs of an unsigned dot product are 128 above theirs, which the sums begin below.
        if dot.data == "uint8":
            operands.append(sparse_starts(bb, values, geometry, dot))
        sizes = [(shape_of(o), str(o.ty.dtype)) for o in operands]
        tile = packed_tile(geometry, dot.lanes, dot.registers, 1)
        result, build = "sums" if codes else "float", functools.partial(SparseBuilder, sparse)
        shape = rows, columns
        name = written.name_of(
            bb,
            (*shape, depth, str(sizes)),
            lambda: product_kernel(geometry, dot, result, sizes, shape, cores, tile, build),
        )
        kind = relax.TensorType(shape, "int32" if codes else "float32")
        return bb.emit(relax.call_tir(name, relax.Tuple(operands), kind))

    return lower


def _written_out(
    bb: relax.BlockBuilder, x: relax.Expr, values: relax.Expr, places: relax.Expr
) -> relax.Expr:
    """Emits the product as loops over the values that are kept."""
    dtype = "int32" if str(x.ty.dtype) == "int8" else "float32"

    def product(x: te.Tensor, values: te.Tensor, places: te.Tensor) -> te.Tensor:
        kept, columns = values.shape
        i = te.reduce_axis((0, kept), name="i")

        def picked(m: Any, n: Any) -> Any:
            byte = tirx.Cast("int32", places(tirx.indexdiv(i, 4), n))
            place = tirx.shift_right(byte, tirx.Cast("int32", 2 * tirx.indexmod(i, 4))) & 3
            return x(m, tirx.indexdiv(i, 2) * 4 + tirx.Cast("int64", place))

        return te.compute(
            (x.shape[0], columns),
            lambda m, n: te.sum(
                tirx.Cast(dtype, picked(m, n)) * tirx.Cast(dtype, values(i, n)), axis=i
            ),
            name="product",
        )

    return bb.emit_te(product, x, values, places, primfunc_name_hint="q_sparse")
