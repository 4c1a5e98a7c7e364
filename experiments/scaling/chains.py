"""The noisy sine by a 2x50 MLP: the network, its data, and the inputs where predictions count."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.bayes import mixing
from jaxeff.data import REGIMES, noisy_sine, span

INPUTS = 100
"""Inputs of the predictions, over the data, the gaps, and one unit beyond."""


def make_params(hidden: int) -> dict[str, Any]:
    """Shapes of the network: two hidden layers; outputs are mean and log-variance."""
    widths = [1, hidden, hidden, 2]
    return {
        f"fc{i}": {"kernel": jnp.zeros((widths[i - 1], widths[i])), "bias": jnp.zeros(widths[i])}
        for i in (1, 2, 3)
    }


def network(params: dict[str, Any], x: Float[Array, "batch 1"]) -> Float[Array, "batch 2"]:
    """The network, with tanh."""
    for name in ("fc1", "fc2"):
        x = jnp.tanh(x @ params[name]["kernel"] + params[name]["bias"])
    return x @ params["fc3"]["kernel"] + params["fc3"]["bias"]


def data() -> tuple[Float[Array, "n 1"], Float[Array, " n"]]:
    """The training set, always the same."""
    return noisy_sine(jax.random.key(0))


def inputs() -> Float[Array, "inputs 1"]:
    """Where predictions are held to R-hat and counted."""
    return jnp.linspace(*span(REGIMES, margin=1.0), INPUTS)[:, None]


def summarize(means: Float[np.ndarray, "chains draws inputs"]) -> dict[str, float]:
    """Effective sample sizes and R-hat of the predictive mean over the inputs.

    Args:
        means: The network's mean for each draw.
    """
    found = mixing(means)
    return {
        "min_ess": found.min_ess,
        "median_ess": float(np.median(found.ess)),
        "max_rhat": found.max_rhat,
    }
