"""Settings and optimizers that several studies train with."""

from dataclasses import dataclass

import optax

from experiments.harness import Count


@dataclass(frozen=True, kw_only=True)
class Training:
    """How networks are trained by Adam."""

    batch_size: Count = 64  # images per update
    rate: float = 2e-3  # learning rate of Adam, decayed by a cosine


class Selected:
    """Settings with `parts` to run; all of them if none is given."""

    parts: tuple[str, ...]

    def runs(self, part: str) -> bool:
        """Whether a part is to be run."""
        return not self.parts or part in self.parts


def cosine_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Makes Adam, whose learning rate decays to zero by a cosine over so many steps."""
    return optax.adam(optax.cosine_decay_schedule(rate, steps))
