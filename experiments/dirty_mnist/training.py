"""Trains a posterior by SVI, warm or cold; resumes after being killed."""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.dirty_mnist.networks import Function, build
from experiments.dirty_mnist.recipe import Sets, Settings, split, subset
from experiments.harness import Run
from jaxeff.bayes import svi
from jaxeff.training import cross_entropy, fit


@dataclass(frozen=True)
class Trained:
    """A posterior and the function that it is of."""

    f: Function
    posterior: Any
    history: list[dict[str, Any]]


def train(
    name: str,
    sets: Sets,
    run: Run[Settings],
) -> Trained:
    """Trains one of the study's posteriors.

    Args:
        name: Which, as in `Settings.svi`.
        sets: The data.
        run: The study's.
    """
    key, settings = run.key, run.settings
    own = settings.svi[name]
    model_key, point_key, svi_key = jax.random.split(split(key, name), 3)
    f, params = build(own.network, settings.data.source, model_key)
    data = (sets.train_images, sets.train_labels)
    if own.subset:
        data = subset(key, settings, sets)
    steps = len(data[1]) // settings.batch_size
    recorded = {**asdict(own), "data": asdict(settings.data)}
    del recorded["prior"], recorded["subset"]  # `svi` keeps the prior and knows the data itself

    def adam(epochs: int) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(own.rate, epochs * steps)
        return optax.adam(schedule if own.decay else own.rate)

    if own.pretrain_epochs:
        run.say(f"{name}: point estimate, {own.pretrain_epochs} epochs")
        params = fit(
            point_key,
            cross_entropy(f),
            params,
            data,
            optimizer=adam(own.pretrain_epochs),
            epochs=own.pretrain_epochs,
            batch_size=settings.batch_size,
            checkpoint=run.work / f"{name}-point.safetensors",
            settings=recorded,
        ).params
    else:
        params = jax.tree.map(lambda p: jnp.full_like(p, own.init_mean), params)
    run.say(f"{name}: stochastic variational inference, {own.epochs} epochs")
    result = svi(
        svi_key,
        f,
        params,
        data,
        epochs=own.epochs,
        batch_size=settings.batch_size,
        prior=own.prior,
        kl=settings.kl,
        init_scale=own.init_scale,
        optimizer=adam(own.epochs),
        checkpoint=run.work / f"{name}.safetensors",
        checkpoint_every=max(1, own.epochs // 50),
        settings=recorded,
    )
    return Trained(f, result.posterior, result.history)
