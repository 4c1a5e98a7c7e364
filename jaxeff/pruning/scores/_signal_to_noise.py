"""Score by a posterior: the signal-to-noise ratio of weights.

Source: Blundell et al., "Weight Uncertainty in Neural Networks", arXiv:1505.05424, section 5.1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.moment_propagation import is_gaussian
from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._summing import Score, summed


def signal_to_noise(posterior: Any) -> Score:
    """Returns the sum of mean^2 / variance over the weights that make a channel.

    Args:
        posterior: A pytree of `Gaussian`, as SVI returns it; other leaves count as certain, and
            nothing that they make is more important for it.
    """

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        del params
        ratio = jax.tree.map(
            lambda g: (
                g.mean**2 / jnp.maximum(g.var, jnp.finfo(g.var.dtype).tiny)
                if is_gaussian(g)
                else jnp.zeros_like(g)
            ),
            posterior,
            is_leaf=is_gaussian,
        )
        return summed(ratio, channels, outputs=True)

    return score
