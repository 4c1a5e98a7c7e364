"""A device's imperfections: drift, mismatch and telegraph noise, with the same draws in every call.

A device is an integer, its seed. Its imperfections are the same in every call, at every time and
for every sample of a batch; they don't depend on the call's key. Another device, another site and
another model have other ones. Outputs have no draws per sample: `per` is "element" or "channel".
The device is a leaf, so ten devices are one vmapped program.

Sharp edges:
    `jaxeff.noisy` gives a model its site; `perturb` called directly is one more site.
    A layer inside a loop is one piece of hardware, the same in every iteration.
    An integer has no gradient: differentiate with respect to a level, not to the whole setting.
    An array with a single axis holds the channels of one sample.

References:
    Drift: Ielmini, Lavizzari, Sharma and Lacaita, "Physical interpretation, modeling and impact on
    phase change memory (PCM) reliability of resistance drift due to chalcogenide structural
    relaxation", IEDM 2007. Joshi et al., "Accurate deep neural network inference using
    computational phase-change memory", arXiv:1906.03138, eq. 3.
    Mismatch: Pelgrom, Duinmaijer and Welbers, "Matching properties of MOS transistors", IEEE
    Journal of Solid-State Circuits 24 (1989): neighbours differ less than distant devices.
    Telegraph: Machlup, "Noise in semiconductors: spectrum of a two-parameter random signal",
    Journal of Applied Physics 25 (1954): occupancy and autocorrelation. Du et al., "Exploring the
    impact of random telegraph noise-induced accuracy loss on resistive RAM-based deep neural
    network", IEEE Transactions on Electron Devices 67 (2020).
"""

import dataclasses
import functools
import zlib
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.noise.models._protocol import Axis, Flag, NoiseModel, Place, real_dtype

# The site of a call that doesn't name one.
NOWHERE = 0

Device = Annotated[Int[Array, ""] | int, core.Number(0, integer=True)]
DeviceSharing = Annotated[str, core.Choice("element", "channel")]


class DeviceModel(NoiseModel):
    """Base of the models of a device, beside what all noise models have in common.

    Attributes:
        device: The device, an integer.
    """

    device: Device = 0

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` as the device does at a site of its own; the key isn't used."""
        return self.perturb_site(key, NOWHERE, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Distorts `x` as the device does at one site; the key isn't used."""
        del key
        return self._at_site(site, x)

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` by the imperfections that the device has at one site."""
        raise NotImplementedError

    def _device_key(self, site: int) -> PRNGKeyArray:
        """Derives the key of the device's imperfections of one kind at one site."""
        # Two models at one site, or one at outputs and weights, have imperfections of their own.
        kind = zlib.crc32(f"{type(self).__name__} {self.at}".encode())
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(self.device), kind), site)

    def _device_shape(self, x: Any) -> tuple[int, ...]:
        """Computes the shape of the device's draws for an array, which broadcasts against it."""
        shape = jnp.shape(x)
        if self.per == "channel":
            return (1,) * (len(shape) - 1) + shape[-1:]
        # Samples, the first axis of outputs, pass through the same device and share its draws.
        return shape if self.at == "weights" or len(shape) < 2 else (1, *shape[1:])


@core.register_setting
class Drift(DeviceModel):
    """Drift by a power of time, `x * time**-N(nu, spread)`.

    The exponents belong to the device: at another time it has the same ones. With time in units of
    t0, a value falls to `(t / t0)**-nu` of what it was at t0.

    Attributes:
        time: Time since programming in units of the reference time t0, at least 1; a scalar or an
            array.
        nu: Mean drift exponent, without unit; a scalar or an array. Phase-change memory has about
            0.05.
        spread: Standard deviation of the exponents, which may become negative.
        device: The device, an integer; see `jaxeff.noise.models`.
        at: Place where a layer is perturbed; memory cells are "weights".
        per: What shares one exponent: "element" (nothing) or "channel"; samples always do.
        along: Axis that arrays have one entry along: "sample" (each was read at its own time) or
            "channel".

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: `time` is below 1, another number is negative, NaN or infinite, or a choice is
            unknown.
    """

    time: Annotated[Float[Array, "..."] | float, core.Number(1)]
    nu: core.NonNegative = 0.05
    spread: core.NonNegative = 0.0
    device: Device = 0
    at: Place = core.static("output")
    per: DeviceSharing = core.static("element")
    along: Axis = core.static(None)

    levels: ClassVar[tuple[str, ...]] = ("nu", "spread")

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Applies the drift of one site."""
        dtype = real_dtype(x)
        # Drawn without the time: a device that is read later is further along the same curve.
        z = jax.random.normal(self._device_key(site), self._device_shape(x))
        nu = self._aligned("nu", x) + self._aligned("spread", x) * z
        # (t / t0)**-nu of Joshi et al., eq. 3, as an exponential: with t >= t0 its logarithm is
        # finite, and gradients reach the time and the exponents.
        return x * jnp.exp(-nu * jnp.log(self._aligned("time", x))).astype(dtype)


@core.register_setting
class Mismatch(DeviceModel):
    """Fixed gain and offset errors of a device's columns, `x * (1 + gain * g) + offset * o`.

    `g` and `o` hold one number per column (the last axis of `x`), independent of each other. Both
    are Gaussian with unit variance and a correlation of `exp(-distance / length)` between columns.

    Attributes:
        gain: Standard deviation of the columns' gains, without unit; a scalar or an array.
        offset: Standard deviation of their offsets in the units of `x`; a scalar or an array.
        length: Correlation length in columns; 0 makes them independent.
        device: The device, an integer; see `jaxeff.noise.models`.
        at: Place where a layer is perturbed: "output", "weights" or "input".
        along: Axis that an array of levels has one entry along: "sample" or "channel".
        relative: Whether `offset` is in units of the range of `x`.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is negative, NaN or infinite, or a choice is unknown.
    """

    gain: core.NonNegative = 0.0
    offset: core.NonNegative = 0.0
    length: core.NonNegative = 0.0
    device: Device = 0
    at: Place = core.static("output")
    along: Axis = core.static(None)
    relative: Flag = core.static(False)

    levels: ClassVar[tuple[str, ...]] = ("gain", "offset")

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Distorts `x` by the columns of one site."""
        dtype, columns = real_dtype(x), jnp.shape(x)[-1:]
        gain_key, offset_key = jax.random.split(self._device_key(site))
        gain = correlated_normal(gain_key, columns, self.length).astype(dtype)
        offset = correlated_normal(offset_key, columns, self.length).astype(dtype)
        gain, offset = (
            core.with_leading_axes(gain, jnp.shape(x)),
            core.with_leading_axes(offset, jnp.shape(x)),
        )
        return x * (1 + self._level("gain", x) * gain) + self._amount("offset", x) * offset


@functools.partial(jax.jit, static_argnames="columns")
def correlated_normal(
    key: PRNGKeyArray, columns: tuple[int, ...], length: Float[Array, ""] | float
) -> Float[Array, "*columns"]:
    """Draws a stationary Gaussian process over columns, of unit variance.

    Its correlation `exp(-distance / length)` is that of a first-order autoregression.
    """
    z = jax.random.normal(key, columns)
    if not columns:
        return z
    # The inner `where` keeps the derivative finite at length 0; the outer one selects an infinite
    # rate there, that is, a decay of zero.
    rate = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), jnp.inf)
    # y_1 = z_1, y_k = a y_(k-1) + sqrt(1 - a**2) z_k with a = exp(-1 / length) has unit variance
    # everywhere. `expm1` keeps 1 - a**2 from cancelling where a is close to 1.
    innovations = z.at[1:].multiply(jnp.sqrt(-jnp.expm1(-2 * rate)))
    decay = jnp.full(columns, jnp.exp(-rate))
    # A linear recurrence is associative in (decay, innovation): log2(columns) parallel steps.
    return jax.lax.associative_scan(_compose, (decay, innovations))[1]


def _compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Composes two steps of y -> decay * y + innovation."""
    return first[0] * second[0], first[1] * second[0] + second[1]


# Switches that are followed; later ones than these would be lost to rounding of the time as well.
MOST_SWITCHES = 100_000


@core.register_setting
class Telegraph(DeviceModel):
    """Random telegraph noise at a time, `x + amplitude * state(time)` with state 0 or 1.

    Each trap is a stationary two-state Markov process. It is in state 1 with probability
    `up / (up + down)`, and its autocorrelation is `exp(-(up + down) * lag)`. The process belongs to
    the device: asked again for the same time it gives the same state, and `trace` shows it over
    time.

    Attributes:
        amplitude: What an occupied trap adds, in the units of `x`; a scalar or an array.
        up: Rate of switching from 0 to 1, per unit of time.
        down: Rate of switching from 1 to 0, per unit of time.
        time: Time of the read-out, at least 0; a scalar or an array.
        device: The device, an integer; see `jaxeff.noise.models`.
        at: Place where a layer is perturbed; memory cells are "weights".
        per: Scope of one trap: "element" (nothing) or "channel"; samples always do.
        along: Axis that arrays have one entry along: "sample" (each was read at its own time) or
            "channel".
        relative: Whether `amplitude` is in units of the range of `x`.

    The work grows with the number of switches before `time`. There is no gradient with respect to
    rates and time: states jump.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is negative, NaN or infinite, a choice is unknown, or the traps would
            switch more than 100,000 times before `time`.
    """

    amplitude: core.NonNegative
    up: core.NonNegative = 1.0
    down: core.NonNegative = 1.0
    time: core.NonNegative = 0.0
    device: Device = 0
    at: Place = core.static("output")
    per: DeviceSharing = core.static("element")
    along: Axis = core.static(None)
    relative: Flag = core.static(False)

    levels: ClassVar[tuple[str, ...]] = ("amplitude",)

    def __post_init__(self) -> None:
        """Checks the fields, and how much work they ask for."""
        super().__post_init__()
        _check_switches(self.up, self.down, self.time)

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads `x` at `time` at one site."""
        dtype = real_dtype(x)
        return x + self._amount("amplitude", x) * self._occupied(site, x).astype(dtype)

    def trace(
        self, times: Float[Array, " times"], shape: tuple[int, ...] = ()
    ) -> Bool[Array, " times *shape"]:
        """Follows traps over time: whether each is occupied.

        Args:
            times: When to look, in any order; the model's own `time` isn't used.
            shape: Shape of one sample, or of the weights with `at="weights"`.

        Returns:
            The states that `perturb` reads at these times.
        """
        core.check_number("times", times, low=0)
        _check_switches(self.up, self.down, times)
        x = jnp.zeros(shape if self.at == "weights" else (1, *shape))

        def read(time: Any) -> Array:
            states = dataclasses.replace(self, time=time)._occupied(NOWHERE, x)
            return jnp.broadcast_to(states, x.shape).reshape(shape)

        return jax.vmap(read)(jnp.asarray(times))

    def _occupied(self, site: int, x: Any) -> Array:
        up, down, time = (self._aligned(name, x) for name in ("up", "down", "time"))
        return _states(self._device_key(site), self._device_shape(x), up, down, time)


@functools.partial(jax.jit, static_argnames="shape")
def _states(
    key: PRNGKeyArray, shape: tuple[int, ...], up: Any, down: Any, time: Any
) -> Bool[Array, "..."]:
    """Follows every trap from one switch to the next until `time`.

    A trap's n-th holding time is the n-th draw, whenever it is looked at: the path is the same for
    every time. The first is exponential too, for the process has no memory.
    """
    # No gradient: the state jumps, and its derivative is zero wherever it exists.
    up, down, time = (jax.lax.stop_gradient(jnp.asarray(v, jnp.float32)) for v in (up, down, time))
    full = jnp.broadcast_shapes(shape, up.shape, down.shape, time.shape)
    first_key, holding_key = jax.random.split(key)

    def hold(number: Any, occupied: Array) -> Array:
        # By number, not by time: the n-th wait of a trap is the same whenever one looks.
        waits = jax.random.exponential(jax.random.fold_in(holding_key, number), shape)
        # A rate of zero makes the wait infinite: that state is never left.
        return waits / jnp.where(occupied, down, up)

    def pending(carry: tuple[Any, Array, Array]) -> Array:
        number, _, until = carry
        # The bound is on the expected number; twice as many end the loop where rates are traced.
        return (number < 2 * MOST_SWITCHES) & jnp.any(until <= time)

    def switch(carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
        number, occupied, until = carry
        # Traps switch on their own clocks; those past `time` wait for the others to get there.
        switches = until <= time
        occupied ^= switches
        until += jnp.where(switches, hold(number, occupied), 0)
        return number + 1, occupied, until

    total = up + down
    # The stationary occupancy up / (up + down). As a product it holds for two rates of zero as
    # well: such a trap stays empty.
    occupied = jax.random.uniform(first_key, shape) * total < up
    occupied = jnp.broadcast_to(occupied, full)
    start = (jnp.int32(1), occupied, hold(0, occupied))
    return jax.lax.while_loop(pending, switch, start)[1]


def _check_switches(up: Any, down: Any, time: Any) -> None:
    if not all(core.is_concrete(v) for v in (up, down, time)):
        return
    up, down, time = (np.max(np.asarray(v, np.float64), initial=0) for v in (up, down, time))
    # Two switches take 1 / up + 1 / down on average: a rate of 2 up down / (up + down).
    switches = 2 * up * down * time / max(up + down, np.finfo(np.float64).tiny)
    if switches > MOST_SWITCHES:
        raise ValueError(
            f"Telegraph would follow {switches:.3g} switches up to time {time:g}, more than "
            f"{MOST_SWITCHES:,}; the process is stationary, so count time from a later start."
        )
