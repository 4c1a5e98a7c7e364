"""What is measured of a chip: synapses and noise, effects of order, events, models' fidelity.

`characterize` measures a chip before any model of it is fitted.

```python
import jax

from jaxeff.analog_hardware import Chip, Design, characterize

chip = Chip(3, rows=16, columns=8)
design = Design(rows=16, columns=8, programs=4, drives=4, vectors=32, active=(1, 8, 16))
measured = characterize(jax.random.key(0), chip, design)
measured.noise.variance                                   # [active, columns]
```

Three measurements, each through integer codes alone (Klein's thesis, section 5.3.1):

1. one row at a time, under random weights: every synapse by itself, so that neither saturation nor
   memory has a part;
2. full drive: random vectors of all sizes under random weights, for what synapses do together;
3. repeats of the same vectors, for the noise of every column over the number of active rows.

References:
    Klein's thesis, section 5.4; Kuhn et al., arXiv:2309.14292.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import core
from jaxeff.analog_hardware import _chip as chip
from jaxeff.analog_hardware._crossbar import TileModel

LEAST_REPEATS = 8
"""Fewer leave a variance with a standard error above half of itself."""


@dataclass(frozen=True)
class Design(core.Setting):
    """Sizes of the measurements of a chip.

    Attributes:
        rows: Rows of the array.
        columns: The number of columns.
        programs: Weight matrices under which single rows are measured.
        levels: Input codes of single rows.
        averages: Read-outs of each.
        drives: Weight matrices of full drive.
        vectors: Vectors under each.
        active: Numbers of active rows at which noise is measured.
        repeats: Read-outs of the same vector.
        input_top: The largest input code.
        weight_top: The largest magnitude of a weight code.
    """

    rows: Annotated[int, core.Count(1)] = 128
    columns: Annotated[int, core.Count(1)] = 256
    programs: Annotated[int, core.Count(2)] = 32
    levels: tuple[int, ...] = (4, 10, 17, 24, 31)
    averages: Annotated[int, core.Count(1)] = 2
    drives: Annotated[int, core.Count(1)] = 32
    vectors: Annotated[int, core.Count(1)] = 128
    active: tuple[int, ...] = (1, 8, 32, 64, 128)
    repeats: Annotated[int, core.Count(1)] = 32
    input_top: Annotated[int, core.Count(1)] = chip.INPUT_TOP
    weight_top: Annotated[int, core.Count(1)] = chip.WEIGHT_TOP

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.repeats < LEAST_REPEATS:
            raise ValueError(
                f"Design.repeats must be at least {LEAST_REPEATS} for an estimate of the noise, "
                f"but is {self.repeats}."
            )
        if not self.active or max(self.active) > self.rows:
            raise ValueError(
                f"Design.active must name numbers of rows up to {self.rows}, not {self.active}."
            )


class Singles(NamedTuple):
    """Measurements with one row at a time.

    Attributes:
        weights: int32 `[programs, rows, columns]`.
        levels: Input codes, int32 `[levels]`.
        counts: Means of the read-outs without the column's offset,
            `[programs, rows, levels, columns]`.
        offset: Read-outs of columns without an event, `[columns]`.
    """

    weights: np.ndarray
    levels: np.ndarray
    counts: np.ndarray
    offset: np.ndarray


class Drives(NamedTuple):
    """Measurements with many rows at once.

    Attributes:
        weights: int32 `[drives, rows, columns]`.
        inputs: int32 `[drives, vectors, rows]`.
        counts: One read-out each, int32 `[drives, vectors, columns]`.
    """

    weights: np.ndarray
    inputs: np.ndarray
    counts: np.ndarray


class NoiseMeasurement(NamedTuple):
    """Measurements of noise, from repeats.

    Attributes:
        active: Numbers of active rows, `[active]`.
        variance: Variance of the read-out, `[active, columns]`, squared counts.
    """

    active: np.ndarray
    variance: np.ndarray


class Characterization(NamedTuple):
    """Everything that was measured; models are fitted to it."""

    design: Design
    singles: Singles
    drives: Drives
    noise: NoiseMeasurement


@core.validate(design=core.instance_of(Design))
def characterize(key: Any, query: chip.Query, design: Design | None = None) -> Characterization:
    """Measures a chip.

    Args:
        key: Random key of the codes that are sent, and of a twin's noise.
        query: A `Chip`, or a function `query(key, weights, inputs)`; see `_queries.py`.
        design: Sizes of the measurements; the defaults take a few seconds with the twin on two
            cores.

    Raises:
        TypeError: `query` can't be asked, or returns no integers.
        ValueError: It returns another shape.
    """
    chip.check_query("characterize", query)
    design = design or Design()
    keys = jax.random.split(key, 3)
    return Characterization(
        design,
        _singles(keys[0], query, design),
        _drives(keys[1], query, design),
        _noise(keys[2], query, design),
    )


def read_counts(
    query: chip.Query, key: Any, weights: Any, inputs: Any, order: Any = None
) -> np.ndarray:
    """Runs one compiled query, for the host."""
    operands = (key, jnp.asarray(weights, jnp.int32), jnp.asarray(inputs, jnp.int32))
    orders = () if order is None else (jnp.asarray(order, jnp.int32),)
    if isinstance(query, chip.Hardware):
        return np.asarray(_compiled(query, *operands, *orders))
    return np.asarray(chip.query_counts("characterize", query, *operands, *orders))


@jax.jit
def _compiled(query: Any, *operands: Any) -> Any:
    return query.query(*operands)


def random_weights(key: Any, design: Design) -> Any:
    """Draws codes of all sizes and both signs."""
    top = design.weight_top
    return jax.random.randint(key, (design.rows, design.columns), -top, top + 1)


def random_inputs(key: Any, design: Design, vectors: int, active: Any = None) -> Any:
    """Draws vectors of codes with `active` rows that aren't zero; any number of them if None."""
    places, sizes, numbers = jax.random.split(key, 3)
    codes = jax.random.randint(sizes, (vectors, design.rows), 1, design.input_top + 1)
    if active is None:
        active = jax.random.randint(numbers, (vectors, 1), 1, design.rows + 1)
    # Ranks of random numbers: exactly `active` rows, which ones at random.
    rank = jnp.argsort(jnp.argsort(jax.random.uniform(places, codes.shape), 1), 1)
    return jnp.where(rank < active, codes, 0)


def _singles(key: Any, query: chip.Query, design: Design) -> Singles:
    levels = np.asarray(design.levels, np.int32)
    one = np.eye(design.rows, dtype=np.int32)[:, None] * levels[None, :, None]
    vectors = np.repeat(one.reshape(-1, design.rows), design.averages, 0)
    weights, counts = [], []
    # Each synapse under many weights: only then can its strength and the curve be told apart.
    for i in range(design.programs):
        draw, noise = jax.random.split(jax.random.fold_in(key, i))
        w = random_weights(draw, design)
        y = read_counts(query, noise, w, vectors)
        weights.append(np.asarray(w))
        counts.append(y.reshape(design.rows, len(levels), design.averages, -1).mean(2))
    # The offset is subtracted from single rows, so its own error enters all of them: read often.
    silent = np.zeros((max(64, 2 * design.repeats), design.rows), np.int32)
    offset = read_counts(query, jax.random.fold_in(key, design.programs), weights[0], silent).mean(
        0
    )
    return Singles(np.stack(weights), levels, np.stack(counts) - offset, offset)


def _drives(key: Any, query: chip.Query, design: Design) -> Drives:
    weights, inputs, counts = [], [], []
    for i in range(design.drives):
        draw, vectors, noise = jax.random.split(jax.random.fold_in(key, i), 3)
        w, a = random_weights(draw, design), random_inputs(vectors, design, design.vectors)
        weights.append(np.asarray(w))
        inputs.append(np.asarray(a))
        counts.append(read_counts(query, noise, w, a))
    return Drives(np.stack(weights), np.stack(inputs), np.stack(counts))


def _noise(key: Any, query: chip.Query, design: Design) -> NoiseMeasurement:
    # Vectors per number of active rows, whose variances are averaged.
    different = 8
    variances = []
    for i, active in enumerate(design.active):
        draw, vectors, noise = jax.random.split(jax.random.fold_in(key, i), 3)
        w = random_weights(draw, design)
        a = np.asarray(random_inputs(vectors, design, different, active))
        y = read_counts(query, noise, w, np.repeat(a, design.repeats, 0))
        y = y.reshape(different, design.repeats, -1)
        # Within repeats of one vector, then averaged over vectors: signals don't count as noise.
        variances.append(y.var(1, ddof=1).mean(0))
    return NoiseMeasurement(np.asarray(design.active), np.stack(variances))


@dataclass(frozen=True)
class OrderEffect:
    """Effect of the order of events, in counts.

    Attributes:
        rms: Standard deviation of the read-out over orders, its noise taken off.
        control: Such a deviation over repeats of one order, where order has no effect.
        noise: Standard deviation of a single read-out.
    """

    rms: float
    control: float
    noise: float


@core.validate(
    design=core.instance_of(Design),
    active=core.static_integer(),
    vectors=core.static_integer(),
    orders=core.static_integer(),
)
def order_effect(
    key: Any,
    query: chip.Query,
    design: Design | None = None,
    *,
    active: int | None = None,
    vectors: int = 16,
    orders: int = 16,
    repeats: int = 8,
) -> OrderEffect:
    """Sends the same operands in many orders.

    ```python
    import dataclasses

    import jax

    from jaxeff.analog_hardware import PUBLISHED_PHYSICS, Chip, Design, order_effect

    design = Design(rows=16, columns=8, active=(16,))
    chip = Chip(3, rows=16, columns=8)
    print(order_effect(jax.random.key(0), chip, design))                # order and control
    physics = dataclasses.replace(PUBLISHED_PHYSICS, ordered=False)
    static = dataclasses.replace(chip, physics=physics)
    print(order_effect(jax.random.key(0), static, design))              # zero but for noise
    ```

    The same codes reach the same synapses at other times: rows keep their synapses, so mismatch
    can't pass for an effect of order. Permuting rows instead would send every code to another
    synapse.

    Args:
        key: Random key of codes and orders, and of a twin's noise.
        query: A `Chip`, or a callable that takes a fourth argument, the order `[vectors, rows]`.
        design: The size of the array.
        active: Active rows; all of them if None.
        vectors: Different vectors.
        orders: Orders of each.
        repeats: Read-outs of each order, from which the noise is known.
    """
    chip.check_query("order_effect", query)
    design = design or Design()
    draw, chosen, shuffled, noise = jax.random.split(key, 4)
    w = random_weights(draw, design)
    a = random_inputs(chosen, design, vectors, design.rows if active is None else active)
    many = np.repeat(np.asarray(a), orders * repeats, 0)
    random = random_orders(shuffled, vectors * orders, design.rows)
    # The control: as many groups of read-outs per vector, all in one order.
    same = np.repeat(np.asarray(random)[::orders], orders, 0)

    def spread(order: Any) -> tuple[float, float]:
        y = read_counts(query, noise, w, many, np.repeat(np.asarray(order), repeats, 0))
        y = y.reshape(vectors, orders, repeats, -1).astype(float)
        within = y.var(2, ddof=1).mean()
        between = y.mean(2).var(1, ddof=1).mean()
        # Analysis of variance: means of repeats vary by within / repeats whatever the order does.
        return float(np.sqrt(max(between - within / repeats, 0))), float(np.sqrt(within))

    (rms, level), (control, _) = spread(random), spread(same)
    return OrderEffect(rms, control, level)


def random_orders(key: Any, vectors: int, rows: int) -> Any:
    """Draws permutations of the rows, int32 `[vectors, rows]`."""
    return jnp.argsort(jax.random.uniform(key, (vectors, rows)), 1).astype(jnp.int32)


class Events(NamedTuple):
    """Read-outs of columns after trains of events.

    Attributes:
        inputs: Codes in the order of time over the largest, `[n, events]`; after the last event of
            a shorter train are zeros.
        weights: Codes of the events' synapses over the largest, `[n, events, columns]`.
        rows: Row of each event, int32 `[n, events]`.
        counts: One read-out each, `[n, columns]`.
    """

    inputs: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    counts: np.ndarray

    def split(self, share: float = 0.8) -> tuple[Events, Events]:
        """Splits the events into a first share and the rest."""
        at = int(share * len(self.counts))
        return Events(*(a[:at] for a in self)), Events(*(a[at:] for a in self))


@core.validate(
    design=core.instance_of(Design),
    columns=core.static_integer(),
    active=core.static_integer(),
    programs=core.static_integer(),
    vectors=core.static_integer(),
)
def measure_events(
    key: Any,
    query: chip.Query,
    design: Design | None = None,
    *,
    columns: int = 4,
    active: int | None = 32,
    programs: int = 64,
    vectors: int = 64,
) -> Events:
    """Sends random vectors in random orders.

    `measure_events` asks for a chip's answers to trains of events in random orders, for models of
    sequences.

    ```python
    import jax

    from jaxeff.analog_hardware import Chip, Design, measure_events

    chip, design = Chip(3, rows=16, columns=4), Design(rows=16, columns=4, active=(8,))
    events = measure_events(jax.random.key(0), chip, design, active=8, programs=2, vectors=64)
    train, test = events.split()
    ```

    Orders are random for every vector. In one fixed order, time and row would be the same thing,
    and a model without time could tell the order by the row.

    Args:
        key: Random key of codes and orders, and of a twin's noise.
        query: A chip that takes an order.
        design: The size of the array.
        columns: Number of columns to keep, the first ones.
        active: Events of a vector; any number from one to all rows if None.
        programs: Weight matrices.
        vectors: Vectors under each.
    """
    chip.check_query("measure_events", query)
    design = design or Design()
    length = design.rows if active is None else active
    parts = []
    for i in range(programs):
        draw, chosen, shuffled, noise = jax.random.split(jax.random.fold_in(key, i), 4)
        w = np.asarray(random_weights(draw, design))
        a = np.asarray(random_inputs(chosen, design, vectors, active))
        order = np.asarray(random_orders(shuffled, vectors, design.rows))
        y = read_counts(query, noise, w, a, order)[:, :columns]
        sent = np.take_along_axis(a, order, 1)
        # A stable sort keeps the events in order and moves what isn't sent behind them.
        events = np.argsort(sent == 0, 1, kind="stable")[:, :length]
        inputs, rows = (np.take_along_axis(x, events, 1) for x in (sent, order))
        parts.append(
            (inputs / design.input_top, w[rows][..., :columns] / design.weight_top, rows, y)
        )
    fields = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Events(*(a.astype(np.int32 if i == 2 else np.float32) for i, a in enumerate(fields)))


@dataclass(frozen=True, repr=False)
class Fidelity:
    """A model's errors, a number per count of active rows.

    Attributes:
        active: Active rows.
        error: Root mean squared difference of single read-outs from the model's mean, in counts.
        floor: Root mean squared difference of single read-outs from their own mean: the chip's
            noise.
    """

    active: tuple[int, ...]
    error: tuple[float, ...]
    floor: tuple[float, ...]

    def __str__(self) -> str:
        rows = [
            (str(n), f"{e:.3f}", f"{f:.3f}", f"{e / f:.3f}")
            for n, e, f in zip(self.active, self.error, self.floor, strict=True)
        ]
        return str(core.Table(("active rows>", "error>", "noise>", "ratio>"), rows))

    __repr__ = __str__


# 8 parameters: a model and its chip, and what of them is compared how often.
@core.validate(
    model=core.instance_of(TileModel),
    design=core.instance_of(Design),
    active=core.static_integers(1),
    vectors=core.static_integer(),
    gain=core.positive,
)
def fidelity(
    key: Any,
    model: TileModel,
    query: chip.Query,
    design: Design | None = None,
    *,
    active: Sequence[int] = (8, 32, 128),
    vectors: int = 64,
    repeats: int = 8,
    gain: float = 1.0,
) -> Fidelity:
    """Measures a model on new weights and vectors that it wasn't fitted to.

    `fidelity` is how far a model is from its chip, over the number of active rows.

    ```python
    import jax

    from jaxeff.analog_hardware import Chip, Design, Linear, fidelity

    chip, design = Chip(3, rows=16, columns=8), Design(rows=16, columns=8, active=(1, 8, 16))
    key, model = jax.random.key(0), Linear()
    found = fidelity(key, model, chip, design, active=(4, 16), vectors=8, gain=0.004)
    print(found)                                             # a row for 4 and for 16 active rows
    assert found.error[1] > found.floor[1]                   # a real chip isn't ideal
    ```

    Args:
        key: Random key of the codes, and of a twin's noise.
        model: Model to compare with the chip.
        query: The chip.
        design: The size of the array and its codes.
        active: Numbers of active rows.
        vectors: Vectors of each, under four weight matrices.
        repeats: Read-outs of each vector, from which the noise is known.
        gain: Gain that the model is evaluated with; a fitted one has its own.
    """
    chip.check_query("fidelity", query)
    design = design or Design()
    errors, floors = [], []
    for i, n in enumerate(active):
        squared, noise = [], []
        # Several weight matrices: errors differ from matrix to matrix.
        for j in range(4):
            draw, chosen, read_key = jax.random.split(
                jax.random.fold_in(jax.random.fold_in(key, i), j), 3
            )
            w = random_weights(draw, design)
            a = random_inputs(chosen, design, -(-vectors // 4), n)
            y = read_counts(query, read_key, w, np.repeat(np.asarray(a), repeats, 0))
            y = y.reshape(len(a), repeats, -1).astype(float)
            predicted = _mean(model, a.astype(jnp.float32), w.astype(jnp.float32), gain)
            # From single read-outs, so that the chip's own noise is the floor to compare with.
            squared.append(((y - np.asarray(predicted)[:, None]) ** 2).mean())
            noise.append(y.var(1, ddof=1).mean())
        errors.append(float(np.sqrt(np.mean(squared))))
        floors.append(float(np.sqrt(np.mean(noise))))
    return Fidelity(tuple(active), tuple(errors), tuple(floors))


@jax.jit
def _mean(model: Any, inputs: Any, weights: Any, gain: Any) -> Any:
    return model.counts(inputs, weights, gain)
