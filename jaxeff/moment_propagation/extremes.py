"""Moments of the maximum of many independent Gaussians, by integrating its distribution function.

The maximum M of independent entries has the distribution F(t) = prod_i Phi((t - m_i) / s_i), and
from the top h, above which it never is,

    E (h - M) = int F,        E (h - M)^2 = 2 int (h - t) F        over t < h.

Entries with small s_i step where the range begins, so the nodes are denser there. Up to four
entries Clark's tree of pairs is as good and cheaper (`clark`), above it isn't: of 64 alike its
variance is .6 of the true one.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation import clark
from jaxeff.moment_propagation.arithmetic import map_linear, negate
from jaxeff.moment_propagation.gaussian import Gaussian
from jaxeff.moment_propagation.normal import cdf, inverse_std
from jaxeff.program.axes import extent

_PAIRED = 4
_NODES = 48
_REACH = 6.0  # standard deviations
_FAR = 10.0


def reduce_max(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Moments of the maximum over `axes`; entries may be infinite or deterministic."""
    axes = tuple(a % x.ndim for a in axes)
    if extent(x.shape, axes) <= _PAIRED:
        return clark.reduce_max(x, axes)
    kept = [a for a in range(x.ndim) if a not in axes]

    def last(values: Array) -> Array:
        return jnp.transpose(values, [*kept, *axes]).reshape(*(x.shape[a] for a in kept), -1)

    return _integrated(map_linear(last, x))


def reduce_min(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Moments of the minimum over `axes`."""
    return negate(reduce_max(negate(x), axes))


def _integrated(x: Gaussian) -> Gaussian:
    """The moments of the maximum over the last axis."""
    scale = inverse_std(x.var)
    reach = _REACH * x.var * scale
    low, high = (jnp.max(x.mean + sign * reach, -1) for sign in (-1, 1))
    known = jnp.isfinite(low) & jnp.isfinite(high)
    start = jnp.where(known, low, 0)
    width = jnp.where(known, high, 0) - start

    def at(total: Any, node: Any) -> tuple[Any, None]:
        u, weight = node
        z = (start + width * u)[..., None] - x.mean
        log_below = jnp.log(cdf(jnp.clip(z * scale, -_FAR, _FAR)))
        below = weight * jnp.exp(jnp.sum(log_below, -1))
        return (total[0] + below, total[1] + 2 * (1 - u) * below), None

    points, weights = np.polynomial.legendre.leggauss(_NODES)
    v = 0.5 * (points + 1)
    nodes = tuple(jnp.asarray(a, x.mean.dtype) for a in (v * v, weights * v))  # u = v^2
    zero = jnp.zeros_like(width)
    (first, second), _ = lax.scan(at, (zero, zero), nodes)
    var = width * width * jnp.maximum(second - first * first, 0)
    # Where nothing is random the range has no width.
    return Gaussian(high - width * first, var)
