"""Digits of 14 by 14 pixels, patches of photographs out of domain, and how predictions are judged.

What small studies of certainty share: a perceptron (196-32-10), its images, and numbers that say
how good a mean prediction is and how well doubt finds images from elsewhere.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.scipy.special import entr

import jaxeff
from experiments.harness import Row
from jaxeff import data, uncertainty
from jaxeff.nn import MLP

CLASSES, PIXELS = 10, 14 * 14


class Digits(NamedTuple):
    """Images `[n, 14, 14, 1]` of training, test and elsewhere, and labels of the first two."""

    train: jax.Array
    train_labels: jax.Array
    test: jax.Array
    test_labels: jax.Array
    elsewhere: jax.Array


@functools.cache
def images(standardized: bool = True) -> Digits:
    """Loads the images: of zero mean and unit variance, or from 0 to 1 as pulses have to be."""
    digits, others = data.load("digits"), data.load("digits-ood")

    def small(raw: Any) -> jax.Array:
        scaled = data.normalize(raw, "digits") if standardized else jnp.asarray(raw) / 255
        return nnx.avg_pool(jnp.asarray(scaled, jnp.float32), (2, 2), strides=(2, 2))

    return Digits(
        small(digits.train_images), jnp.asarray(digits.train_labels),
        small(digits.test_images), jnp.asarray(digits.test_labels), small(others.test_images),
    )  # fmt: skip


def network(key: jax.Array, inputs: int = PIXELS, outputs: int = CLASSES) -> tuple[Any, Any]:
    """Makes a perceptron of 32 hidden units, and its initial parameters."""
    return jaxeff.functional(MLP((inputs, 32, outputs), rngs=nnx.Rngs(key)))


def said(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes mean probabilities of draws `[draws, n, classes]`, and the doubt of each.

    The doubt is mutual information; of a single draw, which has none, it is entropy.
    """
    probs = jax.nn.softmax(logits).mean(0)
    if len(logits) == 1:
        return probs, entr(probs).sum(-1)
    return probs, uncertainty.decompose_logits(logits).epistemic


def judged(inside: tuple[Any, Any], outside: tuple[Any, Any], labels: Any) -> Row:
    """Judges what was `said` of test images and of images from elsewhere."""
    probs, doubt = inside
    return {
        "accuracy": float(uncertainty.accuracy(probs, labels)),
        "nll": float(uncertainty.nll(probs, labels)),
        "ece": float(uncertainty.ece(probs, labels)),
        "auroc": float(uncertainty.auroc(doubt, outside[1])),
    }
