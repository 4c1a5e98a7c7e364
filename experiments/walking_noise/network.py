"""The networks of the study and their data, set up as the source's results show it did.

It doesn't say how images are scaled and weights start. Pixels from 0 to 1, not standardized, and
PyTorch's default initialization reproduce its table of guided repetition within its own standard
deviations; standardized pixels make the same noise levels almost harmless (uniform executions of
the MLP without batch norm: 0.98 instead of 0.68).
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.trainable import Images, Network, load_images, trainable
from experiments.walking_noise.recipe import Case, Settings
from jaxeff.nn import MLP, LeNet5


@dataclass(frozen=True, eq=False)
class Bench:
    """A network of the study with all that its trainings and measurements share.

    Attributes:
        key: The study's key: sweeps of one case share initial parameters, batches and draws.
        case: The network and its data.
        network: As functions.
        images: The data.
        settings: The study's size.
        folder: Where finished trainings are kept.
    """

    key: jax.Array
    case: Case
    network: Network
    images: Images
    settings: Settings
    folder: Path

    def steps(self, epochs: int) -> int:
        """Gradient steps of so many epochs."""
        return epochs * (len(self.images.train[1]) // self.settings.batch_size)


def bench(key: jax.Array, case: Case, settings: Settings, folder: Path) -> Bench:
    """Loads the data of a case and builds its network."""
    images = load(case, settings)
    return Bench(key, case, build(case, images.shape), images, settings, folder)


def load(case: Case, settings: Settings) -> Images:
    """The data of a case, pixels from 0 to 1."""
    return load_images(case.data, settings.images, settings.test_images, standardize=False)


def build(case: Case, shape: tuple[int, int, int]) -> Network:
    """The network of a case for images of a shape."""
    height, _, channels = shape

    def make(rngs: nnx.Rngs) -> nnx.Module:
        if case.network == "mlp":
            widths = (int(np.prod(shape)), 64, 64, 64, 10)
            return MLP(widths, batch_norm=case.batch_norm, rngs=rngs)
        return LeNet5(
            10, channels, size=height, padding="VALID", batch_norm=case.batch_norm, rngs=rngs
        )

    network = trainable(make, shape)

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, state = network.init(key)
        for i, name in enumerate(sorted(params)):
            if "kernel" in params[name]:
                params[name] = uniform_by_fan_in(jax.random.fold_in(key, i), params[name])
        return params, state

    return dataclasses.replace(network, init=init)


def uniform_by_fan_in(key: jax.Array, layer: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Weights and biases from U(-1, 1) / sqrt(fan-in), PyTorch's default for these layers."""
    bound = 1 / np.sqrt(np.prod(layer["kernel"].shape[:-1]))
    keys = jax.random.split(key, len(layer))
    return {
        name: jax.random.uniform(k, leaf.shape, leaf.dtype, -bound, bound)
        for k, (name, leaf) in zip(keys, sorted(layer.items()), strict=True)
    }
