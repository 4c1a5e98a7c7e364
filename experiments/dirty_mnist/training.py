"""Trains a posterior by SVI, warm or cold; resumes after being killed."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from rich.console import Console

from experiments.dirty_mnist.networks import Function, build
from experiments.dirty_mnist.recipe import Sets, Settings, split, subset
from jaxeff.bayes import svi
from jaxeff.training import cross_entropy, fit


@dataclass(frozen=True)
class Trained:
    """A posterior and the function that it is of."""

    f: Function
    posterior: Any
    history: list[dict[str, Any]]


def train(
    key: jax.Array,
    name: str,
    settings: Settings,
    sets: Sets,
    folder: Path,
    resume: bool,
    console: Console,
) -> Trained:
    """Trains one of the study's posteriors.

    Args:
        key: The study's.
        name: Which, as in `Settings.svi`.
        settings: The study's.
        sets: The data.
        folder: For checkpoints.
        resume: Whether to go on from them.
        console: For progress.
    """
    run = settings.svi[name]
    model_key, point_key, svi_key = jax.random.split(split(key, name), 3)
    f, params = build(run.network, settings.data.source, model_key)
    data = (sets.train_images, sets.train_labels)
    if run.subset:
        data = subset(key, settings, sets)
    steps = len(data[1]) // settings.batch_size
    recorded = {**asdict(run), "data": asdict(settings.data)}
    del recorded["prior"], recorded["subset"]  # `svi` keeps the prior and knows the data itself

    def adam(epochs: int) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(run.rate, epochs * steps)
        return optax.adam(schedule if run.decay else run.rate)

    if run.pretrain_epochs:
        console.print(f"{name}: point estimate, {run.pretrain_epochs} epochs")
        params = fit(
            point_key,
            cross_entropy(f),
            params,
            data,
            optimizer=adam(run.pretrain_epochs),
            epochs=run.pretrain_epochs,
            batch_size=settings.batch_size,
            checkpoint=folder / f"{name}-point.safetensors",
            settings=recorded,
            resume=resume,
        ).params
    else:
        params = jax.tree.map(lambda p: jnp.full_like(p, run.init_mean), params)
    console.print(f"{name}: stochastic variational inference, {run.epochs} epochs")
    result = svi(
        svi_key,
        f,
        params,
        data,
        epochs=run.epochs,
        batch_size=settings.batch_size,
        prior=run.prior,
        kl=settings.kl,
        init_scale=run.init_scale,
        optimizer=adam(run.epochs),
        checkpoint=folder / f"{name}.safetensors",
        checkpoint_every=max(1, run.epochs // 50),
        settings=recorded,
        resume=resume,
    )
    return Trained(f, result.posterior, result.history)
