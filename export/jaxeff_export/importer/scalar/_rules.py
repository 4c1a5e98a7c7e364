"""One rule per elementwise operation, on scalars.

The rules are in ``arithmetic``, ``comparison``, ``bits``, ``functions`` and ``conversion``. One
table serves whole tensors (``elementwise``) and the bodies of reductions. A rule is ``rule(scope,
op, *operands)``: ``op`` says the result dtype and holds the attributes. What each must get exactly
right is in the StableHLO specification; XLA's choices are taken where the specification leaves one
(division by zero, out-of-range conversions).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar._narrow_floats import NARROW, round_narrow
from jaxeff_export.importer.scalar._scope import Scope, bits_of, dtype_of, literal


@dataclasses.dataclass(frozen=True)
class ScalarOp:
    """The properties of an operation that scalar rules use."""

    dtype: str  # of the result
    op: Any
    same_operands: bool = False  # x op x: TVM must not simplify it as if x were never NaN
    in_reduction: bool = False  # whose order is free, and so is which of two zeros it keeps


ScalarRule = Callable[..., Expr]


@dataclasses.dataclass(frozen=True)
class ScalarEntry:
    """A rule and roughly how many additions it costs (decides what is computed twice)."""

    rule: ScalarRule
    cost: int = 1


SCALAR_RULES: dict[str, ScalarEntry] = {}


def scalar_rule(*names: str, cost: int = 1) -> Callable[[ScalarRule], ScalarRule]:
    """Registers the rule of one or more operations."""

    def register(rule: ScalarRule) -> ScalarRule:
        for name in names:
            SCALAR_RULES[name] = ScalarEntry(rule, cost)
        return rule

    return register


def apply_scalar(name: str, s: Scope, op: ScalarOp, *operands: Expr) -> Expr:
    """Applies the rule of ``name``, computing narrow floats in 32 bits and rounding once."""
    entry = SCALAR_RULES[name]
    if name in _EXACT_IN_ANY_DTYPE:
        return s.let(entry.rule(s, op, *operands))
    operands = tuple(widen(s, x) for x in operands)
    if op.dtype not in NARROW:
        return s.let(entry.rule(s, op, *operands))
    wide = s.let(entry.rule(s, dataclasses.replace(op, dtype="float32"), *operands))
    return narrow(s, wide, op.dtype)


_EXACT_IN_ANY_DTYPE = ("stablehlo.convert", "stablehlo.select")


def widen(s: Scope, x: Expr) -> Expr:
    """Returns a float16 as float32, everything else as it is."""
    if isinstance(x, tirx.FloatImm):
        return tirx.const(x.value, "float32" if dtype_of(x) == "float16" else dtype_of(x))
    return s.let(tirx.Cast("float32", x)) if dtype_of(x) == "float16" else x


def narrow(s: Scope, x: Expr, dtype: str) -> Expr:
    """Rounds a float32 to a narrow float, as it is held in a scope."""
    return s.let(tirx.Cast(dtype, x) if dtype == "float16" else round_narrow(s, x, dtype))


def visible_zero(x: Expr) -> Expr:
    """Hides a literal zero from TVM, which takes 0 * x for 0 and x + 0 for x; LLVM sees it."""
    if isinstance(x, tirx.FloatImm) and x.value == 0:
        bits = bits_of(dtype_of(x))
        minus_zero = tirx.reinterpret(dtype_of(x), tirx.const(1 << (bits - 1), f"uint{bits}"))
        return minus_zero if math.copysign(1.0, x.value) < 0 else tirx.abs(minus_zero)
    return x


def unsigned(x: Expr, bits: int) -> Expr:
    """Returns an integer's bits as an unsigned integer."""
    dtype = f"uint{bits}"
    if isinstance(x, tirx.IntImm):
        return literal(int(x.value) % (1 << bits), dtype)
    if dtype_of(x) != f"int{bits}":
        return tirx.Cast(dtype, x)
    # TVM refuses to convert what it finds to be a negative constant; LLVM sees through this.
    one = tirx.const(1, f"int{bits}")
    upper = (x >> one) & tirx.const((1 << (bits - 1)) - 1, f"int{bits}")
    return (tirx.Cast(dtype, upper) << tirx.const(1, dtype)) | tirx.Cast(dtype, x & one)
