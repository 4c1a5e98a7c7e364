"""From the composites of an exported moment pass to the operators of this library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, te

from jaxeff_export.compiler.tir import FUSES_WHAT_FOLLOWS
from jaxeff_export.operators import _linear as linear
from jaxeff_export.operators._layers import DETERMINISTIC, RAW, Form


def emit_operator(
    bb: relax.BlockBuilder,
    operator: Callable[..., list[te.Tensor]],
    *tensors: relax.Expr,
    name: str,
) -> list[relax.Expr]:
    """Emits an operator of two results as one kernel."""
    result = bb.emit_te(
        operator,
        *tensors,
        primfunc_name_hint=name,
        primfunc_attrs={"op_pattern": FUSES_WHAT_FOLLOWS},
    )
    return [bb.emit(relax.TupleGetItem(result, i)) for i in range(2)]


def _dense(
    bb: relax.BlockBuilder, *tensors: relax.Expr, input: str, weight: str, bias: str
) -> list[relax.Expr]:
    form = Form(input, weight, bias)
    x, rest = list(tensors[: form.inputs]), _weights(bb, form, tensors)
    *leading, depth = (int(n) for n in x[0].ty.shape)
    columns = int(rest[0].ty.shape[1])
    # A product has one axis of rows: leading dimensions become one and are restored after it.
    if len(leading) != 1:
        flat = (math.prod(leading), depth)
        x = [bb.emit(relax.op.reshape(tensor, flat)) for tensor in x]
    results = emit_operator(bb, lambda *t: linear.dense(form, *t), *x, *rest, name="pfp_dense")
    if len(leading) != 1:
        results = [bb.emit(relax.op.reshape(r, (*leading, columns))) for r in results]
    return results


def _conv2d(
    bb: relax.BlockBuilder, *tensors: relax.Expr, input: str, weight: str, bias: str, **window: Any
) -> list[relax.Expr]:
    form = Form(input, weight, bias)

    def operator(*operands: te.Tensor) -> list[te.Tensor]:
        return linear.conv2d(form, *operands, **window)

    x = tensors[: form.inputs]
    return emit_operator(bb, operator, *x, *_weights(bb, form, tensors), name="pfp_conv2d")


def _weights(bb: relax.BlockBuilder, form: Form, tensors: Sequence[relax.Expr]) -> list[relax.Expr]:
    """Returns weights and bias, with E[w^2] in place of Var[w] in the raw form.

    A kernel of its own computes it. If the weights are parameters, it runs once, with the bundle.
    """
    mean, *rest = tensors[form.inputs :]
    if form.input != RAW or form.weight == DETERMINISTIC:
        return [mean, *rest]

    def second_moment(mean: te.Tensor, var: te.Tensor) -> te.Tensor:
        return te.compute(mean.shape, lambda *at: mean(*at) * mean(*at) + var(*at), name="second")

    variance, *bias = rest
    second = bb.emit_te(second_moment, mean, variance, primfunc_name_hint="second_moment")
    return [mean, second, *bias]


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "jaxeff.pfp_dense": _dense,
    "jaxeff.pfp_conv2d": _conv2d,
}
