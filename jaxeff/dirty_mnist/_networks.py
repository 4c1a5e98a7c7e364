"""Trains the two kinds of networks that the ambiguous images need; both resume after a kill."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxeff.core import functional
from jaxeff.data import Dataset, normalize
from jaxeff.dirty_mnist._recipe import Recipe
from jaxeff.nn import VAE, LeNet5
from jaxeff.nn.models import negative_evidence_bound
from jaxeff.training import CheckpointError, Loss, cross_entropy, fit, stateless


def to_unit(images: Any) -> jax.Array:
    """Converts uint8 pixels to 0 to 1."""
    return jnp.asarray(images, jnp.float32) / 255


def train_vae(
    key: jax.Array, recipe: Recipe, source: Dataset, path: Path, progress: bool | None
) -> Any:
    """Trains the autoencoder on the source's training images, and returns its parameters.

    Args:
        key: Random key.
        recipe: The settings of the networks.
        source: The digits.
        path: Checkpoint.
        progress: Whether to show a bar; see `jaxeff.core`.
    """
    init_key, fit_key = jax.random.split(key)
    f, params = functional(VAE(rngs=nnx.Rngs(init_key)))

    def loss(key: Any, params: Any, batch: Any) -> jax.Array:
        # Bernoulli pixels are probabilities; the classifier below takes normalized ones.
        x = to_unit(batch[0])
        logits, mean, log_var = f(params, key, x)
        return negative_evidence_bound(logits, mean, log_var, x)

    steps = len(source.train_images) // recipe.batch_size
    # The schedule counts updates, the recipe epochs.
    rate = optax.piecewise_constant_schedule(
        recipe.vae_rate, {epoch * steps: 0.2 for epoch in recipe.vae_drops}
    )

    optimizer = optax.adam(rate)
    data = (source.train_images,)
    return _fit(
        fit_key, stateless(loss), params, data, optimizer, recipe.vae_epochs, recipe, path, progress
    )


def train_member(
    key: jax.Array, recipe: Recipe, source: Dataset, path: Path, progress: bool | None
) -> Any:
    """Trains one LeNet of the ensemble, and returns its parameters; see `train_vae`."""
    init_key, fit_key = jax.random.split(key)
    f, params = functional(_lenet(init_key))
    steps = len(source.train_images) // recipe.batch_size
    # Falls to zero at the last update; an epoch has as many as there are full batches.
    rate = optax.cosine_decay_schedule(1e-3, recipe.member_epochs * steps)

    return _fit(
        fit_key,
        cross_entropy(lambda params, x: f(params, normalize(x, source.name))),
        params,
        (source.train_images, source.train_labels),
        optax.adam(rate),
        recipe.member_epochs,
        recipe,
        path,
        progress,
    )


def _lenet(key: jax.Array) -> LeNet5:
    return LeNet5(padding="VALID", rngs=nnx.Rngs(key))


def _fit(
    key: jax.Array,
    loss: Loss,
    params: Any,
    data: tuple[Any, ...],
    optimizer: optax.GradientTransformation,
    epochs: int,
    recipe: Recipe,
    path: Path,
    progress: bool | None,
) -> Any:
    """Trains, from the checkpoint on or anew where it is of no use; returns the parameters."""
    train = partial(
        fit,
        key,
        loss,
        params,
        data,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=recipe.batch_size,
        checkpoint=path,
        progress=progress,
    )
    try:
        return train().params
    except CheckpointError as error:
        warnings.warn(f"training starts again from the beginning: {error}", stacklevel=3)
        return train(resume=False).params
