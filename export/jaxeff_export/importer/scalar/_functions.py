"""Rounding, roots and the elementary functions."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar import _numerics as numerics
from jaxeff_export.importer.scalar._rules import ScalarOp, scalar_rule
from jaxeff_export.importer.scalar._scope import Scope, dtype_of


@scalar_rule("stablehlo.is_finite")
def _is_finite(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.abs(x) < tirx.const(float("inf"), dtype_of(x))


@scalar_rule("stablehlo.floor")
def _floor(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.floor(x)


@scalar_rule("stablehlo.ceil")
def _ceil(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.ceil(x)


@scalar_rule("stablehlo.round_nearest_even", cost=2)
def _round_nearest_even(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.nearbyint(x)


@scalar_rule("stablehlo.round_nearest_afz", cost=4)
def _round_nearest_afz(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    # x - trunc(x) is exact, so ties are told apart; x + 0.5 may round up to an integer.
    whole = s.let(tirx.trunc(x))
    away = s.let(tirx.abs(x - whole) >= tirx.const(0.5, op.dtype))
    one = tirx.const(1, op.dtype)
    step = tirx.Select(x < tirx.const(0, op.dtype), -one, one)
    return tirx.Select(away, whole + step, whole)


@scalar_rule("stablehlo.sqrt", cost=4)
def _sqrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.sqrt(x)


@scalar_rule("stablehlo.rsqrt", cost=8)
def _rsqrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.const(1, op.dtype) / tirx.sqrt(x)


@scalar_rule("stablehlo.cbrt", cost=20)
def _cbrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.call_pure_extern(op.dtype, "cbrtf" if op.dtype == "float32" else "cbrt", x)


def _register_unary(name: str, in_32_bits: Callable, in_64_bits: Callable, cost: int) -> None:
    @scalar_rule(name, cost=cost)
    def rule(s: Scope, op: ScalarOp, x: Expr) -> Expr:
        return in_32_bits(s, x) if op.dtype == "float32" else in_64_bits(s, x)


def library(name: str) -> Callable:
    """Calls the C library's function, for either width."""

    def call(s: Scope, *operands: Expr) -> Expr:
        dtype = dtype_of(operands[0])
        symbol = f"{name}f" if dtype == "float32" else name
        return tirx.call_pure_extern(dtype, symbol, *operands)

    return call


_register_unary("stablehlo.exponential", numerics.exp, library("exp"), 12)
_register_unary("stablehlo.exponential_minus_one", numerics.expm1, library("expm1"), 20)
_register_unary("stablehlo.log", numerics.log, library("log"), 16)
_register_unary("stablehlo.log_plus_one", numerics.log1p, library("log1p"), 24)
_register_unary("stablehlo.tanh", numerics.tanh, library("tanh"), 20)
_register_unary("stablehlo.sine", library("sin"), library("sin"), 20)
_register_unary("stablehlo.cosine", library("cos"), library("cos"), 20)
_register_unary("stablehlo.tan", library("tan"), library("tan"), 20)
_register_unary(
    "stablehlo.logistic",
    numerics.logistic,
    lambda s, x: tirx.const(1, "float64") / (tirx.const(1, "float64") + library("exp")(s, -x)),
    16,
)


@scalar_rule("stablehlo.atan2", cost=30)
def _atan2(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return library("atan2")(s, a, b)
