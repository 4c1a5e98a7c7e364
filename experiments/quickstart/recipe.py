"""What the quickstart trains on and for how long; every number here is ours unless named."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import typer
from jaxtyping import Array, Float, Int

from jaxeff import data


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on.

    Attributes:
        data: In-domain data set.
        ood: Out-of-domain data set.
        pretrain_epochs: Epochs of the point estimate, from which SVI starts.
        epochs: Epochs of SVI (the source: 1000, from scratch).
        pretrain_rate: Learning rate of Adam for the point estimate, decayed by a cosine.
        rate: The same for SVI (the source: 1e-3, constant).
        batch_size: Images per training step (the source: 100).
        prior: Standard deviation of the weights' prior, or a rule's name.
        init_scale: Standard deviation the posterior starts with (the source: 1e-4).
        kl: Final weight of the annealed KL term (the source: 0.25).
        samples: Weight samples of the SVI predictions.
        logit_samples: Draws from the moment pass' Gaussian logits.
        batch: Images per call where latency is measured (the source: 10).
        images: Test images at most, in and out of domain each.
        emulated_batches: Batches run on the emulated board.
    """

    data: str
    ood: str
    pretrain_epochs: int
    epochs: int
    pretrain_rate: float
    rate: float
    batch_size: int
    prior: float | str
    init_scale: float = 1e-2
    kl: float = 0.25
    samples: int = 30
    logit_samples: int = 100
    batch: int = 10
    images: int = 10_000
    emulated_batches: int = 2

    def as_dict(self) -> dict[str, Any]:
        """The settings as a flat record."""
        return dataclasses.asdict(self)

    def training(self) -> dict[str, Any]:
        """What training depends on: a checkpoint made with anything else is of another run."""
        evaluation = {"samples", "logit_samples", "batch", "images", "emulated_batches"}
        return {k: v for k, v in self.as_dict().items() if k not in evaluation}


@dataclass(frozen=True)
class Sets:
    """Normalised images, channels last, and labels."""

    train_images: Float[Array, "n 28 28 1"]
    train_labels: Int[Array, " n"]
    test_images: Float[Array, "m 28 28 1"]
    test_labels: Int[Array, " m"]
    ood_images: Float[Array, "o 28 28 1"]


RECIPES = {
    "mnist": Settings(
        data="mnist",
        ood="fashion-mnist",
        pretrain_epochs=2,
        epochs=6,
        pretrain_rate=2e-3,
        rate=3e-3,
        batch_size=100,
        prior=1.0,
    ),
    "digits": Settings(
        data="digits",
        ood="digits-ood",
        pretrain_epochs=20,
        epochs=60,
        pretrain_rate=2e-3,
        rate=2e-3,
        batch_size=50,
        prior="fan_in",
    ),
}


def choose(name: str, fast: bool) -> Settings:
    """The settings for a data set; `auto` takes MNIST where it is."""
    if name == "auto":
        name = "mnist" if {"mnist", "fashion-mnist"} <= set(data.available()) else "digits"
    if name not in RECIPES:
        raise typer.BadParameter(f"{name!r}: choose auto, {' or '.join(RECIPES)}")
    settings = RECIPES[name]
    if not fast:
        return settings
    return dataclasses.replace(
        settings,
        pretrain_epochs=max(1, settings.pretrain_epochs // 4),
        epochs=max(2, settings.epochs // 6),
        images=1000,
        emulated_batches=1,
    )


def load(settings: Settings) -> Sets:
    """Loads both data sets, normalised by the in-domain one's statistics."""
    try:
        inside, outside = data.load(settings.data), data.load(settings.ood)
    except data.DataError as error:
        raise typer.BadParameter(str(error)) from error

    def images(raw: Any) -> Float[Array, "n 28 28 1"]:
        return jnp.asarray(data.normalize(raw, settings.data))

    n = settings.images
    return Sets(
        images(inside.train_images),
        jnp.asarray(inside.train_labels, jnp.int32),
        images(inside.test_images[:n]),
        jnp.asarray(inside.test_labels[:n], jnp.int32),
        images(outside.test_images[:n]),
    )


def split(key: jax.Array, name: str) -> jax.Array:
    """The key of one part of the experiment."""
    parts = ("model", "pretrain", "svi", "samples", "logits")
    return jax.random.fold_in(key, parts.index(name))
