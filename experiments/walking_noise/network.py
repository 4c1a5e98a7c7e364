"""The networks of the study as pure functions, and their data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.walking_noise.recipe import Case, Settings
from jaxeff import data
from jaxeff.nn import MLP, LeNet5
from jaxeff.noise import slots


@dataclass(frozen=True)
class Network:
    """A network, without its numbers.

    Attributes:
        train: `f(params, state, x) -> (logits, state)`, batch norm with the batch's statistics.
        evaluate: The same with the running statistics.
        init: Initial parameters and state from a key.
        slots: The places where noise acts, in order.
    """

    train: Callable[..., Any]
    evaluate: Callable[..., Any]
    init: Callable[[jax.Array], tuple[Any, Any]]
    slots: tuple[str, ...]


@dataclass(frozen=True)
class Images:
    """Normalized images and labels."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[jax.Array, jax.Array]


def load(case: Case, settings: Settings) -> Images:
    """The data of a case."""
    found = data.load(case.data)
    train = data.normalize(found.train_images[: settings.images], case.data)
    test = data.normalize(found.test_images[: settings.test_images], case.data)
    return Images(
        (np.asarray(train), found.train_labels[: settings.images]),
        (jnp.asarray(test), jnp.asarray(found.test_labels[: settings.test_images])),
    )


def build(case: Case, shape: tuple[int, ...]) -> Network:
    """The network of a case for images of a shape."""
    height, _, channels = shape

    def make(rngs: nnx.Rngs) -> nnx.Module:
        if case.network == "mlp":
            widths = (int(np.prod(shape)), 64, 64, 64, 10)
            return MLP(widths, batch_norm=case.batch_norm, rngs=rngs)
        return LeNet5(
            10, channels, size=height, padding="VALID", batch_norm=case.batch_norm, rngs=rngs
        )

    model = make(nnx.Rngs(0))
    train, params, state = jaxeff.functional(model, mutable=True)
    model.eval()
    evaluate, *_ = jaxeff.functional(model, mutable=True)

    def init(key: jax.Array) -> tuple[Any, Any]:
        return jaxeff.functional(make(nnx.Rngs(key)), mutable=True)[1:]

    places = slots(evaluate, params, state, jnp.zeros((1, *shape)))
    return Network(train, evaluate, init, tuple(places))
