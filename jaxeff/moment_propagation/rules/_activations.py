"""Moments of functions of one Gaussian: in closed form, by quadrature, as composites in an export.

So have exponential, square, sine, cosine, error function, normal CDF and absolute value, exact up
to rounding. Sigmoid, tanh, softplus, SiLU and GELU have sums of few exponentials (`_smooth`).
Every other activation is recognised in the equations it is made of (`_regions`): a piecewise
polynomial (ReLU, clip, hard swish, shrinkage) has a closed form too, and the rest (ELU, Mish, ...)
is integrated by quadrature, within 2e-5 of a standard deviation at every mean and any standard
deviation from 0.01 to 10.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.core import jax_internals as _compat
from jaxeff.moment_propagation import _values

Attribute = str | int | tuple[int, ...] | tuple[float, ...]

_DTYPES = {"float32", "float64"}


def composite(
    name: str, rule: Callable[..., _values.Gaussian], *operands: Array, **attributes: Attribute
) -> _values.Gaussian:
    """Evaluates `rule(*operands)`, which an export keeps as the composite `jaxeff.<name>`.

    A rule called through `composite` runs as it is, under any transform. Only where the function is
    lowered for export (`jax.export`) does the call stay one, a `stablehlo.composite` whose
    decomposition is the rule: a consumer that has an operator of its name calls that, any other one
    inlines the rule.

    Names, operands and attributes are a contract with `jaxeff_export.operators`:

        jaxeff.pfp_dense     x_mean [x_spread] w_mean [w_var] [b_mean [b_var]]
                             x (..., K), w (K, N), b (N,)
            input            "deterministic" | "variance" | "raw": x_spread is absent | Var[x] |
                             E[x^2]
            weight           "deterministic" | "variance": w_var is absent or not
            bias             "none" | "deterministic" | "variance"
        jaxeff.pfp_conv2d    the same operands; x NHWC, w HWIO, b (C,)
            input, weight, bias; strides, dilation, groups; padding (low, high per axis, in one
            list)
        jaxeff.pfp_max_pool  mean var; any rank, padded with what is never a maximum
            size, strides; padding
        jaxeff.pfp_avg_pool  mean var; any rank, padded with zeros and divided by the window's size
            size, strides; padding
        jaxeff.pfp_relu (pfp_exp, pfp_sin, pfp_cos, pfp_erf, pfp_square)  mean var
        jaxeff.pfp_piecewise mean var; a polynomial between each two neighbouring breaks
            breaks; coefficients (constant, linear and quadratic of each piece, in one list)
        jaxeff.pfp_attention softmax(scores) v: `operands` names the arrays, of scores, slope,
                             bias_var, v, q, k and the variances v_var, q_var, k_var, those that
                             there are
            operands; q_axes, k_axes, v_axes, scores_axes, result_axes (a letter for each axis),
            softmax_axes

    Results are (mean, variance); operands and results are of one dtype, float32 or float64.

    Sharp edges
    - A layer of another form, one with a rule of the user's own, and one that only its bias makes
      random are exported without a composite.
    - Under `jax.grad`, `jax.vmap` and other transforms of the propagated function the rule is
      transformed, so there is no composite either; nor is there in a module of symbolic sizes.
    - Max pooling is taken before a ReLU that precedes it (`Activated`), so it comes first in an
      export too.

    Args:
        name: The operator, such as "pfp_dense".
        rule: The moments of the result from arrays; closes over no traced value. Layers that share
            it, and the types of their operands, are traced once.
        *operands: Arrays. Unless all are of one dtype, float32 or float64, there is no composite.
        **attributes: Attributes of the operator beside the operands' shapes.
    """
    dtypes = {str(jnp.result_type(operand)) for operand in operands}
    if len(dtypes) > 1 or not dtypes <= _DTYPES:
        return rule(*operands)
    return _values.Gaussian(*_compat.export_composite(rule, operands, f"jaxeff.{name}", attributes))


def activation(name: str) -> Callable[[Callable[[_values.Gaussian], _values.Gaussian]], Callable]:
    """Makes the moments of a function of one random array the composite `jaxeff.<name>`."""

    def decorate(
        rule: Callable[[_values.Gaussian], _values.Gaussian],
    ) -> Callable[[_values.Random], _values.Gaussian]:
        # A network has many activations of few shapes: each shape is traced once.
        @functools.partial(jax.jit, inline=True)
        def traced(mean: Array, var: Array) -> _values.Gaussian:
            return rule(_values.Gaussian(mean, var))

        @functools.wraps(rule)
        def moments(x: _values.Random) -> _values.Gaussian:
            x = _values.to_variance(x)
            return composite(name, traced, x.mean, x.var)

        return moments

    return decorate


Coefficients = Sequence[float | Array]


@activation("pfp_relu")
def relu(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of max(x, 0), at one exponential and one tail probability per entry.

    The mean is max(m, 0) + s h(|t|) and the variance s^2 (Phi(t) - h(|t|) (|t| + h(|t|))) with
    t = m / s: Klein's thesis, eqs. (8.5) and (8.6), rearranged so that nothing cancels.
    """
    scale = _values.inverse_std(x.var)
    t = _values.near(jnp.abs(x.mean) * scale)
    _, prob, h = _values.tail(t)
    # The tail is taken at |t|, where it is small: Phi(t) near one then loses nothing that counts.
    # Never below zero: h (|t| + h) is below Q(|t|) by its 2 / t^2th part, far above rounding.
    share = jnp.where(x.mean > 0, 1 - prob, prob) - h * (t + h)
    return _values.Gaussian(jnp.maximum(x.mean, 0) + x.var * scale * h, x.var * share)


def piecewise(
    x: _values.Random, breaks: Sequence[float | Array], pieces: Sequence[Coefficients]
) -> _values.Gaussian:
    """Computes the moments of a piecewise polynomial of a Gaussian.

    The kinked activations have a closed form: ReLU, ReLU6, clip, abs, leaky ReLU, PReLU, hard tanh,
    hard sigmoid, hard and soft shrinkage, and hard swish are polynomials of degree at most two
    between breakpoints, continuous or not. With x = m + s z their moments are sums of truncated
    normal moments,

        I_j(a, b) = int_a^b z^j phi(z) dz,   I_j = (j-1) I_{j-2} + a^{j-1} phi(a) - b^{j-1} phi(b).

    The polynomials are expanded about the mean and measured from f(m), so that the variance is a
    difference of numbers of its own size: it keeps its digits in float32 however small it is
    against the mean, and at a variance of zero the result is f(m) with the gradients of the limit.

    Sharp edges
    - At a jump (hard shrinkage) with zero variance and the mean exactly on it, the result is the
      average of both sides.

    Args:
        x: Random input of any shape.
        breaks: Ascending breakpoints, numbers or arrays that broadcast against `x`.
        pieces: One more polynomial than breakpoints, each the coefficients (constant, linear,
            quadratic, ...) of f between two neighbouring breakpoints; degree at most two.

    Returns:
        The exact mean and variance of f(x), up to rounding.

    Raises:
        ValueError: The number of pieces isn't the number of breakpoints plus one, or a degree
            exceeds two.
    """
    if len(pieces) != len(breaks) + 1 or any(len(p) > 3 for p in pieces):
        raise ValueError(
            f"piecewise: {len(breaks)} breakpoints need {len(breaks) + 1} polynomials of degree "
            f"two or less, got {[len(p) - 1 for p in pieces]}."
        )
    x = _values.to_variance(x)

    def rule(mean: Array, var: Array) -> _values.Gaussian:
        return _piecewise(_values.Gaussian(mean, var), breaks, pieces)

    # A composite's attributes are numbers: with a slope per channel (PReLU) there is none.
    coefficients = [c for piece in pieces for c in (*piece, 0.0, 0.0)[:3]]
    numbers = [float(v) for v in (*breaks, *coefficients) if isinstance(v, int | float)]
    if len(numbers) < len(breaks) + len(coefficients):
        return rule(x.mean, x.var)
    shape = {"breaks": tuple(numbers[: len(breaks)]), "coefficients": tuple(numbers[len(breaks) :])}
    return composite("pfp_piecewise", rule, x.mean, x.var, **shape)


def _piecewise(
    x: _values.Gaussian, breaks: Sequence[float | Array], pieces: Sequence[Coefficients]
) -> _values.Gaussian:
    # Infinity times a coefficient of zero isn't a number, so the limits are taken apart.
    known = jnp.isfinite(x.mean)
    mean, scale = jnp.where(known, x.mean, 0), _values.inverse_std(x.var)
    std = lax.reciprocal(scale)
    # Expanded about the mean and less f(m), the polynomials are of the size of the spread itself:
    # E[x^2] - E[x]^2 of the raw ones cancels in float32.
    centred = [_expand(piece, mean) for piece in pieces]
    at_mean = centred[0][0]
    for knot, poly in zip(breaks, centred[1:], strict=True):
        at_mean = jnp.where(mean > knot, poly[0], at_mean)
    integrals = _truncated_moments([(knot - mean) * scale for knot in breaks], mean)
    first, second = jnp.zeros_like(mean), jnp.zeros_like(mean)
    for poly, moments in zip(centred, integrals, strict=True):
        # Coefficients of z^j with x = m + s z. The square has degree four, hence I_0 to I_4.
        terms = [poly[0] - at_mean] + [c * std ** (j + 1) for j, c in enumerate(poly[1:])]
        first += sum(c * moments[j] for j, c in enumerate(terms))
        second += sum(
            a * b * moments[i + j] for i, a in enumerate(terms) for j, b in enumerate(terms)
        )
    # 1 above the floor of the variance and 0 at a variance of zero, where the result is f(m).
    ratio = x.var * scale * scale
    limit = jnp.where(x.mean > 0, _limit(pieces[-1], 1.0), _limit(pieces[0], -1.0))
    return _values.Gaussian(
        jnp.where(known, at_mean + ratio * first, jnp.where(jnp.isnan(x.mean), jnp.nan, limit)),
        jnp.where(known, ratio * jnp.maximum(second - first * first, 0), 0),
    )


def _limit(piece: Coefficients, sign: float) -> Array:
    """Returns the limit of a polynomial at an infinity."""
    c0, c1, c2 = (jnp.asarray(c) for c in (*piece, 0.0, 0.0, 0.0)[:3])
    # The highest coefficient that isn't zero decides: sums of infinities would be NaN.
    linear = jnp.where(c1 == 0, c0, jnp.copysign(jnp.inf, sign * c1))
    return jnp.where(c2 == 0, linear, jnp.copysign(jnp.inf, c2))


def _expand(piece: Coefficients, mean: Float[Array, "*shape"]) -> list[Any]:
    """Returns the coefficients of a polynomial in (x - mean)."""
    c0, c1, c2 = (*piece, 0.0, 0.0)[:3] if len(piece) < 3 else piece
    constant = c0 + mean * (c1 + mean * c2)
    return [jnp.broadcast_to(constant, mean.shape), c1 + 2 * c2 * mean, c2][: max(len(piece), 1)]


def _truncated_moments(
    knots: list[Array], like: Float[Array, "*shape"]
) -> list[list[Float[Array, "*shape"]]]:
    """Computes I_0 to I_4 of the standard normal between neighbouring standardised breakpoints."""
    zero, one = jnp.zeros_like(like), jnp.ones_like(like)
    # At the infinite ends a^j phi(a) is zero; a finite a with a density of zero gives that, where
    # inf * 0 would be NaN.
    ends = [(zero, zero, zero, one)]  # breakpoint (finite stand-in), density, lower, upper tail
    for knot in knots:
        t = jnp.clip(knot, -40, 40)
        density, prob, _ = _values.tail(_values.near(jnp.abs(t)))
        ends.append(
            (t, density, jnp.where(t < 0, prob, 1 - prob), jnp.where(t < 0, 1 - prob, prob))
        )
    ends.append((zero, zero, one, zero))
    intervals = []
    for (a, pa, la, ua), (b, pb, lb, ub) in itertools.pairwise(ends):
        # Differences of upper tails right of the mean, of lower tails left of it: far from the
        # mean the other difference would be rounding, multiplied by a large polynomial.
        moments = [jnp.where(a > 0, ua - ub, lb - la), pa - pb]
        # Integration by parts, the recurrence of `piecewise`.
        for j in range(2, 5):
            moments.append((j - 1) * moments[j - 2] + a ** (j - 1) * pa - b ** (j - 1) * pb)
        intervals.append(moments)
    return intervals


def absolute(x: _values.Random) -> _values.Gaussian:
    """Computes the moments of |x|."""
    return piecewise(x, (0.0,), ((0.0, -1.0), (0.0, 1.0)))


@activation("pfp_square")
def square(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of x^2."""
    # A noncentral chi-squared variable: the variance is 2 v^2 + 4 m^2 v, no difference of moments.
    power = x.mean * x.mean
    return _values.Gaussian(power + x.var, x.var * (2 * x.var + 4 * power))


@activation("pfp_exp")
def exponential(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of exp(x), log-normal."""
    # expm1 keeps a relative variance below the machine epsilon.
    mean = jnp.exp(x.mean + 0.5 * x.var)
    return _values.Gaussian(mean, mean * mean * jnp.expm1(x.var))


@activation("pfp_sin")
def sine(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of sin(x)."""
    return _wave(x, jnp.sin(x.mean), jnp.cos(x.mean))


@activation("pfp_cos")
def cosine(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of cos(x)."""
    return _wave(x, jnp.cos(x.mean), jnp.sin(x.mean))


def _wave(x: _values.Gaussian, value: Array, slope: Array) -> _values.Gaussian:
    """Computes the moments of a sine or cosine f.

    The mean is exp(-v/2) f(m), the variance (1 - q) ((1 - q) / 2 + q f'(m)^2) with q = exp(-v).
    """
    # From the characteristic function E exp(ix) = exp(im - v/2). With 1 - q as a factor the
    # variance keeps its digits as v goes to zero.
    lost = -jnp.expm1(-x.var)
    return _values.Gaussian(
        jnp.exp(-0.5 * x.var) * value, lost * (0.5 * lost + jnp.exp(-x.var) * slope * slope)
    )


def normal_cdf(x: _values.Random) -> _values.Gaussian:
    """Computes the moments of the standard normal CDF Phi(x).

    With a = m / sqrt(1 + v) the mean is Phi(a). The variance is the bivariate normal probability
    at (a, a) less that of independence, by Plackett's identity an integral over the correlation,

        Var = 1/(2 pi) int_0^asin(v / (1 + v)) exp(-a^2 / (1 + sin t)) dt,

    whose integrand is positive, so a small variance keeps its digits.
    """
    x = _values.to_variance(x)
    spread = lax.rsqrt(1 + x.var)
    a = x.mean * spread
    # asin(v / (1 + v)) through its tangent, whose gradient is finite where v / (1 + v) rounds to 1
    angle = jnp.arctan2(x.var, jnp.sqrt(jnp.maximum(1 + 2 * x.var, 0)))
    # The substitution rho = sin(t) has removed the singularity 1 / sqrt(1 - rho^2) of the bivariate
    # density, so a fixed rule of few nodes converges.
    roots, masses = np.polynomial.legendre.leggauss(16)
    t = jnp.asarray(0.5 * (roots + 1), x.dtype).reshape((-1,) + (1,) * x.ndim)
    weight = jnp.asarray(0.5 * masses, x.dtype).reshape(t.shape)
    density = jnp.exp(-a * a / (1 + jnp.sin(angle * t)))
    return _values.Gaussian(_values.cdf(a), angle / (2 * np.pi) * jnp.sum(weight * density, 0))


@activation("pfp_erf")
def error_function(x: _values.Gaussian) -> _values.Gaussian:
    """Computes the moments of erf(x) = 2 Phi(sqrt(2) x) - 1; the mean is erf(m / sqrt(1 + 2 v))."""
    # The mean is taken directly: 2 Phi - 1 would cancel where it is small.
    phi = normal_cdf(_values.Gaussian(2**0.5 * x.mean, 2 * x.var))
    return _values.Gaussian(lax.erf(x.mean * lax.rsqrt(1 + 2 * x.var)), 4 * phi.var)


def complementary_error_function(x: _values.Random) -> _values.Gaussian:
    """Computes the moments of erfc(x) = 1 - erf(x); a small mean keeps its digits."""
    x = _values.to_variance(x)
    return _values.Gaussian(lax.erfc(x.mean * lax.rsqrt(1 + 2 * x.var)), error_function(x).var)


_HERMITE_NODES, _LEGENDRE_NODES = 8, 20
_INV_SQRT_2PI = 0.3989422804014327
OUTSIDE = 1e-3
_REACH = 6.0  # standard deviations; 2e-9 of the mass lies outside


def gauss_legendre(
    f: Callable[[Array], Any],
    x: _values.Random,
    kinks: Sequence[float] = (0.0,),
    limited: bool = False,
    above: float | None = None,
) -> Any:
    """Computes the moments of `f(x)` by Gauss-Legendre quadrature of each piece between kinks.

    f is measured from f(m) and, below a standard deviation of about the cube root of the machine
    epsilon (times 1 + |m|), the sums are difference quotients at that floor: means, variances and
    their gradients tend to the delta method's (f + v f''/2 and v f'^2) and are finite at zero
    variance. Split at the centre of an activation, it holds its accuracy at standard deviations far
    larger than the function's own scale (an arc tangent seen from far away is a step).

    Sharp edges
    - Outside a function's domain there are no moments. Where the function is defined at the mean,
      and less than `OUTSIDE` of the mass lies where it is not, they are those given that it is
      defined; above that the result is NaN.
    - An infinite mean is a certain value, as is an infinite result: they have no variance.

    Args:
        f: An elementwise function of one array; may return any pytree of arrays, each shaped
            like the input or broadcast from it.
        x: Random input.
        kinks: Ascending points where `f` isn't smooth or changes fastest. Jumps give inaccurate
            gradients: use `piecewise` for those.
        limited: Whether `f` may be undefined somewhere; costs a second evaluation.
        above: A bound below the mean; mass under the bound counts as if it were at the mean.

    Returns:
        `f`'s output tree with a `Gaussian` for each floating-point leaf; others are evaluated
        at the mean.
    """
    roots, masses = np.polynomial.legendre.leggauss(_LEGENDRE_NODES)
    x = _values.to_variance(x)
    std = _floored_std(x)
    shape = (_LEGENDRE_NODES,) + (1,) * x.ndim
    t = jnp.asarray(0.5 * (roots + 1), x.dtype).reshape(shape)
    weight = jnp.asarray(0.5 * masses, x.dtype).reshape(shape)
    reach = jnp.full(x.shape, _REACH, x.dtype)
    # Beyond the reach there is too little mass to count in float32; a kink out there makes a piece
    # of width zero, whose nodes weigh nothing.
    lowest = -reach
    if above is not None:
        lowest = lax.stop_gradient(jnp.maximum(lowest, (above - x.mean) / std))
    # The integral doesn't depend on where it is split, so neither should its gradient.
    inner = [lax.stop_gradient(jnp.clip((k - x.mean) / std, lowest, _REACH)) for k in kinks]
    ends = [lowest, *inner, reach]
    pieces = []
    # The density is part of the weight, so each piece integrates a smooth function.
    for lo, hi in itertools.pairwise(end[None] for end in ends):
        z = lo + (hi - lo) * t
        pieces.append((z, weight * (hi - lo) * jnp.exp(-0.5 * z * z) * _INV_SQRT_2PI))
    return _integrate(f, x, pieces, limited)


def gauss_pair(
    f: Callable[[Array, Array], Any],
    x: _values.Random,
    y: _values.Random,
    kinks: Sequence[float] = (0.0,),
    limited: bool = False,
) -> Any:
    """Computes the moments of `f(x, y)` for independent operands of one shape.

    Legendre over `x`, in which `f` may have kinks, and Hermite over `y`, in which `f` is close to a
    polynomial (a slope, a scale): about eight times the cost of `gauss_legendre`, which returns the
    same.
    """

    def inner(value: Array) -> Any:
        moments = gauss_legendre(lambda point: f(point, value), x, kinks, limited=limited)
        return jax.tree.map(lambda g: (g.mean, g.var), moments, is_leaf=_values.is_random)

    roots, masses = np.polynomial.hermite.hermgauss(_HERMITE_NODES)
    y = _values.to_variance(y)
    shape = (_HERMITE_NODES,) + (1,) * y.ndim
    # From the weight exp(-t^2) to the normal density: z = sqrt(2) t, masses over sqrt(pi).
    z = jnp.asarray(roots * np.sqrt(2), y.dtype).reshape(shape)
    weight = jnp.asarray(masses / np.sqrt(np.pi), y.dtype).reshape(shape)
    outer = _integrate(inner, y, [(z, weight)], limited=False)
    # The law of total variance: variance of the means plus mean of the variances.
    return jax.tree.map(
        lambda pair: _values.Gaussian(pair[0].mean, pair[0].var + pair[1].mean),
        outer,
        is_leaf=lambda t: isinstance(t, tuple) and len(t) == 2 and _values.is_random(t[0]),
    )


def _floored_std(x: _values.Gaussian) -> Float[Array, "*shape"]:
    """Returns the standard deviation, or eps^(1/3) (1 + |m|) where that is larger."""
    mean = lax.stop_gradient(x.mean)
    mean = jnp.where(jnp.isfinite(mean), mean, 0)
    # The best step of a central difference: truncation, h^2, balances rounding, eps / h.
    floor = float(jnp.finfo(x.dtype).eps) ** (1 / 3) * (1 + jnp.abs(mean))
    # The maximum is inside of the root: the gradient at a variance of zero is zero, not infinite.
    return jnp.sqrt(jnp.maximum(x.var, floor * floor))


def _inside(
    fn: Callable[[Array], Any], mean: Array, points: Sequence[Array], pieces: Sequence[tuple]
) -> tuple[list[Array], list[tuple]]:
    """Keeps the nodes at which a function is defined, with weights that sum to one again.

    Nodes outside are moved to the mean, so that no derivative passes through what is undefined.
    """

    def defined(at: Array) -> Array:
        floats = [
            v for v in jax.tree.leaves(jax.vmap(fn)(at)) if jnp.issubdtype(v.dtype, jnp.floating)
        ]
        return functools.reduce(
            jnp.logical_and, map(jnp.isfinite, floats), jnp.full(at.shape, True)
        )

    # Where a function is defined is found by evaluating it: a second time, at the same nodes.
    masks = [defined(lax.stop_gradient(point)) for point in points]
    weights = [jnp.where(mask, w, 0) for mask, (_, w) in zip(masks, pieces, strict=True)]
    inside = sum(jnp.sum(w, 0) for w in weights)
    scale = jnp.where(inside > 1 - OUTSIDE, 1 / inside, jnp.nan)
    kept = [jnp.where(mask, point, mean[None]) for mask, point in zip(masks, points, strict=True)]
    return kept, [(z, w * scale[None]) for (z, _), w in zip(pieces, weights, strict=True)]


def _integrate(
    fn: Callable[[Array], Any], x: _values.Gaussian, pieces: Sequence[tuple], limited: bool
) -> Any:
    """Computes the moments of fn(mean + std z); (z, weight) pairs have the nodes in front."""
    std = _floored_std(x)
    # Below the floor the sums are difference quotients at the floor, scaled by this ratio: the mean
    # f + v f''/2 and the variance v f'^2 of the delta method.
    ratio = x.var / (std * std)  # 1 above the floor
    centre = fn(x.mean)
    # A masked score is minus infinity at every node.
    known = jnp.isfinite(x.mean)[None]
    points = [jnp.where(known, x.mean[None] + std[None] * z, x.mean[None]) for z, _ in pieces]
    if limited:
        points, pieces = _inside(fn, x.mean, points, pieces)
    values = [jax.vmap(fn)(point) for point in points]

    def moments(at_mean: Array, *at_nodes: Array) -> Array | _values.Gaussian:
        if not jnp.issubdtype(at_mean.dtype, jnp.floating):
            return at_mean
        first, second = jnp.zeros_like(at_mean), jnp.zeros_like(at_mean)
        for value, (_, weight) in zip(at_nodes, pieces, strict=True):
            # Infinite at the mean and at the node alike: no difference; inf - inf would be NaN.
            same = jnp.isinf(value) & (value == at_mean[None])
            delta = jnp.where(same, 0, value - at_mean[None])
            first += jnp.sum(weight * delta, 0)
            second += jnp.sum(weight * delta * delta, 0)
        return _values.Gaussian(
            at_mean + ratio * first, ratio * jnp.maximum(second - first * first, 0)
        )

    return jax.tree.map(moments, centre, *values)
