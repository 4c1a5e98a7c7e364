"""What is trained, at which noise levels and for how long.

Three sizes: the embedded digits, what two processor cores train in half an hour, and as the thesis
trained (arXiv 2212.10430), which an accelerator runs with the same code. Every row of the results
names its size.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from experiments.harness import SELECTS, Count, Least, Refused


@dataclass(frozen=True)
class Case:
    """A network on a data set."""

    network: str  # "mlp" (three hidden layers of 64) or "lenet5" (without padding)
    data: str  # "mnist", "fashion-mnist", "cifar-10" or "digits"
    batch_norm: bool  # whether every hidden layer is normalized

    def __str__(self) -> str:
        return f"{self.network}-{self.data}{'-bn' if self.batch_norm else ''}"


NORMS = (True, False)


@dataclass(frozen=True)
class Sweep:
    """Trainings of one case under one kind of noise."""

    case: Case  # the network and its data
    kind: str  # "add" or "mul"; "mul_add" and "add_mul" for both, in this order
    where: str  # "global" for all slots at once, "layers" for one slot at a time, or one slot
    # standard deviations, `[n]`, or pairs of an additive and a multiplicative one, `[n, 2]`
    levels: Float[np.ndarray, "..."]
    seeds: int  # trainings per level
    epochs: int  # epochs per training

    @property
    def name(self) -> str:
        """The sweep in one word."""
        return f"{self.case}-{self.kind}-{self.where}"


def pairs(add: Any, mul: Any) -> Float[np.ndarray, "pairs 2"]:
    """Every additive level with every multiplicative one."""
    grid = np.meshgrid(add, mul, indexing="ij")
    return np.stack([axis.ravel() for axis in grid], axis=-1)


@dataclass(frozen=True)
class Repetition:
    """A row of the thesis' table of guided repetition."""

    case: Case  # the network and its data
    sigma: float  # additive noise of every slot, at evaluation
    guided: tuple[int, ...]  # the thesis' executions per slot
    source: tuple[float, float]  # the thesis' accuracies, uniform and guided
    epochs: int  # epochs of the training without noise
    seeds: int  # trainings


@dataclass(frozen=True)
class Settings:
    """What is trained, and on how many images."""

    sweeps: tuple[Sweep, ...]  # trainings under noise
    repetitions: tuple[Repetition, ...]  # rows of the table of guided repetition
    images: Count  # training images
    test_images: Count  # test images
    batch_size: Count = 128  # images per update
    learning_rate: float = 1e-3  # of Adam, decayed by a cosine
    # parts of sweeps' names, such as mlp-mnist, to run only these; a walk of additive noise brings
    # the row of the table that it guides
    only: Annotated[tuple[str, ...], SELECTS] = ()
    epochs: Annotated[int, Least(0)] = 0  # passes of every training; 0 for each sweep's own
    seeds: Annotated[int, Least(0)] = 0  # trainings per level; 0 for each sweep's own

    def chosen(self) -> tuple[list[Sweep], list[Repetition]]:
        """The sweeps and rows of the table that are asked for.

        Raises:
            Refused: There is none.
        """

        def wanted(name: str) -> bool:
            return not self.only or any(part in name for part in self.only)

        sweeps = [s for s in self.sweeps if wanted(s.name)]
        guides = {s.case for s in sweeps if (s.kind, s.where) == ("add", "layers")}
        tables = [r for r in self.repetitions if wanted(str(r.case)) or r.case in guides]
        if not sweeps and not tables:
            names = ", ".join(s.name for s in self.sweeps)
            raise Refused(f"no sweep of a name with {' or '.join(self.only)}: there are {names}")
        options: dict[str, Any] = {
            name: asked for name in ("epochs", "seeds") if (asked := getattr(self, name))
        }
        return [replace(s, **options) for s in sweeps], [replace(r, **options) for r in tables]


ADDITIVE = np.logspace(-2, 2, 17)
MULTIPLICATIVE = np.linspace(0, 2, 21)
LAYER_ADDITIVE = np.logspace(-1, 8, 19)
LAYER_MULTIPLICATIVE = np.logspace(0, 10, 11)
# Data set and epochs of the thesis' trainings.
EPOCHS = {
    ("mlp", "mnist"): 100, ("lenet5", "mnist"): 50,
    ("mlp", "cifar-10"): 200, ("lenet5", "cifar-10"): 300,
    ("mlp", "fashion-mnist"): 250, ("lenet5", "fashion-mnist"): 200,
}  # fmt: skip
# Klein's thesis, table 6.1: noise level, executions per slot, accuracy uniform and guided.
REPETITIONS = {
    Case("mlp", "mnist", True): (0.35, (6, 1, 3, 3, 2, 1, 2, 1, 1, 1, 1), (0.714, 0.806)),
    Case("mlp", "mnist", False): (0.471, (8, 1, 2, 1, 1, 1, 1, 1), (0.682, 0.871)),
    Case("mlp", "cifar-10", True): (0.333, (1, 1, 3, 4, 2, 2, 3, 2, 1, 2, 1), (0.417, 0.437)),
    Case("mlp", "cifar-10", False): (1.634, (4, 1, 1, 1, 1, 1, 2, 5), (0.389, 0.434)),
    Case("lenet5", "cifar-10", True): (
        0.197, (3, 2, 3, 3, 3, 1, 3, 4, 2, 1, 1, 2, 1, 1, 1, 1), (0.585, 0.611),
    ),
    Case("lenet5", "cifar-10", False): (
        0.25, (4, 3, 4, 3, 1, 3, 1, 1, 1, 1, 1, 1), (0.572, 0.624),
    ),
}  # fmt: skip


def everywhere(
    case: Case, levels: Sequence[np.ndarray], seeds: Sequence[int], epochs: Sequence[int]
) -> Iterator[Sweep]:
    """The four sweeps of a case: additive and multiplicative noise, everywhere and by layers."""
    places = itertools.product(("global", "layers"), ("add", "mul"))
    for (where, kind), own, n, long in zip(places, levels, seeds, epochs, strict=True):
        yield Sweep(case, kind, where, own, n, long)


def mixed(case: Case, site: str, grid: Any, epochs: int) -> list[Sweep]:
    """Both kinds of noise in one slot, in either order."""
    return [Sweep(case, order, site, grid, 1, epochs) for order in ("mul_add", "add_mul")]


def _full() -> Settings:
    """The thesis' configuration."""
    sweeps: list[Sweep] = []
    for (network, data), epochs in EPOCHS.items():
        for norm in NORMS:
            case = Case(network, data, norm)
            levels = (ADDITIVE, MULTIPLICATIVE, LAYER_ADDITIVE, LAYER_MULTIPLICATIVE)
            sweeps += everywhere(case, levels, (10, 10, 5, 5), (epochs,) * 4)
    grid = pairs(np.logspace(-1, 3, 9), np.logspace(0, 6, 7))
    case = Case("lenet5", "cifar-10", True)
    sweeps += mixed(case, "conv2", grid, EPOCHS["lenet5", "cifar-10"])
    return Settings(tuple(sweeps), _repetitions(EPOCHS, {"mlp": 10, "lenet5": 10}), 60_000, 10_000)


def _default() -> Settings:
    """What two processor cores train in about half an hour."""
    sweeps: list[Sweep] = []
    levels = ADDITIVE, MULTIPLICATIVE[::2], np.logspace(-1, 4, 11), LAYER_MULTIPLICATIVE[::2]
    for norm in NORMS:
        sweeps += everywhere(Case("mlp", "mnist", norm), levels, (3, 3, 1, 1), (10, 10, 4, 12))
    for network, data, some in (
        ("mlp", "cifar-10", ADDITIVE[::2]),
        ("mlp", "fashion-mnist", ADDITIVE[::2]),
        ("lenet5", "mnist", ADDITIVE[4:15:2]),
        ("lenet5", "cifar-10", ADDITIVE[4:15:2]),
    ):
        epochs = {"mlp": 5, "lenet5": 2}[network]
        sweeps += [
            Sweep(Case(network, data, norm), "add", "global", some, 1, epochs) for norm in NORMS
        ]
    for norm in NORMS:  # which guides the repetition of this network
        case = Case("mlp", "cifar-10", norm)
        sweeps.append(Sweep(case, "add", "layers", np.logspace(-1, 4, 6), 1, 3))
    grid = pairs(np.logspace(-1, 3, 5), np.logspace(0, 6, 4))
    sweeps += mixed(Case("mlp", "mnist", True), "fc2", grid, 4)
    sweeps += mixed(Case("lenet5", "cifar-10", True), "conv2", grid[::2], 2)
    clean = {
        ("mlp", "mnist"): EPOCHS["mlp", "mnist"], ("mlp", "cifar-10"): 20,
        ("lenet5", "cifar-10"): 12,
    }  # fmt: skip
    rows = _repetitions(clean, {"mlp": 5, "lenet5": 2})
    return Settings(tuple(sweeps), rows, 60_000, 10_000)


def _fast() -> Settings:
    """A minute or two, on the embedded digits."""
    sweeps: list[Sweep] = []
    for norm in NORMS:
        levels = ADDITIVE, MULTIPLICATIVE[::4], np.logspace(-1, 4, 6), LAYER_MULTIPLICATIVE[::2]
        sweeps += everywhere(Case("mlp", "digits", norm), levels, (2, 2, 1, 1), (30, 30, 20, 20))
    grid = pairs(np.logspace(-1, 3, 3), np.logspace(0, 6, 3))
    sweeps += mixed(Case("mlp", "digits", True), "fc2", grid, 20)
    rows = tuple(
        Repetition(Case("mlp", "digits", case.batch_norm), sigma, guided, source, 30, 2)
        for case, (sigma, guided, source) in REPETITIONS.items()
        if case.network == "mlp" and case.data == "mnist"
    )
    return Settings(tuple(sweeps), rows, 2_000, 1_000)


def _repetitions(
    epochs: dict[tuple[str, str], int], seeds: dict[str, int]
) -> tuple[Repetition, ...]:
    return tuple(
        Repetition(
            case, sigma, guided, source, epochs[case.network, case.data], seeds[case.network]
        )
        for case, (sigma, guided, source) in REPETITIONS.items()
    )


SIZES = {"fast": _fast(), "default": _default(), "full": _full()}
