"""Resistive memory: conductances relax after they were programmed.

References:
    Wan et al., "A compute-in-memory chip based on resistive random-access memory", Nature 608
    (2022): the deviations of a chip's cells one second, one and two days after programming, to
    which polynomials were fitted.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import NonNegative, Number, register_setting
from jaxeff.noise.models.cells._cell import (
    DAY,
    Conductances,
    MemoryCell,
    over_time,
    polynomial,
    programmed,
)

MEASURED = (1.0, DAY, 2 * DAY)
# Deviations in microsiemens, c0 + c1 r + ... + c4 r^4 with r relative to the largest that was
# measured.
RELAXATION = (
    (0.348, 16.030, -43.853, 45.393, -16.815),
    (0.701, 22.086, -50.773, 47.095, -16.458),
    (0.782, 20.274, -43.507, 37.062, -11.934),
)
LARGEST = 40.0


@register_setting
@dataclass(frozen=True)
class ResistiveRAM(MemoryCell):
    """Weights in cells of resistive memory (RRAM, memristors), as they were measured.

    A cell is off what was written by a deviation that depends on its conductance and grows with
    time; between the measured times it grows with their logarithm.

    States, slices, the device and tops are those of `MemoryCell`.

    Attributes:
        time: Seconds since programming, a scalar; what is below 1 counts as 1, and what is beyond
            two days as two days.
        top: Conductance of the largest weight, in microsiemens, at most 40.
        relaxation: Factor of the deviations; 1 as measured.
        read: Standard deviation of a reading relative to `top`; a hundredth was measured.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds, or there are slices without states.
    """

    time: NonNegative = 1.0
    relaxation: NonNegative = 1.0
    read: NonNegative = 0.01
    top: Annotated[Float[Array, ""] | float, Number(above=0, high=LARGEST)] = field(
        default=LARGEST, kw_only=True
    )

    levels: ClassVar[tuple[str, ...]] = ("relaxation", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        # What a cell does depends on its own conductance, whatever a weight of one takes.
        curves = jnp.stack([polynomial(curve, target / LARGEST) for curve in RELAXATION])
        logs = tuple(math.log(time) for time in MEASURED)
        # Relaxation slows down: between the measured times it is linear in their logarithm.
        now = over_time(jnp.log(jnp.maximum(self.time, 1.0)), logs, curves)
        written = programmed(device, target, self.relaxation * now)
        noise = self.read * self.top * jax.random.normal(key, target.shape)
        return jnp.maximum(written + noise, 0)
