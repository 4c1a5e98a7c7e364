"""What the study samples, on what, and for how long; every number here is ours unless named."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from experiments.activations.network import LEARNED, NAMES, Scales
from experiments.activations.source import MOONS
from jaxeff.data.two_moons import NOISE
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

    def __str__(self) -> str:
        return "-".join(self)


@dataclass(frozen=True)
class Sampling:
    """How the posterior is sampled.

    Attributes:
        warmup: Iterations of warm-up for each chain.
        samples: Draws for each chain.
        chains: Number of chains.
        max_depth: NUTS trajectories have at most ``2**max_depth - 1`` steps.
        target_acceptance: What warm-up adapts the step size to.
        start_steps: Steps of Adam before the chains start; 0 starts them at draws of the prior.
        kernel_scales: Prior standard deviation of each layer's kernel; biases have 1.
    """

    warmup: int
    samples: int
    chains: int = 4
    max_depth: int = 8
    target_acceptance: float = 0.7
    start_steps: int = 400
    kernel_scales: Scales = SINE_SCALES


@dataclass(frozen=True)
class Variational:
    """How the posterior is approximated (T3160-3200: linear annealing after pretraining).

    Attributes:
        pretrain_epochs: Epochs of the point estimate, from which SVI starts.
        epochs: Epochs of SVI (the source: 500).
        rate: Learning rate of Adam.
        batch_size: Points per training step.
        kl: Final weight of the annealed KL term.
        init_scale: Standard deviation the posterior starts with.
        samples: Weight draws of a prediction.
        kernel_scales: Prior standard deviation of each layer's kernel; biases have 1.
    """

    pretrain_epochs: int
    epochs: int
    rate: float = 5e-3
    batch_size: int = 50
    kl: float = 0.25
    init_scale: float = 1e-2
    samples: int = 200
    kernel_scales: Scales = MOONS_SCALES


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on.

    Attributes:
        sine_activations: Sampled on the noisy sine (the source: 27).
        moons_activations: Inferred on two moons (the source's representative ten).
        sine: NUTS on the noisy sine (the source: 1000 + 1000 iterations).
        moons: NUTS on two moons (the source: 2000 + 2000).
        svi: SVI on two moons.
        prior_start: NUTS on the noisy sine once more, all 27 from draws of the prior.
        sine_margin: How far the noisy sine is evaluated beyond the data.
        sine_points: Evaluation points, evenly spaced.
        moons_examples: Training points.
        moons_noise: Their noise.
        moons_test: Test points.
        moons_margin: How far the plane is evaluated beyond the training points.
        moons_points: Evaluation points along each axis.
        quantile: Share of the training points that lie where is called out of domain.
        seed: Of data and inference.
    """

    sine_activations: tuple[str, ...]
    moons_activations: tuple[str, ...]
    sine: Sampling
    moons: Sampling
    svi: Variational
    prior_start: Sampling
    sine_margin: float = 3.0
    sine_points: int = 300
    moons_examples: int = 200
    moons_noise: float = NOISE
    moons_test: int = 1500
    moons_margin: float = 1.0
    moons_points: int = 40
    quantile: float = OOD_QUANTILE
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The settings as a record."""
        return dataclasses.asdict(self)

    def of(self, trial: Trial) -> dict[str, Any]:
        """What one trial's result depends on."""
        own: dict[tuple[str, str], Sampling | Variational] = {
            ("sine", "nuts"): self.sine,
            ("sine", "nuts-prior"): self.prior_start,
            ("moons", "nuts"): self.moons,
            ("moons", "svi"): self.svi,
        }
        inference = own[trial.task, trial.method]
        plain = {k: v for k, v in self.as_dict().items() if k.startswith(f"{trial.task}_")}
        plain.pop(f"{trial.task}_activations")
        shared = {"quantile": self.quantile, "seed": self.seed}
        return {**plain, **shared, **dataclasses.asdict(inference)}

    def of_chains(self, trial: Trial) -> dict[str, Any]:
        """What its chains depend on: they can go on for more draws."""
        return {name: value for name, value in self.of(trial).items() if name != "samples"}

    def plan(self, task: str) -> list[Trial]:
        """The trials of a task, or of all."""
        sine = [Trial("sine", "nuts", name) for name in self.sine_activations]
        published = (name for name in self.sine_activations if name != LEARNED)
        sine += [Trial("sine", "nuts-prior", name) for name in published]
        moons = [
            Trial("moons", method, name)
            for method in ("nuts", "svi")
            for name in self.moons_activations
        ]
        return {"sine": sine, "moons": moons, "all": sine + moons}[task]


FULL = Settings(
    sine_activations=NAMES,
    moons_activations=(*MOONS, LEARNED),
    sine=Sampling(warmup=150, samples=400),
    moons=Sampling(warmup=150, samples=800, max_depth=7, kernel_scales=MOONS_SCALES),
    svi=Variational(pretrain_epochs=200, epochs=500),
    prior_start=Sampling(warmup=300, samples=200, start_steps=0),
)
FAST = dataclasses.replace(
    FULL,
    sine_activations=("Sine", "ReLU", "Sigmoid", "Softmax"),
    moons_activations=("Sine", "Sigmoid"),
    sine=Sampling(warmup=60, samples=40, max_depth=5),
    moons=Sampling(warmup=60, samples=40, max_depth=5, kernel_scales=MOONS_SCALES),
    svi=Variational(pretrain_epochs=40, epochs=40),
    prior_start=Sampling(warmup=60, samples=40, max_depth=5, start_steps=0),
    sine_points=100,
    moons_points=20,
)


def choose(fast: bool, seed: int, samples: int | None) -> Settings:
    """The settings of a run.

    Args:
        fast: Whether a minute or two must do.
        seed: Of data and inference.
        samples: Draws of each NUTS chain; the recipe's if None.
    """
    settings = dataclasses.replace(FAST if fast else FULL, seed=seed)
    if samples is None:
        return settings
    chains = ("sine", "moons", "prior_start")
    longer = {n: dataclasses.replace(getattr(settings, n), samples=samples) for n in chains}
    return dataclasses.replace(settings, **longer)
