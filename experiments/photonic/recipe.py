"""What is measured, and on which hardware."""

from dataclasses import dataclass
from typing import Annotated, Any

from experiments.harness import SELECTS, Count, Least
from experiments.recipes import Selected, Training
from jaxeff.photonics import ChaoticLight


@dataclass(frozen=True)
class Settings(Training, Selected):
    """A network on digits, carried by light."""

    data: str = "mnist"  # the digits; all but 9 are known
    other: str = "fashion-mnist"  # images of something else, or nothing
    images: Annotated[int, Least(100)] = 54_000  # training images of the known digits
    epochs: Count = 4  # passes over them
    # the same of the trainings with other bit widths
    short_images: Annotated[int, Least(100)] = 10_000
    short_epochs: Count = 3  # the same
    watched: Count = 12  # epochs of a short training that is looked at after each
    kl: float = 1e-5  # weight of the divergence from the noisiest light
    # known test images; of the unknown ones half as many of each kind
    test_images: Annotated[int, Least(20)] = 4000
    samples: Annotated[int, Least(2)] = 30  # readings behind a prediction
    draws: Annotated[int, Least(1000)] = 50_000  # readings behind a figure of the light alone
    slots: Count = 4  # time slots of an activation
    cap: float = 2.0  # largest intensity of a slot
    levels: Annotated[int, Least(2)] = 32  # amplitudes of the modulator
    activation_bits: Count = 5  # bit width of pooled activations
    weight_bits: Count = 8  # bit width of weights
    seeds: Annotated[tuple[int, ...], SELECTS] = (0, 1, 2)  # trainings behind the first figures
    # bit widths of weights and activations alike
    bits: Annotated[tuple[int, ...], SELECTS] = (1, 2, 3, 4, 6, 8)
    parts: Annotated[tuple[str, ...], SELECTS] = ()  # parts to run; all if none is given

    def light(self, **fields: Any) -> ChaoticLight:
        """The hardware."""
        light_settings = {"slots": self.slots, "cap": self.cap, "bits": self.activation_bits}
        return ChaoticLight(**(light_settings | fields))


SIZES = {
    "fast": Settings(
        "digits", "", 1200, 6, 1200, 2, 4, batch_size=50, test_images=200, samples=10, draws=5000,
        seeds=(0,), bits=(1, 2, 4),
    ),
    "default": Settings(batch_size=100),
    "full": Settings(
        batch_size=100, epochs=20, short_images=54_000, short_epochs=10, test_images=8000,
        samples=100, draws=1_000_000, seeds=(0, 1, 2, 3, 4),
        bits=(1, 2, 3, 4, 5, 6, 7, 8),
    ),
}  # fmt: skip
