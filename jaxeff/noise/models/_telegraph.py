"""Random telegraph noise: traps that capture and release a carrier, one two-state process each.

References:
    Machlup, "Noise in semiconductors: spectrum of a two-parameter random signal", Journal of
    Applied Physics 25 (1954): occupancy and autocorrelation.
    Du et al., "Exploring the impact of random telegraph noise-induced accuracy loss on resistive
    RAM-based deep neural network", IEEE Transactions on Electron Devices 67 (2020).
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxeff.core import NonNegative, check_number, is_concrete, register_setting, static
from jaxeff.noise.models._device import NOWHERE, Device, DeviceModel, DeviceSharing
from jaxeff.noise.models._model import Axis, Flag, Place, real_dtype

# Switches that are followed; later ones than these would be lost to rounding of the time as well.
MOST_SWITCHES = 100_000


@register_setting
@dataclass(frozen=True)
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

    amplitude: NonNegative
    up: NonNegative = 1.0
    down: NonNegative = 1.0
    time: NonNegative = 0.0
    device: Device = 0
    at: Place = static("output")
    per: DeviceSharing = static("element")
    along: Axis = static(None)
    relative: Flag = static(False)

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
        check_number("times", times, low=0)
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
    if not all(is_concrete(v) for v in (up, down, time)):
        return
    up, down, time = (np.max(np.asarray(v, np.float64), initial=0) for v in (up, down, time))
    # Two switches take 1 / up + 1 / down on average: a rate of 2 up down / (up + down).
    switches = 2 * up * down * time / max(up + down, np.finfo(np.float64).tiny)
    if switches > MOST_SWITCHES:
        raise ValueError(
            f"Telegraph would follow {switches:.3g} switches up to time {time:g}, more than "
            f"{MOST_SWITCHES:,}; the process is stationary, so count time from a later start."
        )
