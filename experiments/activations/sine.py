"""A network on the noisy sine: sampled, and held to the known noise and to the gaps."""

from functools import cache

import jax

from experiments import sines
from experiments.activations.network import Network
from experiments.activations.recipe import Settings
from experiments.sines import Scene
from jaxeff import uncertainty as unc
from jaxeff.bayes import Draws, predict
from jaxeff.data import noisy_sine


@cache
def scene(settings: Settings, seed: int) -> Scene:
    """The data set and the evaluation points."""
    train = noisy_sine(jax.random.key(seed))
    return sines.scene(train, settings.sine_margin, settings.sine_points)


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
    found = unc.decompose_regression(outputs)
    parts = unc.RegressionUncertainty(*(part[:, 0] for part in found))
    return known.figures(parts), parts._asdict()
