"""What the study trains on and for how long; every number here is ours unless named."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import Int, UInt8

from experiments.harness import ADDED, SELECTS, SIZELESS, Count, Least
from jaxeff import data
from jaxeff.dirty_mnist import DirtyMNIST, Recipe, dirty_mnist


@dataclass(frozen=True)
class SVISettings:
    """How one posterior is trained."""

    network: str  # ``"mlp"`` or ``"lenet5"``
    # epochs of a point estimate that the means start from; 0 for a cold start at `init_mean`
    pretrain_epochs: int
    epochs: int  # epochs of SVI
    rate: float  # learning rate of Adam
    decay: bool  # whether it falls to zero by a cosine
    init_scale: float  # standard deviation the posterior starts with
    init_mean: float = 0.08  # where all means start if there is no point estimate
    prior: float | str = "fan_in"  # prior of the weights, as `jaxeff.bayes` takes it
    subset: bool = False  # whether to train on the images that the chains see, and on no others


def posteriors(
    epochs: int, subset: int, rate: float, warm: tuple[int, int]
) -> dict[str, SVISettings]:
    """Names what is trained.

    The MLP starts cold at a constant rate, for `epochs`, and for `subset` epochs on the images of
    the chains; LeNet-5 at a point estimate, `warm` being the epochs of both.
    """
    cold = SVISettings("mlp", 0, epochs, rate, False, 1e-4)
    return {
        "mlp": cold,
        "mlp-subset": replace(cold, epochs=subset, subset=True),
        "lenet5": SVISettings("lenet5", *warm, 3e-3, True, 1e-2),
    }


@dataclass(frozen=True)
class MCMCSettings:
    """How the MLP is sampled."""

    images: int = 2000  # training images, half of them clean and half ambiguous
    step_size: float = 0.02  # first step size, in standard deviations of the prior
    steps: int = 24  # mean number of steps of a trajectory
    warmup: int = 80  # iterations that adapt the step size and the mass matrix, and are not kept
    samples: int = 400  # draws of each chain
    chains: Annotated[int, Least(2)] = 4  # chains
    prior: float | str = "fan_in"  # prior of the weights


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on."""

    data: Recipe = field(default_factory=Recipe)  # how the ambiguous digits are made, and of which
    ood: str = "fashion-mnist"  # out-of-domain data set
    images: Count = 10_000  # images of each test set at most
    # The thesis' start and learning rate, for a twentieth of its epochs.
    # the posteriors, by name
    svi: dict[str, SVISettings] = field(default_factory=lambda: posteriors(50, 3000, 1e-3, (2, 16)))
    # epochs of LeNet-5's posterior, which `svi` then has; 0 for those of the size
    lenet5_epochs: Annotated[int, Least(0), SIZELESS] = 0
    mlp_epochs: Annotated[int, Least(0), SIZELESS, ADDED] = 0  # the same of the MLP's
    # whether the MLP is trained and sampled under a prior N(0, 1) of its weights as well
    normal: Annotated[bool, SIZELESS, ADDED] = False
    mcmc: MCMCSettings = MCMCSettings()  # how the MLP is sampled
    batch_size: Count = 100  # images per training step (the thesis')
    kl: float = 0.25  # final weight of the KL term (the thesis')
    samples: Annotated[int, Least(2)] = 100  # weight samples of the SVI predictions (the thesis')
    logit_samples: int = 100  # draws from the Gaussian logits of a moment pass
    # numbers of weight samples, and images of each test set, of the figure over samples
    draws: tuple[Annotated[int, Least(1)], ...] = (1, 2, 3, 5, 10, 30, 100, 300)
    drawn_images: Count = 1000  # images of each test set behind it, at most
    # calibration factors of the sweep: they scale the variances of the weights
    factors: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0)
    # folder of the data set; the user's cache if unset
    cache: Annotated[Path | None, SELECTS] = None


FAST = Settings(
    data=Recipe(
        source="digits", train=200, test=100, vae_epochs=25, vae_drops=(18,), members=3,
        member_epochs=5, batch_size=64, candidates=3000,
    ),
    ood="digits-ood", images=100, svi=posteriors(20, 100, 3e-3, (3, 8)), samples=30,
    mcmc=MCMCSettings(images=200, steps=10, warmup=20, samples=20, chains=2),
    factors=(0.3, 1.0, 2.0), draws=(1, 3, 10, 30),
)  # fmt: skip


DEFAULT = Settings()
_LONGER = {"mlp": 1000, "lenet5": 1000}
SIZES = {
    "fast": FAST,
    "default": DEFAULT,
    "full": replace(
        DEFAULT,
        svi={n: replace(s, epochs=_LONGER.get(n, s.epochs)) for n, s in DEFAULT.svi.items()},
        mcmc=MCMCSettings(images=20_000, warmup=200, samples=1000),
    ),
}


NORMAL = "mlp-normal"
"""The MLP's posterior under a prior of unit normals, which the thesis doesn't rule out."""


def settle(settings: Settings) -> Settings:
    """Trains posteriors for as many epochs as are asked for, and those of another prior."""
    svi = dict(settings.svi)
    for name, epochs in (("lenet5", settings.lenet5_epochs), ("mlp", settings.mlp_epochs)):
        if epochs:
            svi[name] = replace(svi[name], epochs=epochs)
    if settings.normal:
        svi[NORMAL] = replace(svi["mlp"], prior=1.0)
    return replace(settings, svi=svi)


@dataclass(frozen=True)
class Sets:
    """Raw images and labels."""

    dirty: DirtyMNIST  # the whole of Dirty-MNIST
    # its training set: clean digits, then each ambiguous one once per label
    train_images: UInt8[np.ndarray, "n 28 28 1"]
    train_labels: Int[np.ndarray, " n"]  # their labels
    # test images by domain: ``clean``, ``ambiguous`` and ``ood``
    test: dict[str, UInt8[np.ndarray, "m 28 28 1"]]


def load(settings: Settings, say: Any) -> Sets:
    """Loads the sets; the first time, Dirty-MNIST is built."""
    dirty = dirty_mnist(settings.data, folder=settings.cache, progress=say)
    outside = data.load(settings.ood)
    n = settings.images
    test = {
        "clean": dirty.digits.test_images[:n],
        "ambiguous": dirty.test_images[:n],
        "ood": outside.test_images[:n],
    }
    return Sets(dirty, *dirty.train(), test)


def split(key: jax.Array, name: str) -> jax.Array:
    """The key of one part of the study."""
    parts = ("mlp", "lenet5", "mcmc", "samples", "logits", "subset", "mlp-subset", NORMAL)
    return jax.random.fold_in(key, parts.index(name))


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
