"""What is pruned, how far, and how long it is trained on."""

from dataclasses import dataclass
from typing import Annotated, Literal

from experiments.classifiers import Classifier
from experiments.harness import SELECTS, Least

Part = Literal["scores", "sparsity", "small", "time"]
PARTS: tuple[Part, ...] = ("scores", "sparsity", "small", "time")


@dataclass(frozen=True)
class Subject(Classifier):
    """A network on a data set, and how it is pruned.

    Attributes:
        retrain_images: Images of the training after pruning.
        retrain: Passes over them.
        macs: Shares of the multiply-accumulates that are left.
        sparsities: Shares of single weights that go.
    """

    retrain_images: int
    retrain: int
    macs: tuple[float, ...] = (0.5, 0.3)
    sparsities: tuple[float, ...] = (0.5, 0.8, 0.95)


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        subjects: The networks.
        batch_size: Images per update.
        rate: Learning rate of Adam, decayed by a cosine.
        retrain_rate: The same after pruning.
        calibration: Training images that scores are measured on.
        round_to: Kept channels are a multiple of it.
        plans: Plans of random shapes that are timed.
        rounds: Rounds of the timing.
        batch: Images per call where time is measured.
        only: Subjects to run; all if none is given.
        parts: Parts to run; all if none is given.
    """

    subjects: tuple[Subject, ...]
    batch_size: Annotated[int, Least(1)] = 64
    rate: float = 2e-3
    retrain_rate: float = 1e-3
    calibration: Annotated[int, Least(1)] = 256
    round_to: Annotated[int, Least(1)] = 2
    plans: Annotated[int, Least(4)] = 10
    rounds: Annotated[int, Least(1)] = 11
    batch: Annotated[int, Least(1)] = 1
    only: Annotated[tuple[str, ...], SELECTS] = ()
    parts: Annotated[tuple[Part, ...], SELECTS] = ()

    def runs(self, part: Part) -> bool:
        """Whether a part is to be run."""
        return not self.parts or part in self.parts


SIZES = {
    "fast": Settings(
        (Subject("lenet5", "digits", 1437, 12, 360, 2, 1437, 4, (0.3,), (0.8,)),),
        batch_size=32, round_to=1, plans=4, rounds=5,
    ),
    "default": Settings(
        (
            Subject(
                "lenet5", "fashion-mnist", 20_000, 6, 10_000, 2, 20_000, 2, (0.3,), (0.8, 0.95)
            ),
            Subject("resnet8", "cifar-10", 20_000, 12, 2000, 1, 10_000, 2, (0.3,), (0.8, 0.95)),
        ),
    ),
    "full": Settings(
        (
            Subject("lenet5", "fashion-mnist", 60_000, 20, 10_000, 5, 60_000, 10),
            Subject("resnet8", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
            Subject("resnet18", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
        ),
        batch_size=128, round_to=8, plans=30, rounds=25, calibration=1024,
    ),
}  # fmt: skip
