"""Factors of results that depend on the input, through the variance that was propagated for it.

A static factor is an average over inputs. What is left of its error belongs to the input, and the
propagated variance V tells some of it: for every result and channel c

    log E[s^2] = a_c + p log V,

a regression on the logarithm of sampled variances s^2, with one slope p for all channels of a
result. With p = 1 it is a static factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.moment_propagation.values import Gaussian, is_gaussian

# Variances rise with what was propagated, and at most as its square: inputs of another kind are
# outside of what the slope was fitted to.
_SLOPES = (0.1, 2.0)


def level_name(number: int) -> str:
    """Returns the name of the level of a result, by its place among the results."""
    return f"level {number}"


def fit_level(var: np.ndarray, sampled: np.ndarray, rows: np.ndarray, noise: float) -> np.ndarray:
    """Fits the level of one result.

    Args:
        var: Propagated variances, `[entries, channels]`.
        sampled: FactorPass ones, of the same shape.
        rows: Marks of the entries that count, `[entries]`.
        noise: The variance of the logarithm of a sampled variance.

    Returns:
        `a` and `p` as `[2, channels]`.
    """
    known = (var > 0) & (sampled > 0) & rows[:, None]
    u, y = (np.log(np.where(known, v, 1.0)) for v in (var, sampled))
    count = np.maximum(known.sum(0), 1)
    u_mean, y_mean = u.sum(0) / count, y.sum(0) / count
    du, dy = (np.where(known, v - m, 0) for v, m in ((u, u_mean), (y, y_mean)))
    total = (du * du).sum()
    # Drawn towards 1, a static factor, where propagated variances hardly differ.
    slope = ((du * dy).sum() + noise) / (total + noise)
    slope = np.clip(slope, *_SLOPES)
    return np.stack([y_mean - slope * u_mean, np.full_like(u_mean, slope)])


def at_level(var: Any, level: Any) -> Any:
    """Computes the variances that a level makes of propagated ones; none stays none."""
    some = var > 0
    logs = jnp.log(jnp.where(some, var, 1))
    return jnp.where(some, jnp.exp(level[0] + level[1] * logs), var)


def with_levels(results: Any, factors: Mapping[str, Array]) -> Any:
    """Takes the variances of a function's results to their levels, where they have one."""
    leaves, structure = jax.tree.flatten(results, is_leaf=is_gaussian)

    def moved(number: int, value: Any) -> Any:
        level = factors.get(level_name(number))
        if level is None or not is_gaussian(value):
            return value
        if level.shape[1:] not in ((1,), value.shape[-1:]):
            level = jnp.mean(level, 1)  # another number of channels than was measured
        return Gaussian(value.mean, at_level(value.var, level).astype(value.dtype))

    return jax.tree.unflatten(structure, [moved(i, v) for i, v in enumerate(leaves)])
