"""What the study trains on and for how long; every number here is ours unless named."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import Int, UInt8

from experiments.harness import SELECTS, Count, Least, Refused
from jaxeff import data
from jaxeff.dirty_mnist import DirtyMNIST, Recipe, dirty_mnist


@dataclass(frozen=True)
class SVISettings:
    """How one posterior is trained.

    Attributes:
        network: ``"mlp"`` or ``"lenet5"``.
        pretrain_epochs: Epochs of a point estimate that the means start from; 0 for a cold start
            at `init_mean`.
        epochs: Epochs of SVI.
        rate: Learning rate of Adam.
        decay: Whether it falls to zero by a cosine.
        init_scale: Standard deviation the posterior starts with.
        init_mean: Where all means start if there is no point estimate.
        prior: Prior of the weights, as `jaxeff.bayes` takes it.
        subset: Whether to train on the images that the chains see, and on no others.
    """

    network: str
    pretrain_epochs: int
    epochs: int
    rate: float
    decay: bool
    init_scale: float
    init_mean: float = 0.08
    prior: float | str = "fan_in"
    subset: bool = False


def posteriors(
    cold: Sequence[int], rate: float, pretrain: int, warm: Sequence[int]
) -> dict[str, SVISettings]:
    """Names what is trained: cold starts at a constant rate, warm ones at a point estimate.

    `cold` are the epochs of four trainings of the MLP, `pretrain` those of the point estimates, and
    `warm` those of the MLP and LeNet-5 that start there.
    """
    own: dict[str, dict[str, Any]] = {
        "mlp": {}, "mlp-long": {}, "mlp-unit": {"prior": 1.0}, "mlp-subset": {"subset": True}
    }  # fmt: skip
    found = {
        name: SVISettings("mlp", 0, epochs, rate, False, 1e-4, **rest)
        for (name, rest), epochs in zip(own.items(), cold, strict=True)
    }
    for name, epochs in zip(("mlp-warm", "lenet5"), warm, strict=True):
        network = name.removesuffix("-warm")
        found[name] = SVISettings(network, pretrain, epochs, 3e-3, True, 1e-2)
    return found


@dataclass(frozen=True)
class MCMCSettings:
    """How the MLP is sampled.

    Attributes:
        images: Training images, half of them clean and half ambiguous.
        step_size: First step size, in standard deviations of the prior.
        steps: Mean number of steps of a trajectory.
        warmup: Iterations that adapt the step size and the mass matrix, and are not kept.
        samples: Draws of each chain.
        chains: Chains.
        prior: Prior of the weights.
    """

    images: int = 2000
    step_size: float = 0.02
    steps: int = 24
    warmup: int = 80
    samples: int = 400
    chains: Annotated[int, Least(2)] = 4
    prior: float | str = "fan_in"


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on.

    Attributes:
        data: How the ambiguous digits are made, and of which.
        ood: Out-of-domain data set.
        images: Images of each test set at most.
        svi: The posteriors, by name.
        mcmc: How the MLP is sampled.
        batch_size: Images per training step (the source's).
        kl: Final weight of the KL term (the source's).
        samples: Weight samples of the SVI predictions (the source's).
        logit_samples: Draws from the Gaussian logits of a moment pass.
        factors: Calibration factors of the sweep: they scale the variances of the weights.
        cache: Folder of the data set; the user's cache if unset.
    """

    data: Recipe = field(default_factory=Recipe)
    ood: str = "fashion-mnist"
    images: Count = 10_000
    # The source's start and learning rate, for a twentieth and a third of its epochs.
    svi: dict[str, SVISettings] = field(
        default_factory=lambda: posteriors((50, 300, 50, 3000), 1e-3, 2, (12, 16))
    )
    mcmc: MCMCSettings = MCMCSettings()
    batch_size: Count = 100
    kl: float = 0.25
    samples: Annotated[int, Least(2)] = 100
    logit_samples: int = 100
    factors: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0)
    cache: Annotated[Path | None, SELECTS] = None


FAST = Settings(
    data=Recipe(
        source="digits", train=200, test=100, vae_epochs=25, vae_drops=(18,), members=3,
        member_epochs=5, batch_size=64, candidates=3000,
    ),
    ood="digits-ood", images=100, svi=posteriors((20, 40, 20, 100), 3e-3, 3, (8, 8)), samples=30,
    mcmc=MCMCSettings(images=200, steps=10, warmup=20, samples=20, chains=2),
    factors=(0.3, 1.0, 2.0),
)  # fmt: skip


DEFAULT = Settings()
_LONGER = {"mlp": 1000, "mlp-long": 2000, "mlp-unit": 1000, "lenet5": 1000}
SIZES = {
    "fast": FAST,
    "default": DEFAULT,
    "full": replace(
        DEFAULT,
        svi={n: replace(s, epochs=_LONGER.get(n, s.epochs)) for n, s in DEFAULT.svi.items()},
        mcmc=MCMCSettings(images=20_000, warmup=200, samples=1000),
    ),
}


@dataclass(frozen=True)
class Sets:
    """Raw images and labels.

    Attributes:
        dirty: The whole of Dirty-MNIST.
        train_images: Its training set: clean digits, then each ambiguous one once per label.
        train_labels: Their labels.
        test: Test images by domain: ``clean``, ``ambiguous`` and ``ood``.
    """

    dirty: DirtyMNIST
    train_images: UInt8[np.ndarray, "n 28 28 1"]
    train_labels: Int[np.ndarray, " n"]
    test: dict[str, UInt8[np.ndarray, "m 28 28 1"]]


def load(settings: Settings, say: Any) -> Sets:
    """Loads the sets; the first time, Dirty-MNIST is built."""
    try:
        dirty = dirty_mnist(settings.data, folder=settings.cache, progress=say)
        outside = data.load(settings.ood)
    except data.DataError as error:
        raise Refused(str(error)) from error
    n = settings.images
    test = {
        "clean": dirty.digits.test_images[:n],
        "ambiguous": dirty.test_images[:n],
        "ood": outside.test_images[:n],
    }
    return Sets(dirty, *dirty.train(), test)


def split(key: jax.Array, name: str) -> jax.Array:
    """The key of one part of the study; a training that only takes longer has the same start."""
    parts = (
        "mlp", "mlp-warm", "lenet5", "mcmc", "samples", "logits", "subset", "mlp-unit", "mlp-subset"
    )  # fmt: skip
    return jax.random.fold_in(key, parts.index(name.removesuffix("-long")))


def subset(
    key: jax.Array, settings: Settings, sets: Sets
) -> tuple[UInt8[np.ndarray, "n 28 28 1"], Int[np.ndarray, " n"]]:
    """Training images and labels for the chains: as many clean as ambiguous ones, no image twice.

    The proportions are those of Dirty-MNIST, where an ambiguous image occurs once for each label.
    """
    dirty, half = sets.dirty, settings.mcmc.images // 2
    sources = dirty.digits.train_images, dirty.train_images
    clean, ambiguous = (
        np.asarray(jax.random.permutation(k, len(images))[:half])
        for k, images in zip(jax.random.split(split(key, "subset")), sources, strict=True)
    )
    return (
        np.concatenate([dirty.digits.train_images[clean], dirty.train_images[ambiguous]]),
        np.concatenate([dirty.digits.train_labels[clean], dirty.train_labels[ambiguous, 0]]),
    )
