"""Between which numbers a scalar expression is, where the expression itself says so.

A function of a bounded number needs no code for what lies beyond: the exponential of a standard
normal's density is of -a^2 / 2 with an `a` that was clipped before.
"""

from __future__ import annotations

import itertools
import math

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar._scope import Scope

Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)
_DEPTH = 12  # definitions that are looked through
_MOST = ("LT", "LE")
_LEAST = ("GT", "GE")


def bounds(s: Scope, x: Expr, depth: int = _DEPTH) -> Bounds:
    """Finds the ends of what `x` may be, unless it is no number.

    Args:
        s: scope of the names in it.
        x: a floating-point expression.
        depth: operations that are looked through.

    Returns:
        The least and the largest value, infinities where nothing is known.
    """
    x = s.value(x)
    if isinstance(x, tirx.FloatImm):
        return (x.value, x.value) if math.isfinite(x.value) else _ANY
    if depth == 0:
        return _ANY
    if isinstance(x, tirx.Mul):
        return _product(*(bounds(s, part, depth - 1) for part in (x.a, x.b)))
    if isinstance(x, tirx.Div):
        parts = [bounds(s, part, depth - 1) for part in (x.a, x.b)]
        return (0.0, math.inf) if min(low for low, _ in parts) >= 0 else _ANY
    if isinstance(x, tirx.Select):
        return _selected(s, x, depth)
    name = str(x.op.name) if hasattr(x, "op") and hasattr(x.op, "name") else ""
    # A root of what is below zero is no number.
    return (0.0, math.inf) if name in ("tirx.fabs", "tirx.sqrt") else _ANY


def _product(a: Bounds, b: Bounds) -> Bounds:
    # Zero times infinity is no number, and zero is the end that such a product comes near to.
    ends = [0.0 if 0 in pair else math.prod(pair) for pair in itertools.product(a, b)]
    return min(ends), max(ends)


def _selected(s: Scope, x: tirx.Select, depth: int) -> Bounds:
    """Bounds a selection; one that compares what it selects is a minimum or a maximum."""
    low, high = (bounds(s, part, depth - 1) for part in (x.true_value, x.false_value))
    test = s.value(x.condition)
    kind = type(test).__name__
    if kind in (*_MOST, *_LEAST) and test.a.same_as(x.true_value) and test.b.same_as(x.false_value):
        keep = min if kind in _MOST else max
        return keep(low[0], high[0]), keep(low[1], high[1])
    return min(low[0], high[0]), max(low[1], high[1])
