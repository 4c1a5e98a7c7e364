"""What the quickstart trains on and for how long; every number here is ours unless named."""

import os
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.harness import Count, Least, Refused
from jaxeff import data
from jaxeff.data import VARIABLE


@dataclass(frozen=True)
class Training:
    """How the networks are trained on one data set."""

    ood: Literal["fashion-mnist", "digits-ood"]  # out-of-domain data set
    pretrain_epochs: Count  # epochs of the point estimate, from which SVI starts
    epochs: Count  # epochs of SVI (the thesis: 1000, from scratch)
    pretrain_rate: float  # learning rate of Adam for the point estimate, decayed by a cosine
    rate: float  # the same for SVI (the thesis: 1e-3, constant)
    batch_size: Count  # images per training step (the thesis: 100)
    prior: float | str  # standard deviation of the weights' prior, or a rule's name


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on."""

    mnist: Training  # the training on MNIST
    digits: Training  # the training on scikit-learn's digits
    # data set; auto is mnist where JAXEFF_DATA names a folder, else the embedded digits
    data: Literal["auto", "mnist", "digits"] = "auto"
    init_scale: float = 1e-2  # standard deviation the posterior starts with (the thesis: 1e-4)
    kl: float = 0.25  # final weight of the annealed KL term (the thesis: 0.25)
    samples: Annotated[int, Least(2)] = 30  # weight samples of the SVI predictions
    logit_samples: Annotated[int, Least(2)] = 100  # draws from the moment pass' Gaussian logits
    batch: Count = 10  # images per call where latency is measured (the thesis: 10)
    images: Count = 10_000  # test images at most, in and out of domain each
    emulated_batches: Count = 2  # batches run on the emulated board
    # whether latencies are measured; where other work shares the machine they mean nothing
    timed: bool = True
    arm: bool = True  # whether to compile for a Cortex-A72 too and check it under emulation

    @property
    def training(self) -> Training:
        """That of the data set."""
        return self.mnist if self.data == "mnist" else self.digits

    def identity(self) -> dict[str, Any]:
        """What training depends on: a checkpoint made with anything else is of another run."""
        shared = {"data": self.data, "init_scale": self.init_scale, "kl": self.kl}
        return shared | asdict(self.training)


DEFAULT = Settings(
    Training("fashion-mnist", 2, 6, 2e-3, 3e-3, 100, 1.0),
    Training("digits-ood", 20, 60, 2e-3, 2e-3, 50, "fan_in"),
)
SIZES = {
    "fast": replace(
        DEFAULT,
        mnist=replace(DEFAULT.mnist, pretrain_epochs=1, epochs=2),
        digits=replace(DEFAULT.digits, pretrain_epochs=5, epochs=10),
        images=1000,
        emulated_batches=1,
    ),
    "default": DEFAULT,
    "full": replace(
        DEFAULT,
        mnist=replace(DEFAULT.mnist, epochs=1000, rate=1e-3),
        digits=replace(DEFAULT.digits, epochs=1000, rate=1e-3),
    ),
}


def settle(settings: Settings) -> Settings:
    """The settings with a data set: MNIST if data is there at all, since a typo would hide it.

    Raises:
        Refused: `JAXEFF_DATA` is set, but MNIST or Fashion-MNIST is not whole there.
    """
    if settings.data != "auto":
        return settings
    if not os.environ.get(VARIABLE):
        return replace(settings, data="digits")
    try:
        for name in ("mnist", "fashion-mnist"):
            data.load(name)
    except data.DataError as error:
        raise Refused(f"{error}; or take the embedded digits (--data digits)") from error
    return replace(settings, data="mnist")


@dataclass(frozen=True)
class Sets:
    """Normalised images, channels last, and labels."""

    train_images: Float[Array, "n 28 28 1"]
    train_labels: Int[Array, " n"]
    test_images: Float[Array, "m 28 28 1"]
    test_labels: Int[Array, " m"]
    ood_images: Float[Array, "o 28 28 1"]


def load(settings: Settings) -> Sets:
    """Loads both data sets, normalised by the in-domain one's statistics."""
    inside, outside = data.load(settings.data), data.load(settings.training.ood)

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
