"""Sampled variances of a function's values for calibration, each group of inputs by its own draws.

The network is compiled once: at arguments without variance the same program makes the values at the
means, from which offsets are summed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.special import digamma

from jaxeff.core import progress_bar
from jaxeff.moment_propagation._monte_carlo import DrawSums, Sampling
from jaxeff.moment_propagation.calibration import Groups, joined
from jaxeff.moment_propagation.values import Gaussian, is_gaussian
from jaxeff.program import Program
from jaxeff.program.ir import Value

# Calls that the draws of all groups are spread over: the progress bar moves as often.
_CALLS = 20


class SampledProgram(NamedTuple):
    """A program, what its inputs hold, and the values that are sampled."""

    program: Program
    values: Sequence[Any]
    wanted: Sequence[Value]


class Drawn(NamedTuple):
    """Logarithms of sampled variances, without the bias that a logarithm has.

    Attributes:
        logs: One array per sampled value, of all draws.
        halves: For each sampled value that is a result, the same of either half of them.
    """

    logs: list[Any]
    halves: list[tuple[Any, Any]]


def drawn(
    keys: PRNGKeyArray,
    whole: SampledProgram,
    part: SampledProgram,
    groups: Groups,
    progress: bool | None,
) -> Drawn:
    """Samples the variances of values.

    Args:
        keys: Keys of all draws, `[groups, chunks, chunk]`, at least two chunks.
        whole: The program that reads all inputs.
        part: The one that reads a group.
        groups: The groups.
        progress: Whether to show a bar of draws.
    """
    inputs = groups.axes(whole.program.inputs, part.program.inputs) or [None] * len(whole.values)
    sampling = Sampling(part.program, part.wanted, keys.shape[2])
    start = _values_of_group(whole, inputs, 0, groups)
    nothing: list[Any] = [np.zeros(v.aval.shape, v.aval.dtype) for v in part.wanted]
    zeros = DrawSums(nothing, nothing, nothing)
    # Compiled by hand: a call with numbers of the machine's and one with those of JAX would be two
    # programs, as big as the network each.
    bounds = np.int32(0), np.int32(1)
    add = jax.jit(sampling.add).lower(zeros, start, keys[0], *bounds).compile()
    results = [i for i, v in enumerate(part.wanted) if v in part.program.outputs]
    found: list[tuple[list[np.ndarray], list[tuple[np.ndarray, np.ndarray]]]] = []
    chunks, chunk = keys.shape[1:]
    calls = max(1, _CALLS // (2 * groups.count))
    stops = np.linspace(0, chunks, 2 * calls + 1).astype(int).tolist()
    with progress_bar(progress, "draw", keys.size, 0) as advance:
        for group in range(groups.count):
            values = _values_of_group(whole, inputs, group, groups)
            sums = _start(add, zeros, values, keys[group])
            for number, (first, last) in enumerate(itertools.pairwise(map(np.int32, stops))):
                sums = jax.block_until_ready(add(sums, values, keys[group], first, last))
                if number == calls - 1:
                    half = [(np.array(sums.first[i]), np.array(sums.second[i])) for i in results]
                advance(int(last - first) * chunk, "")
            totals = [(np.asarray(a), np.asarray(b)) for a, b in zip(*sums[1:], strict=True)]
            logs = [_log_variance(*total, chunks * chunk) for total in totals]
            middle = stops[calls] * chunk
            halves = [
                (
                    _log_variance(*early, middle),
                    # What isn't in the first half is in the second one.
                    _log_variance(
                        totals[i][0] - early[0], totals[i][1] - early[1], chunks * chunk - middle
                    ),
                )
                for i, early in zip(results, half, strict=True)
            ]
            found.append((logs, halves))
    axes = groups.axes(whole.wanted, part.wanted) or [None] * len(whole.wanted)
    logs = [joined([g[0][i] for g in found], axis) for i, axis in enumerate(axes)]
    both = [
        [joined([g[1][n][side] for g in found], axes[i]) for side in range(2)]
        for n, i in enumerate(results)
    ]
    return Drawn(logs, [(first, second) for first, second in both])


def _values_of_group(
    whole: SampledProgram, inputs: Sequence[int | None], group: int, groups: Groups
) -> list[Any]:
    def one(value: Any, axis: int | None) -> Any:
        if axis is None:
            return value
        return jax.tree.map(lambda a: np.split(np.asarray(a), groups.count, axis)[group], value)

    # The same values as the whole program reads, so that the function needn't be read again.
    return [one(value, axis) for value, axis in zip(whole.values, inputs, strict=True)]


def _start(
    add: Callable[..., DrawSums], zeros: DrawSums, values: Sequence[Any], keys: PRNGKeyArray
) -> DrawSums:
    """Evaluates the program at the means, as a draw of variance zero."""
    still = [Gaussian(v.mean, jnp.zeros(v.shape, v.dtype)) if is_gaussian(v) else v for v in values]
    at_means = add(zeros, still, keys, np.int32(0), np.int32(1))
    # Whole chunks are summed: a chunk of equal draws is that many times one.
    centre: list[Any] = [np.asarray(one) / one.dtype.type(keys.shape[1]) for one in at_means.first]
    return DrawSums(centre, zeros.first, zeros.second)


def _log_variance(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Computes the logarithm of the unbiased variance from sums of offsets and of their squares."""
    var = np.maximum(second - first * (first / count), 0) / max(count - 1, 1)
    # The logarithm of a sampled variance of a normal value is too small on average by what the
    # digamma function says: 4 % at 25 draws.
    half = max(count - 1, 1) / 2
    bias = float(digamma(half) - np.log(half))
    logs = np.full(var.shape, -np.inf, np.float32)
    return np.log(var, out=logs, where=var > 0, casting="unsafe") - np.float32(bias)
