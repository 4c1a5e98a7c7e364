"""Memory cells that hold the weights of an analog array, with the constants that were measured.

A weight is the difference of two conductances, one for each sign, and the largest weight takes the
largest conductance that a cell is used at. What a cell's physics does to them is said by
`PhaseChange` (programming errors, drift and 1/f noise), `ResistiveRAM` (conductances relax after
they were programmed), `ChargeTrap` (SONOS flash, programmed below its threshold) and `StaticRAM`,
with the constants that were published for measured arrays, and by `ProgrammedCell`, written until
it reads what was asked, whose numbers are yours:

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.noise import PhaseChange, noisy

f, params, (x, y) = small_classifier()
day_later = noisy(f, {"*:linear": PhaseChange(time=86_400.0)})(jax.random.key(0), params, x)
```

Sharp edges:
    Errors are constants for a gradient with respect to the weights, which passes as if there were
    none (straight through, also through the rounding to states). Gradients with respect to the time
    and to other numbers are those of the formulas.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Choice, Count, NonNegative, Number, Positive, register_setting, static
from jaxeff.noise.models._device import Device, DeviceModel
from jaxeff.noise.models._protocol import Flag, Place, real_dtype

Conductances = Float[Array, "slices signs *shape"]
"""Of every slice, the pair of cells of every weight, in the unit of the model."""

Shares = Float[Array, "signs *shape"]
"""Of the largest weight, one array for each sign."""

Tops = Annotated[str, Choice("tensor", "channel")]


@dataclass(frozen=True, kw_only=True)
class MemoryCell(DeviceModel):
    """Weights in memory cells: what every kind of cell has, given by keyword.

    A cell with few states holds a digit: `states=4, slices=3` writes a weight's magnitude as three
    digits to the base 4, whose columns are added digitally with the weights 16, 4 and 1.

    Cells are at weights only. The largest weight sets the scale, so a weight that grows changes all
    others' errors.

    What was written belongs to the device: it is the same in every call and at every time, of which
    the device is further along the same curve later. The noise of reading is drawn anew in every
    call.

    Attributes:
        top: Conductance (or current) that the largest weight takes, in the unit of the model.
        states: Number of states of a cell; None is continuous.
        slices: Number of cells, each a digit to the base `states`, of a weight's magnitude.
        device: The device, an integer; see `jaxeff.noise.models`.
        tops: What has one largest weight: the "tensor" or each "channel".
    """

    top: Positive = 1.0
    states: Annotated[int | None, Count(2)] = static(None)
    slices: Annotated[int, Count(1, 16)] = static(1)
    device: Device = 0
    tops: Tops = static("tensor")

    at: Place = "weights"

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            ValueError: There are several slices, but no number of states.
        """
        super().__post_init__()
        if self.slices > 1 and self.states is None:
            name = type(self).__name__
            raise ValueError(
                f"{name}(slices={self.slices}) writes digits, and needs the number of states of a "
                f"cell, as {name}(states=4, slices={self.slices}) has it."
            )

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Writes weights to the cells of one site and reads them at `time`.

        Args:
            key: For the noise of this reading.
            site: The site's number.
            x: Weights; the last axis counts channels.

        Returns:
            What is read, in the units, shape and dtype of `x`.
        """
        dtype = real_dtype(x)
        # Straight through: what cells do to a weight is a constant for its gradient.
        weights = jax.lax.stop_gradient(x.astype(jnp.float32))
        axes = tuple(range(x.ndim - 1)) if self.tops == "channel" else None
        largest = jnp.max(jnp.abs(weights), axis=axes, keepdims=True, initial=0)
        # A tensor of zeros has no scale of its own; any will do.
        scale = jnp.where(largest > 0, largest, 1)
        # A weight's sign is the choice between two cells, of which the other holds nothing.
        share = weights / scale
        pair = jnp.stack([jnp.maximum(share, 0), jnp.maximum(-share, 0)])
        digits, places = self._digits(pair)
        read = self._read(self._device_key(site), key, digits * self.top) / self.top
        pairs = jnp.tensordot(places, read, 1)
        # Added as an error, so that the exact part of a weight isn't rounded by the scaling.
        error = (pairs[0] - pairs[1]) * scale - weights
        return x + error.astype(dtype)

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads without a key of the caller's."""
        return self.perturb_site(jax.random.key(0), site, x)

    def _digits(self, share: Shares) -> tuple[Conductances, Array]:
        """Splits shares of the top into slices, and says what each slice counts for."""
        if self.states is None:
            return share[None], jnp.ones(1)
        base, largest = self.states, self.states - 1
        highest = base**self.slices - 1
        code = jnp.round(share * highest)
        powers = [base**place for place in reversed(range(self.slices))]
        # Positions of a number to the base `states`, the first one counting most. Compilers divide
        # by multiplying with a rounded reciprocal: a half keeps quotients away from whole numbers.
        digits = jnp.stack([jnp.floor((code + 0.5) / power) % base for power in powers])
        return digits / largest, jnp.asarray([power * largest / highest for power in powers])

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        """Writes targets and reads them at `time`, in the unit of the model.

        `device` is for what stays with the device, `key` for the noise of this reading; `target` is
        what was asked, from 0 to `top`.
        """
        raise NotImplementedError


def programmed(key: PRNGKeyArray, target: Conductances, deviation: Conductances) -> Conductances:
    """Writes targets with Gaussian errors; no conductance is negative."""
    return jnp.maximum(target + deviation * jax.random.normal(key, target.shape), 0)


def polynomial(coefficients: tuple[float, ...], x: Any) -> Array:
    """Evaluates a polynomial, the constant first."""
    return jnp.polyval(jnp.asarray(coefficients[::-1], jnp.float32), x)


def over_time(time: Any, times: tuple[float, ...], values: Any) -> Array:
    """Interpolates what was measured at some times, linearly and constant beyond them.

    `time` is a scalar, in seconds as `times`, which rise; values are `[times, ...]`.
    """
    values = jnp.asarray(values, jnp.float32)
    step = jnp.interp(time, jnp.asarray(times), jnp.arange(len(times), dtype=jnp.float32))
    low = jnp.clip(jnp.floor(step), 0, len(times) - 2)
    at = low.astype(jnp.int32)
    return values[at] + (step - low) * (values[at + 1] - values[at])


DAY = 86_400.0
"""Seconds."""


# Conductances in microsiemens, as shares r of the largest that was measured.
LARGEST_PHASE_CHANGE = 25.0
PROGRAMMING = (0.26348, 1.9650, -1.1731)  # deviation of what is written: c0 + c1 r + c2 r^2
FIRST_READ = 20.0  # seconds after programming to which conductances and drift refer
PULSE = 250e-9  # seconds that a read takes
LEAST = 1e-7  # relative conductance below which the logarithms are cut off


@register_setting
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

    References:
        Joshi et al., "Accurate deep neural network inference using computational phase-change
        memory", Nature Communications 11 (2020), arXiv:1906.03138. Nandakumar et al., "Phase-change
        memory models for deep learning training and inference", ICECS 2019: the constants, measured
        on doped GST cells in 90 nm.
    """

    time: NonNegative = 0.0
    programming: NonNegative = 1.0
    drift: NonNegative = 1.0
    read: NonNegative = 1.0
    compensate: Flag = static(False)
    top: Annotated[Float[Array, ""] | float, Number(above=0, high=LARGEST_PHASE_CHANGE)] = field(
        default=LARGEST_PHASE_CHANGE, kw_only=True
    )

    levels: ClassVar[tuple[str, ...]] = ("programming", "drift", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        writing, drifting = jax.random.split(device)
        # What a cell does depends on its own conductance, whatever a weight of one takes.
        share = target / LARGEST_PHASE_CHANGE
        deviation = self.programming * polynomial(PROGRAMMING, share)
        written = programmed(writing, target, deviation)
        decayed = written * self._remaining(drifting, share)
        # One factor for the whole array: cells have exponents of their own, which stay.
        if self.compensate:
            decayed = decayed * (jnp.sum(written) / jnp.maximum(jnp.sum(decayed), LEAST))
        # Integrated 1/f noise: its bandwidth reaches from the read pulse to the time since then.
        relative = jnp.maximum(written / LARGEST_PHASE_CHANGE, LEAST)
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


RELAXATION_TIMES = (1.0, DAY, 2 * DAY)
# Deviations in microsiemens, c0 + c1 r + ... + c4 r^4 with r relative to the largest that was
# measured.
RELAXATION = (
    (0.348, 16.030, -43.853, 45.393, -16.815),
    (0.701, 22.086, -50.773, 47.095, -16.458),
    (0.782, 20.274, -43.507, 37.062, -11.934),
)
LARGEST_RESISTIVE = 40.0


@register_setting
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

    References:
        Wan et al., "A compute-in-memory chip based on resistive random-access memory", Nature 608
        (2022): the deviations of a chip's cells one second, one and two days after programming, to
        which polynomials were fitted.
    """

    time: NonNegative = 1.0
    relaxation: NonNegative = 1.0
    read: NonNegative = 0.01
    top: Annotated[Float[Array, ""] | float, Number(above=0, high=LARGEST_RESISTIVE)] = field(
        default=LARGEST_RESISTIVE, kw_only=True
    )

    levels: ClassVar[tuple[str, ...]] = ("relaxation", "read")

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        # What a cell does depends on its own conductance, whatever a weight of one takes.
        curves = jnp.stack([polynomial(curve, target / LARGEST_RESISTIVE) for curve in RELAXATION])
        logs = tuple(math.log(time) for time in RELAXATION_TIMES)
        # Relaxation slows down: between the measured times it is linear in their logarithm.
        now = over_time(jnp.log(jnp.maximum(self.time, 1.0)), logs, curves)
        written = programmed(device, target, self.relaxation * now)
        noise = self.read * self.top * jax.random.normal(key, target.shape)
        return jnp.maximum(written + noise, 0)


TRAP_TIMES = tuple(day * DAY for day in range(6))
# Currents in nanoamperes. A cell deviates by a (1 - exp(-I / b)) from the mean.
TRAP_SPREAD = (
    (19.88665, 176.3115), (25.59102, 186.85544), (28.72753, 193.56834),
    (31.04318, 198.90332), (33.76214, 204.77023), (34.57909, 207.34309),
)  # fmt: skip
TRAP_READING = (12.58037, 215.36557)
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

    References:
        Agrawal et al., "Subthreshold operation of SONOS analog memory to enable accurate low-power
        neural network inference", IEDM 2022, figures 10 and 11: 128,000 cells in 40 nm over five
        days, to which CrossSim's authors fitted the curves.
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
        shifts = over_time(self.time, TRAP_TIMES, SHIFT)
        mean = target + self.drift * jnp.interp(target, jnp.asarray(CURRENTS), shifts)
        # A cell that holds no charge has nothing to lose: deviations vanish with the current.
        size, scale = over_time(self.time, TRAP_TIMES, TRAP_SPREAD)
        written = programmed(device, mean, self.spread * size * -jnp.expm1(-mean / scale))
        read_size, read_scale = TRAP_READING
        noise = self.read * read_size * -jnp.expm1(-written / read_scale)
        return jnp.maximum(written + noise * jax.random.normal(key, target.shape), 0)


CAPACITOR_SPREAD = 0.0085
"""Relative standard deviation of a capacitor of one femtofarad."""
THERMAL = 1.380649e-23 * 300 / 1e-15
"""Boltzmann's constant times 300 K over one femtofarad: the squared volts of sampled noise."""


@register_setting
class StaticRAM(MemoryCell):
    """Weights in bits of static memory that are multiplied by charge (SRAM compute in memory).

    The deviation of a capacitor of C femtofarads is `0.0085 / sqrt(C)` of its size, and the noise
    of a reading is `sqrt(k T / C)` volts for each, one or zero, at 300 K.

    The device and tops are those of `MemoryCell`; cells are bits, eight for a magnitude unless
    `slices` says otherwise.

    A bit of static memory is exact and keeps: what is analog is the capacitor of its cell, as a
    column shares the charges of all cells that hold a one and are driven.

    Attributes:
        capacitance: Size of a cell's capacitor, in femtofarads.
        supply: Volts that a driven one puts on it.
        mismatch: Factor of the capacitors' deviations; 1 as measured.
        read: Factor of the thermal noise; 1 at 300 K.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds.

    References:
        Valavi et al., "A 64-tile 2.4-Mb in-memory-computing CNN accelerator employing charge-domain
        compute", IEEE Journal of Solid-State Circuits 54 (2019): capacitors of 1.2 fF.
        Tripathi and Murmann, "Mismatch characterization of small metal fringe capacitors", IEEE
        Transactions on Circuits and Systems I 61 (2014): the spread of capacitors of 0.45 and 1.2
        fF, which falls with the root of their size.
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
        deviation = self.mismatch * CAPACITOR_SPREAD / jnp.sqrt(self.capacitance)
        # A zero puts no charge on its capacitor, so that the size of that one doesn't matter.
        held = target * (1 + deviation * jax.random.normal(device, target.shape))
        # Sampled noise is a voltage's, which may be below zero, of cells with a zero as well.
        noise = self.read * jnp.sqrt(THERMAL / self.capacitance) / self.supply
        return held + noise * self.top * jax.random.normal(key, target.shape)


@register_setting
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

        def write(held: Conductances, cell_key: PRNGKeyArray) -> tuple[Conductances, None]:
            done = jnp.abs(held - target) <= self.tolerance * self.top
            return jnp.where(done, held, programmed(cell_key, target, deviation)), None

        # A scan, so that a hundred tries take the memory of one.
        keys = jax.random.split(device, self.tries)
        held = jax.lax.scan(write, jnp.full(target.shape, jnp.inf), keys)[0]
        noise = self.read * self.top * jax.random.normal(key, target.shape)
        return jnp.maximum(held + noise, 0)
