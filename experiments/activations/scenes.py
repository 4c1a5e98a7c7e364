"""The noisy sine and the two moons: their data, and what a network says beside them."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments import sines
from experiments.activations.network import Network
from experiments.activations.recipe import Settings
from jaxeff import data
from jaxeff import uncertainty as unc
from jaxeff.bayes import predict

Judged = tuple[dict[str, float], dict[str, jax.Array]]
"""The figures of the thesis' table, and the curves or maps of its figure."""


class Moons(NamedTuple):
    """Training and test data, and the plane around them."""

    train: tuple[jax.Array, jax.Array]  # points and classes
    test: tuple[jax.Array, jax.Array]  # points and classes
    # coordinates of the evaluation points, as ``np.meshgrid`` gives them
    grid: tuple[jax.Array, ...]
    points: jax.Array  # the same as a list, ``[rows * columns, 2]``
    outside: jax.Array  # which of them are out of domain


@cache
def sine(settings: Settings, seed: int) -> sines.Scene:
    """The noisy sine and its evaluation points."""
    train = data.noisy_sine(jax.random.key(seed))
    return sines.scene(train, settings.sine_margin, settings.sine_points)


@cache
def moons(settings: Settings, seed: int) -> Moons:
    """The moons and the plane around them."""
    counts = settings.moons_examples, settings.moons_test
    train, test = (
        jax.tree.map(jnp.asarray, data.two_moons(key, examples, settings.moons_noise))
        for key, examples in zip(jax.random.split(jax.random.key(seed)), counts, strict=True)
    )
    grid, points = data.plane(train[0], settings.moons_margin, settings.moons_points)
    outside = unc.out_of_domain(points, train[0], settings.quantile)
    return Moons(train, test, grid, points, outside)


def on_sine(f: Network, posterior: Any, index: jax.Array, known: sines.Scene) -> Judged:
    """Judges a sampled network, whose activation has a number, on the noisy sine."""
    # All draws in their order, so the key plays no part.
    outputs = predict(jax.random.key(0), f, posterior, known.inputs(known.x[:, None]), index)
    uncertainties = unc.decompose_regression(outputs)
    parts = unc.RegressionUncertainty(*(part[:, 0] for part in uncertainties))
    return known.figures(parts), parts._asdict()


def on_moons(
    key: jax.Array, f: Network, posterior: Any, index: jax.Array, known: Moons,
    samples: int | None = None,
) -> Judged:  # fmt: skip
    """The same on the moons, from so many draws of the weights, all that there are if None."""

    def logits(points: jax.Array) -> jax.Array:
        return predict(key, f, posterior, points, index, samples=samples)

    tested = unc.predictive_log_probs(logits(known.test[0]))
    around = logits(known.points)
    information = unc.decompose_logits(around).epistemic
    figures = {
        "accuracy": float(unc.accuracy(tested, known.test[1])),
        "auroc": float(unc.auroc(information[~known.outside], information[known.outside])),
    }
    probability = jnp.exp(unc.predictive_log_probs(around)[:, 1])
    return figures, {"probability": probability, "epistemic": information}
