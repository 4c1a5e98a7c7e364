"""What is pruned, how far, and how long it is trained on."""

from dataclasses import dataclass
from typing import Annotated, Literal

from experiments import classifiers
from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected

Part = Literal["scores", "sparsity", "small", "time"]


@dataclass(frozen=True)
class Subject(classifiers.Retrained):
    """A network on a data set, and how it is pruned.

    Attributes:
        macs: Shares of the multiply-accumulates that are left.
        sparsities: Shares of single weights that go.
    """

    macs: tuple[float, ...] = (0.5, 0.3)
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)


@dataclass(frozen=True, kw_only=True)
class Settings(classifiers.Settings, Selected):
    """What is measured.

    Attributes:
        round_to: Kept channels are a multiple of it.
        plans: Plans of random shapes that are timed.
        rounds: Rounds of the timing.
        batch: Images per call where time is measured.
        parts: Parts to run; all if none is given.
    """

    calibration: Count = 256
    round_to: Count = 2
    plans: Annotated[int, Least(4)] = 10
    rounds: Count = 11
    batch: Count = 1
    parts: Annotated[tuple[Part, ...], SELECTS] = ()


SIZES = {
    "fast": Settings(
        subjects=(Subject("lenet5", "digits", 1437, 12, 360, 2, 1437, 4, (0.3,), (0.8,)),),
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
