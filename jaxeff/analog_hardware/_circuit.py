"""`CircuitChip`: a synthetic chip given by its circuits' equations in time.

```python
import jax

from jaxeff.analog_hardware import CircuitChip

chip = CircuitChip(device=3, rows=16, columns=8)
weights = jax.random.randint(jax.random.key(0), (16, 8), -63, 64)
inputs = jax.random.randint(jax.random.key(1), (10, 16), 0, 32)
counts = chip.query(jax.random.key(2), weights, inputs)   # [10, 8], -128 to 127
```

`Chip` is a formula that models of its form can hold. Here the voltage `v` of every column's
integrator follows a differential equation while the pulses of its rows last,

    dv/dt = s tanh(u / s),
    u_j = i_j (1 - sign(i_j) v_j / rail) + crosstalk (i_(j-1) + i_(j+1)) - v_j / tau,

with `i` the current of the synapse: sources that weaken toward their rail, an amplifier that can't
follow faster than `s`, neighbours that couple, leakage in time. Between pulses it only leaks. The
converter has steps of unequal width. None of it factorizes over synapses, so that a model of sums
can't contain it.
"""

import functools
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.analog_hardware import _chip as chip
from jaxeff.analog_hardware._crossbar import signed_range


@core.register_setting
class Circuit(core.Setting):
    """Numbers of a column's circuits.

    Attributes:
        gain: Counts per time and weight code: the current of a synapse.
        mismatch: Relative spread of the synapses' currents, for each sign.
        rail: Voltage at which a source gives no current, in counts.
        slew: Fastest change of an integrator, in counts per time.
        crosstalk: Share of a neighbour's current that a column gets.
        tau: Time in which an integrator loses all but 1/e.
        interval: Time from the start of a pulse to that of the next one, at least the longest
            pulse.
        width: Relative spread of the widths of a converter's steps.
        bow: Deviation of a converter from a straight line in its middle, in counts.
        offset: Spread of the columns' offsets, in counts.
        noise: Standard deviation of a read-out, in counts.

    Source: effects that Klein's thesis, section 5.2, names for BrainScaleS-2; the equations and
    their numbers are ours.
    """

    gain: core.Positive = 0.004
    mismatch: core.NonNegative = 0.1
    rail: core.Positive = 160.0
    slew: core.Positive = 0.6
    crosstalk: core.NonNegative = 0.02
    tau: core.Positive = 16_000.0
    interval: Annotated[Float[Array, ""] | float, core.Number(chip.INPUT_TOP)] = 32.0
    width: core.NonNegative = 0.1
    bow: core.NonNegative = 1.0
    offset: core.NonNegative = 3.0
    noise: core.NonNegative = 0.8


@core.register_setting
class CircuitChip(core.Setting):
    """A synthetic chip whose columns are integrated in time.

    Sharp edges:
        It has no gradient of use, as every chip; `jaxeff.analog_hardware.in_the_loop` takes a
        model's.
        Time counts lengths of the shortest pulse, voltages count the converter's mean steps.

    Attributes:
        device: Number of the chip, an integer; its fixed pattern is a function of it.
        rows: Inputs of its array.
        columns: Signed columns.
        circuit: Numbers of its circuits.
        steps: Steps of the classical Runge-Kutta method in a pulse.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds.
    """

    device: Annotated[Int[Array, ""] | int, core.Number(0, integer=True)] = 0
    rows: Annotated[int, core.Count(1)] = core.static(128)
    columns: Annotated[int, core.Count(1)] = core.static(256)
    circuit: Circuit = Circuit()
    steps: Annotated[int, core.Count(1, 64)] = core.static(2)

    def query(self, key: Any, weights: Any, inputs: Any, order: Any = None) -> Int[Array, "p c"]:
        """Reads the converters of all columns for each vector, as `Chip.query` does.

        Raises:
            TypeError: Codes aren't integers.
            ValueError: A shape doesn't fit, or a code is out of range (where it is known).
        """
        core.check_key("CircuitChip.query: key", key)
        chip.check_codes("CircuitChip.query", weights, inputs, self.rows, self.columns)
        chip.check_order("CircuitChip.query", order, inputs.shape)
        voltages = self.voltages(weights, inputs, order)
        # The converter's own noise; its patterns below belong to the device.
        noise = self.circuit.noise * jax.random.normal(key, voltages.shape)
        return self._convert(voltages + noise)

    def voltages(
        self, weights: Int[Array, "r c"], inputs: Int[Array, "p r"], order: Any = None
    ) -> Float[Array, "p c"]:
        """Integrates all columns through the pulses of all rows, in counts, without noise."""
        patterns = jax.random.normal(self._key(0), (2, self.rows, self.columns))
        patterns = patterns[:, : weights.shape[0], : weights.shape[1]]
        codes = weights.astype(jnp.float32)
        # Currents of the two signs come from different circuits, each with its mismatch.
        spread = self.circuit.mismatch * jnp.where(codes > 0, patterns[0], patterns[1])
        currents = self.circuit.gain * codes * (1 + spread)
        train = chip.in_order(inputs.astype(jnp.float32), currents, order)
        start = jnp.zeros((inputs.shape[0], weights.shape[1]))
        return jax.lax.scan(self._pulse, start, train)[0]

    def _pulse(self, held: Any, at: Any) -> tuple[Any, None]:
        """Integrates one row's pulse, and what time is left until the next."""
        length, current = at  # [p], and [c] or [p, c]
        current = current[None] if current.ndim == 1 else current
        # Steps of a share of the pulse: no pulse is cut where a step ends.
        step = length[:, None] / self.steps
        slope = functools.partial(self._slope, current)
        v = held
        # The classical method of fourth order; two steps are exact to a thousandth of a count.
        for _ in range(self.steps):
            first = slope(v)
            second = slope(v + step / 2 * first)
            third = slope(v + step / 2 * second)
            v = v + step / 6 * (first + 2 * second + 2 * third + slope(v + step * third))
        # Nothing drives the integrator until the next pulse; without one no time passes.
        rest = jnp.exp((length[:, None] - self.circuit.interval) / self.circuit.tau)
        return jnp.where(length[:, None] > 0, v * rest, held), None

    def _slope(self, current: Any, v: Any) -> Any:
        """Computes dv/dt while a pulse lasts."""
        circuit = self.circuit
        # Columns at the edges have one neighbour.
        around = jnp.pad(jnp.broadcast_to(current, v.shape), ((0, 0), (1, 1)))
        # A source weakens toward its own rail only, which its sign says.
        driven = current * (1 - jnp.sign(current) * v / circuit.rail)
        driven = driven + circuit.crosstalk * (around[:, :-2] + around[:, 2:])
        return circuit.slew * jnp.tanh((driven - v / circuit.tau) / circuit.slew)

    def _convert(self, v: Float[Array, "p c"]) -> Int[Array, "p c"]:
        """Converts voltages by each column's own steps."""
        low, high = signed_range(chip.BITS)
        columns = v.shape[1]
        offset = self.circuit.offset * jax.random.normal(self._key(1), (self.columns,))[:columns]
        steps = jax.random.normal(self._key(2), (self.columns, high - low))[:columns]
        widths = jnp.maximum(1 + self.circuit.width * steps, 0)
        # Ends are trimmed to where they belong: what is left is a walk that comes back.
        edges = jnp.cumsum(widths, 1) * ((high - low) / jnp.sum(widths, 1, keepdims=True)) + low
        straight = jnp.linspace(-1, 1, high - low)
        edges = edges + self.circuit.bow * (1 - straight**2)[None]
        find = functools.partial(jnp.searchsorted, side="right")
        # A code is the number of edges below a voltage.
        codes = jax.vmap(find, (0, 1), 1)(edges, v + offset[None])
        return codes.astype(jnp.int32) + low

    def _key(self, part: int) -> PRNGKeyArray:
        """Derives the key of a part of the fixed pattern."""
        device_key = jax.random.fold_in(jax.random.key(0x0B56), self.device)
        return jax.random.fold_in(device_key, part)
