"""Optimizers that several studies train with."""

import optax


def cosine_adam(rate: float, steps: int) -> optax.GradientTransformation:
    """Makes Adam, whose learning rate decays to zero by a cosine over so many steps."""
    return optax.adam(optax.cosine_decay_schedule(rate, steps))
