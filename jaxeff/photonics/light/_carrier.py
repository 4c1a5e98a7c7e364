"""The numbers of chaotic light and its detector, for all functions of light.

They are the fields of `ChaoticLight`, which documents them and carries poolings by them.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import (
    Choice,
    Count,
    NonNegative,
    Number,
    Setting,
    check_number,
    is_concrete,
    static,
    static_number,
)
from jaxeff.photonics.light._correlation import Correlation
from jaxeff.photonics.light._photon_counts import MODES, TINY

MODELS = ("gaussian", "physical", "free")
ORDERS = ("after", "before")


@dataclass(frozen=True)
class Carrier(Setting):
    """The fields of `ChaoticLight`."""

    noise: NonNegative = 0.5
    cap: Annotated[Float[Array, ""] | float, Number(TINY)] = 1.0
    modes: Annotated[Float[Array, ""] | float, Number(TINY)] = MODES
    photons: Annotated[Float[Array, ""] | float, Number(TINY)] = 1000.0
    electronic: NonNegative = 0.01
    correlation: Correlation = static_number(0.0)
    channel: Correlation = static_number(0.0)
    saturation: Annotated[Float[Array, ""] | float | None, Number(TINY)] = None
    slots: Annotated[int, Count()] = static(8)
    bits: Annotated[int | None, Count(1, 8)] = static(None)
    levels: Annotated[int | None, Count(2)] = static(None)
    model: Annotated[str, Choice(*MODELS)] = static("gaussian")
    pattern: Annotated[str, Choice(*ORDERS)] = static("after")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        name = type(self).__name__
        if self.model != "free":
            check_number(f"{name}.noise", self.noise, 0, 1)
        elif self.pattern == "before":
            raise ValueError(f"{name}.model 'free' has no pulses to make before pooling.")
        elif self.couples:
            raise ValueError(f"{name}.model 'free' has no pulses whose channels could be alike.")

    @property
    def full_scale(self) -> Float[Array, ""] | float:
        """The largest intensity that fits, in the units of the activations."""
        return self.slots * self.cap

    @property
    def remembers(self) -> bool:
        """Whether slots are correlated; a number that is traced might be anything."""
        return not (is_concrete(self.correlation) and not np.any(self.correlation))

    @property
    def couples(self) -> bool:
        """Whether wavelength channels are correlated; likewise."""
        return not (is_concrete(self.channel) and not np.any(self.channel))
