"""From the composites of an exported moment pass to the operators of this library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, te

from . import linear
from .layers import Form

_FUSES_WHAT_FOLLOWS = 4  # TVM's OpPatternKind.kOutEWiseFusable


def _emit(
    bb: relax.BlockBuilder,
    operator: Callable[..., list[te.Tensor]],
    *tensors: relax.Expr,
    name: str,
) -> list[relax.Expr]:
    """Emit an operator of two results as one kernel."""
    result = bb.emit_te(
        operator,
        *tensors,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": _FUSES_WHAT_FOLLOWS},
    )
    return [bb.emit(relax.TupleGetItem(result, i)) for i in range(2)]


def _dense(
    bb: relax.BlockBuilder, *tensors: relax.Expr, input: str, weight: str, bias: str
) -> list[relax.Expr]:
    form = Form(input, weight, bias)
    leading = [int(n) for n in tensors[0].ty.shape][:-1]
    depth = int(tensors[0].ty.shape[-1])
    columns = int(tensors[1 + (input != "deterministic")].ty.shape[1])

    def flat(tensor: relax.Expr) -> relax.Expr:
        return bb.emit(relax.op.reshape(tensor, (math.prod(leading), depth)))

    if len(leading) != 1:
        inputs = 1 + (input != "deterministic")
        tensors = (*(flat(t) for t in tensors[:inputs]), *tensors[inputs:])
    results = _emit(bb, lambda *t: linear.dense(form, *t), *tensors, name="pfp_dense")
    if len(leading) != 1:
        results = [bb.emit(relax.op.reshape(r, (*leading, columns))) for r in results]
    return results


def _conv2d(
    bb: relax.BlockBuilder,
    *tensors: relax.Expr,
    input: str,
    weight: str,
    bias: str,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> list[relax.Expr]:
    form = Form(input, weight, bias)

    def operator(*operands: te.Tensor) -> list[te.Tensor]:
        return linear.conv2d(
            form,
            *operands,
            strides=[int(n) for n in strides],
            padding=[int(n) for n in padding],
            dilation=[int(n) for n in dilation],
            groups=int(groups),
        )

    return _emit(bb, operator, *tensors, name="pfp_conv2d")


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "jaxeff.pfp_dense": _dense,
    "jaxeff.pfp_conv2d": _conv2d,
}
