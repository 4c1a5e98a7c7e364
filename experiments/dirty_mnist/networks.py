"""The two networks, as functions of raw images."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

import jaxeff
from jaxeff.data import normalize
from jaxeff.nn import MLP, LeNet5

Function = Callable[[Any, jax.Array], jax.Array]


def build(network: str, source: str, key: jax.Array) -> tuple[Function, Any]:
    """``f(params, images)``, with uint8 images normalised by the source's statistics.

    Args:
        network: ``"mlp"`` (784-100-10) or ``"lenet5"``.
        source: Name of the clean digits.
        key: Of the initial parameters.

    Returns:
        The function and its parameters.
    """
    models: dict[str, Callable[[], nnx.Module]] = {
        "mlp": lambda: MLP((784, 100, 10), rngs=nnx.Rngs(key)),
        "lenet5": lambda: LeNet5(rngs=nnx.Rngs(key)),
    }
    f, params = jaxeff.functional(models[network]())

    def of_images(params: Any, images: jax.Array) -> jax.Array:
        return f(params, normalize(images, source))

    return of_images, params
