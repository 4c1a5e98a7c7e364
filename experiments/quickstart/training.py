"""Trains the point estimate and, from it, the posterior; both resume after being killed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optax
from flax import nnx

import jaxeff
from experiments.harness import Run
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.recipes import cosine_adam
from jaxeff.bayes import svi
from jaxeff.nn import LeNet5
from jaxeff.training import cross_entropy, fit


@dataclass(frozen=True)
class Models:
    """One function, and the two sets of parameters it is run with."""

    f: Callable[..., Any]
    params: Any
    posterior: Any


def train(run: Run[Settings], sets: Sets) -> Models:
    """Trains LeNet-5 by maximum likelihood, then by SVI from those means."""
    key, settings, own = run.key, run.settings, run.settings.training
    model = LeNet5(rngs=nnx.Rngs(split(key, "model")))
    f, params = jaxeff.functional(model)
    data = (sets.train_images, sets.train_labels)
    steps = len(sets.train_labels) // own.batch_size
    recorded = settings.identity()  # a checkpoint of other settings is refused

    def adam(rate: float, epochs: int) -> optax.GradientTransformation:
        return cosine_adam(rate, epochs * steps)

    run.say(f"point estimate, {own.pretrain_epochs} epochs")
    point = fit(
        split(key, "pretrain"),
        cross_entropy(f),
        params,
        data,
        optimizer=adam(own.pretrain_rate, own.pretrain_epochs),
        epochs=own.pretrain_epochs,
        batch_size=own.batch_size,
        checkpoint=run.work / "point.safetensors",
        settings=recorded,
    )
    run.say(f"stochastic variational inference, {own.epochs} epochs")
    result = svi(
        split(key, "svi"),
        f,
        point.params,
        data,
        epochs=own.epochs,
        batch_size=own.batch_size,
        prior=own.prior,
        kl=settings.kl,
        init_scale=settings.init_scale,
        optimizer=adam(own.rate, own.epochs),
        checkpoint=run.work / "svi.safetensors",
        settings=recorded,
    )
    return Models(f, point.params, result.posterior)
