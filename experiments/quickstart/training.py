"""Trains the point estimate and, from it, the posterior; both resume after being killed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx
from rich.console import Console

import jaxeff
from experiments.quickstart.recipe import Sets, Settings, split
from jaxeff.bayes import svi
from jaxeff.nn import LeNet5
from jaxeff.training import cross_entropy, fit


@dataclass(frozen=True)
class Models:
    """One function, and the two sets of parameters it is run with."""

    f: Callable[..., Any]
    params: Any
    posterior: Any


def train(
    key: jax.Array, settings: Settings, sets: Sets, folder: Path, resume: bool, console: Console
) -> Models:
    """Trains LeNet-5 by maximum likelihood, then by SVI from those means."""
    model = LeNet5(rngs=nnx.Rngs(split(key, "model")))
    f, params = jaxeff.functional(model)
    data = (sets.train_images, sets.train_labels)
    steps = len(sets.train_labels) // settings.batch_size
    folder.mkdir(parents=True, exist_ok=True)
    recorded = settings.training()  # a checkpoint of other settings is refused

    def adam(rate: float, epochs: int) -> optax.GradientTransformation:
        return optax.adam(optax.cosine_decay_schedule(rate, epochs * steps))

    console.print(f"point estimate, {settings.pretrain_epochs} epochs")
    point = fit(
        split(key, "pretrain"),
        cross_entropy(f),
        params,
        data,
        optimizer=adam(settings.pretrain_rate, settings.pretrain_epochs),
        epochs=settings.pretrain_epochs,
        batch_size=settings.batch_size,
        checkpoint=folder / "point.safetensors",
        settings=recorded,
        resume=resume,
    )
    console.print(f"stochastic variational inference, {settings.epochs} epochs")
    result = svi(
        split(key, "svi"),
        f,
        point.params,
        data,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        prior=settings.prior,
        kl=settings.kl,
        init_scale=settings.init_scale,
        optimizer=adam(settings.rate, settings.epochs),
        checkpoint=folder / "svi.safetensors",
        settings=recorded,
        resume=resume,
    )
    return Models(f, point.params, result.posterior)
