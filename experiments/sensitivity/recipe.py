"""What is measured, on which networks, for how long.

The source proposes both measures (T5154-5160) and gives no number, so all of these are ours, except
for the networks, their epochs at full size and the seeds of walking noise, which are the source's.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from experiments.walking_noise import recipe as walking
from experiments.walking_noise.recipe import Case


@dataclass(frozen=True)
class Problem:
    """A network, its walking noise and the trainings around it.

    Attributes:
        case: The network and its data.
        epochs: Of every training: without noise, under walking noise, and joint with the budget.
        levels: Levels of the walking noise.
        seeds: Trainings per slot and level.
    """

    case: Case
    epochs: int
    levels: Float[np.ndarray, " levels"]
    seeds: int

    @property
    def sweep(self) -> walking.Sweep:
        """Its walking noise."""
        return walking.Sweep(self.case, "add", "layers", self.levels, self.seeds, self.epochs)


@dataclass(frozen=True)
class Settings:
    """A size of the study.

    Attributes:
        size: Its name.
        problems: What is compared.
        seeds: Networks trained without noise that are measured, per problem.
        inputs: Training images of the divergence.
        draws: Draws of its noise.
        budget_epochs: Epochs of the budget of a trained network.
        images: Training images at most.
        test_images: Test images at most.
    """

    size: str
    problems: tuple[Problem, ...]
    seeds: int
    inputs: int
    draws: int
    budget_epochs: int
    images: int = 60_000
    test_images: int = 10_000

    @property
    def training(self) -> walking.Settings:
        """What the trainings share with the walking-noise study."""
        return walking.Settings(self.size, (), (), self.images, self.test_images)


KL_LEVELS = np.logspace(-3, 4, 36)
"""Levels of the noise that only evaluates; five to a decade."""


def full() -> Settings:
    """The source's networks, data sets, epochs and seeds, for an accelerator."""
    problems = [
        Problem(walking.Case(network, data, norm), epochs, walking.LAYER_ADDITIVE, 5)
        for (network, data), epochs in walking.EPOCHS.items()
        for norm in walking.NORMS
    ]
    return Settings("full", tuple(problems), 5, 1024, 16, 10)


def default() -> Settings:
    """What two processor cores do in about half an hour."""
    problems = [
        Problem(Case("mlp", "mnist", norm), 4, np.logspace(-1, 5, 13), 2) for norm in walking.NORMS
    ]
    problems.append(Problem(Case("lenet5", "mnist", False), 1, np.logspace(-1, 3, 7), 1))
    return Settings("default", tuple(problems), 2, 512, 4, 2)


def fast() -> Settings:
    """A minute or two, on the embedded digits."""
    problems = [
        Problem(Case("mlp", "digits", norm), 20, np.logspace(-1, 4, 8), 1) for norm in walking.NORMS
    ]
    return Settings("fast", tuple(problems), 2, 256, 4, 20, 2_000, 1_000)
