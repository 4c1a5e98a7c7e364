"""Weights that learn in place: cells that are changed by pulses, and optimizers made of them.

How far a pulse moves a cell differs from cell to cell, from pulse to pulse, and with the weight
that is there: `PulsedDevice` says so, and `RPU`, `RERAM`, `CAPACITOR` and `ECRAM` hold published
fits. `pulsed` and `tiki_taka` are optax' transformations, for `jaxeff.training.fit` and any loop:

```python
import jax

from jaxeff.analog_hardware import RERAM, RPU, pulsed, tiki_taka
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
descent = pulsed(jax.random.key(1), RPU, learning_rate=0.1)
optimizer = tiki_taka(jax.random.key(1), RERAM, learning_rate=0.1, transfer_rate=0.1)
learnt = fit(
    jax.random.key(0), cross_entropy(f), params, data, optimizer=optimizer, epochs=1, batch_size=8,
    progress=False,
)  # fmt: skip
```
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core

LARGEST_SHARE = 0.99
"""Of its way to a bound that one pulse may go, whatever a cell has drawn."""
LEAST = 1e-6
"""Share of the way to a bound below which pulses are of equal size in float32."""

Share = Annotated[Float[Array, ""] | float, core.Number(0, 1)]
Imbalance = Annotated[Float[Array, ""] | float, core.Number(-2, 2)]


@core.register_setting
class PulsedDevice(core.Setting):
    """What pulses do to the cells of an array, in units of the weight.

    A pulse up moves a weight w by `up (1 - slope_up w / high)`, one down by `down (1 - slope_down
    w / low)`: a slope of 0 is a constant step, one of 1 a step that vanishes at the bound. Spreads
    are standard deviations between cells relative to the mean; what they are of is drawn once.
    Leakage, read noise and converters are of `jaxeff.noisy` and `analog`.

    Source: Gokmen and Vlasov, "Acceleration of deep neural network training with resistive
    cross-point devices", Frontiers in Neuroscience 10 (2016).

    Attributes:
        step: Mean of a pulse up and one down at zero.
        imbalance: Up minus down, over their mean.
        high: Upper bound of the weights.
        low: Lower bound, below zero.
        slope_up: Share of a pulse up that is lost on the way from zero to the upper bound.
        slope_down: The same downwards.
        step_spread: Deviation of the step, between cells.
        imbalance_spread: Deviation of the imbalance, between cells; absolute.
        bound_spread: Deviation of the bounds, between cells.
        pulse_spread: Deviation from pulse to pulse, over a pulse at zero.
        longest: Pulses of one update, at most.

    Raises:
        ValueError: A number is out of bounds.
    """

    step: core.Positive = 0.001
    imbalance: Imbalance = 0.0
    high: core.Positive = 1.0
    low: Annotated[Float[Array, ""] | float, core.Number(below=0)] = -1.0
    slope_up: Share = 0.0
    slope_down: Share = 0.0
    step_spread: core.NonNegative = 0.0
    imbalance_spread: core.NonNegative = 0.0
    bound_spread: core.NonNegative = 0.0
    pulse_spread: core.NonNegative = 0.0
    longest: core.Positive = 31.0


RPU = PulsedDevice(
    step=0.0016, step_spread=0.3, imbalance_spread=0.01, bound_spread=0.3, pulse_spread=0.3
)
"""The specification of Gokmen and Vlasov (2016): 1,200 equal steps in the range of -1 to 1."""
RERAM = PulsedDevice(
    step=0.002, high=1.25, low=-0.75, slope_up=1.0, slope_down=1.0, step_spread=0.3,
    imbalance_spread=0.01, bound_spread=0.3, pulse_spread=3.75,
)  # fmt: skip
"""Resistive memory of Gong et al., Nature Communications 9 (2018), fitted with soft bounds."""
CAPACITOR = PulsedDevice(
    step=0.005, slope_up=0.05, slope_down=0.05, step_spread=0.1, imbalance_spread=0.06,
    bound_spread=0.07, pulse_spread=0.3,
)  # fmt: skip
"""Capacitors and transistors of Li et al., Symposium on VLSI Technology 2018, without leakage."""
ECRAM = PulsedDevice(
    step=0.002, high=1.1724, low=-0.8276, slope_up=0.1153, slope_down=0.5085, step_spread=0.1,
    imbalance_spread=0.01, bound_spread=0.05, pulse_spread=0.3,
)  # fmt: skip
"""Electrochemical cells of Tang et al., IEDM 2018."""


class PulsedCells(NamedTuple):
    """The cells of one array of weights: what was drawn for each, of the weights' shape."""

    up: Array  # size of a pulse at zero
    down: Array
    high: Array
    low: Array

    def symmetry(self, device: PulsedDevice) -> Array:
        """Computes the weight at which a pulse up and one down are as large; 0 if none is.

        Cells whose pulses don't depend on the weight have no such point.
        """
        slope = self.up * device.slope_up / self.high - self.down * device.slope_down / self.low
        point = (self.up - self.down) / jnp.where(slope > 0, slope, 1.0)
        return jnp.where(slope > 0, jnp.clip(point, self.low, self.high), 0.0)


def pulsed_cells(key: PRNGKeyArray, device: PulsedDevice, shape: tuple[int, ...]) -> PulsedCells:
    """Draws the cells of an array.

    Args:
        key: For the cells; the same key makes the same ones.
        device: What they are drawn from.
        shape: Shape of the weights.

    Returns:
        The cells; steps and bounds keep their sign, however wide their spread is.
    """
    step, imbalance, high, low = jax.random.normal(key, (4, *shape))
    # A negative step would be a cell that moves against its pulses, which none of them does.
    steps = device.step * jnp.maximum(1 + device.step_spread * step, 0.0)
    half = (device.imbalance + device.imbalance_spread * imbalance) / 2
    return PulsedCells(
        up=steps * jnp.maximum(1 + half, 0.0),
        down=steps * jnp.maximum(1 - half, 0.0),
        high=device.high * jnp.maximum(1 + device.bound_spread * high, LEAST),
        low=device.low * jnp.maximum(1 + device.bound_spread * low, LEAST),
    )


def pulse(
    key: PRNGKeyArray,
    device: PulsedDevice,
    cells: PulsedCells,
    weights: Float[Array, "*shape"],
    change: Float[Array, "*shape"],
) -> Float[Array, "*shape"]:
    """Moves weights by pulses that would add up to `change` on an ideal device.

    Args:
        key: For the rounding to whole pulses and for the spread of pulses.
        device: What pulses do.
        cells: The weights' cells, by `pulsed_cells`.
        weights: The weights before; those beyond the bounds of their cells are cut to them.
        change: What is asked for; of either sign.

    Returns:
        Where they are then.
    """
    rounding, spreading = jax.random.split(key)
    weights = jnp.clip(weights, cells.low, cells.high)
    asked = jnp.minimum(jnp.abs(change) / device.step, device.longest)
    count = jnp.floor(asked + jax.random.uniform(rounding, asked.shape))
    upwards = change > 0
    step = jnp.where(upwards, cells.up, cells.down)
    bound = jnp.where(upwards, cells.high, cells.low)
    slope = jnp.where(upwards, device.slope_up, device.slope_down)
    # A pulse maps w to w + s (1 - r w / s) with s signed and r = |s slope / bound|: so many of them
    # go to s / r + (w - s / r) (1 - r)**count, of which r may vanish.
    signed = jnp.where(upwards, step, -step)
    share = jnp.minimum(slope * signed / bound, LARGEST_SHARE)
    left = jnp.exp(count * jnp.log1p(-share))
    pulses = jnp.where(share > LEAST, (1 - left) / jnp.maximum(share, LEAST), count)
    moved = weights * jnp.where(share > LEAST, left, 1 - share * count) + signed * pulses
    spread = device.pulse_spread * step * jnp.sqrt(count)
    moved = moved + spread * jax.random.normal(spreading, weights.shape)
    return jnp.clip(jnp.where(count > 0, moved, weights), cells.low, cells.high)


class PulsedState(NamedTuple):
    """State of `pulsed`."""

    key: Array  # of the coming updates
    updates: Array  # so far
    cells: Any  # `PulsedCells` for each array of parameters


class TikiTakaState(NamedTuple):
    """State of `tiki_taka`."""

    key: Array
    updates: Array  # so far
    cells: Any  # of the slow arrays
    fast_cells: Any
    fast: Any  # weights of the fast arrays, as they are; the symmetry point counts as zero


_RATE = core.any_of(core.function_of_form("learning_rate(step)"), core.positive)


@core.validate(learning_rate=_RATE)
def pulsed(
    key: PRNGKeyArray, device: PulsedDevice, learning_rate: optax.ScalarOrSchedule
) -> optax.GradientTransformation:
    """Stochastic gradient descent on cells that are changed by pulses.

    Where up and down differ, gradients that are noise around zero pull a weight to its cell's
    symmetry point, whatever the loss says. An update is of the whole batch's gradient, rounded to
    pulses at random without bias; the coded trains of an array have more noise than that.

    Args:
        key: For the cells, and for what is drawn in each update.
        device: What the cells are.
        learning_rate: What a gradient is multiplied by, or a schedule of it. Changes below a pulse
            are made at random, right on average; changes beyond `device.longest` pulses are cut.

    Returns:
        A transformation whose `update` needs the parameters; all of them are cells.

    Raises:
        TypeError: `device` isn't a `PulsedDevice`.
    """
    _check_device("pulsed: device", device)

    def init(params: Any) -> PulsedState:
        cells, rest = jax.random.split(key)
        return PulsedState(rest, jnp.int32(0), _of_arrays(cells, device, params))

    def update(gradients: Any, state: PulsedState, params: Any = None) -> tuple[Any, PulsedState]:
        _check_params("pulsed", params)
        now, later = jax.random.split(state.key)
        rate = _rate(learning_rate, state.updates)

        def learnt(key: Array, w: Array, g: Array, cells: PulsedCells) -> Array:
            return pulse(key, device, cells, w, -rate * g)

        moved = _by_array(learnt, now, params, gradients, state.cells)
        updates = jax.tree.map(jnp.subtract, moved, params)
        return updates, PulsedState(later, state.updates + 1, state.cells)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


@core.validate(learning_rate=_RATE, transfer_rate=core.positive)
def tiki_taka(
    key: PRNGKeyArray,
    device: PulsedDevice,
    learning_rate: optax.ScalarOrSchedule,
    transfer_rate: float,
    *,
    slow: PulsedDevice | None = None,
    every: int = 1,
    rows: int = 1,
) -> optax.GradientTransformation:
    """Gradient descent on a fast array of cells, transferred to a slow one (Tiki-Taka).

    The fast array's weights are measured from their cells' symmetry points, so that noise pulls
    them to zero; the slow array, row by row, is moved by what is left.

    Sources: Gokmen and Haensch, "Algorithm for training neural networks on resistive device
    arrays", Frontiers in Neuroscience 14 (2020), with the slow array alone as weights; Kim et al.,
    "Zero-shifting technique", arXiv:1907.10228.

    Args:
        key: For the cells of both, and for what is drawn in each update.
        device: The fast array's cells, which take the gradients.
        learning_rate: What a gradient is multiplied by there, or a schedule of it.
        transfer_rate: What is added to the slow array, in units of what the fast one holds.
        slow: The slow array's cells, which are the parameters; as the fast one's by default.
        every: Updates between two transfers.
        rows: Rows (all axes but the last, counted together) of a transfer, in turn.

    Returns:
        A transformation whose `update` needs the parameters; all of them are cells.

    Raises:
        TypeError: A device isn't a `PulsedDevice`, or a count no integer.
        ValueError: `every` or `rows` is below 1.
    """
    held = device if slow is None else slow
    _check_device("tiki_taka: device", device)
    _check_device("tiki_taka: slow", held)
    core.check_count("tiki_taka: every", every, 1)
    core.check_count("tiki_taka: rows", rows, 1)
    arrays = _TikiTaka(key, device, held, learning_rate, transfer_rate, (every, rows))
    return optax.GradientTransformation(arrays.init, arrays.update)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _TikiTaka:
    """A fast and a slow array of cells."""

    key: PRNGKeyArray
    device: PulsedDevice  # of the fast array
    slow: PulsedDevice
    learning_rate: optax.ScalarOrSchedule
    transfer_rate: float
    turns: tuple[int, int]  # updates between two transfers, and rows of each

    def init(self, params: Any) -> TikiTakaState:
        slow, fast, rest = jax.random.split(self.key, 3)
        cells = _of_arrays(fast, self.device, params)
        # A fast array that was pulsed up and down in turn is at its symmetry point.
        start = jax.tree.map(lambda _, each: each.symmetry(self.device), params, cells)
        return TikiTakaState(rest, jnp.int32(0), _of_arrays(slow, self.slow, params), cells, start)

    def update(
        self, gradients: Any, state: TikiTakaState, params: Any = None
    ) -> tuple[Any, TikiTakaState]:
        _check_params("tiki_taka", params)
        learning, moving, later = jax.random.split(state.key, 3)
        rate, count = _rate(self.learning_rate, state.updates), state.updates + 1
        every, rows = self.turns

        def learnt(key: Array, a: Array, g: Array, cells: PulsedCells) -> Array:
            return pulse(key, self.device, cells, a, -rate * g)

        def transferred(
            key: Array, w: Array, a: Array, fast_cells: PulsedCells, cells: PulsedCells
        ) -> Array:
            read = _turn(w.shape, count // every, rows) & (count % every == 0)
            holds = a - fast_cells.symmetry(self.device)
            change = jnp.where(read, self.transfer_rate * holds, 0)
            return pulse(key, self.slow, cells, w, change)

        fast = _by_array(learnt, learning, state.fast, gradients, state.fast_cells)
        moved = _by_array(transferred, moving, params, fast, state.fast_cells, state.cells)
        updates = jax.tree.map(jnp.subtract, moved, params)
        return updates, state._replace(key=later, updates=count, fast=fast)


def _turn(shape: tuple[int, ...], transfer: Array, rows: int) -> Array:
    """Says which rows it is the turn of: so many in each transfer, from first to last again."""
    leading = shape[:-1]
    total = math.prod(leading)
    index = jnp.arange(total).reshape(*leading, 1)
    return (index - (transfer - 1) * rows) % total < rows


def _of_arrays(key: PRNGKeyArray, device: PulsedDevice, params: Any) -> Any:
    """Draws cells for each array of parameters."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, max(1, len(leaves)))
    cells = [
        pulsed_cells(one, device, jnp.shape(leaf)) for one, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(tree, cells)


def _by_array(change: Callable[..., Array], key: PRNGKeyArray, params: Any, *others: Any) -> Any:
    """Applies `change(key, array, *others)` to each array of parameters, with a key of its own."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, max(1, len(leaves)))
    keys = jax.tree.unflatten(tree, list(keys)[: len(leaves)])
    return jax.tree.map(change, keys, params, *others)


def _rate(learning_rate: optax.ScalarOrSchedule, count: Array) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate


def _check_device(name: str, device: Any) -> None:
    if not isinstance(device, PulsedDevice):
        raise TypeError(
            f"{name} must be a PulsedDevice, such as jaxeff.analog_hardware.RERAM, not {device!r}."
        )


def _check_params(name: str, params: Any) -> None:
    if params is None:
        raise ValueError(
            f"{name} moves cells from where they are: call update(gradients, state, params)."
        )
