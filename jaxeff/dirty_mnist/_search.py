"""Finds ambiguous images among decoded mixtures of digits."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from jaxeff.core import functional
from jaxeff.data import DataError, normalize
from jaxeff.dirty_mnist._ambiguous import is_ambiguous, mix_codes, stretch_contrast
from jaxeff.dirty_mnist._networks import to_unit
from jaxeff.dirty_mnist._recipe import Recipe
from jaxeff.nn import VAE, LeNet5

BATCH = 1000


class Judged(NamedTuple):
    """Images, and what the ensemble predicts for them.

    Attributes:
        images: uint8, ``[n, 28, 28, 1]``.
        probs: The ensemble's mean class probabilities, ``[n, classes]``.
        ambiguous: Whether its members agree on them, ``[n]``.
    """

    images: UInt8[Array | np.ndarray, "n 28 28 1"]
    probs: Float[Array | np.ndarray, "n classes"]
    ambiguous: Bool[Array | np.ndarray, " n"]


Judge = Callable[[Float[np.ndarray, "n latents"]], Judged]


def make_judge(recipe: Recipe, source: str, vae: Any, members: list[Any]) -> Judge:
    """Makes a function that decodes codes ``[BATCH, latents]`` and judges the images.

    Args:
        recipe: Recipe that holds the bounds of ambiguity.
        source: Name of the digits, by whose statistics the ensemble's inputs are normalised.
        vae: The autoencoder's parameters.
        members: The LeNets' parameters.
    """
    # Structure and shapes are enough: parameters come with each call, none are made here.
    decode, _ = functional(nnx.eval_shape(lambda: VAE(rngs=nnx.Rngs(0))), method="decode")
    lenet, _ = functional(nnx.eval_shape(lambda: LeNet5(padding="VALID", rngs=nnx.Rngs(0))))

    @jax.jit
    def judge(vae: Any, members: list[Any], codes: jax.Array) -> Judged:
        pixels = stretch_contrast(jax.nn.sigmoid(decode(vae, codes)))
        images = jnp.rint(pixels * 255).astype(jnp.uint8).reshape(-1, 28, 28, 1)
        # The images are judged as they will be stored. One member after the other: convolutions
        # vmapped over kernels are slow on CPUs.
        logits = jnp.stack([lenet(member, normalize(images, source)) for member in members])
        ambiguous = is_ambiguous(logits, recipe.largest_mi, recipe.smallest_entropy)
        return Judged(images, jax.nn.softmax(logits).mean(0), ambiguous)

    return partial(judge, vae, members)


def encode(vae: Any, images: UInt8[np.ndarray, "n 28 28 1"]) -> Float[np.ndarray, "n latents"]:
    """Encodes images: the means of their codes."""
    f, _ = functional(nnx.eval_shape(lambda: VAE(rngs=nnx.Rngs(0))), method="encode")
    return np.asarray(jax.jit(f)(vae, to_unit(images))[0])


def search(
    rng: np.random.Generator,
    recipe: Recipe,
    judge: Judge,
    codes: Float[np.ndarray, "digits latents"],
    labels: Int[np.ndarray, " digits"],
    wanted: int,
    tell: Callable[[str], None],
) -> Judged:
    """Tries mixtures, round by round, until there are enough ambiguous ones.

    Args:
        rng: Source of randomness.
        recipe: What to mix, how much of it per round, and when to give up.
        judge: From `make_judge`.
        codes: Latent codes of the digits that are mixed.
        labels: Their classes.
        wanted: Least number of ambiguous images to find.
        tell: Called with one line per round.

    Returns:
        The ambiguous images.

    Raises:
        DataError: Too few were found.
    """
    kept: list[Judged] = []
    tried = found = 0
    for _ in range(recipe.rounds):
        # Every number of parts as often, in batches of one size: one program for the search.
        for parts in recipe.parts * -(-recipe.candidates // (len(recipe.parts) * BATCH)):
            judged: Judged = jax.device_get(judge(mix_codes(rng, codes, labels, parts, BATCH)))
            # Selected on the host: how many are ambiguous is known only there.
            kept.append(Judged(*(array[judged.ambiguous] for array in judged)))
            tried, found = tried + BATCH, found + len(kept[-1].probs)
        tell(f"{found:,} ambiguous images among {tried:,} mixtures")
        if found >= wanted:
            return Judged(*(np.concatenate(arrays) for arrays in zip(*kept, strict=True)))
    raise DataError(
        f"only {found} ambiguous images among {tried} mixtures, wanted {wanted}: train the "
        "networks longer, ask for fewer images, or raise the recipe's rounds"
    )
