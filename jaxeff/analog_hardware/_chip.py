"""`Chip`: a synthetic analog chip that is known only through its answers to integer codes.

```python
import jax
import jax.numpy as jnp

from jaxeff.analog_hardware import Chip

chip = Chip(device=3)                                     # another number is another chip
keys = jax.random.split(jax.random.key(0))
weights = jax.random.randint(keys[0], (128, 256), -63, 64)
inputs = jax.random.randint(keys[1], (10, 128), 0, 32)
counts = chip.query(jax.random.key(1), weights, inputs)   # [10, 256], -128 to 127
chips = jax.vmap(Chip)(jnp.arange(5))                     # five of them, in one program
```

A vector is a train of events, one for every row whose input isn't zero, in the order of the rows
unless another is given. An event puts charge on the line of each column; the line remembers some of
it and lets less through next time; the integrator leaks from event to event. So the sum depends on
the order of its terms. The numbers are `jaxeff.analog_hardware.PUBLISHED_PHYSICS`.

A model of a chip shares nothing with it: it may `query` it, and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.analog_hardware._crossbar import signed_range

Share = Annotated[Float[Array, ""] | float, core.Number(0, 1)]


@core.register_setting
class Physics(core.Setting):
    """Effects of a chip's circuits; counts are those of the converter.

    No chip is at hand, so one is made up. `PUBLISHED_PHYSICS` has its numbers, frozen before any
    network was trained on it. Its effects are those that Klein's thesis, sections 5.2 to 5.4, names
    for BrainScaleS-2: mismatch of synapses and columns, curves of the multiplier and of the
    integrator, leakage and line memory between events, read-out noise that grows with the active
    rows, and drift. Their sizes are ours. They were chosen so that an ordered model of a column can
    beat one that ignores the order, as in the source; nothing was tuned to an accuracy. Whatever is
    measured on this chip is synthetic: orders of results can be compared with the source's, numbers
    can't.

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

    gain: core.Positive = 0.004
    synapse_mismatch: core.NonNegative = 0.10
    weight_curve: Share = 0.10
    pulse_offset: core.NonNegative = 0.5
    column_mismatch: core.NonNegative = 0.08
    column_offset: core.NonNegative = 3.0
    limit: core.Positive = 110.0
    limit_mismatch: core.NonNegative = 0.05
    leak: core.Positive = 500.0
    memory: Share = 0.95
    line: core.Positive = 40.0
    noise: core.NonNegative = 0.6
    row_noise: core.NonNegative = 0.015
    noise_mismatch: core.NonNegative = 0.2
    gain_drift: core.NonNegative = 0.05
    offset_drift: core.NonNegative = 3.0
    ordered: bool = core.static(True)
    curve_mismatch: Annotated[float, core.Number(0)] = core.static(0.0)


PUBLISHED_PHYSICS = Physics()
"""The chip of every result of this project."""


INPUT_TOP, WEIGHT_TOP = 31, 63
BITS = 8


@core.register_setting
class Chip(core.Setting):
    """A synthetic chip.

    Sharp edges:
        The twin has no gradient; `jaxeff.analog_hardware.in_the_loop` takes that of a model.
        A smaller matrix uses the first rows and columns of the array.

    Attributes:
        device: Number of the chip, an integer; its fixed pattern is a function of it.
        hours: Since it was calibrated; gain and offsets drift with `log(1 + hours)`.
        rows: Inputs of its array.
        columns: Signed columns.
        sends: Number of times that the events of a vector are sent before the read-out.
        physics: Effects of its circuits.
        pattern: The fixed pattern, made from the device; not to be given.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is out of bounds.
    """

    device: Annotated[Int[Array, ""] | int, core.Number(0, integer=True)] = 0
    hours: core.NonNegative = 0.0
    rows: Annotated[int, core.Count(1)] = core.static(128)
    columns: Annotated[int, core.Count(1)] = core.static(256)
    sends: Annotated[int, core.Count(1)] = core.static(1)
    physics: Physics = PUBLISHED_PHYSICS
    pattern: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pattern is None:
            object.__setattr__(self, "pattern", self._pattern())

    def after(self, hours: Float[Array, ""] | float) -> Chip:
        """Lets time pass since the chip's calibration."""
        return dataclasses.replace(self, hours=hours)

    def query(
        self,
        key: PRNGKeyArray,
        weights: Int[Array, "r c"],
        inputs: Int[Array, "p r"],
        order: Int[Array, "p r"] | Int[Array, " r"] | None = None,
    ) -> Int[Array, "p c"]:
        """Reads the converters of all columns for each vector.

        Args:
            key: Random key of the read-out noise.
            weights: Integer codes from -63 to 63, `[rows, columns]`.
            inputs: Integer codes from 0 to 31, `[vectors, rows]`.
            order: In which order rows are sent, permutations of the rows, `[vectors, rows]` or
                `[rows]`.

        Returns:
            Counts from -128 to 127, int32 `[vectors, columns]`.

        Raises:
            TypeError: Codes aren't integers.
            ValueError: A shape doesn't fit, or a code is out of range (where it is known).
        """
        core.check_key("Chip.query: key", key)
        check_codes("Chip.query", weights, inputs, self.rows, self.columns)
        check_order("Chip.query", order, inputs.shape)
        columns = weights.shape[1]
        charge = self._charge(weights)
        pulses = self._pulses(inputs)
        if self.physics.ordered:
            held = self._integrated(charge, pulses, order)
        else:
            held = (pulses @ charge) * self.sends
        column = {name: x[:columns][None] for name, x in self.pattern["column"].items()}
        # Order of the circuit: synapses, integration, saturation, gain and offset, noise,
        # conversion.
        late = jnp.log1p(jnp.asarray(self.hours, jnp.float32))
        limit = self.physics.limit * (1 + self.physics.limit_mismatch * column["limit"])
        gain = 1 + self.physics.column_mismatch * column["gain"]
        gain = gain * jnp.exp(-self.physics.gain_drift * late * (1 + column["gain_drift"]))
        offset = self.physics.column_offset * column["offset"]
        offset = offset + self.physics.offset_drift * late * column["offset_drift"]
        mean = offset + gain * limit * jnp.tanh(held / limit)
        # Each active row adds its own noise: variances add up.
        active = jnp.sum(inputs > 0, axis=1)[:, None].astype(jnp.float32)
        level = jnp.sqrt(self.physics.noise**2 + self.physics.row_noise * active)
        level = level * jnp.abs(1 + self.physics.noise_mismatch * column["noise"])
        read = mean + level * jax.random.normal(key, mean.shape)
        # The converter truncates, and clamps what lies beyond its ends.
        return jnp.clip(jnp.floor(read), *signed_range(BITS)).astype(jnp.int32)

    def _charge(self, weights: Any) -> Any:
        """Computes the charge per pulse length that each synapse adds, `[r, c]`."""
        rows, columns = weights.shape
        w = weights.astype(jnp.float32)
        # The multiplier falls short of a linear one, by `weight_curve` at the largest weight.
        curve: Any = self.physics.weight_curve
        if self.physics.curve_mismatch:
            spread_of_curves = self.pattern["curve"][:, :rows, :columns]
            spread = jnp.where(w > 0, spread_of_curves[0], spread_of_curves[1])
            curve = curve * (1 + self.physics.curve_mismatch * spread)
        size = jnp.abs(w) * (1 - curve * jnp.abs(w) / WEIGHT_TOP)
        mismatch = self.pattern["synapse"][:, :rows, :columns]
        # Excitatory and inhibitory synapses are different circuits, each with its mismatch.
        spread_of_curves = jnp.where(w > 0, mismatch[0], mismatch[1])
        return (
            self.physics.gain
            * jnp.sign(w)
            * size
            * (1 + self.physics.synapse_mismatch * spread_of_curves)
        )

    def _pulses(self, inputs: Any) -> Any:
        """Computes the lengths of pulses in codes, `[p, r]`; none for an input of zero."""
        offset = self.physics.pulse_offset * self.pattern["row"][: inputs.shape[1]][None]
        # A row's driver adds the same to every pulse; where there is none, nothing.
        long = jnp.maximum(inputs.astype(jnp.float32) + offset, 0)
        return jnp.where(inputs > 0, long, 0)

    def _integrated(self, charge: Any, pulses: Any, order: Any) -> Any:
        """Integrates the charge of all events."""
        # Time counts events: rows without a pulse send none and take no time.
        keep = jnp.exp(-1 / jnp.asarray(self.physics.leak, jnp.float32))
        memory = jnp.asarray(self.physics.memory, jnp.float32)

        def event(state: Any, at: Any) -> tuple[Any, None]:
            held, line = state
            pulse, added = at  # [p], [c] or [p, c]
            active = (pulse > 0)[:, None]
            added = pulse[:, None] * (added[None] if added.ndim == 1 else added)
            # The more charge recent events put on the line, the less of the next one
            # reaches the integrator.
            passed = added / (1 + line / self.physics.line)
            held = jnp.where(active, keep, 1) * held + passed
            line = jnp.where(active, memory, 1) * line + jnp.abs(added)
            return (held, line), None

        start = jnp.zeros((pulses.shape[0], charge.shape[1]))
        trains = in_order(pulses, charge, order)
        state = (start, start)
        for _ in range(self.sends):
            state, _ = jax.lax.scan(event, state, trains, unroll=min(8, pulses.shape[1]))
        return state[0]

    def _pattern(self) -> dict[str, Any]:
        """Computes the standard normal numbers that belong to the device."""
        # The pattern is a function of the device alone: the same chip in every process.
        key = jax.random.fold_in(jax.random.key(0x0B55), self.device)
        synapse, row, column = jax.random.split(key, 3)
        names = ("gain", "offset", "limit", "noise", "gain_drift", "offset_drift")
        drawn = jax.random.normal(column, (len(names), self.columns))
        curves = {}
        if self.physics.curve_mismatch:
            # A key of its own: the rest of the chip stays what it was.
            apart = jax.random.fold_in(synapse, 1)
            curves["curve"] = jax.random.normal(apart, (2, self.rows, self.columns))
        return curves | {
            "synapse": jax.random.normal(synapse, (2, self.rows, self.columns)),
            "row": jax.random.normal(row, (self.rows,)),
            "column": dict(zip(names, drawn, strict=True)),
        }


def check_codes(where: str, weights: Any, inputs: Any, rows: int, columns: int) -> None:
    """Checks that codes have the form that a chip takes."""
    for name, codes in (("weights", weights), ("inputs", inputs)):
        if not jnp.issubdtype(jnp.result_type(codes), jnp.integer):
            raise TypeError(
                f"{where}: {name} must be integer codes, not {jnp.result_type(codes)}; hardware "
                "takes no other: round and convert them."
            )
    if np.ndim(weights) != 2 or np.ndim(inputs) != 2 or np.shape(weights)[0] != np.shape(inputs)[1]:
        raise ValueError(
            f"{where}: weights must be [rows, columns] and inputs [vectors, rows], not "
            f"{list(np.shape(weights))} and {list(np.shape(inputs))}."
        )
    if np.shape(weights)[0] > rows or np.shape(weights)[1] > columns or not np.size(weights):
        raise ValueError(
            f"{where}: the array has {rows} rows and {columns} columns, weights of "
            f"{list(np.shape(weights))} don't fit; `analog` cuts a layer into tiles."
        )
    for name, codes, low, high in (
        ("weights", weights, -WEIGHT_TOP, WEIGHT_TOP), ("inputs", inputs, 0, INPUT_TOP)
    ):  # fmt: skip
        if core.is_concrete(codes) and np.size(codes):
            # NumPy's: inside of a trace JAX would trace the minimum of a constant too.
            known = np.asarray(codes)
            least, most = int(known.min()), int(known.max())
            if least < low or most > high:
                raise ValueError(
                    f"{where}: {name} hold codes from {least} to {most}, out of the range {low} to "
                    f"{high}; clip them."
                )


def in_order(pulses: Any, charge: Any, order: Any) -> tuple[Any, Any]:
    """Sorts the events of a train: pulses `[r, p]` and charges `[r, c]` or `[r, p, c]`."""
    if order is None:
        return pulses.T, charge
    if order.ndim == 1:
        return pulses[:, order].T, charge[order]
    return jnp.take_along_axis(pulses, order, 1).T, charge[order.T]


def check_order(where: str, order: Any, shape: tuple[int, ...]) -> None:
    """Checks that an order, if there is one, holds every row once."""
    if order is None:
        return
    if order.shape not in {shape, shape[1:]}:
        raise ValueError(
            f"{where}: order must be permutations of the rows, {list(shape)} or "
            f"{list(shape[1:])}, not {list(order.shape)}."
        )
    if core.is_concrete(order):
        wanted = np.broadcast_to(np.arange(shape[1]), order.shape)
        if not (np.sort(np.asarray(order), -1) == wanted).all():
            raise ValueError(f"{where}: order must hold every row once.")


@runtime_checkable
class Hardware(Protocol):
    """A chip whose query is JAX, as a `Chip`'s is: it is traced, and vmapped over chips."""

    def query(self, key: Any, weights: Any, inputs: Any, order: Any = None) -> Any:
        """Reads counts `[vectors, columns]` of integer codes, as `Chip.query` does."""
        ...


Query = Hardware | Callable[..., Any]
"""A `Hardware`, or a Python callable `query(key, weights, inputs)` on numpy arrays: `key` is the
data of a random key (uint32), `weights` `[rows, columns]` and `inputs` `[vectors, rows]` are int32
codes; it returns integer counts `[vectors, columns]`."""


def check_query(where: str, query: Any) -> None:
    """Checks that a chip can be queried."""
    if isinstance(query, type) or not (isinstance(query, Hardware) or callable(query)):
        raise TypeError(
            f"{where}: query must be a chip with a method query(key, weights, inputs), such as "
            f"Chip(3), or a function of that form, not {query!r}."
        )


def query_counts(
    where: str, query: Query, key: Any, weights: Any, inputs: Any, order: Any = None
) -> Any:
    """Queries a chip, traced for a `Hardware`, by a callback for a function.

    Raises:
        RuntimeError: A function raised; under `jit` it comes as JAX's own error with this text.
        TypeError: It returned no integers, or takes no order.
        ValueError: It returned another shape.
    """
    if isinstance(query, Hardware):
        return query.query(key, weights, inputs, *(() if order is None else (order,)))
    shape = jax.ShapeDtypeStruct((inputs.shape[0], weights.shape[1]), jnp.int32)

    def call(seed: Any, w: Any, a: Any, *orders: Any) -> np.ndarray:
        return _call_back(where, query, np.asarray(seed), np.asarray(w), np.asarray(a), *orders)

    # Callbacks get NumPy arrays, and a key is none: its data goes instead.
    seed = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    operands = (seed, weights, inputs, *(() if order is None else (order,)))
    # One after the other under `vmap`: hardware holds one matrix at a time.
    return jax.pure_callback(call, shape, *operands, vmap_method="sequential")


def _call_back(
    where: str, query: Any, seed: Any, weights: Any, inputs: Any, *order: Any
) -> np.ndarray:
    """Calls a Python callable and checks the form of its counts."""
    try:
        counts = np.asarray(query(seed, weights, inputs, *map(np.asarray, order)))
    except Exception as error:
        raise RuntimeError(
            f"{where}: the query of the chip failed ({type(error).__name__}: {error}). A training "
            "with a checkpoint goes on from its last epoch when it is called again."
        ) from error
    wanted = (inputs.shape[0], weights.shape[1])
    if counts.shape != wanted:
        raise ValueError(
            f"{where}: the query must return counts {list(wanted)}, [vectors, columns], but "
            f"returned {list(counts.shape)}."
        )
    if counts.dtype.kind not in "iu":
        raise TypeError(
            f"{where}: the query must return integer counts, but returned {counts.dtype}; convert "
            "them as the hardware's converter does."
        )
    return counts.astype(np.int32)
