"""A network on two moons: how well it classifies, and whether it doubts what is far from them."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.activations.network import Network
from experiments.activations.recipe import Settings
from jaxeff.bayes import predict
from jaxeff.data import plane, two_moons
from jaxeff.uncertainty import (
    accuracy,
    auroc,
    decompose_logits,
    out_of_domain,
    predictive_log_probs,
)


class Scene(NamedTuple):
    """Training and test data, and the plane around them.

    Attributes:
        train: Points and classes.
        test: Points and classes.
        grid: Coordinates of the evaluation points, as ``np.meshgrid`` gives them.
        points: The same as a list, ``[rows * columns, 2]``.
        outside: Which of them are out of domain.
    """

    train: tuple[jax.Array, jax.Array]
    test: tuple[jax.Array, jax.Array]
    grid: tuple[jax.Array, ...]
    points: jax.Array
    outside: jax.Array


@cache
def scene(settings: Settings, seed: int) -> Scene:
    """The data sets and the evaluation points."""
    train_key, test_key = jax.random.split(jax.random.key(seed))
    train, test = (
        jax.tree.map(jnp.asarray, two_moons(key, examples, settings.moons_noise))
        for key, examples in (
            (train_key, settings.moons_examples),
            (test_key, settings.moons_test),
        )
    )
    grid, points = plane(train[0], settings.moons_margin, settings.moons_points)
    outside = out_of_domain(points, train[0], settings.quantile)
    return Scene(train, test, grid, points, outside)


def evaluate(
    key: jax.Array,
    f: Network,
    posterior: Any,
    index: jax.Array,
    known: Scene,
    samples: int | None = None,
) -> tuple[dict[str, float], dict[str, jax.Array]]:
    """The figures of the source's table, and the maps of its figure.

    Args:
        key: Random key.
        f: The network.
        posterior: Of the network with activation number ``index``.
        index: Into `network.NAMES`.
        known: The data.
        samples: Weight draws; all that there are if None.
    """

    def logits(points: jax.Array) -> jax.Array:
        return predict(key, f, posterior, points, index, samples=samples)

    tested = predictive_log_probs(logits(known.test[0]))
    around = logits(known.points)
    information = decompose_logits(around).epistemic
    probability = jnp.exp(predictive_log_probs(around)[:, 1])
    figures = {
        "accuracy": accuracy(tested, known.test[1]),
        "auroc": auroc(information[~known.outside], information[known.outside]),
    }
    maps = {"probability": probability, "epistemic": information}
    return {name: float(value) for name, value in figures.items()}, maps
