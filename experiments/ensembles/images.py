"""Dirty-MNIST in part: images to train on, ones to choose by, ones to judge by."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.dirty_mnist.recipe import Sets
from experiments.ensembles.recipe import Settings
from experiments.harness import Refused
from jaxeff import data
from jaxeff.data import normalize
from jaxeff.dirty_mnist import dirty_mnist

SIDE = 28
GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True, eq=False)
class Images:
    """Normalised images and their labels.

    Attributes:
        train: Clean digits, then each ambiguous one once for every label.
        spare: Ambiguous digits that nothing is trained on.
        other: Images from elsewhere, to repel on.
        held: What strengths are chosen by: "clean" digits, "ood" images that are in neither
            training nor tests, and nothing else.
        held_labels: Of the clean ones.
        test: Test images by domain: "clean", "ambiguous" and "ood".
        sets: The raw ones, with the labels of the tests.
    """

    train: tuple[Float[Array, "n 28 28 1"], Int[Array, " n"]]
    spare: Float[Array, "n 28 28 1"]
    other: Float[Array, "n 28 28 1"]
    held: dict[str, Float[Array, "n 28 28 1"]]
    held_labels: Int[Array, " n"]
    test: dict[str, Float[Array, "n 28 28 1"]]
    sets: Sets


def load(settings: Settings, say: Any) -> Images:
    """Loads the images; the first time, Dirty-MNIST is built."""
    try:
        dirty = dirty_mnist(settings.data, folder=settings.cache, progress=say)
        ood, other = data.load(settings.ood), data.load(settings.other)
    except data.DataError as error:
        raise Refused(str(error)) from error
    digits, n, m = dirty.digits, settings.clean, settings.ambiguous
    if n + settings.held > len(digits.train_images) or m >= len(dirty.train_images):
        raise Refused(
            f"there are {len(digits.train_images)} clean and {len(dirty.train_images)} ambiguous "
            f"training digits: --clean {n} with --held {settings.held}, or --ambiguous {m}, are "
            "too many"
        )
    labels = dirty.train_labels.shape[1]
    train = np.concatenate(
        [digits.train_images[:n], np.repeat(dirty.train_images[:m], labels, axis=0)]
    )
    targets = np.concatenate([digits.train_labels[:n], dirty.train_labels[:m].reshape(-1)])
    half = min(len(other.train_images) // 2, 4 * settings.held)
    raw = {
        "clean": digits.test_images[: settings.tests],
        "ambiguous": dirty.test_images[: settings.tests],
        "ood": ood.test_images[: settings.tests],
    }
    held = slice(len(digits.train_images) - settings.held, None)

    def scaled(images: np.ndarray) -> Array:
        return normalize(_grey(images), digits.name)

    return Images(
        (scaled(train), jnp.asarray(targets)),
        scaled(dirty.train_images[m : m + settings.held]),
        scaled(other.train_images[:half]),
        {
            "clean": scaled(digits.train_images[held]),
            "ood": scaled(other.train_images[half : half + settings.held]),
        },
        jnp.asarray(digits.train_labels[held]),
        {domain: scaled(images) for domain, images in raw.items()},
        Sets(dirty, train, targets, raw),
    )


def _grey(images: np.ndarray) -> np.ndarray:
    """One channel, and the middle 28 by 28 pixels."""
    if images.shape[-1] == len(GREY):
        images = np.rint(images @ np.array(GREY))[..., None].astype(np.uint8)
    top, left = ((side - SIDE) // 2 for side in images.shape[1:3])
    return images[:, top : top + SIDE, left : left + SIDE]
