"""Networks as the noise studies train them, as pure functions, and their images."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from jaxeff import data
from jaxeff.noise import slots


@dataclass(frozen=True)
class Network:
    """A network without its numbers."""

    # `f(params, state, x) -> (logits, state)` with dropout and the batch's statistics
    train: Callable[..., Any]
    evaluate: Callable[..., Any]  # the same without dropout, with the running statistics
    init: Callable[[jax.Array], tuple[Any, Any]]  # initial parameters and state from a key
    slots: tuple[str, ...]  # the sites at which noise acts, in order


@dataclass(frozen=True)
class Images:
    """Scaled images and labels."""

    train: tuple[np.ndarray, np.ndarray]  # for training
    test: tuple[jax.Array, jax.Array]  # for accuracies

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        height, width, channels = self.train[0].shape[1:]
        return height, width, channels


def trainable(make: Callable[[nnx.Rngs], nnx.Module], shape: tuple[int, ...]) -> Network:
    """The network that `make` builds, for images of a shape."""
    model = make(nnx.Rngs(0))
    train, *_ = jaxeff.functional(model, mutable=True)
    model.eval()
    evaluate, params, state = jaxeff.functional(model, mutable=True)

    def init(key: jax.Array) -> tuple[Any, Any]:
        return jaxeff.functional(make(nnx.Rngs(key)), mutable=True)[1:]

    places = slots(evaluate, params, state, jnp.zeros((1, *shape)))
    return Network(train, evaluate, init, tuple(places))


def load_images(name: str, images: int, test_images: int, *, standardize: bool = True) -> Images:
    """The first so many images of a data set, of zero mean and unit variance, or from 0 to 1."""
    dataset = data.load(name)
    train, test = (
        data.normalize(part, name) if standardize else part.astype(np.float32) / 255
        for part in (dataset.train_images[:images], dataset.test_images[:test_images])
    )
    return Images(
        (np.asarray(train), dataset.train_labels[:images]),
        (jnp.asarray(test), jnp.asarray(dataset.test_labels[:test_images])),
    )
