"""Trains a posterior by SVI, warm or cold; resumes after being killed."""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.dirty_mnist.networks import Function, build
from experiments.dirty_mnist.recipe import Sets, Settings, split, subset
from experiments.harness import Run
from experiments.posteriors import point_then_svi
from experiments.recipes import cosine_adam


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
    recorded = {**asdict(own), "data": asdict(settings.data)}
    del recorded["prior"], recorded["subset"]  # `svi` keeps the prior and knows the data itself
    epochs = own.pretrain_epochs, own.epochs
    if not own.pretrain_epochs:
        params = jax.tree.map(lambda p: jnp.full_like(p, own.init_mean), params)

    def adam(steps: int, epochs: int) -> optax.GradientTransformation:
        return cosine_adam(own.rate, epochs * steps) if own.decay else optax.adam(own.rate)

    _, result = point_then_svi(
        (point_key, svi_key), f, params, data, epochs,
        lambda steps: (adam(steps, epochs[0]), adam(steps, epochs[1])),
        (run.work / f"{name}-point.safetensors", run.work / f"{name}.safetensors"),
        {"batch_size": settings.batch_size, "settings": recorded},
        lambda text: run.say(f"{name}: {text}"),
        prior=own.prior, kl=settings.kl, init_scale=own.init_scale,
        checkpoint_every=max(1, own.epochs // 50),
    )  # fmt: skip
    return Trained(f, result.posterior, result.history)
