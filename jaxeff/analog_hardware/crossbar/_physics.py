"""The published numbers of the synthetic chip, frozen before any network was trained on it.

No chip is at hand, so one is made up. Its effects are those that Klein's thesis, sections 5.2 to
5.4, names for BrainScaleS-2: mismatch of synapses and columns, curves of the
multiplier and of the integrator, leakage and line memory between events, read-out noise that grows
with the active rows, and drift. Their sizes are ours. They were chosen so that an ordered model of
a column can beat one that ignores the order, as in the source; nothing was tuned to an accuracy.
Whatever is measured on this chip is synthetic: orders of results can be compared with the source's,
numbers can't.
"""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Array, Float

from jaxeff.core import NonNegative, Number, Positive, Setting, register_setting, static

Share = Annotated[Float[Array, ""] | float, Number(0, 1)]


@register_setting
@dataclass(frozen=True)
class Physics(Setting):
    """Effects of a chip's circuits; counts are those of the converter.

    Attributes:
        gain: Counts per product of an input and a weight code.
        synapse_mismatch: Relative spread of the current of every synapse, of each sign.
        weight_curve: Share by which the largest weight falls short of a linear one.
        pulse_offset: Spread over rows of what is added to a pulse, in input codes.
        column_mismatch: Relative spread of the columns' gains.
        column_offset: Spread of the columns' offsets, in counts.
        limit: Level at which the integrator saturates, `limit * tanh(v / limit)`, in counts.
        limit_mismatch: The relative spread over columns.
        leak: Events after which the integrator has lost all but 1/e.
        memory: Share of a line's charge that is left one event later.
        line: Charge on a line, in counts, that halves the current of the next event.
        noise: Standard deviation of a read-out without an active row, in counts.
        row_noise: Variance that each active row adds, in squared counts.
        noise_mismatch: Relative spread of the columns' standard deviations.
        gain_drift: Loss of gain per unit of `log(1 + hours)`.
        offset_drift: Spread of the offsets per unit of `log(1 + hours)`, in counts.
        ordered: Whether leakage and memory act; without them the chip is a function of the set of
            its events, which is the control of every measurement of order.
        curve_mismatch: Relative spread of `weight_curve` over the synapses of each sign: a chip
            whose table of synapses has no factors. The published one has none.
    """

    gain: Positive = 0.004
    synapse_mismatch: NonNegative = 0.10
    weight_curve: Share = 0.10
    pulse_offset: NonNegative = 0.5
    column_mismatch: NonNegative = 0.08
    column_offset: NonNegative = 3.0
    limit: Positive = 110.0
    limit_mismatch: NonNegative = 0.05
    leak: Positive = 500.0
    memory: Share = 0.95
    line: Positive = 40.0
    noise: NonNegative = 0.6
    row_noise: NonNegative = 0.015
    noise_mismatch: NonNegative = 0.2
    gain_drift: NonNegative = 0.05
    offset_drift: NonNegative = 3.0
    ordered: bool = static(True)
    curve_mismatch: Annotated[float, Number(0)] = static(0.0)


PUBLISHED_PHYSICS = Physics()
"""The chip of every result of this project."""
