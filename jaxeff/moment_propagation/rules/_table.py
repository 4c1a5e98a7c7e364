"""The one table of rules: what each JAX primitive does to random numbers, by kind.

A row says of a primitive which *kind* it is and, where that doesn't say it all, the rule of its
moments. Two folds read the table. The pass forward (`propagate`, means and variances) takes the
row's rule; the pass backward (`linear`, slopes) takes JAX's derivative, and what the kind says of
operands that examples share. So one row adds a primitive to both.

    kind       an entry of a result is                  moments           slopes of what is shared
    move       an entry, each taken once at most        moved             rows stay
    affine     a sum of entries, each taken or not      moved             summed over a row
    bilinear   a sum of products of two operands        three products    gradient, or variance
    pointwise  a function of one entry of each operand  rule, quadrature  summed over a row
    region     a function of many entries               rule              one example by one
    step       a pointwise function without a slope     none              zero
    discrete   a decision, at the means                 at the means      none

A rule is `rule(node, *values) -> list of outputs`: `node` is the equation, at least one of the
values is random, and operands are independent. It reads `var` or `second_moment`, whichever it
consumes, and returns a `Gaussian` (or a plain array) for each result. Operations on values that
share a random variable don't come here; `_regions` integrates them as a whole.

A primitive without a row, or whose row has no rule, is an error of the pass forward that names it
and its site. The pass backward takes any that JAX can differentiate, as a region.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation._values import Activated, Gaussian, Pooled, is_random, to_variance
from jaxeff.moment_propagation.rules import _activations as activations
from jaxeff.moment_propagation.rules import _arithmetic as arithmetic
from jaxeff.moment_propagation.rules import _extremes as extremes
from jaxeff.moment_propagation.rules import _smooth as smooth
from jaxeff.moment_propagation.rules._activations import gauss_legendre
from jaxeff.moment_propagation.rules._arithmetic import bilinear
from jaxeff.program.ir import FACTS, Contraction, Node, OperationFamily, signature
from jaxeff.program.ir import primitives as prim

Rule = Callable[..., Sequence[Any]]
DATA_MOVEMENT = {primitive for primitive, known in FACTS.items() if known.form == "sum"}
"""They move or sum entries: linear with coefficients 0 and 1."""


class Kind(Enum):
    """What a primitive does to numbers: see the module."""

    MOVE = "move"
    AFFINE = "affine"
    BILINEAR = "bilinear"
    POINTWISE = "pointwise"
    REGION = "region"
    STEP = "step"
    DISCRETE = "discrete"


class Row(NamedTuple):
    """What both passes know of a primitive.

    Attributes:
        kind: What it does to numbers.
        moments: The moments of its results; None if it has none by itself.
        function: The moments of a pointwise function of one random array, where they have a closed
            form.
        twice: The moments of the result where one random array is both operands.
    """

    kind: Kind
    moments: Rule | None = None
    function: Callable[[Any], Gaussian] | None = None
    twice: Callable[[Any], Any] | None = None


def kind_of(primitive: Any) -> Kind:
    """Returns a primitive's kind; one without a row may be a function of many entries."""
    return TABLE[primitive].kind if primitive in TABLE else Kind.REGION


def data_movement(node: Node, *values: Any) -> list[Any]:
    """Applies an operation that moves or sums entries to the means and to the variances."""
    # Coefficients 0 and 1 are their own squares.
    means = _compat.bind(node.eqn, *(arithmetic.mean_of(v) for v in values))
    variances = _compat.bind(node.eqn, *(_variance_or_zero(v) for v in values))
    one = isinstance(values[0], Pooled) and values[0].common.size == 1
    if one and node.primitive in _KEEPING:  # entries that are moved keep the variance all have
        (mean,), (var,), common = means, variances, values[0].common
        return [Pooled(mean, var, common.reshape((1,) * mean.ndim).astype(mean.dtype))]
    return [Gaussian(m, v) for m, v in zip(means, variances, strict=True)]


def _custom(node: Node, *values: Any) -> list[Any]:
    """Applies a function that moves entries and has a gradient of its own, with this gradient."""
    if not all(_only_moves(body) for body in _compat.sub_jaxprs(node.eqn)[:1]):
        raise TypeError("a function with a gradient of its own that does more than move entries")
    return data_movement(node, *values)


def _only_moves(body: Any) -> bool:
    """Returns whether all floating results of a body are entries of its operands."""
    moving = {OperationFamily.MOVE, OperationFamily.SELECT}
    eqn: Any
    for eqn in _compat.equations(body):
        if not any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
            continue  # places of entries
        if eqn.primitive in prim.CALLS:
            if not all(_only_moves(inner) for inner in _compat.sub_jaxprs(eqn)):
                return False
        elif eqn.primitive not in DATA_MOVEMENT or signature(eqn).family not in moving:
            return False  # a sum may meet an entry twice, a sort moves by the values themselves
    return True


def _variance_or_zero(value: Any) -> Any:
    if is_random(value):
        return value.var
    # Indices and masks select; floating-point constants contribute no variance.
    floating = jnp.issubdtype(jnp.result_type(value), jnp.floating)
    return jnp.zeros_like(value) if floating else value


def _contraction(node: Node, x: Any, w: Any) -> list[Any]:
    def op(a: Any, b: Any) -> Any:
        return _compat.bind(node.eqn, a, b)[0]

    if not isinstance(w, Pooled) or not is_pooled(node, w):
        return [bilinear(op, x, w)]
    power = x.second_moment if is_random(x) else x * x
    mean = op(arithmetic.mean_of(x), w.mean)
    var = jnp.broadcast_to(_pooled_product(node, power, w.common), mean.shape).astype(mean.dtype)
    return [Gaussian(mean, var + op(x.var, w.mean * w.mean) if is_random(x) else var)]


def is_pooled(node: Node, w: Pooled) -> bool:
    """Returns whether all terms of each sum of a contraction have a weight of the same variance."""
    contraction = Contraction.of(node)
    several = [axis for axis, n in enumerate(w.common.shape) if n > 1]
    if contraction.is_convolution:
        edges = [edge for ends in node.params["padding"] for edge in ends]
        if node.params["batch_group_count"] > 1 or any(edge < 0 for edge in edges):
            return False
    return not contraction.batch(1) and set(several) <= set(contraction.free(1))


def _pooled_product(node: Node, x: Any, w: Any) -> Any:
    """Contracts an array with weights that are the same in all terms of a sum."""
    contraction = Contraction.of(node)
    if not contraction.is_convolution:
        total = x.sum(contraction.summed(0))
        free = [w.shape[axis] for axis in contraction.free(1)]
        return total.reshape(total.shape + (1,) * len(free)) * w.reshape(free)
    image, kernel, result = contraction.layouts
    q, sizes, groups = node.params, node.inputs[1].aval.shape, contraction.groups
    at = image[1]
    grouped = (*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])
    # A depthwise convolution adds no channels, and repeats none.
    total = x if groups == x.shape[at] else x.reshape(grouped).sum(at + 1)
    # A channel a group, summed over the taps that lie inside the image: axis by axis, which takes
    # fewer sums than whole windows do.
    sums = total
    for i, axis in enumerate(image[2:]):
        of_axis = sizes[kernel[2 + i]], q["window_strides"][i], tuple(q["padding"][i])
        dilations = q["lhs_dilation"][i], q["rhs_dilation"][i]
        if (*of_axis, *dilations) == (1, 1, (0, 0), 1, 1):
            continue
        size, stride, base, window = ([1] * sums.ndim for _ in range(4))
        padding = [(0, 0)] * sums.ndim
        size[axis], stride[axis], padding[axis] = of_axis
        base[axis], window[axis] = dilations
        zero = np.zeros((), sums.dtype)
        sums = lax.reduce_window(sums, zero, lax.add, size, stride, padding, base, window)
    sums = sums.transpose([image[result.index(axis)] for axis in range(sums.ndim)])
    if sums.shape[result[1]] not in (1, sizes[kernel[0]]):
        sums = jnp.repeat(sums, sizes[kernel[0]] // groups, result[1])
    return sums * w.reshape([w.shape[kernel[0]] if axis == result[1] else 1
                             for axis in range(sums.ndim)])  # fmt: skip


def _extremum(fn: Callable[..., Gaussian], describe: Callable[[Node], Any]) -> Rule:
    """Returns the rule of a maximum or minimum over axes or windows."""

    def rule(node: Node, x: Any) -> list[Any]:
        # An extremum commutes with a nondecreasing function. Before a ReLU it is one of Gaussians,
        # as Clark's formulas assume, and the ReLU is evaluated on fewer entries.
        if isinstance(x, Activated):
            return [x.apply(fn(x.before, describe(node)))]
        return [fn(to_variance(x), describe(node))]

    return rule


def _scattered(fn: Callable[..., Gaussian]) -> Rule:
    """Returns the rule of a scatter that keeps the maximum or minimum of each place."""

    def rule(node: Node, *values: Any) -> list[Any]:
        # The public function makes the combining function itself: only the primitive is given one.
        q = {k: v for k, v in node.params.items() if k not in {"update_jaxpr", "update_consts"}}
        return [fn(*values, **q)]

    return rule


def _axes(node: Node) -> tuple[int, ...]:
    return tuple(node.params["axes"])


def read_window(node: Node) -> extremes.PoolingWindow:
    """Reads the window of a windowed reduction."""
    q = node.params
    return extremes.PoolingWindow(
        q["window_dimensions"], q["window_strides"], q["padding"], q["base_dilation"],
        q["window_dilation"],
    )  # fmt: skip


def _single(fn: Callable[..., Any]) -> Rule:
    return lambda node, *values: [fn(*values)]


def _integer_pow(node: Node, x: Any) -> list[Any]:
    y = node.params["y"]
    if y < 0:
        return [arithmetic.power(x, y)]
    return [activations.square(x)] if y == 2 else quadrature(node, x)


def _pow(node: Node, x: Any, y: Any) -> list[Any]:
    if is_random(y):
        raise TypeError("a random exponent")
    return [arithmetic.power(x, y)]


def _clamp(node: Node, low: Any, x: Any, high: Any) -> list[Any]:
    # The order of `lax.clamp`: where the bounds cross, the upper one wins.
    return [extremes.minimum(extremes.maximum(x, _fill(low, x)), _fill(high, x))]


def _fill(value: Any, like: Any) -> Any:
    return arithmetic.map_linear(lambda a: jnp.broadcast_to(a, like.shape), value)


def _scaled(fn: Callable[..., Gaussian], factor: float) -> Callable:
    """Makes a function that computes the moments of `fn(factor * x)`."""
    return lambda x: fn(Gaussian(factor * x.mean, factor * factor * x.var))


def _shifted(fn: Callable[..., Gaussian], before: float = 0.0, after: float = 0.0) -> Callable:
    """Makes a function that computes the moments of `fn(x + before) + after`."""

    def moments(x: Any) -> Gaussian:
        y = fn(Gaussian(x.mean + before, x.var))
        return Gaussian(y.mean + after, y.var)

    return moments


def quadrature(node: Node, x: Any) -> list[Any]:
    """Computes the moments of a pointwise primitive of one operand by quadrature."""
    return [gauss_legendre(lambda value: _compat.bind(node.eqn, value)[0], x)]


def _rows(kind: Kind, moments: Rule | None, primitives: Iterable[Any]) -> dict[Any, Row]:
    return dict.fromkeys(primitives, Row(kind, moments))


def _function(fn: Callable[..., Any]) -> Row:
    """Makes the row of a pointwise function of one array with moments in closed form."""
    return Row(Kind.POINTWISE, _single(fn), function=fn)


def _pair(fn: Callable[..., Any], twice: Callable[[Any], Any]) -> Row:
    """Makes the row of a pointwise function of two arrays."""
    return Row(Kind.POINTWISE, _single(fn), twice=twice)


def _doubled(x: Any) -> Gaussian:
    return Gaussian(2 * x.mean, 4 * x.var)


_KEEPING = prim.REARRANGING | {p.convert_element_type_p}
_STAIRCASE = {primitive for primitive, known in FACTS.items() if known.form == "staircase"}

TABLE: dict[Any, Row] = {
    **_rows(Kind.AFFINE, data_movement, DATA_MOVEMENT),
    **_rows(Kind.MOVE, data_movement, prim.REARRANGING | prim.IN_PLACE),
    **_rows(Kind.POINTWISE, data_movement, (DATA_MOVEMENT & prim.ELEMENTWISE) - prim.IN_PLACE),
    **_rows(Kind.AFFINE, _custom, prim.CUSTOM),
    **_rows(Kind.BILINEAR, _contraction, prim.LINEAR),
    **_rows(Kind.STEP, None, {*_STAIRCASE, p.sign_p}),
    **_rows(Kind.DISCRETE, None, {
        p.argmax_p, p.argmin_p, p.eq_p, p.ge_p, p.gt_p, p.is_finite_p, p.le_p, p.lt_p, p.ne_p,
    }),
    # Applied to one value twice, an operation on independents is a function of one variable.
    p.add_jaxvals_p: Row(Kind.POINTWISE, data_movement, twice=_doubled),
    p.add_p: _pair(arithmetic.add, _doubled),
    p.sub_p: _pair(arithmetic.subtract, lambda x: jnp.zeros(x.shape, x.dtype)),
    p.mul_p: _pair(arithmetic.multiply, activations.square),
    p.div_p: _pair(arithmetic.divide, lambda x: jnp.ones(x.shape, x.dtype)),
    p.max_p: _pair(extremes.maximum, to_variance),
    p.min_p: _pair(extremes.minimum, to_variance),
    p.convert_element_type_p: Row(Kind.POINTWISE, data_movement),
    p.clamp_p: Row(Kind.POINTWISE, _clamp),
    p.integer_pow_p: Row(Kind.POINTWISE, _integer_pow),
    p.pow_p: Row(Kind.POINTWISE, _pow),
    p.atan2_p: Row(Kind.POINTWISE),
    p.nextafter_p: Row(Kind.POINTWISE),
    p.neg_p: _function(arithmetic.negate),
    p.exp_p: _function(activations.exponential),
    p.exp2_p: _function(_scaled(activations.exponential, math.log(2))),
    p.expm1_p: _function(_shifted(activations.exponential, after=-1.0)),
    p.sin_p: _function(activations.sine),
    p.cos_p: _function(activations.cosine),
    p.erf_p: _function(activations.error_function),
    p.erfc_p: _function(activations.complementary_error_function),
    p.square_p: _function(activations.square),
    p.abs_p: _function(activations.absolute),
    p.log_p: _function(arithmetic.log),
    p.log1p_p: _function(_shifted(arithmetic.log, before=1.0)),
    p.sqrt_p: _function(functools.partial(arithmetic.power, exponent=0.5)),
    p.rsqrt_p: _function(functools.partial(arithmetic.power, exponent=-0.5)),
    p.logistic_p: _function(smooth.sigmoid),
    p.tanh_p: _function(smooth.tanh),
    **_rows(Kind.POINTWISE, quadrature, {
        p.acos_p, p.acosh_p, p.asin_p, p.asinh_p, p.atan_p, p.atanh_p, p.bessel_i0e_p,
        p.bessel_i1e_p, p.cbrt_p, p.cosh_p, p.digamma_p, p.erf_inv_p, p.lgamma_p, p.sinh_p,
        p.tan_p,
    }),
    p.reduce_max_p: Row(Kind.REGION, _extremum(extremes.reduce_max, _axes)),
    p.reduce_min_p: Row(Kind.REGION, _extremum(extremes.reduce_min, _axes)),
    p.scatter_max_p: Row(Kind.REGION, _scattered(extremes.scatter_max)),
    p.scatter_min_p: Row(Kind.REGION, _scattered(extremes.scatter_min)),
    p.reduce_window_max_p: Row(Kind.REGION, _extremum(extremes.window_max, read_window)),
    p.reduce_window_min_p: Row(Kind.REGION, _extremum(extremes.window_min, read_window)),
}  # fmt: skip
"""By primitive."""
