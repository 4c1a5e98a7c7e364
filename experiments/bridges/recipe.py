"""How long each method runs, and of which size the networks are; every number is ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Everything the figures depend on.

    Attributes:
        width: Units of both hidden layers.
        warmup: Iterations of warm-up of the reference, the teacher.
        short_warmup: Of the samplers that are compared by where they start.
        samples: Draws of each chain that are kept.
        max_depth: Of NUTS.
        chains: Markov chains.
        pretrain_epochs: Of the point estimate, from which variational inference starts.
        epochs: Of variational inference.
        kl: Final weight of the KL term, reached linearly.
        rate: Learning rate of Adam, decayed by a cosine.
        particles: Weight draws of a training step.
        unlabelled: Inputs for distillation.
        teacher_draws: Draws of the teacher that are distilled.
        draws: Of a variational posterior, to predict with.
    """

    width: int
    warmup: int
    short_warmup: int
    samples: int
    max_depth: int
    pretrain_epochs: int
    epochs: int
    chains: int = 4
    kl: float = 0.25
    rate: float = 1e-2
    particles: int = 8
    unlabelled: int = 800
    teacher_draws: int = 100
    draws: int = 300


SIZES = {
    "fast": Settings(8, 100, 30, 100, 6, 100, 600),
    "default": Settings(20, 300, 50, 200, 8, 300, 2000),
    "full": Settings(50, 1000, 100, 1000, 10, 300, 5000),
}
