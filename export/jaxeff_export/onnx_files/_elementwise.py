"""Pointwise operations as nodes of ONNX.

Sharp edge: what ONNX has no operator for is put together (`erfc` as one minus `erf`, `log1p` as the
logarithm of a sum), which is as exact as its parts where the result is compared with 1, not with 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxeff.core import primitives as p
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value

Rule = Callable[[OnnxGraph, Any, list[Value]], Value]

ONE_TO_ONE: dict[Any, str] = {
    p.abs_p: "Abs", p.acos_p: "Acos", p.acosh_p: "Acosh", p.add_p: "Add", p.add_jaxvals_p: "Add",
    p.asin_p: "Asin", p.asinh_p: "Asinh", p.atan_p: "Atan", p.atanh_p: "Atanh", p.ceil_p: "Ceil",
    p.cos_p: "Cos", p.cosh_p: "Cosh", p.div_p: "Div", p.eq_p: "Equal",
    p.erf_p: "Erf", p.exp_p: "Exp", p.floor_p: "Floor", p.ge_p: "GreaterOrEqual",
    p.gt_p: "Greater", p.le_p: "LessOrEqual", p.log_p: "Log", p.logistic_p: "Sigmoid",
    p.lt_p: "Less", p.max_p: "Max", p.min_p: "Min", p.mul_p: "Mul", p.neg_p: "Neg", p.pow_p: "Pow",
    p.sign_p: "Sign", p.sin_p: "Sin", p.sinh_p: "Sinh", p.sqrt_p: "Sqrt", p.sub_p: "Sub",
    p.tan_p: "Tan", p.tanh_p: "Tanh",
}  # fmt: skip
"""Operations that ONNX has as they are."""

_LOGICAL = {p.and_p: "And", p.or_p: "Or", p.xor_p: "Xor", p.not_p: "Not"}


def _one(eqn: Any) -> np.ndarray:
    return np.ones((), eqn.outvars[0].aval.dtype)


def _logical(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    dtype = eqn.outvars[0].aval.dtype
    if dtype != np.bool_:
        raise OnnxError(f"to_onnx: `{eqn.primitive}` of {dtype} has no operator in ONNX.")
    return g.emit(_LOGICAL[eqn.primitive], values)


def _round(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    if eqn.params["rounding_method"] is jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return g.emit("Round", values)
    half = np.asarray(0.5, eqn.outvars[0].aval.dtype)
    size = g.emit("Floor", [g.emit("Add", [g.emit("Abs", values), half])])
    return g.emit("Mul", [g.emit("Sign", values), size])


def _select(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    which, *cases = values
    if eqn.invars[0].aval.dtype != np.bool_ or len(cases) != 2:
        raise OnnxError("to_onnx: `select_n` among more than two cases has no operator in ONNX.")
    return g.emit("Where", [which, cases[1], cases[0]])


def _remainder(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    # With the sign of the dividend, as in C; the other kind has the divisor's.
    return g.emit("Mod", values, fmod=1)


def _exp2(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Pow", [2 * _one(eqn), *values])


def _is_finite(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Not", [g.emit("Or", [g.emit("IsInf", values), g.emit("IsNaN", values)])])


def _integer_pow(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    if eqn.params["y"] == 2:
        return g.emit("Mul", [*values, *values])
    return g.emit("Pow", [*values, np.asarray(eqn.params["y"], eqn.outvars[0].aval.dtype)])


def _clamp(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    low, x, high = values
    return g.emit("Min", [g.emit("Max", [x, low]), high])


ELEMENTWISE: dict[Any, Rule] = {
    **{one: lambda g, eqn, values: g.emit(ONE_TO_ONE[eqn.primitive], values) for one in ONE_TO_ONE},
    **dict.fromkeys(_LOGICAL, _logical),
    p.clamp_p: _clamp,
    p.convert_element_type_p: lambda g, eqn, values: g.cast(values[0], eqn.outvars[0].aval.dtype),
    p.erfc_p: lambda g, eqn, values: g.emit("Sub", [_one(eqn), g.emit("Erf", values)]),
    p.exp2_p: _exp2,
    p.expm1_p: lambda g, eqn, values: g.emit("Sub", [g.emit("Exp", values), _one(eqn)]),
    p.integer_pow_p: _integer_pow,
    p.is_finite_p: _is_finite,
    p.log1p_p: lambda g, eqn, values: g.emit("Log", [g.emit("Add", [*values, _one(eqn)])]),
    p.ne_p: lambda g, eqn, values: g.emit("Not", [g.emit("Equal", values)]),
    p.rem_p: _remainder,
    p.round_p: _round,
    p.rsqrt_p: lambda g, eqn, values: g.emit("Reciprocal", [g.emit("Sqrt", values)]),
    p.select_n_p: _select,
    p.square_p: lambda g, eqn, values: g.emit("Mul", [*values, *values]),
}
"""How each pointwise operation is written."""
