"""Moments of smooth activations of a Gaussian: sigmoid, tanh, softplus, SiLU and GELU.

`_table` has them for primitives, `_regions` for formulas. Only GELU's mean has a closed form; what
all have in common is that smoothing by a Gaussian turns a normal density, its derivatives and its
integrals into wider ones. So each function, or what it has beside something known, is a sum of few
of them, fitted once by ourselves to the least maximum; its mean and its slope's are then exact up
to the fit at every variance. Variances follow from identities of the function and Stein's lemma,
E[(x - m) f] = v E f':

    sigmoid    f' = f - f^2              Var f = E f (1 - E f) - E f'
    tanh       2 sigmoid(2 x) - 1
    softplus   f f(-x) = f^2 - x f       Var f = v E f' + E[f f(-x)] - E f E f(-x)

These are differences that lose a small variance. Below `_SMALL` it is the sum of v^k / k! (E
f^(k))^2 instead, which has no negative term, with E f^(k) the sum of (v / 2)^j / j! f^(k + 2 j);
derivatives are polynomials in f' and 1 - 2 f, exact in both tails.

Sigmoid, tanh and softplus have means within 5e-6 of the input's standard deviation and variances
within 2e-5 of its variance, at every mean and variance. Quadrature of the same error takes two
pieces of twenty nodes, each with an exponential for its weight. SiLU and GELU say theirs below.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation import _values

# Least-maximum fit for variances of .2 and more: the sigmoid as a mixture of normal CDFs of
# these variances and weights, and softplus(x) softplus(-x) by normal densities of the same
# variances and their second derivatives. Both are within 1e-6.
_SMALL = 0.21
_WIDTHS = (0.7228946196, 1.311690127, 2.289305817, 3.964881406, 7.027648322, 12.97699226)
_WEIGHTS = (0.02569974451, 0.1892686785, 0.3478638114, 0.3010691431, 0.1232505052, 0.01284801664)
_PRODUCT = (
    (0.01181724876, 0.1543175189, 0.5194663249, 0.8286759753, 0.7088851659, 0.1807473566),
    (0.0003269594224, 0.008148770422, 0.04155866278, 0.05320768015, -0.04230016331, -0.04763027449),
)


def _derivative_polynomials(order: int) -> list[tuple[float, ...]]:
    """Returns the sigmoid's derivatives 1 to `order`, as coefficients of powers of q.

    With q = f' and d = 1 - 2 f odd derivatives are q P(q), even ones q d P(q): q' = q d, and d^2 is
    1 - 4 q.
    """
    q, polynomials = np.polynomial.Polynomial([0.0, 1.0]), [np.polynomial.Polynomial([1.0])]
    while len(polynomials) < order:
        last = polynomials[-1]
        slope = last.deriv()
        if len(polynomials) % 2:
            polynomials.append(last + q * slope)
        else:
            polynomials.append((1 - 6 * q) * last + q * (1 - 4 * q) * slope)
    return [tuple(polynomial.coef.tolist()) for polynomial in polynomials]


_DERIVATIVE_POLYNOMIALS = _derivative_polynomials(11)


def _traced_once(
    rule: Callable[[Array, Array], _values.Gaussian],
) -> Callable[[_values.Random], _values.Gaussian]:
    """Makes moments of a random array by its mean and variance, traced once for each shape."""
    traced = jax.jit(rule, inline=True)

    @functools.wraps(rule)
    def moments(x: _values.Random) -> _values.Gaussian:
        x = _values.to_variance(x)
        result: _values.Gaussian = traced(x.mean, x.var)
        return result

    return moments


@_traced_once
def sigmoid(mean: Array, var: Array) -> _values.Gaussian:
    """Computes the moments of the logistic function, 1 / (1 + exp(-x))."""
    small, above, spread = _logistic(mean, var)
    # Of the two tails the smaller one is known to all its digits.
    wide = jnp.where(mean > 0, 1 - above, above)
    value = jnp.where(var < _SMALL, lax.logistic(mean) + small, wide)
    return _values.Gaussian(value, spread)


@_traced_once
def tanh(mean: Array, var: Array) -> _values.Gaussian:
    """Computes the moments of the hyperbolic tangent."""
    small, above, spread = _logistic(2 * mean, 4 * var)
    wide = jnp.where(mean > 0, 1 - 2 * above, 2 * above - 1)
    value = jnp.where(4 * var < _SMALL, lax.tanh(mean) + 2 * small, wide)
    return _values.Gaussian(value, 4 * spread)


def _logistic(mean: Array, var: Array) -> tuple[Array, Array, Array]:
    """Computes what smoothing adds to a sigmoid's small-variance mean, its tail, its variance."""
    m, v = _finite(mean), jnp.minimum(var, _SMALL)
    d = _sigmoid_derivatives(m)
    # The heat equation's series: E f^(k) is the sum of (v / 2)^j / j! f^(k + 2 j).
    added = v / 2 * (d[2] + v / 4 * (d[4] + v / 6 * (d[6] + v / 8 * d[8])))
    above, density = jnp.zeros_like(m), jnp.zeros_like(m)
    for width, weight in zip(_WIDTHS, _WEIGHTS, strict=True):
        scale = lax.rsqrt(width + var)
        pdf, prob, _ = _values.tail(_values.near(jnp.abs(m) * scale))
        above += weight * prob
        density += weight * scale * pdf
    difference = jnp.maximum(above * (1 - above) - density, 0)
    spread = jnp.where(var < _SMALL, _variance_ratio(d[1:], v) * var, difference)
    known = jnp.isfinite(mean)
    return added, jnp.where(known, above, 0), jnp.where(known, spread, 0)


@_traced_once
def softplus(mean: Array, var: Array) -> _values.Gaussian:
    """Computes the moments of log(1 + exp(x))."""
    m, v = _finite(mean), jnp.minimum(var, _SMALL)
    d = _sigmoid_derivatives(m)  # the sigmoid is softplus' first one
    at_mean = jnp.maximum(m, 0) + jnp.log1p(jnp.exp(-jnp.abs(m)))
    expanded = at_mean + v / 2 * (d[1] + v / 4 * (d[3] + v / 6 * (d[5] + v / 8 * d[7])))
    # E f = max(m, 0) + beyond; `beyond` is E f(-x) for a positive mean.
    above, beyond, product = jnp.zeros_like(m), jnp.zeros_like(m), jnp.zeros_like(m)
    for width, weight, order_0, order_2 in zip(_WIDTHS, _WEIGHTS, *_PRODUCT, strict=True):
        scale = lax.rsqrt(width + var)
        distance = _values.near(jnp.abs(m) * scale)
        pdf, prob, exceedance = _values.tail(distance)
        above += weight * prob
        beyond += weight * (width + var) * scale * exceedance
        bend = order_2 * scale * scale * (distance * distance - 1)
        product += (order_0 + bend) * scale * pdf
    slope = jnp.where(m > 0, 1 - above, above)
    difference = var * slope + product - beyond * (beyond + jnp.abs(m))
    spread = jnp.where(var < _SMALL, _variance_ratio(d, v) * var, jnp.maximum(difference, 0))
    value = jnp.where(var < _SMALL, expanded, jnp.maximum(m, 0) + beyond)
    known = jnp.isfinite(mean)
    limit = jnp.where(jnp.isnan(mean), mean, jnp.maximum(mean, 0))
    return _values.Gaussian(jnp.where(known, value, limit), jnp.where(known, spread, 0))


def _finite(mean: Array) -> Array:
    return jnp.where(jnp.isfinite(mean), mean, 0)


def _sigmoid_derivatives(x: Array) -> list[Array]:
    """Computes the sigmoid and its derivatives 1 to 11."""
    # By the exponential of -|x| alone: nothing overflows, and no digits are lost in either tail.
    exponential = jnp.exp(-jnp.abs(x))
    larger = lax.reciprocal(1 + exponential)  # sigmoid(|x|)
    q = exponential * larger * larger
    d = jnp.where(x > 0, -1, 1) * (1 - exponential) * larger
    derivatives = [jnp.where(x > 0, larger, exponential * larger)]
    for order, coefficients in enumerate(_DERIVATIVE_POLYNOMIALS, 1):
        value = jnp.full_like(q, coefficients[-1])
        for c in coefficients[-2::-1]:
            value = value * q + c
        derivatives.append(value * q if order % 2 else value * q * d)
    return derivatives


def _variance_ratio(derivatives: list[Array], v: Array) -> Array:
    """Computes the variance of a function over that of its input, which is at most `_SMALL`.

    `derivatives` are the function's, from the first on; eight are enough.
    """
    # E f' counts most, and more of the function's derivatives count for it than for the others.
    mean = jnp.zeros_like(v)
    for j in range(min(len(derivatives), 11) // 2, 0, -1):
        mean = v / (2 * j) * (derivatives[2 * j] + mean) if 2 * j < len(derivatives) else mean
    _, second, third, fourth, fifth, sixth, seventh, eighth = derivatives[:8]
    total = (fourth + v / 2 * sixth) ** 2 * v / 4
    total = (total + (third + v / 2 * (fifth + v / 4 * seventh)) ** 2) * v / 3
    total = (total + (second + v / 2 * (fourth + v / 4 * (sixth + v / 6 * eighth))) ** 2) * v / 2
    return total + (derivatives[0] + mean) ** 2


def gelu(x: _values.Random, tanh: bool = False) -> _values.Gaussian:
    """Computes the moments of GELU, x Phi(x), or of its approximation by a hyperbolic tangent.

    With s^2 = 1 + v and a = m / s the mean is m Phi(a) + v phi(a) / s. By Price's theorem, twice,
    the variance is

        v (E f')^2 + int_0^v (v - c) E_c[f''(x) f''(y)] dc,    E f' = Phi(a) + a phi(a) / s^2

    where x and y have the covariance c. f'' is (2 - x^2) phi(x), so the expectation is an
    exponential times moments of a tilted pair. No term is negative, and in the tangent of half the
    angle asin(c / s^2) four nodes are within 1e-5 of the input's variance.

    The approximation adds a small even function d, taken as a sum of derivatives of a normal
    density: smoothing only widens the density. It adds the sum of v^k / k! E d^(k) (2 E f^(k) + E
    d^(k)) to the variance, of which three terms are within 1.4e-5.

    Args:
        x: Random input of any shape.
        tanh: Whether it is the approximation, `jax.nn.gelu`'s default.
    """
    x = _values.to_variance(x)
    return _gelu(x.mean, x.var, tanh)


tanh_gelu = functools.partial(gelu, tanh=True)


def gelu_in_short(x: _values.Random, tanh: bool = False) -> _values.Gaussian:
    """Computes the moments of GELU with two terms of its variance, v (E f')^2 + v^2 / 2 (E f'')^2.

    It takes one exponential. The mean is that of `gelu`; standard deviations are up to .004 of the
    input's too small where that is .3, and up to .05 where it is more.
    """
    x = _values.to_variance(x)
    return _gelu(x.mean, x.var, tanh, short=True)


# Gauss-Jacobi on [0, 1] for the weight 1 - u.
_BEND_NODES = (0.05710419611451772, 0.2768430136381238, 0.5835904323689168, 0.8602401356562195)
_BEND_MASSES = (0.1355069134314885, 0.2034645680102711, 0.1298475476082323, 0.03118097095000808)
# x (tanh(sqrt(2 / pi) (x + .044715 x^3)) - erf(x / sqrt(2))) / 2 by the even derivatives of a
# normal density of this variance: our least-maximum fit, within 9e-8.
_WINDOW = 0.7225
_DERIVATIVES = (
    0.00082834965, 0.00458560591, 0.00245575574, 0.000350228438, 1.82983689e-05, 4.17394253e-07,
    3.92901822e-09,
)  # fmt: skip


@functools.partial(jax.jit, static_argnums=2, static_argnames="short", inline=True)
def _gelu(mean: Array, var: Array, tanh: bool, short: bool = False) -> _values.Gaussian:
    known = jnp.isfinite(mean)
    m = jnp.where(known, mean, 0)
    total = 1 + var
    scale = lax.rsqrt(total)
    distance = _values.near(jnp.abs(m) * scale)
    density, prob, _ = _values.tail(distance)
    a = jnp.where(m > 0, distance, -distance)
    slope = jnp.where(m > 0, 1 - prob, prob) + a * density * scale * scale
    value = jnp.maximum(m, 0) - jnp.abs(m) * prob + var * scale * density

    if short:
        curve = density * scale * (1 + (1 - a * a) * scale * scale)
        share = slope * slope + 0.5 * var * curve * curve
        value += _smoothed(m, var)[0] if tanh else 0
    else:
        most, bends = _bends(var, total, scale, distance)
        share = slope * slope + most / np.pi * bends
    if tanh and not short:
        added, first, second, third = _smoothed(m, var)
        value += added
        # GELU's own smoothed derivatives; factors stay finite where a power of v wouldn't.
        curve = density * scale * (1 + (1 - a * a) * scale * scale)
        twist = a * density * scale * scale * ((a * a - 3) * scale * scale - 1)
        share += first * (2 * slope + first) + 0.5 * (var * second) * (2 * curve + second)
        share += (var * (var * third)) * (2 * twist + third) / 6
    limit = jnp.where(jnp.isnan(mean), mean, jnp.maximum(mean, 0))
    return _values.Gaussian(
        jnp.where(known, value, limit), jnp.where(known, var * jnp.maximum(share, 0), 0)
    )


def _bends(var: Array, total: Array, scale: Array, distance: Array) -> tuple[Array, Array]:
    """Integrates E[f'' f''] of pairs with all covariances up to the variance."""
    # half = tan(angle / 2) with c = s^2 sin(angle): all else is a rational function of it.
    most = var / (total + jnp.sqrt(1 + 2 * var))
    offset = distance * (total * scale)
    bends = jnp.zeros_like(var)
    for node, mass in zip(_BEND_NODES, _BEND_MASSES, strict=True):
        half = most * node
        squared = 1 + half * half
        low, high = (squared * (scale / (1 + sign * half)) ** 2 for sign in (1, -1))
        # The pair's density times phi(x) phi(y) is a normal one again, of this mean, variance (less
        # the two of f'') and covariance.
        tilted, excess, shared = offset * low, 1 + 0.5 * (low + high), 0.5 * (high - low)
        product = (excess - tilted * tilted) ** 2 + shared * (4 * tilted * tilted + 2 * shared)
        weight = mass * (1 - most * half) / (squared * squared)
        bends += weight * jnp.exp(-tilted * offset) * product
    return most, bends


def _smoothed(mean: Array, var: Array) -> list[Array]:
    """Computes E d, E d', E d'' and E d''' of what the approximation of GELU adds."""
    derivatives = _density_derivatives(mean, _WINDOW + var, 2 * len(_DERIVATIVES) + 1)
    zero = jnp.zeros_like(mean)
    return [
        sum((c * derivatives[2 * j + k] for j, c in enumerate(_DERIVATIVES)), zero)
        for k in range(4)
    ]


def _density_derivatives(x: Array, var: Array, order: int) -> list[Array]:
    """Computes the derivatives 0 to `order` of a centred normal density."""
    scale = lax.rsqrt(var)
    distance = _values.near(jnp.abs(x) * scale)
    ratio, inverse = jnp.where(x > 0, distance, -distance) * scale, scale * scale
    # By the recurrence of Hermite's polynomials.
    derivatives = [_values.pdf(distance) * scale]
    for n in range(order):
        before = n * inverse * derivatives[n - 1] if n else 0
        derivatives.append(-ratio * derivatives[n] - before)
    return derivatives


@_traced_once
def silu_in_short(mean: Array, var: Array) -> _values.Gaussian:
    """Computes the moments of SiLU with E sigmoid(x) = s = sigmoid(k m), k = (1 + pi v / 8)^(-1/2).

    This is MacKay's approximation (1992). By Stein's lemma the mean is m s + v s', derivatives by
    m; the variance has the terms that `gelu_in_short` has. It takes one exponential. Means are up
    to .006 of the input's standard deviation off where that is .3, and up to .03 where it is more;
    standard deviations .002 and .05.
    """
    m = _finite(mean)
    k = lax.rsqrt(1 + np.pi / 8 * var)
    s = lax.logistic(k * m)
    bell = s * (1 - s)
    # The first three derivatives of sigmoid(k m) by m.
    first, second = k * bell, k * k * bell * (1 - 2 * s)
    third = k * k * k * bell * (1 - 6 * bell)
    slope, curve = s + m * first + var * second, 2 * first + m * second + var * third
    spread = var * (slope * slope + 0.5 * var * curve * curve)
    known, limit = jnp.isfinite(mean), jnp.where(jnp.isnan(mean), mean, jnp.maximum(mean, 0))
    value = jnp.where(known, m * s + var * first, limit)
    return _values.Gaussian(value, jnp.where(known, spread, 0))


# Our least-maximum fits, within 4e-7: the variance of each normal density, and what its derivatives
# of order 0, 2 and 4 count for in silu(x) - x Phi(x / w) and in x^2 sech(x / 2)^2 / 4.
_STEP = 4.718
_BUMPS = (
    (0.743, (-0.0503092517, -0.00252104461, -5.99473805e-05),
     (-0.527475627, -0.0366624603, -0.00131126983)),
    (1.943, (-1.51931172, -0.199990341, -0.0379652018), (-2.25918984, 0.0399260083, -0.0530649342)),
    (5.92, (2.46022469, -1.79996807, 0.171994153), (4.41637435, 1.1633769, 0.948247839)),
    (15.228, (-0.176538163, 0.224145043, -0.174807838), (1.66015682, -1.76048248, 1.79134248)),
)  # fmt: skip
# Up to which variance the series and the expansion of the mean are taken.
_SERIES, _EXPANSION = 0.15, 0.01


@_traced_once
def silu(mean: Array, var: Array) -> _values.Gaussian:
    """Computes the moments of SiLU, x sigmoid(x).

    f^2 is x f less x^2 sech(x / 2)^2 / 4, so that by Stein's lemma, with t = E f - max(m, 0), the
    variance is

        v E f' - E[x^2 sech(x / 2)^2] / 4 - t (|m| + t)

    This even function, and the one that f has beside x Phi(x / w), are taken as sums of normal
    densities and their derivatives, which smoothing only widens. Small variances would be lost in
    that difference: they are the first four terms of sum v^k / k! (E f^(k))^2, and the mean is f(m)
    + v E f'' / 2 - v^2 E f^(4) / 8.

    The mean is within 1e-5 of the input's standard deviation, the variance within 2e-5 of its
    variance.
    """
    known = jnp.isfinite(mean)
    m = jnp.where(known, mean, 0)
    distance = _values.near(jnp.abs(m) * lax.rsqrt(_STEP + var))
    _, prob, _ = _values.tail(distance)
    step = _density_derivatives(m, _STEP + var, 4)
    # E f to E f^(4) of x Phi(x / w), of the mean what it has above max(m, 0).
    smooth = [
        var * step[0] - jnp.abs(m) * prob,
        jnp.where(m > 0, 1 - prob, prob) - _STEP * step[1],
        *(step[k - 2] - _STEP * step[k] for k in (2, 3, 4)),
    ]
    curved = jnp.zeros_like(m)
    for width, added, squared in _BUMPS:
        bump = _density_derivatives(m, width + var, 8)
        smooth = [
            s + sum(c * bump[2 * j + k] for j, c in enumerate(added)) for k, s in enumerate(smooth)
        ]
        curved += sum(c * bump[2 * j] for j, c in enumerate(squared))
    above, slope, second, third, fourth = smooth

    # Powers of what isn't used could overflow, and make gradients NaN.
    v = jnp.minimum(var, _SERIES)
    square, cube = second * second / 2, third * third / 6
    series = slope * slope + v * (square + v * (cube + v * fourth * fourth / 24))
    difference = var * slope - curved - above * (jnp.abs(m) + above)
    spread = jnp.where(var < _SERIES, var * series, jnp.maximum(difference, 0))
    expanded = m * lax.logistic(m) + v * (second / 2 - v * fourth / 8)
    value = jnp.where(var < _EXPANSION, expanded, jnp.maximum(m, 0) + above)
    limit = jnp.where(jnp.isnan(mean), mean, jnp.maximum(mean, 0))
    return _values.Gaussian(jnp.where(known, value, limit), jnp.where(known, spread, 0))
