"""A network on the noisy sine: sampled, and held to the known noise and to the gaps."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.activations.network import Network
from experiments.activations.recipe import Settings
from jaxeff import uncertainty as unc
from jaxeff.bayes import Draws, predict
from jaxeff.data import sine as noisy_sine


class Scene(NamedTuple):
    """Training data, and what is known at the evaluation points.

    Attributes:
        train: Inputs ``[n, 1]`` and targets ``[n]``, as drawn.
        x: Evaluation points ``[m]``, evenly spaced.
        target: The function without noise.
        noise: Standard deviation of the noise; NaN in gaps.
        inside: Whether there are data.
        sparsity: Negative log density of the training inputs.
    """

    train: tuple[jax.Array, jax.Array]
    x: jax.Array
    target: jax.Array
    noise: jax.Array
    inside: jax.Array
    sparsity: jax.Array

    def inputs(self, x: jax.Array) -> jax.Array:
        """What the network sees: standardised, so that its kinks lie where the data are."""
        return (x - self.train[0].mean()) / self.train[0].std()


@cache
def scene(settings: Settings, seed: int) -> Scene:
    """The data set and the evaluation points."""
    train = noisy_sine.noisy_sine(jax.random.key(seed))
    x = jnp.linspace(*noisy_sine.span(margin=settings.sine_margin), settings.sine_points)
    return Scene(
        train,
        x,
        noisy_sine.target(x),
        noisy_sine.noise_std(x),
        noisy_sine.in_regime(x),
        unc.negative_log_density(x[:, None], train[0]),
    )


def evaluate(
    f: Network, posterior: Draws, index: jax.Array, known: Scene
) -> tuple[dict[str, float], dict[str, jax.Array]]:
    """The figures of the source's table, and the curves of its figure.

    Args:
        f: The network.
        posterior: Of the network with activation number ``index``.
        index: Into `network.NAMES`.
        known: The data.
    """
    # All draws in their order, so the key plays no part.
    outputs = predict(jax.random.key(0), f, posterior, known.inputs(known.x[:, None]), index)
    parts = unc.decompose_regression(outputs)
    mean, aleatoric, epistemic = (part[:, 0] for part in parts)
    std, doubt = jnp.sqrt(aleatoric), jnp.sqrt(epistemic)
    figures = {
        "mse_prediction": unc.prediction_mse(mean, known.target, known.inside),
        "mse_aleatoric": unc.aleatoric_mse(std, known.noise, known.inside),
        "euc": unc.euc(doubt, known.sparsity),
        "auroc": unc.auroc(doubt[known.inside], doubt[~known.inside]),
    }
    curves = {"mean": mean, "aleatoric": aleatoric, "epistemic": epistemic}
    return {name: float(value) for name, value in figures.items()}, curves
