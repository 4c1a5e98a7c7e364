"""What `jaxeff.noisy` asks of a noise model."""

from typing import Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

PLACES = ("output", "weights", "input")


@runtime_checkable
class Noise(Protocol):
    """What `jaxeff.noisy` asks of a noise model; any object with this method will do.

    A model may also have an attribute `at`, one of "output" (the default), "weights" and "input".
    """

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, of the same shape and dtype."""
        ...


def place(model: Noise) -> str:
    """Where a model perturbs a layer.

    Raises:
        ValueError: Its `at` is none of the three.
    """
    at = getattr(model, "at", "output")
    if at not in PLACES:
        raise ValueError(f"A noise model's `at` must be one of {PLACES}, not {at!r}.")
    return at
