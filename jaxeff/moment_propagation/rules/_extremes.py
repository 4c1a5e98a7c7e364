"""Moments of the maximum of many independent Gaussians, by integrating its distribution function.

The maximum M of independent entries has the distribution F(t) = prod_i Phi((t - m_i) / s_i), and
from the top h, above which it never is,

    E (h - M) = int F,        E (h - M)^2 = 2 int (h - t) F        over t < h.

Entries with small s_i step where the range begins, so the nodes are denser there. Up to four
entries Clark's tree of pairs is as good and cheaper (`clark`), above it isn't: of 64 alike its
variance is .6 of the true one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.rules import _clark as clark
from jaxeff.moment_propagation.rules._arithmetic import Value, map_linear, mean_of, negate
from jaxeff.moment_propagation.values import Gaussian, cdf, inverse_std, is_random
from jaxeff.program.ir import extent

_PAIRED = 4
_NODES = 48
_REACH = 6.0  # standard deviations
_FAR = 10.0


def reduce_max(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Computes the moments of the maximum over `axes`; entries may be infinite or deterministic."""
    axes = tuple(a % x.ndim for a in axes)
    if extent(x.shape, axes) <= _PAIRED:
        # Three pairs cost less than 48 nodes, and are as accurate for so few entries.
        return clark.reduce_max(x, axes)
    kept = [a for a in range(x.ndim) if a not in axes]

    def last(values: Array) -> Array:
        return jnp.transpose(values, [*kept, *axes]).reshape(*(x.shape[a] for a in kept), -1)

    return _integrated(
        map_linear(last, x),
        lambda values: jnp.max(values, -1),
        lambda values: jnp.sum(values, -1),
        lambda result: result[..., None],
    )


def reduce_min(x: Gaussian, axes: tuple[int, ...]) -> Gaussian:
    """Computes the moments of the minimum over `axes`."""
    return negate(reduce_max(negate(x), axes))


def scatter_max(x: Value, indices: Array, updates: Value, **how: Any) -> Gaussian:
    """Computes the moments of `lax.scatter_max`, a segment's maximum among them.

    Args:
        x: The array written to, random or not; minus infinity where only updates count.
        indices: Indices of the updates, as `lax.scatter_max` takes them.
        updates: The values written, random or not, independent of `x`.
        **how: Further arguments of `lax.scatter_max`.
    """
    # The array written to and the updates become one vector: each result is the maximum of its own
    # entry and the updates that reach it, a segment of that vector.
    shape = jnp.shape(mean_of(updates))
    split = math.prod(jnp.shape(mean_of(x)))

    def reduced(scatter: Callable[..., Array]) -> Callable[[Array], Array]:
        def reduce(entries: Array) -> Array:
            own = entries[:split].reshape(jnp.shape(mean_of(x)))
            return scatter(own, indices, entries[split:].reshape(shape), **how)

        return reduce

    # A product over a segment is the exponential of a sum of logarithms, which scatter_add takes.
    total = reduced(lax.scatter_add)
    both = [v if is_random(v) else Gaussian(v, jnp.zeros_like(v)) for v in (x, updates)]
    entries = Gaussian(
        *(jnp.concatenate([jnp.ravel(a) for a in pair])
          for pair in zip(*((v.mean, v.var) for v in both), strict=True))
    )  # fmt: skip
    # What a sum takes from where goes back there in its transpose.
    back = jax.linear_transpose(total, entries.mean)
    return _integrated(entries, reduced(lax.scatter_max), total, lambda result: back(result)[0])


def scatter_min(x: Value, indices: Array, updates: Value, **how: Any) -> Gaussian:
    """Computes the moments of `lax.scatter_min`, as `scatter_max`."""
    return negate(scatter_max(negate(x), indices, negate(updates), **how))


def _integrated(
    x: Gaussian,
    most: Callable[[Array], Array],
    total: Callable[[Array], Array],
    back: Callable[[Array], Array],
) -> Gaussian:
    """Integrates the distribution functions of maxima.

    Args:
        x: Entries.
        most: The largest of a result's entries.
        total: Their sum.
        back: For each entry the result that it belongs to.
    """
    scale = inverse_std(x.var)
    # var * scale is the standard deviation, with a finite gradient at a variance of zero. Below the
    # highest of the lower ends F is zero, above the highest upper end one, both to 1e-9 an entry.
    reach = _REACH * x.var * scale
    low, high = (most(x.mean + sign * reach) for sign in (-1, 1))
    known = jnp.isfinite(low) & jnp.isfinite(high)
    start = jnp.where(known, low, 0)
    width = jnp.where(known, high, 0) - start

    def at(sums: Any, node: Any) -> tuple[Any, None]:
        u, weight = node
        # Clipped where the logarithm of the normal CDF is still finite in float32.
        z = back(start + width * u) - x.mean
        log_below = jnp.log(cdf(jnp.clip(z * scale, -_FAR, _FAR)))
        below = weight * jnp.exp(total(log_below))
        return (sums[0] + below, sums[1] + 2 * (1 - u) * below), None

    points, weights = np.polynomial.legendre.leggauss(_NODES)
    # u = v^2 puts half of the nodes into the first quarter of the range: narrow entries step there.
    v = 0.5 * (points + 1)
    nodes = tuple(jnp.asarray(a, x.mean.dtype) for a in (v * v, weights * v))  # u = v^2
    zero = jnp.zeros_like(width)
    # One node after the other: all at once would take 48 times the memory.
    (first, second), _ = lax.scan(at, (zero, zero), nodes)
    var = width * width * jnp.maximum(second - first * first, 0)
    # Where nothing is random the range has no width.
    return Gaussian(high - width * first, var)
