"""Recognises piecewise polynomials: reads a pointwise region symbolically in its one variable.

`max(x, 0)`, `where(x > 0, x, 0.01 * x)`, `x * relu6(x + 3) / 6`, `sign(x) * max(abs(x) - 0.5, 0)`:
however a kinked activation is written, evaluating it on symbols (comparisons and maxima cut the
line, the four operations combine the pieces) gives breakpoints and polynomials, whose moments
`piecewise` has in closed form. Anything but a polynomial becomes an unknown; the breakpoints met
on the way are then the kinks that quadrature should split at.

Sharp edges
- A breakpoint beyond 1e18, as of `max(x, finfo.min)`, is never reached.
- Breakpoints must be numbers. A slope may be an array (PReLU); a threshold given as an array isn't
  recognised.
- The derivative of a custom-derivative call is replaced by that of its moments.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.program.reading import UNKNOWN, Constant, UnreadableError, symbolic

_MAX_BREAKS = 6
_OUT_OF_REACH = 1e18  # its square overflows in float32; such a number stands for an infinity


@dataclass(frozen=True)
class Pieces:
    """A function of the variable by intervals; polynomials as coefficients, or truth values."""

    breaks: tuple[float, ...]
    values: tuple[Any, ...]


VARIABLE = Pieces((), ((0.0, 1.0),))
Symbol = Pieces | Constant


class PolynomialReader(symbolic.SymbolicReader):
    """The domain of piecewise polynomials.

    Attributes:
        kinks: Every breakpoint met so far.
    """

    # A stopped gradient stays one: a straight-through estimator is no polynomial of its input.
    transparent: ClassVar[set[Any]] = {p.name_p, p.copy_p}

    def __init__(self) -> None:
        self.rules = _RULES
        self.kinks: set[float] = set()

    def apply(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of an equation's results; one of too many pieces is unknown."""
        results = super().apply(eqn, operands)
        breaks_of = [r.breaks if isinstance(r, Pieces) else () for r in results]
        self.kinks.update(*breaks_of)
        return [
            UNKNOWN if len(breaks) > _MAX_BREAKS else r
            for r, breaks in zip(results, breaks_of, strict=True)
        ]


def is_nondecreasing(x: Pieces) -> bool:
    """Returns whether a piecewise linear function with known coefficients never decreases."""
    linear = all(
        isinstance(v, tuple) and len(v) <= 2 and all(isinstance(c, float) for c in v)
        for v in x.values
    )
    if not linear or any(len(v) == 2 and v[1] < 0 for v in x.values):
        return False
    # Jumps must go up; the tolerance is for coefficients rounded to float32, such as 1/6.
    steps = zip(x.breaks, itertools.pairwise(x.values), strict=True)
    return all(_at(above, b) >= _at(below, b) - 1e-6 for b, (below, above) in steps)


def _at(coefficients: tuple, t: float) -> float:
    return sum(c * t**i for i, c in enumerate(coefficients))


def _pieces(x: Symbol) -> Pieces:
    if isinstance(x, Pieces):
        return x
    assert isinstance(x, Constant)
    return Pieces((), ((x.array if x.number is None else x.number,),))


def _merge(x: Pieces, y: Pieces, extra: Sequence[float] = ()) -> list[tuple[float, Any, Any]]:
    """Returns a point inside each interval of both, with the value of either there."""
    breaks = sorted({*x.breaks, *y.breaks, *extra})
    return [(t, _value(x, t), _value(y, t)) for t in _inside(breaks)]


def _inside(breaks: Sequence[float]) -> list[float]:
    if not breaks:
        return [0.0]
    # On open intervals alone: a point of measure zero has no influence on a moment.
    middle = [(a + b) / 2 for a, b in itertools.pairwise(breaks)]
    return [breaks[0] - 1, *middle, breaks[-1] + 1]


def _value(x: Pieces, t: float) -> Any:
    return x.values[sum(t > b for b in x.breaks)]


def _joined(breaks: Sequence[float], values: Sequence[Any]) -> Pieces:
    """Joins neighbouring pieces that are equal."""
    kept_breaks: list[float] = []
    kept = [values[0]]
    # Fewer pieces are fewer truncated moments, and equal functions get equal symbols.
    for b, value in zip(breaks, values[1:], strict=True):
        if not _same(kept[-1], value):
            kept_breaks.append(b)
            kept.append(value)
    return Pieces(tuple(kept_breaks), tuple(kept))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    # Array coefficients (a slope per channel) are compared by identity: they may be traced.
    return len(a) == len(b) and all(
        (isinstance(u, float) and isinstance(v, float) and u == v) or u is v
        for u, v in zip(a, b, strict=True)
    )


def _combine(fn: Callable[[Any, Any], Any]) -> Callable[..., Pieces]:
    def rule(eqn: Any, x: Symbol, y: Symbol) -> Pieces:
        del eqn
        x, y = _pieces(x), _pieces(y)
        merged = _merge(x, y)
        return _joined(sorted({*x.breaks, *y.breaks}), [fn(a, b) for _, a, b in merged])

    return rule


def _polynomial(coefficients: Any) -> tuple:
    if not isinstance(coefficients, tuple):
        raise UnreadableError
    return coefficients


def _plus(a: Any, b: Any) -> tuple:
    pairs = itertools.zip_longest(_polynomial(a), _polynomial(b), fillvalue=0.0)
    # Adding zero to an array would make another array, which is no longer identical to the first.
    return tuple(u if _is_zero(v) else v if _is_zero(u) else u + v for u, v in pairs)


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0.0


def _times(a: Any, b: Any) -> tuple:
    a, b = _trim(_polynomial(a)), _trim(_polynomial(b))
    # Beyond degree two the variance needs moments above the fourth, which `piecewise` lacks.
    if len(a) + len(b) - 1 > 3:
        raise UnreadableError
    out: list[Any] = [0.0] * (len(a) + len(b) - 1)
    for (i, u), (j, v) in itertools.product(enumerate(a), enumerate(b)):
        if not (_is_zero(u) or _is_zero(v)):
            out[i + j] = u * v if _is_zero(out[i + j]) else out[i + j] + u * v
    return tuple(out)


def _trim(a: tuple) -> tuple:
    while len(a) > 1 and _is_zero(a[-1]):
        a = a[:-1]
    return a


def _negative(a: Any) -> tuple:
    return tuple(-c for c in _polynomial(a))


def _crossings(x: Pieces, y: Pieces) -> list[float]:
    """Finds where two piecewise linear functions with known coefficients meet."""
    breaks = sorted({*x.breaks, *y.breaks})
    ends = [-math.inf, *breaks, math.inf]
    roots = []
    for (lo, hi), (_, a, b) in zip(itertools.pairwise(ends), _merge(x, y), strict=True):
        # Between breakpoints both are linear, so they meet once at most.
        difference = _trim(_plus(a, _negative(b)))
        if len(difference) > 2 or not all(isinstance(c, float) for c in difference):
            raise UnreadableError
        if len(difference) == 2:
            root = -difference[0] / difference[1]
            if lo < root < hi and abs(root) < _OUT_OF_REACH:
                roots.append(root)
    return roots


def _choose(compare: Callable[[float, float], Any]) -> Callable[..., Pieces]:
    """Makes a rule that compares both operands on each interval and chooses by the outcome."""

    def rule(eqn: Any, x: Symbol, y: Symbol) -> Pieces:
        del eqn
        x, y = _pieces(x), _pieces(y)
        # After cutting where they meet, neither is the larger one on part of an interval only.
        cuts = _crossings(x, y)
        merged = _merge(x, y, cuts)
        return _joined(
            sorted({*x.breaks, *y.breaks, *cuts}), [_decide(compare, t, a, b) for t, a, b in merged]
        )

    return rule


def _decide(compare: Callable[[float, float], Any], t: float, a: Any, b: Any) -> Any:
    verdict = compare(_at(a, t), _at(b, t))
    return verdict if isinstance(verdict, bool) else (a, b)[verdict]


_greater = _choose(lambda u, v: 0 if u >= v else 1)
_smaller = _choose(lambda u, v: 0 if u <= v else 1)
_add, _multiply = _combine(_plus), _combine(_times)
_ZERO = Constant(0.0, 0.0)


def _map(fn: Callable[[Any], Any]) -> Callable[..., Pieces]:
    return lambda eqn, x: _joined(x.breaks, [fn(v) for v in x.values])


def _convert(eqn: Any, x: Pieces) -> Pieces:
    if not jnp.issubdtype(eqn.params["new_dtype"], jnp.floating):
        raise UnreadableError
    return _map(lambda v: (float(v),) if isinstance(v, bool) else v)(eqn, x)


def _divide(eqn: Any, x: Symbol, y: Symbol) -> Pieces:
    if not isinstance(y, Constant):
        raise UnreadableError
    inverse = Constant(1 / y.array, None if y.number is None else 1 / y.number)
    return _multiply(eqn, x, inverse)


def _sign(eqn: Any, x: Pieces) -> Pieces:
    # At zero itself the sign is zero, which has no influence on a moment.
    above = _choose(lambda u, v: u > v)(eqn, x, _ZERO)
    return _joined(above.breaks, [(1.0,) if v else (-1.0,) for v in above.values])


def _select(eqn: Any, which: Symbol, *cases: Symbol) -> Pieces:
    if not isinstance(which, Pieces) or len(cases) != 2:
        raise UnreadableError
    no, yes = (_pieces(c) for c in cases)
    breaks = sorted({*which.breaks, *no.breaks, *yes.breaks})
    values = []
    for t in _inside(breaks):
        truth = _value(which, t)
        if not isinstance(truth, bool):
            raise UnreadableError
        values.append(_value(yes if truth else no, t))
    return _joined(breaks, values)


def _power(eqn: Any, x: Pieces) -> Pieces:
    if eqn.params["y"] != 2:
        raise UnreadableError
    return _multiply(eqn, x, x)


def _logic(fn: Callable[[bool, bool], bool]) -> Callable[..., Pieces]:
    def both(a: Any, b: Any) -> bool:
        if not (isinstance(a, bool) and isinstance(b, bool)):
            raise UnreadableError
        return fn(a, b)

    return _combine(both)


_RULES: dict[Any, Callable[..., Pieces]] = {
    p.add_p: _add,
    p.add_jaxvals_p: _add,
    p.sub_p: lambda eqn, x, y: _add(eqn, x, _map(_negative)(eqn, _pieces(y))),
    p.mul_p: _multiply,
    p.div_p: _divide,
    p.neg_p: _map(_negative),
    p.square_p: lambda eqn, x: _multiply(eqn, x, x),
    p.integer_pow_p: _power,
    p.abs_p: lambda eqn, x: _greater(eqn, x, _map(_negative)(eqn, x)),
    p.sign_p: _sign,
    p.max_p: _greater,
    p.min_p: _smaller,
    p.clamp_p: lambda eqn, lo, x, hi: _smaller(eqn, _greater(eqn, x, lo), hi),
    p.gt_p: _choose(lambda u, v: u > v),
    p.ge_p: _choose(lambda u, v: u >= v),
    p.lt_p: _choose(lambda u, v: u < v),
    p.le_p: _choose(lambda u, v: u <= v),
    p.and_p: _logic(lambda a, b: a and b),
    p.or_p: _logic(lambda a, b: a or b),
    p.not_p: _map(lambda v: not v),
    p.is_finite_p: _map(lambda v: True),
    p.select_n_p: _select,
    p.convert_element_type_p: _convert,
}
