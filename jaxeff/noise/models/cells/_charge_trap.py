"""Charge-trap flash (SONOS): currents of cells that were programmed below their threshold.

References:
    Agrawal et al., "Subthreshold operation of SONOS analog memory to enable accurate low-power
    neural network inference", IEDM 2022, figures 10 and 11: 128,000 cells in 40 nm over five days,
    to which CrossSim's authors fitted the curves.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import NonNegative, Number, register_setting
from jaxeff.noise.models.cells._cell import DAY, Conductances, MemoryCell, over_time, programmed

MEASURED = tuple(day * DAY for day in range(6))
# Currents in nanoamperes. A cell deviates by a (1 - exp(-I / b)) from the mean.
SPREAD = (
    (19.88665, 176.3115), (25.59102, 186.85544), (28.72753, 193.56834),
    (31.04318, 198.90332), (33.76214, 204.77023), (34.57909, 207.34309),
)  # fmt: skip
READING = (12.58037, 215.36557)
# Change of the mean at these currents after so many days: the fit, tabulated, of which lines
# between are less than 1 nA off.
CURRENTS = (0.0, 100.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0, 1400.0)
SHIFT = (
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.7, -0.7, -3.8, -13.1, -19.4, -24.9, -29.5, -33.6, -38.9),
    (0.7, 0.1, -3.0, -13.6, -21.8, -28.9, -35.3, -40.0, -45.9),
    (1.2, 0.6, -2.8, -15.4, -24.8, -32.8, -40.1, -46.0, -54.9),
    (0.9, 1.0, -2.2, -16.0, -26.1, -35.4, -44.2, -50.6, -60.2),
    (1.2, 1.2, -2.4, -17.4, -28.2, -37.9, -46.7, -52.6, -60.3),
)


@register_setting
@dataclass(frozen=True)
class ChargeTrap(MemoryCell):
    """Weights as currents of charge-trap cells (SONOS flash), as they were measured.

    States, slices, the device and tops are those of `MemoryCell`.

    Attributes:
        time: Seconds since programming, a scalar; what is beyond five days counts as five days.
        top: Current of the largest weight, in nanoamperes, at most 1400.
        spread: Factor of the cells' deviations; 1 as measured.
        drift: Factor of the mean's change; 1 as measured.
        read: Factor of the read noise; 1 as measured.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds, or there are slices without states.
    """

    time: NonNegative = 0.0
    spread: NonNegative = 1.0
    drift: NonNegative = 1.0
    read: NonNegative = 1.0
    top: Annotated[Float[Array, ""] | float, Number(above=0, high=CURRENTS[-1])] = field(
        default=CURRENTS[-1], kw_only=True
    )

    levels: ClassVar[tuple[str, ...]] = ("spread", "drift", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        shifts = over_time(self.time, MEASURED, SHIFT)
        mean = target + self.drift * jnp.interp(target, jnp.asarray(CURRENTS), shifts)
        # A cell that holds no charge has nothing to lose: deviations vanish with the current.
        size, scale = over_time(self.time, MEASURED, SPREAD)
        written = programmed(device, mean, self.spread * size * -jnp.expm1(-mean / scale))
        read_size, read_scale = READING
        noise = self.read * read_size * -jnp.expm1(-written / read_scale)
        return jnp.maximum(written + noise * jax.random.normal(key, target.shape), 0)
