"""What is measured, and how much of it."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from experiments.harness import SELECTS, Count, Least

NETWORKS = (
    "MLP", "MLP, noise at the input", "LSTM", "GRU", "LayerNorm MLP", "BatchNorm", "depthwise",
    "squeeze-and-excite", "conv + mean", "same layer twice", "repeated token + mean", "attention",
    "rank-4 LoRA", "LeNet-5, SVI", "residual", "residual, noise at the input", "MobileNet-like",
    "ViT",
)  # fmt: skip
OUTSIDE = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "dirty-mnist": "fashion-mnist"}
"""What a network trained on a data set has to tell it from."""


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        networks: Numbers of the networks, in the order of the table; all if empty.
        oracle: Samples of the Monte Carlo oracle.
        samples: Samples that calibration draws.
        calibration: Inputs that calibration sees.
        held_out: Inputs that errors are measured on, a multiple of ten.
        counts: Numbers of samples that sampling is judged with.
        rounds: Interleaved rounds of timing; 0 leaves costs out.
        train_images: Images that LeNet-5 and the MLP are trained on.
        epochs: Epochs of SVI, after one of a point estimate.
        test_images: Images of each domain that the AUROC is measured on.
        domains: In-domain data sets of detection.
    """

    networks: Annotated[tuple[int, ...], SELECTS] = ()
    oracle: Annotated[int, Least(100)] = 10_000
    samples: Annotated[int, Least(2)] = 1000
    calibration: Annotated[int, Least(2)] = 48
    held_out: Annotated[int, Least(10)] = 20
    counts: tuple[Annotated[int, Least(2)], ...] = (3, 10, 30, 100, 300)
    rounds: Annotated[int, Least(0)] = 9
    train_images: Annotated[int, Least(100)] = 20_000
    epochs: Count = 3
    test_images: Annotated[int, Least(100)] = 1000
    domains: Annotated[
        tuple[Literal["mnist", "fashion-mnist", "dirty-mnist"], ...], SELECTS
    ] = ("mnist", "fashion-mnist")  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """The networks."""
        return tuple(NETWORKS[i] for i in self.networks) or NETWORKS


DEFAULT = Settings()
SIZES = {
    "fast": replace(
        DEFAULT, networks=(0, 9, 11), oracle=2000, samples=300, calibration=24, held_out=10,
        rounds=3, train_images=3000, epochs=1, test_images=200, domains=("mnist",),
    ),
    "default": DEFAULT,
    "full": replace(
        DEFAULT, oracle=100_000, samples=5000, held_out=100, rounds=31, train_images=60_000,
        epochs=20, test_images=10_000, domains=("mnist", "fashion-mnist", "dirty-mnist"),
    ),
}  # fmt: skip
