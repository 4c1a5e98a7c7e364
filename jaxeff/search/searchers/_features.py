"""Features of layers for an agent, and running standardisation.

By layer (Klein's thesis, section 4.2; the list is that of the released code): its place,
multiply-accumulates, bit operations, channels out and in, kernel, stride, parameters; of the whole
model, the shares of multiply-accumulates and bit operations that the layers before it have by the
policy so far, and that the layers from it on have as they are; its sensitivities; the last layer's
actions. With actions of both kinds these are 47 numbers. One that doesn't quantize isn't given
bits, and one that doesn't prune not of channels that could go.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.search.evaluation import CompressionSensitivity
from jaxeff.search.space import Actions, Policy, SearchSpace


class Running(NamedTuple):
    """Running mean and variance (Welford).

    Attributes:
        number: Number of values so far.
        mean: Running mean of each number.
        squares: Sums of squared deviations.
    """

    number: Float[Array, ""]
    mean: Float[Array, " features"]
    squares: Float[Array, " features"]

    @classmethod
    def start(cls, size: int) -> Running:
        """Makes empty statistics."""
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))

    def add(self, x: Float[Array, "n features"]) -> Running:
        """Updates the statistics by a batch."""
        number = self.number + len(x)
        mean, squares = x.mean(0), ((x - x.mean(0)) ** 2).sum(0)
        # Chan's update of mean and squares by a batch: stable for features of very
        # different sizes.
        apart = mean - self.mean
        return Running(
            number,
            self.mean + apart * len(x) / number,
            self.squares + squares + apart**2 * self.number * len(x) / number,
        )

    def standardised(self, x: Float[Array, "*n features"]) -> Float[Array, "*n features"]:
        """Standardises to zero mean and unit variance; what never varies is zero."""
        deviation = jnp.sqrt(self.squares / jnp.maximum(self.number, 1.0))
        return jnp.where(
            deviation > 1e-6, (x - self.mean) / jnp.maximum(deviation, 1e-6), jnp.zeros_like(x)
        )


def fixed(
    space: SearchSpace, actions: Actions, known: CompressionSensitivity | None
) -> Float[np.ndarray, "layers fixed"]:
    """Computes the features of every layer that no decision changes."""
    whole = space.whole
    sites, count = space.sites, len(space.sites)
    columns = [
        np.arange(count) / count,
        np.asarray(space.macs(whole)),
        *([np.asarray(space.bops(whole))] if actions.quantizes else []),
        [site.made.size for site in sites],
        [site.read.size for site in sites],
        [site.kernel for site in sites],
        [site.stride for site in sites],
        [site.weights for site in sites],
    ]
    found = np.stack([np.asarray(column, np.float64) for column in columns], 1)
    if known is not None:
        tables = [known.pruning] if actions.prunes else []
        if actions.quantizes:
            zero = np.zeros((count, 1))
            tables += [known.activations, known.weights, known.eight[:, None], zero]
        # Divergences span many decades.
        found = np.concatenate([found, *(np.log10(1e-9 + t) for t in tables)], 1)
    return found.astype(np.float32)


def moving(space: SearchSpace, actions: Actions, policy: Policy) -> Float[Array, "layers moving"]:
    """Computes shares of the model before and from every layer, if a policy held up to there."""
    whole = space.whole
    counts = [space.macs, space.bops] if actions.quantizes else [space.macs]
    columns = []
    for count in counts:
        now, before = count(policy), count(whole)
        total = before.sum()
        # Layers before as decided so far, layers from here on as they are: what is left to save.
        columns += [(jnp.cumsum(now) - now) / total, jnp.cumsum(before[::-1])[::-1] / total]
    return jnp.stack(columns, 1)
