"""What is pruned, how far, and how long it is trained on."""

from dataclasses import dataclass
from typing import Annotated, Literal

from experiments import classifiers
from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected

Part = Literal["scores", "sparsity", "small", "time"]


@dataclass(frozen=True)
class Subject(classifiers.Retrained):
    """A network on a data set, and how it is pruned."""

    macs: tuple[float, ...] = (0.5, 0.3)  # shares of the multiply-accumulates that are left
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)  # shares of single weights that go


@dataclass(frozen=True, kw_only=True)
class Settings(classifiers.Settings, Selected):
    """What is measured."""

    calibration: Count = 256
    round_to: Count = 2  # kept channels are a multiple of it
    plans: Annotated[int, Least(4)] = 10  # plans of random shapes that are timed
    rounds: Count = 11  # rounds of the timing
    batch: Count = 1  # images per call where time is measured
    parts: Annotated[tuple[Part, ...], SELECTS] = ()  # parts to run; all if none is given


SIZES = {
    "fast": Settings(
        subjects=(Subject("lenet5", "digits", 1437, 12, 360, 1, 1437, 4, (0.3,), (0.8,)),),
        batch_size=32, round_to=1, plans=4, rounds=5,
    ),
    "default": Settings(
        subjects=(
            Subject(
                "lenet5", "fashion-mnist", 20_000, 6, 10_000, 2, 20_000, 2, (0.3,), (0.8, 0.95)
            ),
            Subject("resnet8", "cifar-10", 20_000, 12, 2000, 1, 10_000, 2, (0.3,), (0.8, 0.95)),
        ),
    ),
    "full": Settings(
        subjects=(
            Subject("lenet5", "fashion-mnist", 60_000, 20, 10_000, 5, 60_000, 10),
            Subject("resnet8", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
            Subject("resnet18", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
        ),
        batch_size=128, round_to=8, plans=30, rounds=25, calibration=1024,
    ),
}  # fmt: skip
