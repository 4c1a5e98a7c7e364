"""Monte Carlo over the layers of a function: sampled moments, to compare rules with.

The function is run on samples of its random arguments, and the mean and variance of every value in
it are accumulated. They show where a variance is off, and by how much (`assumptions`), and by which
factor to correct it (`calibrate_moments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxeff.moment_propagation.values import Gaussian, is_gaussian
from jaxeff.program import Program, plain_rule
from jaxeff.program.ir import Value

Sampled = dict[Value, Gaussian]


def sampled_moments(
    key: PRNGKeyArray, program: Program, values: Sequence[Any], samples: int, chunk: int
) -> Sampled:
    """Samples the moments of every random floating-point value of a program.

    Args:
        key: A PRNG key.
        program: A program; loops are run as they are, and what is inside isn't looked at.
        values: One per input; a `Gaussian` for random ones, which are sampled.
        samples: Number of samples to draw, at least 2; rounded up to a multiple of `chunk`.
        chunk: Number of samples that run at once: memory is this many times that of the function.

    Returns:
        The mean and the unbiased variance by value, arrays of the value's shape.
    """
    means = [v.mean if is_gaussian(v) else v for v in values]
    # Sums of offsets from the values at the means: sums of squares of the values themselves would
    # cancel in float32.
    centre = _everything(program, means)
    random = [v for v in _random(program, values) if v in centre]
    chunks = max(1, -(-samples // chunk))

    def draw(one: PRNGKeyArray) -> list[Array]:
        keys = jax.random.split(one, len(values))
        drawn = [v.sample(k) if is_gaussian(v) else v for k, v in zip(keys, values, strict=True)]
        made = _everything(program, drawn)
        # What is minus infinity in every draw doesn't vary.
        return [jnp.where(made[v] == centre[v], 0, made[v] - centre[v]) for v in random]

    def step(total: Any, chunk_key: PRNGKeyArray) -> tuple[Any, None]:
        # A chunk side by side, chunks after each other: memory is bounded by a chunk.
        offsets = jax.vmap(draw)(jax.random.split(chunk_key, chunk))
        first = [t + o.sum(0) for t, o in zip(total[0], offsets, strict=True)]
        second = [t + (o * o).sum(0) for t, o in zip(total[1], offsets, strict=True)]
        return (first, second), None

    zeros = [jnp.zeros_like(centre[v]) for v in random]
    (first, second), _ = lax.scan(step, (zeros, zeros), jax.random.split(key, chunks))
    count = chunks * chunk
    found: Sampled = {}
    for value, total, squares in zip(random, first, second, strict=True):
        # The unbiased variance from sums of offsets, whose mean is small against their spread.
        mean = total / count
        var = jnp.maximum(squares - count * mean * mean, 0) / (count - 1)
        found[value] = Gaussian(centre[value] + mean, var)
    return found


def _everything(program: Program, values: Sequence[Any]) -> dict[Value, Any]:
    """Evaluates a program as it is and returns every value."""
    env: dict[Any, Any] = dict(program.constants)
    env.update(zip(program.inputs, values, strict=True))
    for layer in program.layers:
        env.update(
            zip(
                layer.outputs, plain_rule(layer, None, *(env[v] for v in layer.inputs)), strict=True
            )
        )
    return env


def _random(program: Program, values: Sequence[Any]) -> list[Value]:
    """Returns the floating-point values that depend on random inputs."""
    reached = {v for v, x in zip(program.inputs, values, strict=True) if is_gaussian(x)}
    for layer in program.layers:
        if not reached.isdisjoint(layer.inputs):
            reached.update(layer.outputs)
    made = [*program.inputs, *(v for layer in program.layers for v in layer.outputs)]
    return [v for v in made if v in reached and jnp.issubdtype(v.aval.dtype, jnp.floating)]


def ratios(ours: Gaussian, sampled: Gaussian) -> Array:
    """Divides variances by sampled ones, entry by entry; NaN where nothing varied."""
    return jnp.where(
        sampled.var > 0, ours.var / jnp.where(sampled.var > 0, sampled.var, 1), jnp.nan
    )
