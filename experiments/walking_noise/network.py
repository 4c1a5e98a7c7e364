"""The networks of the study and their data."""

import numpy as np
from flax import nnx

from experiments.trainable import Images, Network, load_images, trainable
from experiments.walking_noise.recipe import Case, Settings
from jaxeff.nn import MLP, LeNet5


def load(case: Case, settings: Settings) -> Images:
    """The data of a case."""
    return load_images(case.data, settings.images, settings.test_images)


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

    return trainable(make, shape)
