"""Phase-change memory: programming errors, drift and 1/f noise of a cell's conductance.

References:
    Joshi et al., "Accurate deep neural network inference using computational phase-change memory",
    Nature Communications 11 (2020), arXiv:1906.03138.
    Nandakumar et al., "Phase-change memory models for deep learning training and inference",
    ICECS 2019: the constants, measured on doped GST cells in 90 nm.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import NonNegative, Number, register_setting, static
from jaxeff.noise.models._model import Flag
from jaxeff.noise.models.cells._cell import Conductances, MemoryCell, polynomial, programmed

# Conductances in microsiemens, as shares r of the largest that was measured.
LARGEST = 25.0
PROGRAMMING = (0.26348, 1.9650, -1.1731)  # deviation of what is written: c0 + c1 r + c2 r^2
FIRST_READ = 20.0  # seconds after programming to which conductances and drift refer
PULSE = 250e-9  # seconds that a read takes
LEAST = 1e-7  # relative conductance below which the logarithms are cut off


@register_setting
@dataclass(frozen=True)
class PhaseChange(MemoryCell):
    """Weights in phase-change cells, as they were measured.

    A conductance of 25 r microsiemens is written with a deviation of `c0 + c1 r + c2 r^2`, decays
    as `((t + 20 s) / 20 s)**-nu` with an exponent of its own, and is read with 1/f noise that has
    grown since.

    States, slices, the device and tops are those of `MemoryCell`.

    Attributes:
        time: Seconds since programming, a scalar.
        top: Conductance of the largest weight, in microsiemens, at most 25.
        programming: Factor of the programming errors; 1 as measured.
        drift: Factor of the drift exponents; 1 as measured.
        read: Factor of the read noise; 1 as measured.
        compensate: Whether what is read is divided by the share that drift left of the array's sum
            of conductances, which a chip measures by a read of its own.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds, or there are slices without states.
    """

    time: NonNegative = 0.0
    programming: NonNegative = 1.0
    drift: NonNegative = 1.0
    read: NonNegative = 1.0
    compensate: Flag = static(False)
    top: Annotated[Float[Array, ""] | float, Number(above=0, high=LARGEST)] = field(
        default=LARGEST, kw_only=True
    )

    levels: ClassVar[tuple[str, ...]] = ("programming", "drift", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        writing, drifting = jax.random.split(device)
        # What a cell does depends on its own conductance, whatever a weight of one takes.
        share = target / LARGEST
        deviation = self.programming * polynomial(PROGRAMMING, share)
        written = programmed(writing, target, deviation)
        decayed = written * self._remaining(drifting, share)
        # One factor for the whole array: cells have exponents of their own, which stay.
        if self.compensate:
            decayed = decayed * (jnp.sum(written) / jnp.maximum(jnp.sum(decayed), LEAST))
        # Integrated 1/f noise: its bandwidth reaches from the read pulse to the time since then.
        relative = jnp.maximum(written / LARGEST, LEAST)
        amplitude = jnp.minimum(0.0088 / jnp.maximum(relative**0.65, 1e-3), 0.2)
        elapsed = self.time + FIRST_READ
        spread = amplitude * jnp.sqrt(jnp.log((elapsed + PULSE) / (2 * PULSE)))
        noise = self.read * spread * jax.random.normal(key, target.shape)
        return jnp.maximum(decayed * (1 + noise), 0)

    def _remaining(self, key: PRNGKeyArray, share: Conductances) -> Conductances:
        """Computes the share of its conductance that drift leaves each cell."""
        log = jnp.log(jnp.maximum(share, LEAST))
        mean = jnp.clip(-0.0155 * log + 0.0244, 0.049, 0.1)
        spread = jnp.clip(-0.0125 * log - 0.0059, 0.008, 0.045)
        # The magnitude: measured exponents aren't negative.
        nu = self.drift * jnp.abs(mean + spread * jax.random.normal(key, share.shape))
        return jnp.exp(-nu * jnp.log1p(self.time / FIRST_READ))
