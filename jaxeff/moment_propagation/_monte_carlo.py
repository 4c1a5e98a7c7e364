"""Monte Carlo over the layers of a function: sampled moments, to compare rules with.

The function is run on samples of its random arguments, and the mean and variance of every value in
it are accumulated. They show where a variance is off, and by how much (`assumptions`), and by which
factor to correct it (`calibrate_moments`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jaxeff.moment_propagation.values import Gaussian, is_gaussian, sample_all
from jaxeff.program import Program, plain_rule
from jaxeff.program.ir import Value

Sampled = dict[Value, Gaussian]


class DrawSums(NamedTuple):
    """Sums over draws, one array per sampled value.

    Attributes:
        centre: Values at the means of all arguments.
        first: Sums of offsets from them.
        second: Sums of the squares of those offsets.
    """

    centre: list[Array]
    first: list[Array]
    second: list[Array]


@dataclass(frozen=True)
class Sampling:
    """Sums over draws of a program's random values, which further calls add draws to.

    Attributes:
        program: A program; loops are run as they are, and what is inside isn't looked at.
        wanted: Values to sample.
        chunk: Number of draws that run side by side.
    """

    program: Program
    wanted: Sequence[Value]
    chunk: int

    def start(self, values: Sequence[Any]) -> DrawSums:
        """Evaluates the program at the means; the sums are of no draws yet."""
        # Sums of offsets from the values at the means: sums of squares of the values themselves
        # would cancel in float32.
        made = _everything(self.program, [v.mean if is_gaussian(v) else v for v in values])
        centre = [made[v] for v in self.wanted]
        first, second = ([jnp.zeros_like(c) for c in centre] for _ in range(2))
        return DrawSums(centre, first, second)

    def add(
        self, sums: DrawSums, values: Sequence[Any], keys: Any, start: Any, stop: Any
    ) -> DrawSums:
        """Adds draws to sums.

        Args:
            sums: Sums so far.
            values: One per input of the program; a `Gaussian` for random ones, which are sampled.
            keys: Keys of all draws, `[chunks, chunk]`.
            start: Number of the first chunk to add, which may be traced.
            stop: Number after that of the last one.
        """

        def draw(key: PRNGKeyArray) -> list[Array]:
            made = _everything(self.program, sample_all(key, values))
            pairs = zip((made[v] for v in self.wanted), sums.centre, strict=True)
            # What is minus infinity in every draw doesn't vary.
            return [jnp.where(y == c, 0, y - c) for y, c in pairs]

        def step(i: Any, total: tuple[list[Array], list[Array]]) -> tuple[list[Array], list[Array]]:
            # A mapped convolution has a kernel per draw: it compiles and runs for three times as
            # long as one draw after the other.
            if self.chunk == 1:
                offsets = draw(keys[i, 0])
                parts = [(o, o * o) for o in offsets]
            else:
                offsets = jax.vmap(draw)(keys[i])
                parts = [(o.sum(0), (o * o).sum(0)) for o in offsets]
            first = [t + o for t, (o, _) in zip(total[0], parts, strict=True)]
            second = [t + o for t, (_, o) in zip(total[1], parts, strict=True)]
            return first, second

        # Sums of sums: bounds that are traced let calls of any length share one program.
        total = lax.fori_loop(start, stop, step, (sums.first, sums.second))
        return DrawSums(sums.centre, *total)

    def moments(self, sums: DrawSums, count: int) -> Sampled:
        """Computes means and unbiased variances from the sums of `count` draws."""
        found: Sampled = {}
        for value, centre, total, squares in zip(self.wanted, *sums, strict=True):
            # The unbiased variance from sums of offsets, whose mean is small against their spread.
            mean = total / count
            var = jnp.maximum(squares - count * mean * mean, 0) / (count - 1)
            found[value] = Gaussian(centre + mean, var)
        return found


def sampled_moments(
    key: PRNGKeyArray,
    program: Program,
    values: Sequence[Any],
    samples: int,
    chunk: int,
    wanted: Collection[Value],
) -> Sampled:
    """Samples the moments of random floating-point values of a program.

    Args:
        key: A PRNG key.
        program: A program; loops are run as they are, and what is inside isn't looked at.
        values: One per input; a `Gaussian` for random ones, which are sampled.
        samples: How many samples to draw, at least 2; rounded up to a multiple of `chunk`.
        chunk: How many are run at once: memory is this many times that of the function.
        wanted: Values to sample; those that aren't random or no floats are left out.

    Returns:
        The mean and the unbiased variance by value, arrays of the value's shape.
    """
    random = [v for v in random_values(program, values) if v in wanted]
    sampling = Sampling(program, random, chunk)
    keys = draw_keys(key, samples, chunk)
    sums = sampling.add(sampling.start(values), values, keys, 0, len(keys))
    return sampling.moments(sums, keys.size)


def draw_keys(key: PRNGKeyArray, samples: int, chunk: int) -> PRNGKeyArray:
    """Splits a key into one per draw, `[chunks, chunk]`, at least `samples` of them."""
    return jax.random.split(key, (-(-samples // chunk), chunk))


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


def random_values(program: Program, values: Sequence[Any]) -> list[Value]:
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
