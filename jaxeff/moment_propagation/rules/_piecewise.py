"""Moments of piecewise polynomials of a Gaussian, in closed form: the kinked activations.

ReLU, ReLU6, clip, abs, leaky ReLU, PReLU, hard tanh, hard sigmoid, hard and soft shrinkage, and
hard swish are polynomials of degree at most two between breakpoints, continuous or not. With
x = m + s z their moments are sums of truncated normal moments,

    I_j(a, b) = int_a^b z^j phi(z) dz,   I_j = (j-1) I_{j-2} + a^{j-1} phi(a) - b^{j-1} phi(b).

The polynomials are expanded about the mean and measured from f(m), so that the variance is a
difference of numbers of its own size: it keeps its digits in float32 however small it is against
the mean, and at a variance of zero the result is f(m) with the gradients of the limit.

Sharp edges
- At a jump (hard shrinkage) with zero variance and the mean exactly on it, the result is the
  average of both sides.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.moment_propagation.rules._composites import activation, composite
from jaxeff.moment_propagation.values import Gaussian, Random, inverse_std, near, tail, to_variance

Coefficients = Sequence[float | Array]


@activation("pfp_relu")
def relu(x: Gaussian) -> Gaussian:
    """Computes the moments of max(x, 0), at one exponential and one tail probability per entry.

    The mean is max(m, 0) + s h(|t|) and the variance s^2 (Phi(t) - h(|t|) (|t| + h(|t|))) with
    t = m / s: Klein's thesis, eqs. (8.5) and (8.6), rearranged so that nothing cancels.
    """
    scale = inverse_std(x.var)
    t = near(jnp.abs(x.mean) * scale)
    _, prob, h = tail(t)
    # The tail is taken at |t|, where it is small: Phi(t) near one then loses nothing that counts.
    # Never below zero: h (|t| + h) is below Q(|t|) by its 2 / t^2th part, far above rounding.
    share = jnp.where(x.mean > 0, 1 - prob, prob) - h * (t + h)
    return Gaussian(jnp.maximum(x.mean, 0) + x.var * scale * h, x.var * share)


def piecewise(
    x: Random, breaks: Sequence[float | Array], pieces: Sequence[Coefficients]
) -> Gaussian:
    """Computes the moments of a piecewise polynomial of a Gaussian.

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
    x = to_variance(x)

    def rule(mean: Array, var: Array) -> Gaussian:
        return _piecewise(Gaussian(mean, var), breaks, pieces)

    # A composite's attributes are numbers: with a slope per channel (PReLU) there is none.
    coefficients = [c for piece in pieces for c in (*piece, 0.0, 0.0)[:3]]
    numbers = [float(v) for v in (*breaks, *coefficients) if isinstance(v, int | float)]
    if len(numbers) < len(breaks) + len(coefficients):
        return rule(x.mean, x.var)
    shape = {"breaks": tuple(numbers[: len(breaks)]), "coefficients": tuple(numbers[len(breaks) :])}
    return composite("pfp_piecewise", rule, x.mean, x.var, **shape)


def _piecewise(
    x: Gaussian, breaks: Sequence[float | Array], pieces: Sequence[Coefficients]
) -> Gaussian:
    # Infinity times a coefficient of zero isn't a number, so the limits are taken apart.
    known = jnp.isfinite(x.mean)
    mean, scale = jnp.where(known, x.mean, 0), inverse_std(x.var)
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
    return Gaussian(
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
        density, prob, _ = tail(near(jnp.abs(t)))
        ends.append(
            (t, density, jnp.where(t < 0, prob, 1 - prob), jnp.where(t < 0, 1 - prob, prob))
        )
    ends.append((zero, zero, one, zero))
    intervals = []
    for (a, pa, la, ua), (b, pb, lb, ub) in itertools.pairwise(ends):
        # Differences of upper tails right of the mean, of lower tails left of it: far from the
        # mean the other difference would be rounding, multiplied by a large polynomial.
        moments = [jnp.where(a > 0, ua - ub, lb - la), pa - pb]
        # Integration by parts, the recurrence of the module's docstring.
        for j in range(2, 5):
            moments.append((j - 1) * moments[j - 2] + a ** (j - 1) * pa - b ** (j - 1) * pb)
        intervals.append(moments)
    return intervals
