"""What is measured, and on which hardware."""

from dataclasses import dataclass
from typing import Annotated, Any

from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected, Training
from jaxeff.photonics import ChaoticLight


@dataclass(frozen=True)
class Settings(Training, Selected):
    """A network on digits, carried by light.

    Attributes:
        data: The digits; all but 9 are known.
        other: Images of something else, or nothing.
        images: Training images of the known digits.
        epochs: Passes over them.
        short_images: The same of every training but those of the first figures.
        short_epochs: The same.
        kl: Weight of the divergence from the noisiest light.
        test_images: Known test images; of the unknown ones half as many of each kind.
        samples: Readings behind a prediction.
        draws: Readings behind a figure of the light alone.
        slots: Time slots of an activation.
        cap: Largest intensity of a slot.
        levels: Amplitudes of the modulator.
        activation_bits: Bit width of pooled activations.
        weight_bits: Bit width of weights.
        rounds: Rounds of the timing.
        seeds: Trainings behind the first figures.
        bits: Bit widths of weights and activations alike.
        guides: Weights of the divergence that guides with and without bounds are trained with.
        parts: Parts to run; all if none is given.
    """

    data: str = "mnist"
    other: str = "fashion-mnist"
    images: Annotated[int, Least(100)] = 54_000
    epochs: Count = 4
    short_images: Annotated[int, Least(100)] = 10_000
    short_epochs: Count = 3
    kl: float = 1e-5
    test_images: Annotated[int, Least(20)] = 4000
    samples: Annotated[int, Least(2)] = 30
    draws: Annotated[int, Least(1000)] = 50_000
    slots: Count = 4
    cap: float = 2.0
    levels: Annotated[int, Least(2)] = 32
    activation_bits: Count = 5
    weight_bits: Count = 8
    rounds: Count = 5
    seeds: Annotated[tuple[int, ...], SELECTS] = (0, 1, 2)
    bits: Annotated[tuple[int, ...], SELECTS] = (1, 2, 3, 4, 6, 8)
    guides: Annotated[tuple[float, ...], SELECTS] = (1e-4, 1e-2)
    parts: Annotated[tuple[str, ...], SELECTS] = ()

    def light(self, **fields: Any) -> ChaoticLight:
        """The hardware."""
        own = {"slots": self.slots, "cap": self.cap, "bits": self.activation_bits}
        return ChaoticLight(**(own | fields))


SIZES = {
    "fast": Settings(
        "digits", "", 1200, 6, 1200, 2, batch_size=50, test_images=200, samples=10, draws=5000,
        rounds=2, seeds=(0,), bits=(1, 4), guides=(1e-4,),
    ),
    "default": Settings(batch_size=100),
    "full": Settings(
        batch_size=100, epochs=20, short_images=54_000, short_epochs=10, test_images=8000,
        samples=100, draws=1_000_000, rounds=15, seeds=(0, 1, 2, 3, 4),
        bits=(1, 2, 3, 4, 5, 6, 7, 8),
    ),
}  # fmt: skip
