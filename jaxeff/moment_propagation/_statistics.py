"""Recognises functions of a tensor and its own statistics: softmax, layer norm and their kin.

A tensor recombined with its maximum, mean or mean square can't be propagated primitive by
primitive, because the operands share every variable. Here a region's equations are read on symbols
("the tensor less its mean", "mean square plus epsilon"), so that softmax, log-softmax, log-sum-exp,
layer norm, batch norm in training, RMS norm, division by a norm or a standard deviation, variances
and norms are recognised however they are written, with their axes, epsilon and scale, inside calls
and under `vmap` too. As soon as a symbol is a whole function it has moments, and the rest of the
region is propagated as usual.

Sharp edges
- What isn't recognised is an error, not an approximation.
- Batch norm in training is treated like layer norm over the batch: the moments over inputs that
  are independent of each other, statistics included.
- Roots, inverses and logarithms of a variance or a mean square take it as a gamma variable; with a
  floor or a shift, inverses are those of a log-normal one. Of 4 and 16 entries (means and variances
  of order one) the standard deviation's variance is up to 6 % and 1 % too small, its inverse's up
  to 52 % and 4 %.
- A root that is raised to a floor is a Gaussian's maximum with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation._values import Gaussian, is_random, to_variance
from jaxeff.moment_propagation.rules import arithmetic, exponential, extremes, normalization
from jaxeff.program.ir import Axes, Node, extent, signature
from jaxeff.program.ir import axes as following
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import Constant, UnreadableError, symbolic


@dataclass(frozen=True)
class Statistic:
    """A symbol: `gain` times a named function of the tensor, with its axes followed.

    Attributes:
        name: Name of the function.
        labels: For each axis of the value, the axis of the tensor it is, None if it is neither.
        shape: The value's shape.
        axes: The axes of the tensor that were reduced, if any.
        gain: A known factor.
        eps: Number added under the root, relative to the gain.
        floor: Least value under the root, relative to the gain.
        shift: Number added to the root or the logarithm, relative to the gain.
        factors: Other operands it was multiplied by, of the value's shape.
    """

    name: str
    labels: Axes
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    gain: float = 1.0
    eps: float = 0.0
    floor: float = 0.0
    shift: float = 0.0
    factors: tuple[Any, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it has neither gain nor factors."""
        # A mean is a sum times 1/n: the gain returns to one up to the rounding of float32.
        return math.isclose(self.gain, 1.0, rel_tol=1e-5) and not self.factors


@dataclass(frozen=True)
class Independent:
    """A random operand that is independent of the tensor."""

    value: Any


Operand = Statistic | Constant | Independent


def tensor(x: Any) -> Statistic:
    """Returns the symbol of the tensor itself."""
    return Statistic("x", tuple(range(len(x.shape))), tuple(x.shape))


_REDUCED = {
    "x": "mean",
    "x^2": "mean square",
    "centred^2": "variance",
    "exp": "sum exp",
    "exp of shifted": "sum exp of shifted",
}
_ABSOLUTE = {"x": "|x|", "centred": "|centred|"}
_SQUARED = {
    "x": "x^2", "|x|": "x^2", "mean": "mean^2", "centred": "centred^2", "|centred|": "centred^2",
}  # fmt: skip
_EXPONENTIALS = {"x": "exp", "shifted": "exp of shifted", "log_softmax": "softmax"}
_LOGARITHMS = {
    "sum exp": "logsumexp",
    "sum exp of shifted": "logsumexp of shifted",
    "softmax": "log_softmax",
}
_SUMS = {("logsumexp of shifted", "max"): "logsumexp"}
_DIFFERENCES = {
    ("x", "max"): "shifted",
    ("x", "mean"): "centred",
    ("mean square", "mean^2"): "variance",
    ("shifted", "logsumexp of shifted"): "log_softmax",
    ("x", "logsumexp"): "log_softmax",
}
_QUOTIENTS = {
    ("exp", "sum exp"): "softmax",
    ("exp of shifted", "sum exp of shifted"): "softmax",
    ("centred", "root variance"): "layer_norm",
    ("x", "root mean square"): "rms_norm",
}
_PRODUCTS = {(a, f"1/{b}"): name for (a, b), name in _QUOTIENTS.items()}
_POWERS = {"variance", "mean square"}
_ROOTS = {f"root {name}" for name in _POWERS}
_DIVISORS = {divisor for _, divisor in _QUOTIENTS}


def read(node: Node, operands: Sequence[Any], numbers: Sequence[float | None]) -> Statistic | None:
    """Reads the symbol of an equation's result; None where it isn't a known statistic.

    Operands are symbols, arrays, or Gaussians that are independent of the tensor, at least one a
    `Statistic`; `numbers` is for each the number it is everywhere, None where that isn't known. A
    call is read through.
    """
    symbols = [_symbol(o, n) for o, n in zip(operands, numbers, strict=True)]
    (result,) = StatisticReader().equation(node.eqn, symbols)
    return result if isinstance(result, Statistic) else None


def _symbol(operand: Any, number: float | None) -> Operand:
    if isinstance(operand, Statistic):
        return operand
    return Independent(operand) if is_random(operand) else Constant(operand, number)


class StatisticReader(symbolic.SymbolicReader):
    """The domain of statistics: what it reads is a `Statistic` or unknown."""

    def __init__(self) -> None:
        self.rules = _RULES


def _known(name: str | None) -> str:
    """Returns a name that a table holds; an absent one makes the equation unreadable."""
    if name is None:
        raise UnreadableError
    return name


def _plain(*symbols: Any) -> None:
    """Refuses statistics that have a gain or factors."""
    if not all(isinstance(s, Statistic) and s.is_plain for s in symbols):
        raise UnreadableError


def _move(eqn: Any, s: Statistic, *sizes: Any) -> Statistic:
    labels = None if s.factors or sizes else following.followed(signature(eqn), s.labels)
    if labels is None:
        raise UnreadableError
    return replace(s, labels=labels, shape=tuple(eqn.outvars[0].aval.shape))


def _reduce(eqn: Any, s: Statistic, names: Mapping[str, str]) -> Statistic:
    """Reduces a symbol; if it is a statistic already, only over the same axes."""
    axes = tuple(a for i in eqn.params["axes"] if (a := s.labels[i]) is not None)
    apart = s.axes and set(s.axes) != set(axes)
    _plain(s)
    if len(axes) < len(eqn.params["axes"]) or apart:
        raise UnreadableError
    labels = following.followed(signature(eqn), s.labels) or ()
    shape = tuple(eqn.outvars[0].aval.shape)
    return Statistic(_known(names.get(s.name)), labels, shape, axes)


def _sum(eqn: Any, s: Statistic) -> Statistic:
    result = _reduce(eqn, s, _REDUCED)
    if result.name.startswith("sum"):
        return result
    # A sum over n entries is n times the mean; the division that follows takes the gain off again.
    return replace(result, gain=float(following.extent(s.shape, eqn.params["axes"])))


def _renamed(names: Mapping[str, str]) -> symbolic.Rule:
    """Makes the rule of a function that gives a plain statistic another name."""

    def rule(eqn: Any, s: Statistic) -> Statistic:
        _plain(s)
        return replace(s, name=_known(names.get(s.name)))

    return rule


_square = _renamed(_SQUARED)


def _integer_power(eqn: Any, s: Statistic) -> Statistic:
    return _power(eqn, s, Constant(None, float(eqn.params["y"])))


def _power(eqn: Any, s: Operand, exponent: Operand) -> Statistic:
    number = exponent.number if isinstance(exponent, Constant) else None
    if not isinstance(s, Statistic) or number not in _EXPONENTS:
        raise UnreadableError
    return _EXPONENTS[number](eqn, s)


def _root(eqn: Any, s: Statistic) -> Statistic:
    if s.name not in _POWERS or s.factors or s.gain <= 0:
        raise UnreadableError
    # sqrt(g (q + eps)) = sqrt(g) sqrt(q + eps): eps and floor are relative to the gain, so only the
    # gain has to follow.
    return replace(s, name=f"root {s.name}", gain=math.sqrt(s.gain))


def _inverse(eqn: Any, s: Statistic) -> Statistic:
    if s.name not in _DIVISORS | _POWERS or s.factors:
        raise UnreadableError
    return replace(s, name=f"1/{s.name}", gain=1 / s.gain)


def _logarithm(eqn: Any, s: Statistic) -> Statistic:
    if s.name not in _POWERS:
        return _renamed(_LOGARITHMS)(eqn, s)
    if s.factors or s.floor or s.gain <= 0:
        raise UnreadableError
    # log(g q) = log(g) + log(q): the gain becomes a shift.
    return replace(s, name=f"log {s.name}", gain=1.0, shift=math.log(s.gain))


_EXPONENTS: dict[float | None, symbolic.Rule] = {
    2.0: _square,
    0.5: _root,
    -1.0: _inverse,
    -0.5: lambda eqn, s: _inverse(eqn, _root(eqn, s)),
}


def _absolute(eqn: Any, s: Statistic) -> Statistic:
    if s.name in _ABSOLUTE:  # of norms that are written for any power, as PyTorch's
        return _renamed(_ABSOLUTE)(eqn, s)
    if not s.name.startswith(("sum exp", "root ")) or s.gain < 0:
        raise UnreadableError
    return s


def _is_finite(eqn: Any, s: Statistic) -> Statistic:
    if s.name != "max":
        raise UnreadableError
    return replace(s, name="finite")


# Scores of -inf stand for positions that are masked. PyTorch's softmax asks whether all are.
_NEGATED = {
    "masked": "unmasked",
    "unmasked": "masked",
    "any unmasked": "all masked",
    "all masked": "any unmasked",
}
_REDUCED_OR = {"unmasked": "any unmasked"}
_REDUCED_AND = {"masked": "all masked"}


def _compared(name: str) -> symbolic.Rule:
    """Makes the rule of a comparison with -inf."""

    def rule(eqn: Any, a: Operand, b: Operand) -> Statistic:
        s, number = _with_number(a, b)
        if s.name != "x" or number != -math.inf or s.factors or s.gain <= 0:
            raise UnreadableError
        return replace(s, name=name, gain=1.0)

    return rule


def _select(eqn: Any, which: Operand, no: Operand, yes: Operand) -> Statistic:
    """Reads what a guard leaves where nothing is infinite.

    `where(isfinite(max), max, 0)` is that of `jax.nn`, and `where(all(x == -inf), 0, softmax(x))`
    PyTorch's.
    """
    if not isinstance(which, Statistic):
        raise UnreadableError
    guarded, other = (no, yes) if which.name == "all masked" else (yes, no)
    names = {"finite": "max", "any unmasked": "softmax", "all masked": "softmax"}
    zero = isinstance(other, Constant) and other.number == 0
    if not (zero and isinstance(guarded, Statistic) and guarded.name == names.get(which.name)):
        raise UnreadableError
    if set(guarded.axes) != set(which.axes):
        raise UnreadableError
    return guarded


def _maximum(eqn: Any, a: Operand, b: Operand) -> Statistic:
    """Reads a maximum with a number as a floor, or as nothing if the number is never met."""
    s, number = _with_number(a, b)
    if s.name == "max" and number == -math.inf:
        return s
    if s.name not in _POWERS | _ROOTS or s.factors or s.gain <= 0:
        raise UnreadableError
    if number <= 0:
        return s
    if s.shift:
        raise UnreadableError
    # A floor on a root is the square of it on what is under the root.
    floor = (number / s.gain) ** (2 if s.name in _ROOTS else 1)
    return replace(s, floor=max(s.floor, floor))


def _add(eqn: Any, a: Operand, b: Operand) -> Statistic:
    if isinstance(a, Statistic) and isinstance(b, Statistic):
        _plain(a, b)
        name = _SUMS.get((a.name, b.name), _SUMS.get((b.name, a.name)))
        return _together(eqn, a, b, _known(name))
    s, number = _with_number(a, b)
    if number == 0:
        return s
    # Under a root an added number is an epsilon, beside it a shift: two attributes, which the rules
    # treat apart. Added to a floor it is neither.
    if s.factors or s.floor or s.gain <= 0 or number < 0:
        raise UnreadableError
    if s.name in _POWERS:
        return replace(s, eps=s.eps + number / s.gain)
    if s.name in _ROOTS:
        return replace(s, shift=s.shift + number / s.gain)
    raise UnreadableError


def _subtract(eqn: Any, a: Operand, b: Operand) -> Statistic:
    if isinstance(a, Statistic) and isinstance(b, Statistic):
        _plain(a, b)
        result = _together(eqn, a, b, _known(_DIFFERENCES.get((a.name, b.name))))
        if result.floor:  # a bounded mean square less the squared mean isn't a bounded variance
            raise UnreadableError
        return result
    if isinstance(a, Statistic) and isinstance(b, Constant) and b.number == 0:
        return a
    raise UnreadableError


def _multiply(eqn: Any, a: Operand, b: Operand) -> Statistic:
    if isinstance(a, Statistic) and isinstance(b, Statistic):
        # x * x: symbols are equal only if they are the same function in the same layout.
        if not a.factors and a == b:
            return _square(eqn, a)
        a, b = (a, b) if (a.name, b.name) in _PRODUCTS else (b, a)
        _plain(a)
        result = _together(eqn, a, b, _known(_PRODUCTS.get((a.name, b.name))))
        return replace(result, gain=b.gain, factors=b.factors)
    s, other = (a, b) if isinstance(a, Statistic) else (b, a)
    if not isinstance(s, Statistic) or isinstance(other, Statistic) or not s.axes:
        raise UnreadableError
    if isinstance(other, Constant) and other.number:
        return replace(s, gain=s.gain * other.number)
    # A factor between the inverse root and the centred tensor (a scale) is kept aside: the
    # normalization is a whole again once the tensor comes, and is scaled after that.
    if not s.name.startswith("1/root"):
        raise UnreadableError
    factor = other.array if isinstance(other, Constant) else other.value
    return replace(s, factors=(*s.factors, factor), shape=tuple(eqn.outvars[0].aval.shape))


def _divide(eqn: Any, a: Operand, b: Operand) -> Statistic:
    if isinstance(a, Statistic) and isinstance(b, Statistic):
        if b.factors:
            raise UnreadableError
        _plain(a)
        result = _together(eqn, a, b, _known(_QUOTIENTS.get((a.name, b.name))))
        return replace(result, gain=1 / b.gain)
    s, number = _with_number(a, b)
    if number == 0:
        raise UnreadableError
    if s is b:
        return replace(_inverse(eqn, s), gain=number / s.gain)
    if not s.axes:
        raise UnreadableError
    return replace(s, gain=s.gain / number)


def _with_number(a: Operand, b: Operand) -> tuple[Statistic, float]:
    """Returns the statistic of a pair, and the number that the other operand is."""
    s, other = (a, b) if isinstance(a, Statistic) else (b, a)
    if not isinstance(s, Statistic) or not isinstance(other, Constant) or other.number is None:
        raise UnreadableError
    return s, other.number


def _together(eqn: Any, a: Statistic, b: Statistic, name: str) -> Statistic:
    """Combines two statistics of the tensor, over the same axes, by a pointwise function."""
    shape = tuple(eqn.outvars[0].aval.shape)
    if a.axes and b.axes and set(a.axes) != set(b.axes):
        raise UnreadableError
    both = [s.labels or (None,) * len(shape) for s in (a, b)]  # a scalar lies along nothing
    # Both must lie along the same axes of the tensor: x less the mean of its transpose, of the same
    # shape if square, is no centred tensor.
    labels = following.united(*both)
    if any(following.crosses(statistic, labels) for statistic in both):
        raise UnreadableError
    return Statistic(
        name,
        labels,
        shape,
        a.axes or b.axes,
        eps=max(a.eps, b.eps),
        floor=max(a.floor, b.floor),
        shift=max(a.shift, b.shift),
    )


_RULES: dict[Any, symbolic.Rule] = {
    **dict.fromkeys(prim.MOVES, _move),
    p.reduce_sum_p: _sum,
    p.reduce_max_p: lambda eqn, s: _reduce(eqn, s, {"x": "max"}),
    p.square_p: _square,
    p.integer_pow_p: _integer_power,
    p.pow_p: _power,
    p.sqrt_p: _root,
    p.rsqrt_p: _EXPONENTS[-0.5],
    p.exp_p: _renamed(_EXPONENTIALS),
    p.log_p: _logarithm,
    p.abs_p: _absolute,
    p.is_finite_p: _is_finite,
    p.eq_p: _compared("masked"),
    p.ne_p: _compared("unmasked"),
    p.not_p: _renamed(_NEGATED),
    p.reduce_or_p: lambda eqn, s: _reduce(eqn, s, _REDUCED_OR),
    p.reduce_and_p: lambda eqn, s: _reduce(eqn, s, _REDUCED_AND),
    p.select_n_p: _select,
    p.max_p: _maximum,
    p.add_p: _add,
    p.sub_p: _subtract,
    p.mul_p: _multiply,
    p.div_p: _divide,
}


def moments(s: Statistic, x: Any, rules: Mapping[Any, Any]) -> Gaussian | None:
    """Computes the moments of a symbol from the tensor's; None for an intermediate one.

    `rules` may have others than the usual ones, by the name of the statistic.
    """
    x = to_variance(x)
    fn = rules.get(s.name, _MOMENTS.get(s.name))
    if fn is None:
        return None
    value = fn(s, x)
    if not s.is_plain:
        value = Gaussian(s.gain * value.mean, s.gain * s.gain * value.var)
    value = arithmetic.map_linear(lambda a: _arranged(a, s), value)
    # Factors are independent of the tensor, random ones (a scale with a posterior) included.
    for factor in s.factors:
        value = arithmetic.multiply(value, factor)
    return value


def approximation(s: Statistic, x: Any) -> str | None:
    """Says why the variance of a symbol may be more than 5 % off; None where it isn't."""
    if s.name == "logsumexp":
        return "pairs of a log-sum-exp are taken as Gaussian, a statistic"
    if s.name in _OF_MANY and extent(x.shape, s.axes) < _MANY:
        return f"the {s.name} of so few entries is approximated, a statistic"
    return None


def _arranged(value: Array, s: Statistic) -> Array:
    """Brings an array from the tensor's layout (size 1 where reduced) to the symbol's."""
    present = [x for x in s.labels if x is not None]
    # Axes that the symbol lacks have been reduced to size 1, so they can go to the end and be
    # dropped.
    dropped = [i for i in range(value.ndim) if i not in present]
    value = jnp.transpose(value, [*present, *dropped])
    value = value.reshape([value.shape[i] for i in range(len(present))])
    sizes = iter(value.shape)
    value = value.reshape([1 if x is None else next(sizes) for x in s.labels])
    return jnp.broadcast_to(value, s.shape)


def _over(fn: Callable[[Gaussian, int], Gaussian], keep: bool) -> Callable[..., Gaussian]:
    """Applies a function of one axis over several, flattened into one."""

    def apply(s: Statistic, x: Gaussian) -> Gaussian:
        # The rules of softmax take one axis: several are merged to a last one, and split again.
        rest = [i for i in range(x.ndim) if i not in s.axes]
        order = [*rest, *s.axes]
        lead = [x.shape[i] for i in rest]

        def forward(a: Array) -> Array:
            return jnp.transpose(a, order).reshape([*lead, -1])

        def backward(a: Array) -> Array:
            tail = [x.shape[i] if keep else 1 for i in s.axes]
            inverse = sorted(range(len(order)), key=order.__getitem__)
            return jnp.transpose(a.reshape([*lead, *tail]), inverse)

        y = fn(arithmetic.map_linear(forward, x), -1)
        return arithmetic.map_linear(backward, y)

    return apply


def _average(s: Statistic, x: Gaussian) -> Gaussian:
    # Var mean(x) = sum(v) / n^2 for independent entries.
    n = extent(x.shape, s.axes)
    mean = jnp.mean(x.mean, s.axes, keepdims=True)
    return Gaussian(mean, jnp.mean(x.var, s.axes, keepdims=True) / n)


def _maximum_of(s: Statistic, x: Gaussian) -> Gaussian:
    top = extremes.reduce_max(x, s.axes)
    return arithmetic.map_linear(lambda a: jnp.expand_dims(a, s.axes), top)


def _sum_of_exponentials(s: Statistic, x: Gaussian) -> Gaussian:
    # Exact: exponentials of independent entries are independent log-normals, and sums of those add.
    y = exponential(x)
    return Gaussian(*(jnp.sum(m, s.axes, keepdims=True) for m in (y.mean, y.var)))


def _power_of(s: Statistic, x: Gaussian) -> Gaussian:
    """Computes the moments of the variance or mean square that the symbol's name ends with."""
    mean_square = s.name.endswith("mean square")
    rule = normalization.mean_square if mean_square else normalization.variance
    return rule(x, s.axes, s.eps)


def _floored_power(s: Statistic, x: Gaussian) -> Gaussian:
    power = _power_of(s, x)
    return extremes.maximum(power, jnp.full_like(power.mean, s.floor)) if s.floor else power


def _root_of(s: Statistic, x: Gaussian) -> Gaussian:
    root = normalization.root(_power_of(s, x))
    if s.floor:
        root = extremes.maximum(root, jnp.full_like(root.mean, math.sqrt(s.floor)))
    return Gaussian(root.mean + s.shift, root.var)


def _inverse_root(s: Statistic, x: Gaussian) -> Gaussian:
    if s.floor or s.shift:
        # With a floor or a shift it is no gamma variable any more; log-normal, because it is
        # positive.
        return arithmetic.power_of_log_normal(_root_of(s, x), -1.0)
    return normalization.inverse_root(_power_of(s, x))


def _inverse_of(s: Statistic, x: Gaussian) -> Gaussian:
    if s.floor:
        return arithmetic.power_of_log_normal(_floored_power(s, x), -1.0)
    return normalization.inverse(_power_of(s, x))


def _logarithm_of(s: Statistic, x: Gaussian) -> Gaussian:
    log = normalization.logarithm(_power_of(s, x))
    return Gaussian(log.mean + s.shift, log.var)


def _norm_over(centre: bool) -> Callable[[Statistic, Gaussian], Gaussian]:
    return lambda s, x: normalization.normalize(x, s.axes, s.eps, s.shift, s.floor, centre=centre)


def _short_norm_over(centre: bool) -> Callable[[Statistic, Gaussian], Gaussian]:
    def moments(s: Statistic, x: Gaussian) -> Gaussian:
        if s.shift or s.floor or extent(x.shape, s.axes) < _MANY:
            return _norm_over(centre)(s, x)
        return normalization.normalize_in_short(x, s.axes, s.eps, centre=centre)

    return moments


_MANY = 16
_OF_MANY = {
    f"{function}{power}"
    for function in ("root ", "1/root ", "1/", "log ")
    for power in ("variance", "mean square")
} | {"layer_norm", "rms_norm"}
"""Statistics whose distribution nears that of their rule as the number of entries grows."""

_MOMENTS: dict[str, Callable[[Statistic, Gaussian], Gaussian]] = {
    "x": lambda s, x: x,
    "mean": _average,
    "max": _maximum_of,
    "exp": lambda s, x: exponential(x),
    "sum exp": _sum_of_exponentials,
    "1/sum exp": lambda s, x: arithmetic.power_of_log_normal(_sum_of_exponentials(s, x), -1.0),
    "softmax": _over(normalization.softmax, keep=True),
    "log_softmax": _over(normalization.log_softmax, keep=True),
    "logsumexp": _over(normalization.logsumexp, keep=False),
    "centred": lambda s, x: normalization.centred(x, s.axes),
    "variance": _floored_power,
    "mean square": _floored_power,
    "root variance": _root_of,
    "root mean square": _root_of,
    "1/root variance": _inverse_root,
    "1/root mean square": _inverse_root,
    "1/variance": _inverse_of,
    "1/mean square": _inverse_of,
    "log variance": _logarithm_of,
    "log mean square": _logarithm_of,
    "layer_norm": _norm_over(centre=True),
    "rms_norm": _norm_over(centre=False),
}
IN_SHORT = {"layer_norm": _short_norm_over(centre=True), "rms_norm": _short_norm_over(centre=False)}
"""Those that stand beside factors of sites."""
