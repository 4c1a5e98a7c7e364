"""The standard normal density and tail in the forms the moment rules share, safe in float32.

Every rectifier and every maximum of Gaussians is a function of one quantity, the expected
exceedance h(a) = E[max(z - a, 0)] = phi(a) - a Q(a) of a standard normal z. Writing the rules in
h and the upper tail Q, at a >= 0 only, removes the cancellation of the textbook forms
(E[x^2] - E[x]^2 of a ReLU loses every digit in float32 once the mean is a thousand standard
deviations), so the rules work on variances directly.

Sharp edges
- Standardised arguments end at 40, where the density underflows in float64 too (10 in float32).
- A standard deviation below one unit in the last place of 1 counts as zero:
  `inverse_std` adds its square to the variance, so results and gradients stay finite at a
  variance of exactly zero. A rule multiplies by `var * inverse_std**2`, which is 0 there, instead
  of trusting `std`, whose gradient is infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_LIMIT = 40.0
_FLOAT32_LIMIT = 10.0  # products of smaller densities are subnormal: slow, and lost in any sum
_SQRT_HALF = 0.7071067811865476
_INV_SQRT_2PI = 0.3989422804014327


class Tail(NamedTuple):
    """Density, upper tail probability and expected exceedance of a standard normal at `a`."""

    pdf: Float[Array, "*shape"]
    prob: Float[Array, "*shape"]
    exceedance: Float[Array, "*shape"]


def pdf(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the standard normal density phi(z)."""
    return _INV_SQRT_2PI * jnp.exp(-0.5 * z * z)


def cdf(z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the standard normal distribution function Phi(z), accurate in the lower tail."""
    # erfc of the negated argument: 1 + erf(z) cancels for negative z.
    return 0.5 * lax.erfc(-_SQRT_HALF * z)


# Q(a) = phi(a) N(a) / D(a) and h(a) = phi(a) R(a) / D(a) with D = R + a N, so that h + a Q = phi:
# our least-maximum fit of Mills' ratio for 0 <= a <= 10 (ascending coefficients), relative error of
# both 2.2e-8 (1 + a^2 / 5). All coefficients are positive: nothing cancels, where the difference
# phi - a Q loses a^2 digits. Density and tail take one exponential and one division, a fifth of
# the instructions of an error function.
_PROB = (1.25331416, 1.13715928, 0.488377353, 0.111818991, 0.0118469666)
_EXCEEDANCE = (1.0, 0.451893567, 0.113055271, 0.0117769336, 1.74452723e-06)


def _polynomial(coefficients: tuple[float, ...], a: Array) -> Array:
    value = jnp.full_like(a, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * a + coefficient
    return value


@jax.custom_jvp
def near(a: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Clips distances to where a normal density is above zero: 40, in float32 10."""
    return jnp.minimum(a, _LIMIT if a.dtype == jnp.float64 else _FLOAT32_LIMIT)


@near.defjvp
def _near_jvp(at: tuple[Array], step: tuple[Array]) -> tuple[Array, Array]:
    # A minimum's own derivative multiplies by 0 or 1. The step of what is far away, as of a mask or
    # the padding of a window, may be infinite: it is left out instead.
    (a,), (da,) = at, step
    found = near(a)
    return found, jnp.where(found == a, da, 0)


@jax.custom_jvp
def tail(a: Float[Array, "*shape"]) -> Tail:
    """Computes density, upper tail and expected exceedance at `0 <= a`, as `near` clips it.

    Args:
        a: Standardised distances, neither negative nor beyond 40, in float32 10. There all three
            are zero (they are below 1e-22).

    Returns:
        phi(a), Q(a) = 1 - Phi(a) and h(a) = phi(a) - a Q(a), all finite and non-negative.
    """
    limit = _LIMIT if a.dtype == jnp.float64 else _FLOAT32_LIMIT
    density = jnp.where(a < limit, pdf(a), 0)
    if a.dtype == jnp.float64:
        # The fitted quotients are for float32 alone. h(a) is about phi(a) / a^2, so the difference
        # loses a^2 in relative accuracy and can come out below zero.
        prob = 0.5 * lax.erfc(_SQRT_HALF * a)
        return Tail(density, prob, jnp.maximum(density - a * prob, 0))
    above, beyond = _polynomial(_PROB, a), _polynomial(_EXCEEDANCE, a)
    # The division comes last, where XLA keeps its result instead of repeating the polynomials in
    # every consumer.
    share = density / (beyond + a * above)
    return Tail(density, share * above, share * beyond)


def variance_floor(dtype: jnp.dtype) -> float:
    """Returns the variance that counts as rounding: the squared machine epsilon of `dtype`."""
    return float(jnp.finfo(dtype).eps) ** 2


@tail.defjvp
def _tail_jvp(at: tuple[Array], step: tuple[Array]) -> tuple[Tail, Tail]:
    # phi' = -a phi, Q' = -phi and h' = -Q: no derivative of the fitted quotients, which would take
    # three times their operations and lose digits.
    (a,), (da,) = at, step
    found = tail(a)
    return found, Tail(-a * found.pdf * da, -found.pdf * da, -found.prob * da)


def inverse_std(var: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes 1 / sqrt(var + floor): finite, with finite gradients, at a variance of zero."""
    return lax.rsqrt(var + variance_floor(var.dtype))
