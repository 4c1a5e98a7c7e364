"""Recognises functions of a tensor and its own statistics: softmax, layer norm and their kin.

A tensor recombined with its maximum, mean or mean square can't be propagated primitive by
primitive, because the operands share every variable. This reader follows the region's equations on
symbols ("the tensor less its mean", "mean square plus epsilon"), so that softmax, log-softmax,
log-sum-exp, layer norm, batch norm in training, RMS norm and variances are recognised however they
are written, with their axes, epsilon and scale, under `vmap` too. As soon as a symbol is a whole
function its moments are taken from `softmax` or `normalization`, and the rest of the region is
propagated as usual.

Sharp edges
- What isn't recognised is an error, not an approximation.
- Batch norm in training is treated like layer norm over the batch: the moments over inputs that
  are independent of each other, statistics included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff._compat import primitives as p
from jaxeff.moments import arithmetic, clark, normalization
from jaxeff.moments import softmax as soft
from jaxeff.moments.gaussian import Gaussian
from jaxeff.moments.raw import to_variance
from jaxeff.program.graph import Node


@dataclass(frozen=True)
class Statistic:
    """A symbol: `gain` times a named function of the tensor, with its axes followed.

    Attributes:
        name: Which function.
        labels: For each axis of the value, the axis of the tensor it is, None if it is neither.
        shape: The value's shape.
        axes: The axes of the tensor that were reduced, if any.
        gain: A known factor.
        eps: What was added under the root, relative to the gain.
        factors: Other operands it was multiplied by, of the value's shape.
    """

    name: str
    labels: tuple[int | None, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    gain: float = 1.0
    eps: float = 0.0
    factors: tuple[Any, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether it has neither gain nor factors."""
        return math.isclose(self.gain, 1.0, rel_tol=1e-5) and not self.factors


def tensor(x: Any) -> Statistic:
    """The symbol of the tensor itself."""
    return Statistic("x", tuple(range(len(x.shape))), tuple(x.shape))


_REDUCED = {"x": "mean", "x^2": "mean square", "centred^2": "variance", "exp": "sum exp"}
_SQUARED = {"x": "x^2", "mean": "mean^2", "centred": "centred^2"}
_DIFFERENCES = {
    ("x", "max"): "shifted",
    ("x", "mean"): "centred",
    ("mean square", "mean^2"): "variance",
    ("shifted", "log sum exp of shifted"): "log_softmax",
    ("x", "logsumexp"): "log_softmax",
}
_PRODUCTS = {
    ("centred", "1/root variance"): "layer_norm",
    ("x", "1/root mean square"): "rms_norm",
}
_QUOTIENTS = {
    ("exp", "sum exp"): "softmax",
    ("centred", "root variance"): "layer_norm",
    ("x", "root mean square"): "rms_norm",
}
_POWERS = {"variance", "mean square"}


def read(node: Node, operands: Sequence[Any], numbers: Sequence[float | None]) -> Any:
    """The symbol of an equation's result, or None where it isn't a known statistic.

    Args:
        node: An equation with at least one `Statistic` operand and one result.
        operands: Symbols, arrays, or Gaussians that are independent of the tensor.
        numbers: For each operand the number it is everywhere, None where that isn't known.
    """
    primitive = node.primitive
    shape = tuple(node.outputs[0].aval.shape)
    if len(operands) == 1 or primitive is p.broadcast_in_dim_p:
        (s,) = operands
        return _unary(node, s, shape)
    if primitive is p.select_n_p:
        which, _, yes = operands
        if numbers[0] is not None:
            chosen = operands[1 + int(numbers[0])]
            return chosen if isinstance(chosen, Statistic) else None
        guards = isinstance(which, Statistic) and which.name == "finite" and numbers[1] == 0
        return yes if guards and isinstance(yes, Statistic) and yes.name == "max" else None
    if len(operands) != 2:
        return None
    a, b = operands
    if isinstance(a, Statistic) and isinstance(b, Statistic):
        return _of_both(node, a, b, shape)
    first = isinstance(a, Statistic)
    s, other, value = (a, b, numbers[1]) if first else (b, a, numbers[0])
    return _with_constant(primitive, s, other, value, first, shape)


def _unary(node: Node, s: Statistic, shape: tuple[int, ...]) -> Statistic | None:
    primitive, params = node.primitive, node.params
    moved = _moved(node, s, shape)
    if moved is not None:
        return replace(s, labels=moved, shape=shape)
    plain = s.is_plain
    if primitive in {p.stop_gradient_p, p.name_p, p.copy_p}:
        return s
    if primitive in {p.reduce_sum_p, p.reduce_max_p}:
        axes = tuple(s.labels[a] for a in params["axes"])
        labels = tuple(x for i, x in enumerate(s.labels) if i not in params["axes"])
        if None in axes or not plain:
            return None
        count = math.prod(s.shape[a] for a in params["axes"])
        if primitive is p.reduce_max_p:
            return Statistic("max", labels, shape, axes) if s.name == "x" else None
        name = _REDUCED.get(s.name)
        if name is None or (s.axes and set(s.axes) != set(axes)):
            return None
        return Statistic(name, labels, shape, axes, 1.0 if name == "sum exp" else float(count))
    if primitive is p.square_p or (primitive is p.integer_pow_p and params["y"] == 2):
        name = _SQUARED.get(s.name)
        return replace(s, name=name) if name and plain else None
    if primitive is p.exp_p and plain:
        name = {"shifted": "exp", "log_softmax": "softmax"}.get(s.name)
        return replace(s, name=name) if name else None
    if primitive is p.log_p and plain and s.name == "sum exp":
        return replace(s, name="log sum exp of shifted")
    if primitive is p.abs_p and s.name == "sum exp":
        return s
    if primitive is p.is_finite_p and s.name == "max":
        return replace(s, name="finite")
    if s.name in _POWERS and not s.factors:
        if primitive is p.sqrt_p:
            return replace(s, name=f"root {s.name}", gain=math.sqrt(s.gain))
        if primitive is p.rsqrt_p:
            return replace(s, name=f"1/root {s.name}", gain=1 / math.sqrt(s.gain))
    return None


def _of_both(node: Node, a: Statistic, b: Statistic, shape: tuple[int, ...]) -> Statistic | None:
    """A pointwise operation of two statistics of the one tensor."""
    tables = {
        p.sub_p: (_DIFFERENCES, False),
        p.mul_p: (_PRODUCTS, True),
        p.div_p: (_QUOTIENTS, True),
    }
    labels = _united(a.labels, b.labels)
    if labels is None:
        return None
    axes, eps = a.axes or b.axes, max(a.eps, b.eps)
    if a.axes and b.axes and set(a.axes) != set(b.axes):
        return None
    if node.primitive is p.add_p:
        names = {a.name, b.name}
        if names == {"log sum exp of shifted", "max"} and a.is_plain and b.is_plain:
            return Statistic("logsumexp", labels, shape, axes)
        return None
    if node.primitive is p.mul_p and node.inputs[0] is node.inputs[1]:
        name = _SQUARED.get(a.name)
        return replace(a, name=name) if name and a.is_plain else None
    if node.primitive not in tables:
        return None
    table, scalable = tables[node.primitive]
    if (a.name, b.name) not in table and node.primitive is p.mul_p:
        a, b = b, a
    name = table.get((a.name, b.name))
    if name is None or not a.is_plain or not (b.is_plain or scalable):
        return None
    if b.factors and node.primitive is p.div_p:
        return None
    gain = b.gain if node.primitive is p.mul_p else 1 / b.gain
    return Statistic(name, labels, shape, axes, gain, eps, b.factors)


def _with_constant(
    primitive: Any,
    s: Statistic,
    other: Any,
    value: float | None,
    first: bool,
    shape: tuple[int, ...],
) -> Statistic | None:
    """A pointwise operation of a statistic and something independent of the tensor."""
    if primitive is p.max_p and (
        (s.name == "max" and value == -math.inf) or (s.name == "variance" and value == 0)
    ):
        return s
    if primitive in {p.add_p, p.sub_p} and value == 0 and (first or primitive is p.add_p):
        return s
    if primitive is p.add_p and s.name in _POWERS and value is not None and value > 0:
        return replace(s, eps=s.eps + value / s.gain)
    if primitive is p.pow_p and first and value == -0.5 and s.name in _POWERS:
        return replace(s, name=f"1/root {s.name}", gain=1 / math.sqrt(s.gain))
    if primitive is p.div_p and first and value:
        return replace(s, gain=s.gain / value) if s.axes else None
    if primitive is p.div_p and not first and value and s.name.startswith("root "):
        return replace(s, name=f"1/{s.name}", gain=value / s.gain)
    if primitive is p.mul_p and s.axes:
        if value is not None:
            return replace(s, gain=s.gain * value)
        if s.name.startswith("1/root"):
            return replace(s, factors=(*s.factors, other), shape=shape)
    return None


def _moved(node: Node, s: Statistic, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Labels after an operation that only moves, adds or drops axes; None for any other."""
    params = node.params
    if s.factors:
        return None
    if node.primitive is p.transpose_p:
        return tuple(s.labels[i] for i in params["permutation"])
    if node.primitive is p.squeeze_p:
        return tuple(x for i, x in enumerate(s.labels) if i not in params["dimensions"])
    if node.primitive is p.broadcast_in_dim_p:
        labels: list[int | None] = [None] * len(shape)
        for source, target in enumerate(params["broadcast_dimensions"]):
            if s.shape[source] == shape[target]:
                labels[target] = s.labels[source]
        return tuple(labels)
    if node.primitive is p.reshape_p:
        if [n for n in s.shape if n != 1] != [n for n in shape if n != 1]:
            return None
        left = iter(x for x, n in zip(s.labels, s.shape, strict=True) if n != 1)
        return tuple(None if n == 1 else next(left) for n in shape)
    return None


def _united(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    if len(a) != len(b):
        return None
    if any(None not in (u, v) and u != v for u, v in zip(a, b, strict=True)):
        return None
    return tuple(v if u is None else u for u, v in zip(a, b, strict=True))


def moments(s: Statistic, x: Any) -> Gaussian | None:
    """The moments of a symbol, given the tensor's; None for one that is only an intermediate."""
    x = to_variance(x)
    fn = _MOMENTS.get(s.name)
    if fn is None:
        return None
    value = fn(s, x)
    if not s.is_plain:
        value = Gaussian(s.gain * value.mean, s.gain * s.gain * value.var)
    value = arithmetic.map_linear(lambda a: _arranged(a, s), value)
    for factor in s.factors:
        value = arithmetic.multiply(value, factor)
    return value


def _arranged(value: Array, s: Statistic) -> Array:
    """An array in the tensor's layout (size 1 where reduced), in the layout of the symbol."""
    present = [x for x in s.labels if x is not None]
    dropped = [i for i in range(value.ndim) if i not in present]
    value = jnp.transpose(value, [*present, *dropped])
    value = value.reshape([value.shape[i] for i in range(len(present))])
    sizes = iter(value.shape)
    value = value.reshape([1 if x is None else next(sizes) for x in s.labels])
    return jnp.broadcast_to(value, s.shape)


def _over(fn: Callable[[Gaussian, int], Gaussian], keep: bool) -> Callable[..., Gaussian]:
    """Applies a function of one axis over several, flattened into one."""

    def apply(s: Statistic, x: Gaussian) -> Gaussian:
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
    n = math.prod(x.shape[a] for a in s.axes)
    mean = jnp.mean(x.mean, s.axes, keepdims=True)
    return Gaussian(mean, jnp.mean(x.var, s.axes, keepdims=True) / n)


def _maximum(s: Statistic, x: Gaussian) -> Gaussian:
    top = clark.reduce_max(x, s.axes)
    return arithmetic.map_linear(lambda a: jnp.expand_dims(a, s.axes), top)


_MOMENTS: dict[str, Callable[[Statistic, Gaussian], Gaussian]] = {
    "x": lambda s, x: x,
    "mean": _average,
    "max": _maximum,
    "softmax": _over(soft.softmax, keep=True),
    "log_softmax": _over(soft.log_softmax, keep=True),
    "logsumexp": _over(soft.logsumexp, keep=False),
    "centred": lambda s, x: normalization.centred(x, s.axes),
    "variance": lambda s, x: normalization.variance(x, s.axes, s.eps),
    "mean square": lambda s, x: normalization.mean_square(x, s.axes, s.eps),
    "root variance": lambda s, x: normalization.root(normalization.variance(x, s.axes, s.eps)),
    "root mean square": lambda s, x: normalization.root(
        normalization.mean_square(x, s.axes, s.eps)
    ),
    "layer_norm": lambda s, x: normalization.layer_norm(x, s.axes, s.eps),
    "rms_norm": lambda s, x: normalization.rms_norm(x, s.axes, s.eps),
}
