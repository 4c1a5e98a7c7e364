"""Moments of sums, products, quotients and contractions of independent arrays.

Every function takes random or deterministic operands of equal shape and returns a plain array
where none is random.

Sharp edges
- Operands are taken as independent. `x * x` is not a product of independents: it is
  `square` of `_activations`. The interpreter distinguishes the two; a caller of these functions
  must.
- 1/x of a Gaussian has no moments, however far its mean is from zero, and a logarithm or a root is
  undefined below it. The quotient and the functions of a positive argument (`log`, `sqrt`, `rsqrt`,
  `reciprocal`, powers) have those of an operand that keeps a tenth of its mean's distance from
  zero: as samples do while none of them comes closer. With a mean of 5.5 standard
  deviations or more they are within 3 % of the variances that 1e5 samples have; that of 1/x is
  1.5 % small at five and 7 % at 4.5, steeper powers' more. Below 3.5 no
  number is right; the operand is then taken as log-normal with the same mean and variance, which is
  exact where it can't be negative for such a reason, and finite whenever its mean isn't zero.
  In between the two are mixed.
"""

from collections.abc import Callable
from typing import Any, overload

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.moment_propagation._values import Gaussian, Random, RawMoments, is_random, to_variance
from jaxeff.moment_propagation.rules._activations import gauss_legendre

Value = Array | Random


def mean_of(x: Value) -> Array:
    """Returns the mean of a random array; a deterministic one is its own mean."""
    return x.mean if is_random(x) else x


@overload
def map_linear(op: Callable[[Array], Array], x: Random) -> Gaussian: ...
@overload
def map_linear(op: Callable[[Array], Array], x: Array) -> Array: ...
def map_linear(op: Callable[[Array], Array], x: Value) -> Array | Gaussian:
    """Applies `op`, which only moves, copies or drops entries, to mean and variance alike."""
    return Gaussian(op(x.mean), op(x.var)) if is_random(x) else op(x)


@overload
def negate(x: Random) -> Gaussian: ...
@overload
def negate(x: Array) -> Array: ...
def negate(x: Value) -> Array | Gaussian:
    """Computes the moments of -x."""
    return Gaussian(-x.mean, x.var) if is_random(x) else -x


def add(x: Value, y: Value) -> Array | Gaussian:
    """Computes the moments of x + y for independent operands."""
    total = mean_of(x) + mean_of(y)
    variances = [jnp.broadcast_to(v.var, total.shape) for v in (x, y) if is_random(v)]
    return Gaussian(total, sum(variances[1:], variances[0])) if variances else total


def subtract(x: Value, y: Value) -> Array | Gaussian:
    """Computes the moments of x - y for independent operands."""
    return add(x, negate(y))


def multiply(x: Value, y: Value) -> Any:
    """Computes the moments of x * y for independent operands."""
    if not is_random(x):
        if not is_random(y):
            return x * y
        return Gaussian(x * y.mean, (x * x) * y.var)
    if not is_random(y):
        return Gaussian(x.mean * y, x.var * (y * y))
    # Var[xy] = E[x^2] Var[y] + Var[x] E[y]^2: unlike E[x^2] E[y^2] - (E[x] E[y])^2 a sum of
    # non-negative terms, which keeps a small variance in float32.
    return Gaussian(x.mean * y.mean, x.second_moment * y.var + x.var * (y.mean * y.mean))


def divide(x: Value, y: Value) -> Array | Gaussian:
    """Computes the moments of x / y for independent operands, with y kept away from zero."""
    if is_random(y):
        return multiply(x, power(y, -1.0))
    return Gaussian(x.mean / y, x.var / (y * y)) if is_random(x) else x / y


def log_normal_parameters(x: Random) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Computes mean and variance of log|x| for the log-normal with the moments of `x`."""
    x = to_variance(x)
    # The squared coefficient of variation. Divided twice, for the square of a small mean
    # underflows; log1p keeps it where it is below the machine epsilon.
    safe = jnp.where(x.mean == 0, 1, x.mean)
    log_var = jnp.log1p(x.var / safe / safe)
    return jnp.log(jnp.abs(x.mean)) - 0.5 * log_var, log_var


def log(x: Random) -> Gaussian:
    """Computes the moments of the logarithm; NaN where the mean is negative."""
    mu, var = log_normal_parameters(x)
    log_normal = Gaussian(jnp.where(x.mean < 0, jnp.nan, mu), var)
    # log x = log m + log(x / m): the second term alone varies, whatever the scale of x.
    relative = _away_from_zero(x, jnp.log)
    shift = jnp.where(x.mean < 0, jnp.nan, jnp.log(jnp.where(x.mean > 0, x.mean, 1)))
    return _mixed(x, log_normal, Gaussian(shift + relative.mean, relative.var))


def power(x: Random, exponent: float | Array) -> Gaussian:
    """Computes the moments of `x ** exponent`; the sign of a negative mean is kept.

    Powers that aren't whole numbers of a negative mean are NaN, as in `jnp.power`.
    """
    exponent = jnp.asarray(exponent, x.mean.dtype)
    # x^p = sign(m)^p |m|^p (x / m)^p: quadrature sees a base near one, whatever the scale of x.
    relative = _away_from_zero(x, lambda ratio: jnp.power(ratio, exponent))
    safe = jnp.where(x.mean == 0, 1, x.mean)
    scale = jnp.power(jnp.abs(safe), exponent)
    sign = jnp.power(jnp.sign(safe), exponent)
    gaussian = Gaussian(sign * scale * relative.mean, scale * scale * relative.var)
    return _mixed(x, power_of_log_normal(x, exponent), gaussian)


def power_of_log_normal(x: Random, exponent: float | Array) -> Gaussian:
    """Computes the moments of `x ** exponent` for a log-normal `x`, which is never negative."""
    mu, var = log_normal_parameters(x)
    exponent = jnp.asarray(exponent, x.mean.dtype)
    # A power of a log-normal is one: E[x^p] = exp(p mu + p^2 s^2 / 2), and the relative variance
    # is exp(p^2 s^2) - 1, which expm1 keeps where it is small.
    magnitude = jnp.exp(exponent * mu + 0.5 * exponent * exponent * var)
    sign = jnp.power(jnp.sign(x.mean), exponent)
    return Gaussian(sign * magnitude, magnitude * magnitude * jnp.expm1(exponent * exponent * var))


_NEAR, _FAR = 3.5, 4.5  # a mean's distance from zero, in standard deviations
_CLOSEST = 0.1  # of the mean


def _away_from_zero(x: Random, fn: Callable[[Array], Array]) -> Gaussian:
    """Computes the moments of `fn(x / mean)`, the part of `x` close to zero left out."""
    # Entries near zero get a stand-in with finite derivatives: `_mixed` takes none of their result.
    safe = jnp.where(_distance(x) > _NEAR, x.mean, 1)
    # Measured in means, so that neither the nodes nor their floor depend on the scale of x.
    spread = jnp.where(_distance(x) > _NEAR, x.var, 0) / safe / safe
    ratio = Gaussian(jnp.ones_like(spread), spread)
    return gauss_legendre(fn, ratio, (1.0,), above=_CLOSEST)


def _distance(x: Random) -> Array:
    """Returns how many standard deviations a mean is from zero; infinite at a variance of zero."""
    # The distance only weighs two approximations of one moment: no derivative of the moment passes.
    mean, var = lax.stop_gradient((x.mean, x.var))
    return jnp.where(mean == 0, 0, jnp.abs(mean) * lax.rsqrt(var))


def _mixed(x: Random, near: Gaussian, far: Gaussian) -> Gaussian:
    # Linear from one approximation to the other, so that moments are continuous in the mean.
    share = jnp.clip((_distance(x) - _NEAR) / (_FAR - _NEAR), 0, 1)

    def mix(a: Array, b: Array) -> Array:
        # Chosen at the ends, so that an infinite or undefined one of the two doesn't count there.
        return jnp.where(share == 0, a, jnp.where(share == 1, b, a + share * (b - a)))

    var = jnp.where(jnp.isinf(x.mean), 0, mix(near.var, far.var))
    return Gaussian(mix(near.mean, far.mean), var)


Bilinear = Callable[[Array, Array], Array]


def bilinear(op: Bilinear, x: Array | Random, w: Array | Random) -> Array | Gaussian:
    """Propagates moments through an operation bilinear in `x` and `w`.

    Any operation that is linear in each operand and whose outputs are sums of distinct products
    (`dot_general`, `conv_general_dilated`, with whatever stride, padding, dilation and groups)
    propagates moments by calling that same operation on means and variances:

        mean = op(E[x], E[w])
        var  = op(E[x^2], Var[w]) + op(Var[x], E[w]^2)        mean-variance form
             = op(E[x^2], E[w^2]) - op(E[x]^2, E[w]^2)        second-raw-moment form

    (Klein's thesis, eqs. (8.1), (8.3) and (8.9); Roth 2021). Both cost three contractions. The
    first is the default because its terms are all non-negative: in float32 the second, which
    `RawMoments` select where both operands are random, loses the variance when it is below about
    1e-7 mean^2. A deterministic operand drops a contraction: fixed weights leave `op(Var[x], w^2)`,
    a fixed input (the first layer) `op(x^2, Var[w])`. Where nothing is random it is `op(x, w)`.

    Sharp edges
    - Independence of all entries is assumed. For p.v in attention it is wrong to the extent that
      the weights of one row sum to one.
    """
    if not is_random(x):
        if not is_random(w):
            return op(x, w)
        # The first layer's case, of two contractions (Klein's thesis, eqs. (8.10) and (8.11)).
        return Gaussian(op(x, w.mean), op(x * x, w.var))
    if not is_random(w):
        return Gaussian(op(x.mean, w), op(x.var, w * w))
    mean = op(x.mean, w.mean)
    if isinstance(x, RawMoments):
        # The difference of raw moments can round to a negative variance, whose root is NaN.
        second = op(x.second_moment, w.second_moment)
        return Gaussian(mean, jnp.maximum(second - op(x.mean * x.mean, w.mean * w.mean), 0))
    return Gaussian(mean, op(x.second_moment, w.var) + op(x.var, w.mean * w.mean))
