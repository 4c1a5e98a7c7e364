"""What is measured, and how much of it."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from experiments.harness import SELECTS, SIZELESS, Count, Least

CONVOLUTIONAL = ("LeNet-5", "DS-CNN", "ResNet-8", "ResNet-18", "U-Net")
TRANSFORMERS = ("ViT", "decoder LM")
NETWORKS = (*CONVOLUTIONAL, "LSTM", "MLP-Mixer", *TRANSFORMERS)
OUTSIDE = {"digits": "digits-ood", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}
"""Images that a network trained on others has to tell from them."""
SVI = "SVI"
SMALL = 0.1
"""Noise up to which targets hold."""


def most_of_linear(results: int) -> float:
    """Times a function's own time that its linear moments may take, of so many results."""
    return 3 + 2.5 * results


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        networks: Networks to measure; all if empty.
        methods: Ways to a variance beside the default; all if empty.
        noises: Standard deviations of weights over that of their array; every claim is of one.
        data: Images that networks are trained on; the decoder's text comes with Python.
        examples: Images, or pieces of text, that they are trained on.
        epochs: Passes over them.
        svi_epochs: Passes of the variational inference that starts there.
        oracle: Draws of the Monte Carlo oracle.
        held_out: Inputs that variances are compared on, a multiple of ten.
        samples: Draws that calibration makes for each input.
        calibration: Inputs that calibration sees.
        rounds: Interleaved rounds of timing; 0 leaves costs out.
        asked: Inputs of each domain that NLL and AUROC are measured on, a multiple of ten.
    """

    networks: Annotated[tuple[str, ...], SELECTS] = ()
    methods: Annotated[tuple[str, ...], SELECTS] = ()
    noises: Annotated[tuple[Annotated[float, Least(0.0)], ...], SIZELESS] = (0.03, 0.1, 0.3)
    data: Literal["digits", "mnist", "fashion-mnist"] = "fashion-mnist"
    examples: Annotated[int, Least(64)] = 2000
    epochs: Count = 6
    svi_epochs: Count = 4
    oracle: Annotated[int, Least(60)] = 2000
    held_out: Annotated[int, Least(10)] = 10
    samples: Annotated[int, Least(2)] = 25
    calibration: Annotated[int, Least(2)] = 256
    rounds: Annotated[int, Least(0)] = 3
    asked: Annotated[int, Least(10)] = 100


DEFAULT = Settings()
SIZES = {
    "fast": replace(
        DEFAULT, networks=("LSTM", "DS-CNN"), noises=(0.1,), data="digits", examples=1400, epochs=3,
        svi_epochs=2, oracle=500, samples=50, calibration=64, rounds=2, asked=50,
    ),
    "default": DEFAULT,
    "full": replace(
        DEFAULT, examples=60_000, epochs=10, svi_epochs=10, oracle=20_000, held_out=100,
        samples=100, calibration=1024, rounds=15, asked=2000,
    ),
}  # fmt: skip
