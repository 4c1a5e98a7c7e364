"""Scores by magnitude: the l1 and l2 norms of what makes a channel.

Sources: Li et al., "Pruning Filters for Efficient ConvNets", arXiv:1608.08710 (l1, of a channel's
own filters); Galen takes the same (Klein's thesis, section 4.2.3).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import widened
from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._summing import summed


def l1(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the sum of absolute weights that make a channel, of all layers that add to it."""
    return summed(jax.tree.map(jnp.abs, params), channels, outputs=True)


def l2(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the root of the sum of squared weights."""
    squares = summed(jax.tree.map(lambda w: jnp.square(widened(w)), params), channels, outputs=True)
    return {name: np.sqrt(total) for name, total in squares.items()}
