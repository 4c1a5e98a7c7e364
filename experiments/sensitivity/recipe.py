"""What is measured, on which networks, for how long.

The walking noise to compare with is that of `experiments.walking_noise`, at each of its sizes. The
source proposes the cheap measures (T5154-5160) and gives no number: theirs are ours.
"""

from dataclasses import dataclass

import numpy as np

from experiments.walking_noise import recipe as walking


@dataclass(frozen=True)
class Settings:
    """A size of the study.

    Attributes:
        training: The walking-noise study of this size.
        seeds: Networks trained without noise that are measured, per problem.
        inputs: Training images of the divergence.
        draws: Draws of its noise.
        budget_epochs: Epochs of the budget of a trained network.
    """

    training: walking.Settings
    seeds: int
    inputs: int
    draws: int
    budget_epochs: int

    @property
    def problems(self) -> tuple[walking.Sweep, ...]:
        """Networks in which additive noise walks."""
        sweeps = self.training.sweeps
        return tuple(s for s in sweeps if (s.kind, s.where) == ("add", "layers"))

    @property
    def size(self) -> str:
        """Its name."""
        return self.training.size


KL_LEVELS = np.logspace(-3, 4, 36)
"""Levels of the noise that only evaluates; five to a decade."""


def full() -> Settings:
    """The source's networks, data sets, epochs and seeds, for an accelerator."""
    return Settings(walking.full(), 5, 1024, 16, 10)


def default() -> Settings:
    """What two processor cores do in a quarter of an hour: the MLP on MNIST."""
    return Settings(walking.default(), 3, 512, 4, 2)


def fast() -> Settings:
    """A minute or two, on the embedded digits."""
    return Settings(walking.fast(), 2, 256, 4, 20)
