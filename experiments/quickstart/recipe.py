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
    """How the networks are trained on one data set.

    Attributes:
        ood: Out-of-domain data set.
        pretrain_epochs: Epochs of the point estimate, from which SVI starts.
        epochs: Epochs of SVI (the source: 1000, from scratch).
        pretrain_rate: Learning rate of Adam for the point estimate, decayed by a cosine.
        rate: The same for SVI (the source: 1e-3, constant).
        batch_size: Images per training step (the source: 100).
        prior: Standard deviation of the weights' prior, or a rule's name.
    """

    ood: Literal["fashion-mnist", "digits-ood"]
    pretrain_epochs: Count
    epochs: Count
    pretrain_rate: float
    rate: float
    batch_size: Count
    prior: float | str


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on.

    Attributes:
        mnist: The training on MNIST.
        digits: The training on scikit-learn's digits.
        data: Data set; auto is mnist where JAXEFF_DATA names a folder, else the embedded digits.
        init_scale: Standard deviation the posterior starts with (the source: 1e-4).
        kl: Final weight of the annealed KL term (the source: 0.25).
        samples: Weight samples of the SVI predictions.
        logit_samples: Draws from the moment pass' Gaussian logits.
        batch: Images per call where latency is measured (the source: 10).
        images: Test images at most, in and out of domain each.
        emulated_batches: Batches run on the emulated board.
        arm: Whether to compile for a Cortex-A72 too and check it under emulation.
    """

    mnist: Training
    digits: Training
    data: Literal["auto", "mnist", "digits"] = "auto"
    init_scale: float = 1e-2
    kl: float = 0.25
    samples: Annotated[int, Least(2)] = 30
    logit_samples: Annotated[int, Least(2)] = 100
    batch: Count = 10
    images: Count = 10_000
    emulated_batches: Count = 2
    arm: bool = True

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
    try:
        inside, outside = data.load(settings.data), data.load(settings.training.ood)
    except data.DataError as error:
        raise Refused(str(error)) from error

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
