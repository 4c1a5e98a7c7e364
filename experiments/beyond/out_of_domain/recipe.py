"""What is trained, and on what it is judged; every number is ours."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.harness import Count, Least
from jaxeff import data
from jaxeff.data import CORRUPTIONS

CLASSES = 8
"""Classes that networks learn; the other two are near their domain."""
FAR = {"digits": "digits-ood", "mnist": "fashion-mnist"}
Name = Literal["digits", "mnist"]


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on."""

    data: Name  # data set in domain
    images: Count  # training images
    test_images: Count  # images of every test set, at most
    epochs: Count  # epochs of each training
    members: Annotated[int, Least(2)] = 5  # networks of the ensemble
    corruptions: tuple[str, ...] = CORRUPTIONS  # corruptions of the curves
    severities: tuple[Count, ...] = (1, 2, 3, 4, 5)  # severities of the curves
    rate: float = 2e-3  # learning rate of Adam, decayed by a cosine
    batch_size: Count = 64  # images per update
    kl: float = 0.1  # final weight of the divergence from the prior
    init_scale: float = 1e-2  # standard deviation that posteriors start with


FEW = ("gaussian_noise", "motion_blur", "fog", "contrast")
SIZES = {
    "fast": Settings("digits", 1437, 360, 20, 3, FEW, (1, 3, 5)),
    "default": Settings("mnist", 20_000, 2000, 10),
    "full": Settings("mnist", 60_000, 10_000, 30, 10),
}


class Sets(NamedTuple):
    """Images, normalized but for `clean`, and labels."""

    train: tuple[Float[Array, "n 28 28 1"], Int[Array, " n"]]  # training images and labels
    test: tuple[Float[Array, "m 28 28 1"], Int[Array, " m"]]  # test images and labels
    clean: Float[Array, "m 28 28 1"]  # the test images before they are normalized, from 0 to 1
    outside: dict[str, Float[Array, "o 28 28 1"]]  # images out of domain, by name: near ones first


def load(settings: Settings, key: Array) -> Sets:
    """Loads all sets; near ones are classes that are left out, far ones other images and noise."""
    inside, far = data.load(settings.data), data.load(FAR[settings.data])

    def normalized(images: Any) -> Any:
        return jnp.asarray(data.normalize(images, settings.data))

    known, unknown = (
        np.flatnonzero((labels < CLASSES) == seen)
        for labels, seen in ((inside.train_labels, True), (inside.test_labels, False))
    )
    tested = np.flatnonzero(inside.test_labels < CLASSES)[: settings.test_images]
    rows = known[: settings.images]
    clean = jnp.asarray(inside.test_images[tested], jnp.float32) / 255
    noise = jax.random.uniform(key, clean.shape)
    return Sets(
        (normalized(inside.train_images[rows]), jnp.asarray(inside.train_labels[rows])),
        (normalized(clean), jnp.asarray(inside.test_labels[tested])),
        clean,
        {
            "classes left out": normalized(inside.test_images[unknown[: settings.test_images]]),
            far.name: normalized(far.test_images[: settings.test_images]),
            "noise": normalized(noise),
        },
    )
