"""Memory cells that are programmed until they read what was asked (write-verify)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.core import Count, NonNegative, register_setting, static
from jaxeff.noise.models.cells._cell import Conductances, MemoryCell, programmed


@register_setting
@dataclass(frozen=True)
class ProgrammedCell(MemoryCell):
    """Weights in cells of any memory, by the numbers that a programming scheme has.

    A cell is written with an error, read, and written anew until it is within the tolerance or was
    written `tries` times; it keeps what it was given last.

    States, slices, the device and tops are those of `MemoryCell`.

    Attributes:
        deviation: Standard deviation of a write, relative to `top`.
        tries: How often a cell is written at most.
        tolerance: Distance from what was asked, relative to `top`, at which writing stops.
        read: Standard deviation of a reading, relative to `top`.
        top: Conductance of the largest weight, in any unit.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is negative, NaN or infinite, or there are slices without states.
    """

    deviation: NonNegative = 0.05
    tries: Annotated[int, Count(1, 1000)] = static(1)
    tolerance: NonNegative = 0.0
    read: NonNegative = 0.0

    levels: ClassVar[tuple[str, ...]] = ("deviation", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        deviation = jnp.asarray(self.deviation * self.top)

        def write(held: Conductances, own: PRNGKeyArray) -> tuple[Conductances, None]:
            done = jnp.abs(held - target) <= self.tolerance * self.top
            return jnp.where(done, held, programmed(own, target, deviation)), None

        # A scan, so that a hundred tries take the memory of one.
        keys = jax.random.split(device, self.tries)
        held = jax.lax.scan(write, jnp.full(target.shape, jnp.inf), keys)[0]
        noise = self.read * self.top * jax.random.normal(key, target.shape)
        return jnp.maximum(held + noise, 0)
