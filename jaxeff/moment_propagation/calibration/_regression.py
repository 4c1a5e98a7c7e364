"""Factors of results that depend on the input, through the moments that were propagated for it.

A static factor is an average over inputs. What is left of its error belongs to the input, and the
propagated means m and variances V of a result tell most of it: for channel c and input x

    log E[s^2]_c(x) = log V_c(x) + a_c + sum_n k(u(x), u(x_n)) w_nc,   u = (log V, m), standardised,

a kernel ridge regression (the mean of a Gaussian process) on the logarithm of sampled variances
s^2, k(u, u') = exp(-|u - u'|^2 / 2 l). Length and ridge are those of least error on
groups of inputs that are left out, which the inverse of the kernel's matrix gives without fitting
again (Rasmussen and Williams 2006, section 5.4.2, by blocks).

Sharp edges
- It costs 3 n multiplications and an exponential per n inputs that it keeps and result, at most
  256: thousandths of a convolutional network or a transformer, much of a tiny one.
- Far from every input that was measured the sum vanishes, and the factor is the static exp(a_c).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.moment_propagation.values import Gaussian, is_gaussian

MOST_ROWS = 256
"""Inputs, or positions of inputs, that a regression keeps."""
MOST_CHANNELS = 64
"""Channels of a result that a regression reads; more have static factors alone."""
_LENGTHS = (2.0, 8.0, 32.0)
_STILL = 1e-6
_RIDGES = tuple(10.0**power for power in range(-3, 2))


class VarianceTable(NamedTuple):
    """Moments of one result, position by position, `[entries, channels]`.

    Attributes:
        mean: Propagated means.
        var: Propagated variances.
        logs: Logarithms of sampled variances, without bias.
        halves: The same of either half of the draws, `[2, entries, channels]`.
        groups: Numbers that inputs with the same draws share, `[entries]`.
    """

    mean: np.ndarray
    var: np.ndarray
    logs: np.ndarray
    halves: np.ndarray
    groups: np.ndarray

    def rows(self, kept: np.ndarray) -> VarianceTable:
        """Selects entries."""
        mean, var, logs = (part[kept] for part in (self.mean, self.var, self.logs))
        return VarianceTable(mean, var, logs, self.halves[:, kept], self.groups[kept])

    def unknown(self) -> np.ndarray:
        """Marks entries without a ratio: masked, dead."""
        return ~((self.var > 0) & np.isfinite(self.logs) & np.isfinite(self.mean))


def regression_name(number: int) -> str:
    """Returns the name of the regression of a result, by its place among the results."""
    return f"inputs {number}"


class FittedRegression(NamedTuple):
    """A regression and how well it does without a group.

    Attributes:
        regression: `[2 + rows, 3 channels]`. The last third holds the offsets a, a row without
            meaning, and the weights w; the others the middle, the reciprocal scale and the rows of
            (log V, m).
        table: The entries it was fitted to.
        left_out: Logarithms of variances at each entry, fitted without its group.
    """

    regression: np.ndarray
    table: VarianceTable
    left_out: np.ndarray


def fit_regression(table: VarianceTable) -> FittedRegression:
    """Fits the regression of one result."""
    # Evenly over all inputs and positions: neighbours are alike.
    count = len(table.var)
    table = table.rows(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
    known = ~table.unknown()
    logs = np.log(np.where(known, table.var, 1))
    ratios = np.where(known, table.logs - logs, 0)
    offset = ratios.sum(0) / np.maximum(known.sum(0), 1)
    # What has no ratio says nothing: it lies on the offset.
    rest = np.where(known, ratios - offset, 0)
    features = np.asarray(_features(table.mean, table.var), float)
    middle, spread = features.mean(0), features.std(0)
    # A feature that doesn't vary has no scale, and no word.
    scale = np.where(spread > _STILL, 1 / np.maximum(spread, _STILL), 0) / features.shape[1] ** 0.5
    places = (features - middle) * scale
    distances = np.square(places[:, None] - places).sum(-1)
    length, weights, off = _least_left_out(distances, rest, table.groups)
    # The length goes into the scale, so that the kernel has none.
    scale = scale / length**0.5
    head = np.concatenate([[middle, scale], (features - middle) * scale])
    tail = np.concatenate([[offset, np.zeros_like(offset)], weights])
    return FittedRegression(np.concatenate([head, tail], 1), table, logs + offset + rest - off)


def _features(mean: Any, var: Any) -> Any:
    logs = jnp.log(jnp.where(var > 0, var, 1))
    return jnp.concatenate([logs, mean], -1)


def _least_left_out(
    distances: np.ndarray, rest: np.ndarray, groups: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Finds the length and the weights of least error on groups that are left out."""
    best = (np.inf, 1.0, np.zeros_like(rest), rest)
    blocks = [np.flatnonzero(groups == one) for one in np.unique(groups)]
    for length in _LENGTHS:
        values, vectors = np.linalg.eigh(np.exp(-distances / (2 * length)))
        for ridge in _RIDGES:
            inverse = (vectors / (np.maximum(values, 0) + ridge)) @ vectors.T
            weights, off = inverse @ rest, np.empty_like(rest)
            # Inputs of a group share their draws, so they are left out together: residuals of a
            # block are its block of the inverse, inverted, times its weights.
            for block in blocks:
                off[block] = np.linalg.solve(inverse[np.ix_(block, block)], weights[block])
            error = float(np.abs(off).mean())
            if error < best[0]:
                best = (error, length, weights, off)
    return best[1:]


def at_regression(mean: Any, var: Any, regression: Any) -> Any:
    """Computes the variances that a regression makes of propagated ones; none stays none."""
    channels = regression.shape[1] // 3
    inputs, outputs = regression[:, : 2 * channels], regression[:, 2 * channels :]
    places = (_features(mean, var) - inputs[0]) * inputs[1]
    kept = inputs[2:]
    # |u - u'|^2 by its three products: a matrix product in the place of all differences.
    squares = jnp.sum(places**2, -1, keepdims=True) + jnp.sum(kept**2, -1)
    kernel = jnp.exp(jnp.minimum(places @ kept.T - squares / 2, 0))
    logs = outputs[0] + kernel @ outputs[2:]
    return jnp.where(var > 0, var * jnp.exp(logs), var)


def with_regressions(results: Any, factors: Mapping[str, Array]) -> Any:
    """Takes the variances of a function's results to their regressions, where they have one."""
    leaves, structure = jax.tree.flatten(results, is_leaf=is_gaussian)

    def moved(number: int, value: Any) -> Any:
        regression = factors.get(regression_name(number))
        if regression is None or not is_gaussian(value):
            return value
        alone = value.ndim < 2  # one result per example
        mean, var = ((a[..., None] if alone else a) for a in (value.mean, value.var))
        if regression.shape[1] == 3 * mean.shape[-1]:
            var = at_regression(mean, var, regression)
        else:
            # Another number of channels than was measured has what the offsets have in common.
            channels = regression.shape[1] // 3
            var = var * jnp.exp(jnp.mean(regression[0, 2 * channels :]))
        return Gaussian(value.mean, (var[..., 0] if alone else var).astype(value.dtype))

    return jax.tree.unflatten(structure, [moved(i, v) for i, v in enumerate(leaves)])
