"""Moments of maxima and minima: Clark's maximum of two Gaussians, in trees and over windows.

Clark (1961), in a form that doesn't cancel. With a^2 = v1 + v2, d = m1 - m2 and t = |d| / a,

    mean = max(m1, m2) + a h(t)
    var  = v_hi - (v_hi - v_lo) Q(t) - a^2 h(t) (t + h(t))

where hi is the operand with the larger mean, Q the normal tail and h(t) = phi(t) - t Q(t). More
than two operands are reduced in a balanced tree, each result taken as Gaussian again.

Sharp edges
- The tree underestimates the variance of the maximum: of four alike by 5 %, of nine by 15 %, of
  sixteen by 27 %; of unequal ones less on the whole, but up to 21 % and 31 % for four and nine.
  Its mean is within 0.03, 0.07 and 0.1 standard deviations.
- The source adds 1e-4 to a^2; here only the square of the machine epsilon is added, and the
  correction is scaled so that variances of zero give exactly the deterministic maximum.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.rules._arithmetic import Value, binary, negate
from jaxeff.moment_propagation.values import Gaussian, inverse_std, is_random, near, tail


def _as_gaussian(x: Value) -> Gaussian:
    return Gaussian(x.mean, x.var) if is_random(x) else Gaussian(x, jnp.zeros_like(x))


@binary
def maximum(x: Value, y: Value) -> Array | Gaussian:
    """Computes the moments of max(x, y) for independent operands (Clark 1961).

    Args:
        x: Random or deterministic array.
        y: Random or deterministic array of the same shape; infinite entries are allowed.

    Returns:
        The moments, or the maximum itself where neither is random.
    """
    if not is_random(x) and not is_random(y):
        return jnp.maximum(x, y)
    x, y = _as_gaussian(x), _as_gaussian(y)
    # Equal infinities have no distance, and one of them a finite one: no 0 * inf in gradients.
    distance = jnp.where(x.mean == y.mean, 0, x.mean - y.mean)
    gap = jnp.minimum(jnp.abs(distance), jnp.finfo(x.dtype).max)
    total = x.var + y.var
    scale = inverse_std(total)
    # The tail functions are zero from there on; further out the product may be infinite.
    t = near(gap * scale)
    _, prob, h = tail(t)
    # Measured from the variance of the operand with the larger mean, the limit of a large t: the
    # corrections fade with the tail, and E[M^2] - E[M]^2 is never formed.
    high = jnp.where(distance >= 0, x.var, y.var)
    low = total - high
    var = high - (high - low) * prob - total * h * (t + h)
    return Gaussian(
        # total * scale is a, but exactly zero, with a finite gradient, where both variances are.
        jnp.maximum(x.mean, y.mean) + total * scale * h,
        jnp.maximum(var, 0),
    )


def minimum(x: Value, y: Value) -> Array | Gaussian:
    """Computes the moments of min(x, y) for independent operands."""
    return negate(maximum(negate(x), negate(y)))


def reduce_max(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Computes the moments of the maximum over `axes`, a balanced tree of pairs per axis."""
    # The last axis first: removing it leaves the numbers of the others valid.
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        while (size := x.shape[axis]) > 1:
            # A tree, not a chain: an entry passes log2(n) approximations by a Gaussian instead of
            # up to n - 1, and a level is one vectorised maximum. An odd entry waits a level.
            half = size // 2
            parts = [
                Gaussian(*(lax.slice_in_dim(m, lo, hi, axis=axis) for m in (x.mean, x.var)))
                for lo, hi in ((0, half), (half, 2 * half), (2 * half, size))
            ]
            pair = maximum(parts[0], parts[1])
            if size % 2:
                pair = Gaussian(
                    jnp.concatenate([pair.mean, parts[2].mean], axis),
                    jnp.concatenate([pair.var, parts[2].var], axis),
                )
            x = pair
        x = Gaussian(jnp.squeeze(x.mean, axis), jnp.squeeze(x.var, axis))
    return x


def reduce_min(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Computes the moments of the minimum over `axes`."""
    return negate(reduce_max(negate(x), axes))
