"""Trains the point estimate and, from it, the posterior; both resume after being killed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import nnx

import jaxeff
from experiments.harness import Run
from experiments.posteriors import point_then_svi
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.recipes import cosine_adam
from jaxeff.nn import LeNet5


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
    epochs = own.pretrain_epochs, own.epochs
    point, result = point_then_svi(
        (split(key, "pretrain"), split(key, "svi")), f, params,
        (sets.train_images, sets.train_labels), epochs,
        lambda steps: (
            cosine_adam(own.pretrain_rate, epochs[0] * steps),
            cosine_adam(own.rate, epochs[1] * steps),
        ),
        (run.work / "point.safetensors", run.work / "svi.safetensors"),
        # A checkpoint of other settings is refused.
        {"batch_size": own.batch_size, "settings": settings.identity()},
        run.say, prior=own.prior, kl=settings.kl, init_scale=settings.init_scale,
    )  # fmt: skip
    return Models(f, point, result.posterior)
