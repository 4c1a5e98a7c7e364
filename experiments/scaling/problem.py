"""What is inferred: a multilayer perceptron with an aleatoric head, on the noisy sine.

Both engines get the same data, the same priors and the same starting point, so that their work can
be compared. The thesis gives neither activation, priors, batch nor starting point; these are ours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from jaxeff.data import REGIMES, noisy_sine

EXAMPLES = 192
OUTPUTS = 2  # mean and log-variance
INIT_SCALE = 1e-2
"""Standard deviation that variational posteriors start with."""
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Configuration:
    """A point of the study."""

    depth: int = 3  # hidden layers
    width: int = 50  # neurons of each
    examples: int = EXAMPLES  # size of the data set

    @property
    def widths(self) -> tuple[int, ...]:
        """Features of the input, of every hidden layer and of the output."""
        return (1, *[self.width] * self.depth, OUTPUTS)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return sum(n * m + m for n, m in pairwise(self.widths))

    def __str__(self) -> str:
        return f"{self.depth} x {self.width}, {self.examples} examples"


@dataclass(frozen=True)
class Problem:
    """Data, starting point and priors, as NumPy arrays in float32."""

    x: np.ndarray  # inputs, ``[examples, 1]``
    y: np.ndarray  # targets, ``[examples]``
    # starting value and prior standard deviation of every array, by name
    sites: dict[str, tuple[np.ndarray, float]]


def make_problem(configuration: Configuration) -> Problem:
    """The problem of a configuration; a larger data set is a denser one.

    The number of examples is a multiple of the noisy sine's own.
    """
    density = configuration.examples / sum(regime.count for regime in REGIMES)
    regimes = tuple(replace(regime, density=regime.density * density) for regime in REGIMES)
    draw = jax.jit(noisy_sine, static_argnums=1)
    x, y = (np.asarray(part) for part in draw(jax.random.key(0), regimes))
    if len(y) != configuration.examples:
        raise ValueError(f"{configuration.examples} examples can't be spread over the regimes")
    generator = np.random.default_rng(0)
    sites: dict[str, tuple[np.ndarray, float]] = {}
    for i, (n, m) in enumerate(pairwise(configuration.widths), start=1):
        scale = math.sqrt(2 / n)
        kernel = (scale * generator.standard_normal((n, m))).astype(np.float32)
        sites |= {f"kernel{i}": (kernel, scale), f"bias{i}": (np.zeros(m, np.float32), 1.0)}
    return Problem(x, y, sites)


def forward(sites: dict[str, Any], x: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and log-variance of the targets; parameters have the names of `Problem.sites`."""
    last = len(sites) // 2
    for i in range(1, last + 1):
        x = x @ sites[f"kernel{i}"] + sites[f"bias{i}"]
        if i < last:
            x = jax.nn.relu(x)
    return x[:, 0], x[:, 1]


def analytic_macs(widths: Sequence[int], examples: int) -> int:
    """Multiply-accumulates of a gradient in all parameters.

    A layer takes its product once forward and twice backward, for its weights and for its inputs;
    the inputs of the first are data.
    """
    products = [n * m for n, m in pairwise(widths)]
    return examples * (3 * sum(products) - products[0])
