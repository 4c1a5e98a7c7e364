"""Answers of a chip to trains of events in random orders, for models of sequences.

```python
import jax

from jaxeff.analog_hardware import Chip, Design, measure_events

chip, design = Chip(3, rows=16, columns=4), Design(rows=16, columns=4, active=(8,))
events = measure_events(jax.random.key(0), chip, design, active=8, programs=2, vectors=64)
train, test = events.split()
```

Orders are random for every vector. In one fixed order, time and row would be the same thing, and a
model without time could tell the order by the row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff.analog_hardware.chips._characterize import (
    Design,
    random_inputs,
    random_weights,
    read_counts,
)
from jaxeff.analog_hardware.chips._order import random_orders
from jaxeff.analog_hardware.chips._queries import Query, check_query
from jaxeff.core import check_key, instance_of, static_integer, validate


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


@validate(
    design=instance_of(Design),
    columns=static_integer(),
    active=static_integer(),
    programs=static_integer(),
    vectors=static_integer(),
)
def measure_events(
    key: Any,
    query: Query,
    design: Design | None = None,
    *,
    columns: int = 4,
    active: int | None = 32,
    programs: int = 64,
    vectors: int = 64,
) -> Events:
    """Sends random vectors in random orders.

    Args:
        key: Random key of codes and orders, and of a twin's noise.
        query: A chip that takes an order.
        design: The size of the array.
        columns: Number of columns to keep, the first ones.
        active: Events of a vector; any number from one to all rows if None.
        programs: Weight matrices.
        vectors: Vectors under each.
    """
    check_key("measure_events: key", key)
    check_query("measure_events", query)
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
    found = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Events(*(a.astype(np.int32 if i == 2 else np.float32) for i, a in enumerate(found)))
