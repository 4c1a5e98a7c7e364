"""What the study samples, on what, and for how long; every number here is ours unless named."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from experiments.activations.network import LEARNED, NAMES, Scales
from experiments.activations.source import MOONS
from experiments.harness import ADDED, SELECTS, SIZELESS, Count, Least, choose
from experiments.sines import MARGIN
from jaxeff.data import NOISE
from jaxeff.uncertainty import OOD_QUANTILE

Task = Literal["sine", "moons"]
Method = Literal["nuts", "nuts-prior", "svi"]
"""NUTS from trained networks and from draws of the prior, and variational inference."""
SINE_SCALES = (1.4, 0.5, 0.5)
"""The same for all activation functions. Scaled by fan-in the later layers would have 0.2, and a
network of sigmoids could not follow the sine at all; with 1 the posterior of the unbounded
functions, data with little noise given, is so narrow that chains hardly move."""
MOONS_SCALES = (1.4, 1.0, 1.0)


class Trial(NamedTuple):
    """One network to infer: one file of results, one row of a table."""

    task: Task
    method: Method
    activation: str
    drawn: int = 0  # which data set: the seed's, or the one so many seeds later

    def __str__(self) -> str:
        return "-".join(self[:3]) + (f"-{self.drawn}" if self.drawn else "")


@dataclass(frozen=True)
class Sampling:
    """How the posterior is sampled."""

    warmup: Count  # iterations of warm-up for each chain
    # draws for each chain; with more, finished chains go on where they ended
    samples: Annotated[int, Least(4), SELECTS]
    chains: Count = 4  # number of chains
    max_depth: int = 8  # NUTS trajectories have at most ``2**max_depth - 1`` steps
    target_acceptance: float = 0.7  # what warm-up adapts the step size to
    # steps of Adam before the chains start; 0 starts them at draws of the prior
    start_steps: int = 400
    # prior standard deviation of each layer's kernel; biases have 1
    kernel_scales: Scales = SINE_SCALES


@dataclass(frozen=True)
class Variational:
    """How the posterior is approximated: linear annealing after pretraining.

    See Klein's thesis, figure 7.10.
    """

    pretrain_epochs: int  # epochs of the point estimate, from which SVI starts
    epochs: int  # epochs of SVI (the thesis: 500)
    rate: float = 5e-3  # learning rate of Adam
    batch_size: int = 50  # points per training step
    kl: float = 0.25  # final weight of the annealed KL term
    init_scale: float = 1e-2  # standard deviation the posterior starts with
    samples: int = 200  # weight draws of a prediction
    # prior standard deviation of each layer's kernel; biases have 1
    kernel_scales: Scales = MOONS_SCALES


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on."""

    sine_activations: tuple[str, ...]  # sampled on the noisy sine (the thesis: 27)
    moons_activations: tuple[str, ...]  # inferred on two moons (the thesis' representative ten)
    sine: Sampling  # NUTS on the noisy sine (the thesis: 1000 + 1000 iterations)
    moons: Sampling  # NUTS on two moons (the thesis: 2000 + 2000)
    svi: Variational  # SVI on two moons
    prior_start: Sampling  # NUTS on the noisy sine once more, all 27 from draws of the prior
    sine_margin: float = MARGIN  # how far the noisy sine is evaluated beyond the data
    sine_points: int = 300  # evaluation points, evenly spaced
    moons_examples: int = 200  # training points
    moons_noise: float = NOISE  # their noise
    moons_test: int = 1500  # test points
    # data sets, each with networks of its own; figures are their means, since ranks of one are luck
    moons_sets: Annotated[int, Least(1), SIZELESS, ADDED] = 1
    moons_margin: float = 1.0  # how far the plane is evaluated beyond the training points
    moons_points: int = 40  # evaluation points along each axis
    # share of the training points that lie where is called out of domain
    quantile: float = OOD_QUANTILE
    task: Annotated[Literal["sine", "moons", "all"], SELECTS] = "all"  # which of both to run
    only: Annotated[tuple[str, ...], SELECTS] = ()  # activation functions to run only

    def plan(self) -> list[Trial]:
        """The trials that are asked for.

        Raises:
            Refused: None has such an activation function.
        """
        published = [name for name in self.sine_activations if name != LEARNED]
        kinds: list[tuple[Task, Method, Sequence[str]]] = [
            ("sine", "nuts", self.sine_activations), ("sine", "nuts-prior", published),
            ("moons", "nuts", self.moons_activations), ("moons", "svi", self.moons_activations),
        ]  # fmt: skip
        trials = [
            Trial(task, method, name)
            for task, method, names in kinds
            if self.task in (task, "all")
            for name in names
        ]
        trials += [
            trial._replace(drawn=drawn)
            for drawn in range(1, self.moons_sets) for trial in trials if trial.task == "moons"
        ]  # fmt: skip
        there = list(dict.fromkeys(trial.activation for trial in trials))
        wanted = choose(self.only, there, "activation")
        return [trial for trial in trials if trial.activation in wanted]

    def how(self, trial: Trial) -> Any:
        """How a trial's posterior is sampled or approximated."""
        return {"nuts": self.sine if trial.task == "sine" else self.moons,
                "nuts-prior": self.prior_start, "svi": self.svi}[trial.method]  # fmt: skip


DEFAULT = Settings(
    NAMES, (*MOONS, LEARNED), Sampling(150, 400),
    Sampling(150, 800, max_depth=7, kernel_scales=MOONS_SCALES),
    Variational(pretrain_epochs=200, epochs=500), Sampling(300, 200, start_steps=0),
)  # fmt: skip
SIZES = {
    "fast": Settings(
        ("Sine", "ReLU", "Sigmoid", "Softmax"), ("Sine", "Sigmoid"), Sampling(60, 40, max_depth=5),
        Sampling(60, 40, max_depth=5, kernel_scales=MOONS_SCALES), Variational(40, 40),
        Sampling(60, 40, max_depth=5, start_steps=0), sine_points=100, moons_points=20,
    ),
    "default": DEFAULT,
    "full": dataclasses.replace(
        DEFAULT, sine=Sampling(1000, 1000, max_depth=10),
        moons=Sampling(2000, 2000, max_depth=10, kernel_scales=MOONS_SCALES),
        prior_start=Sampling(1000, 1000, max_depth=10, start_steps=0),
    ),
}  # fmt: skip
