"""Static memory (SRAM): bits that put charge on capacitors, which differ in size.

A bit is exact and keeps. What is analog is the capacitor of its cell: a column shares the charges
of all cells that hold a one and are driven. A weight of several bits has a column for each, which
are added digitally.

References:
    Valavi et al., "A 64-tile 2.4-Mb in-memory-computing CNN accelerator employing charge-domain
    compute", IEEE Journal of Solid-State Circuits 54 (2019): capacitors of 1.2 fF.
    Tripathi and Murmann, "Mismatch characterization of small metal fringe capacitors", IEEE
    Transactions on Circuits and Systems I 61 (2014): the spread of capacitors of 0.45 and 1.2 fF,
    which falls with the root of their size.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.core import Count, NonNegative, Positive, register_setting
from jaxeff.noise.models.cells._cell import Conductances, MemoryCell

SPREAD = 0.0085
"""Relative standard deviation of a capacitor of one femtofarad."""
THERMAL = 1.380649e-23 * 300 / 1e-15
"""Boltzmann's constant times 300 K over one femtofarad: the squared volts of sampled noise."""


@register_setting
@dataclass(frozen=True)
class StaticRAM(MemoryCell):
    """Weights in bits of static memory that are multiplied by charge (SRAM compute in memory).

    The deviation of a capacitor of C femtofarads is `0.0085 / sqrt(C)` of its size, and the noise
    of a reading is `sqrt(k T / C)` volts for each, one or zero, at 300 K.

    The device and tops are those of `MemoryCell`; cells are bits, eight for a magnitude unless
    `slices` says otherwise.

    Attributes:
        capacitance: Size of a cell's capacitor, in femtofarads.
        supply: Volts that a driven one puts on it.
        mismatch: Factor of the capacitors' deviations; 1 as measured.
        read: Factor of the thermal noise; 1 at 300 K.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds.
    """

    capacitance: Positive = 1.2
    supply: Positive = 1.0
    mismatch: NonNegative = 1.0
    read: NonNegative = 1.0
    states: Annotated[int | None, Count(2)] = field(
        default=2, kw_only=True, metadata={"static": True}
    )
    slices: Annotated[int, Count(1, 16)] = field(default=8, kw_only=True, metadata={"static": True})

    levels: ClassVar[tuple[str, ...]] = ("mismatch", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        deviation = self.mismatch * SPREAD / jnp.sqrt(self.capacitance)
        # A zero puts no charge on its capacitor, so that the size of that one doesn't matter.
        held = target * (1 + deviation * jax.random.normal(device, target.shape))
        # Sampled noise is a voltage's, which may be below zero, of cells with a zero as well.
        noise = self.read * jnp.sqrt(THERMAL / self.capacitance) / self.supply
        return held + noise * self.top * jax.random.normal(key, target.shape)
