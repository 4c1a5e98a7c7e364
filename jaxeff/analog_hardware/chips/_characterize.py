"""`characterize`: what is measured of a chip before any model of it is fitted.

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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.analog_hardware.chips._chip import INPUT_TOP, WEIGHT_TOP
from jaxeff.analog_hardware.chips._queries import Hardware, Query, check_query, query_counts
from jaxeff.core import Count, Setting, check_key, instance_of, validate

LEAST_REPEATS = 8
"""Fewer leave a variance with a standard error above half of itself."""


@dataclass(frozen=True)
class Design(Setting):
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

    rows: Annotated[int, Count(1)] = 128
    columns: Annotated[int, Count(1)] = 256
    programs: Annotated[int, Count(2)] = 32
    levels: tuple[int, ...] = (4, 10, 17, 24, 31)
    averages: Annotated[int, Count(1)] = 2
    drives: Annotated[int, Count(1)] = 32
    vectors: Annotated[int, Count(1)] = 128
    active: tuple[int, ...] = (1, 8, 32, 64, 128)
    repeats: Annotated[int, Count(1)] = 32
    input_top: Annotated[int, Count(1)] = INPUT_TOP
    weight_top: Annotated[int, Count(1)] = WEIGHT_TOP

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


@validate(design=instance_of(Design))
def characterize(key: Any, query: Query, design: Design | None = None) -> Characterization:
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
    check_key("characterize: key", key)
    check_query("characterize", query)
    design = design or Design()
    keys = jax.random.split(key, 3)
    return Characterization(
        design,
        _singles(keys[0], query, design),
        _drives(keys[1], query, design),
        _noise(keys[2], query, design),
    )


def read_counts(query: Query, key: Any, weights: Any, inputs: Any, order: Any = None) -> np.ndarray:
    """Runs one compiled query, for the host."""
    given = (key, jnp.asarray(weights, jnp.int32), jnp.asarray(inputs, jnp.int32))
    orders = () if order is None else (jnp.asarray(order, jnp.int32),)
    if isinstance(query, Hardware):
        return np.asarray(_compiled(query, *given, *orders))
    return np.asarray(query_counts("characterize", query, *given, *orders))


@jax.jit
def _compiled(query: Any, *given: Any) -> Any:
    return query.query(*given)


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


def _singles(key: Any, query: Query, design: Design) -> Singles:
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
    # The offset is subtracted from single rows, so its own error enters all of them: read
    # often.
    silent = np.zeros((max(64, 2 * design.repeats), design.rows), np.int32)
    offset = read_counts(query, jax.random.fold_in(key, design.programs), weights[0], silent).mean(
        0
    )
    return Singles(np.stack(weights), levels, np.stack(counts) - offset, offset)


def _drives(key: Any, query: Query, design: Design) -> Drives:
    weights, inputs, counts = [], [], []
    for i in range(design.drives):
        draw, vectors, noise = jax.random.split(jax.random.fold_in(key, i), 3)
        w, a = random_weights(draw, design), random_inputs(vectors, design, design.vectors)
        weights.append(np.asarray(w))
        inputs.append(np.asarray(a))
        counts.append(read_counts(query, noise, w, a))
    return Drives(np.stack(weights), np.stack(inputs), np.stack(counts))


def _noise(key: Any, query: Query, design: Design) -> NoiseMeasurement:
    # Vectors per number of active rows, whose variances are averaged.
    different = 8
    variances = []
    for i, active in enumerate(design.active):
        draw, vectors, noise = jax.random.split(jax.random.fold_in(key, i), 3)
        w = random_weights(draw, design)
        a = np.asarray(random_inputs(vectors, design, different, active))
        y = read_counts(query, noise, w, np.repeat(a, design.repeats, 0))
        y = y.reshape(different, design.repeats, -1)
        # Within repeats of one vector, then averaged over vectors: signals don't count as
        # noise.
        variances.append(y.var(1, ddof=1).mean(0))
    return NoiseMeasurement(np.asarray(design.active), np.stack(variances))
