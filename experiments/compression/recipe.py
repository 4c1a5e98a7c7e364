"""What is compressed, in how many bits, and how long it is trained."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from experiments import classifiers
from experiments.compression.methods import METHODS
from experiments.harness import ADDED, SELECTS, SIZELESS, Count, Least

Part = Literal["bits", "methods", "without training", "allocation"]
PARTS: tuple[Part, ...] = ("bits", "methods", "without training", "allocation")


@dataclass(frozen=True)
class Subject(classifiers.Retrained):
    """A network on a data set, and how it is compressed."""

    widths: tuple[int, ...] = (2, 3, 4, 6, 8)  # bits of the accuracy over bits with training
    methods: tuple[str, ...] = tuple(METHODS)  # methods that are compared
    parts: tuple[str, ...] = PARTS  # of the study


@dataclass(frozen=True, kw_only=True)
class Settings(classifiers.Settings):
    """What is measured.

    Attributes:
        retrain_rate: The same for quantization-aware training, and a tenth for a method's numbers.
        rounding_steps: Steps of AdaRound for each layer.
        budgets: Bits of the uniform policies whose bit operations an allocator may spend.
        probes: Random directions behind a Hessian's trace.
        parts: Parts to run; all if none is given.
        densenet: Whether a narrow DenseNet, the thesis' kind of network, stands in for all others.
    """

    rounding_steps: Count = 500
    budgets: tuple[Annotated[int, Least(2)], ...] = (3, 4)
    probes: Annotated[int, Least(2)] = 16
    parts: Annotated[tuple[Part, ...], SELECTS] = ()
    densenet: Annotated[bool, SIZELESS, ADDED] = False

    def runs(self, subject: Subject, part: Part) -> bool:
        """Whether a part is to be run of a subject."""
        return part in subject.parts and (not self.parts or part in self.parts)


_FEW = (
    "fixed 4", "fixed 3", "fixed 2", "lsq 8", "lsq 4", "lsq 3", "lsq 2", "lsq 4, least error",
    "lsq 2, least error", "lsq+ 4", "pact 4",
    "dorefa 4", "width 4", "xnor weights", "ttq weights", "powers 4 weights", "lq-net 2",
)  # fmt: skip
"""Methods on the larger networks."""
_LEAST = ("fixed 4", "fixed 2", "lsq 4", "lsq 2")
_SHORT: tuple[Part, ...] = ("bits", "methods")

SIZES = {
    "fast": Settings(
        subjects=(
            Subject(
                "lenet5", "digits", 1437, 12, 360, 1, 1437, 4, (2, 4),  # one seed: minutes
                ("fixed 4", "fixed 2", "lsq 4", "lsq 2", "ttq weights", "inq 4 weights"),
            ),
        ),
        batch_size=32, calibration=256, rounding_steps=100, probes=4,
    ),
    "default": Settings(
        subjects=(
            Subject(
                "lenet5", "mnist", 20_000, 4, 10_000, 2, 20_000, 2, (2, 4, 8), (),
                ("bits", "without training"),
            ),
            Subject("lenet5", "fashion-mnist", 20_000, 6, 10_000, 2, 20_000, 2, (2, 4, 8)),
            Subject("resnet8", "cifar-10", 20_000, 12, 2000, 1, 10_000, 2, (2, 4, 8), _FEW),
            *(
                # What two processor cores train in minutes of the larger ones.
                Subject(name, "cifar-10", 3000, 6, 1000, 1, 3000, 2, (), _LEAST, _SHORT)
                for name in ("vgg11-eighth", "resnet18-eighth")
            ),
        ),
    ),
    "full": Settings(
        subjects=(
            Subject("lenet5", "mnist", 60_000, 20, 10_000, 5, 60_000, 10),
            Subject("lenet5", "fashion-mnist", 60_000, 20, 10_000, 5, 60_000, 10),
            Subject("resnet8", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
            Subject("resnet18", "cifar-10", 50_000, 100, 10_000, 3, 50_000, 20),
        ),
        batch_size=128, rounding_steps=5000, probes=100, calibration=1024,
    ),
}  # fmt: skip

DENSENET = Subject(
    "densenet-22", "cifar-10", 20_000, 12, 2000, 2, 10_000, 2, (2, 3, 4, 8), (), ("bits",)
)


def settle(settings: Settings) -> Settings:
    """Takes the DenseNet in place of a size's networks, where it is asked for."""
    return replace(settings, subjects=(DENSENET,)) if settings.densenet else settings
