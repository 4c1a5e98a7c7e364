"""Black boxes of a column: a transformer that knows the order of events, and ones that don't.

```python
import jax

from jaxeff.analog_hardware import Chip, Design, fit_sequence, measure_events

chip = Chip(3, rows=16, columns=4)
design = Design(rows=16, columns=4, active=(8,))
events = measure_events(
    jax.random.key(0), chip, design, columns=2, active=8, programs=2, vectors=64
)
model = fit_sequence(jax.random.key(1), events, position="time", epochs=2, progress=False)
error = model.error(events)                               # squared counts, one per column
```

One small transformer per column (T1877-1890) gets the events of a vector as a sequence: input code,
weight code, and, apart from each other, the row (which synapse) and the time (when). With
`position="time"` the time is the true one; with "permuted" it is a random one, anew for every
vector, so that everything but the order is left: the control of the positions themselves; with
"none" the model has no time, a function of the set. Each column's output is a sum over events of
their charge times what the transformer makes of it, plus an offset.

Sharp edges:
    Orders in the data are random for every vector. In one fixed order, time and row would be the
    same thing, and a model without time could tell the order by the row.
    The size of the transformer isn't in the source; it is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxeff.analog_hardware.characterize import Design, random_inputs, random_weights, read
from jaxeff.analog_hardware.order import random_orders
from jaxeff.analog_hardware.queries import Query, check_query
from jaxeff.arguments import check_key
from jaxeff.settings import Choice, Setting, check_count, register_setting, static
from jaxeff.training import fit, stateless

POSITIONS = ("time", "permuted", "none")


class Events(NamedTuple):
    """What columns read after trains of events.

    Attributes:
        inputs: Codes in the order of time over the largest, `[n, events]`.
        weights: Codes of the events' synapses over the largest, `[n, events, columns]`.
        rows: Which row each event came by, int32 `[n, events]`.
        counts: One read-out each, `[n, columns]`.
    """

    inputs: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    counts: np.ndarray

    def split(self, share: float = 0.8) -> tuple[Events, Events]:
        """The first share, and the rest."""
        at = int(share * len(self.counts))
        return Events(*(a[:at] for a in self)), Events(*(a[at:] for a in self))


def measure_events(
    key: Any,
    query: Query,
    design: Design | None = None,
    *,
    columns: int = 4,
    active: int = 32,
    programs: int = 64,
    vectors: int = 64,
) -> Events:
    """Sends random vectors in random orders.

    Args:
        key: Of codes and orders, and of a twin's noise.
        query: A chip that takes an order.
        design: The size of the array.
        columns: How many columns are kept, the first ones.
        active: Events of a vector.
        programs: Weight matrices.
        vectors: Vectors under each.
    """
    check_key("measure_events: key", key)
    check_query("measure_events", query)
    design = design or Design()
    parts = []
    for i in range(programs):
        draw, chosen, shuffled, noise = jax.random.split(jax.random.fold_in(key, i), 4)
        w = np.asarray(random_weights(draw, design))
        a = np.asarray(random_inputs(chosen, design, vectors, active))
        order = np.asarray(random_orders(shuffled, vectors, design.rows))
        y = read(query, noise, w, a, order)[:, :columns]
        sent = np.take_along_axis(a, order, 1)
        rows = order[sent > 0].reshape(vectors, active)
        inputs = sent[sent > 0].reshape(vectors, active)
        parts.append(
            (inputs / design.input_top, w[rows][..., :columns] / design.weight_top, rows, y)
        )
    found = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Events(*(a.astype(np.int32 if i == 2 else np.float32) for i, a in enumerate(found)))


@register_setting
@dataclass(frozen=True)
class SequenceModel(Setting):
    """A transformer per column.

    Attributes:
        params: Its numbers, each with a first axis of columns.
        position: What it knows of time: "time", "permuted" or "none".
    """

    params: Any
    position: Annotated[str, Choice(*POSITIONS)] = static("time")

    def predict(self, events: Events, key: Any = None) -> Float[Array, "n columns"]:
        """The counts of each column; the key is that of permuted times."""
        return _predict(
            self.params, self.position, jax.random.key(0) if key is None else key, events
        )

    def error(self, events: Events) -> Float[Array, " columns"]:
        """The mean squared error of each column, noise of the read-out included."""
        return jnp.mean((self.predict(events) - events.counts) ** 2, 0)


def fit_sequence(
    key: Any,
    events: Events,
    *,
    position: str = "time",
    width: int = 16,
    heads: int = 2,
    rate: float = 3e-3,
    epochs: int = 30,
    batch_size: int = 64,
    progress: bool | None = None,
) -> SequenceModel:
    """Trains a transformer for every column.

    Args:
        key: Random key.
        events: What was measured.
        position: "time", "permuted" or "none"; see the module.
        width: Features per event.
        heads: Of attention; divides the width.
        rate: Learning rate of Adam, which decays to zero.
        epochs: Passes over the events.
        batch_size: Vectors per update.
        progress: Whether to show a bar.

    Raises:
        ValueError: The heads don't divide the width, or another choice is unknown.
    """
    check_key("fit_sequence: key", key)
    for name, count in (("width", width), ("heads", heads)):
        check_count(f"fit_sequence: {name}", count)
    if width % heads:
        raise ValueError(f"fit_sequence: {heads} heads don't divide a width of {width}.")
    start, train = jax.random.split(key)
    columns, length = events.counts.shape[1], events.inputs.shape[1]
    design = int(events.rows.max()) + 1
    keys = jax.random.split(start, columns)
    params = jax.vmap(lambda k: _init(k, design, length, width, heads))(keys)
    params = {**params, **_straight_line(events)}
    model = SequenceModel(params, position)

    def loss(own: Any, p: Any, batch: Any) -> Any:
        return jnp.mean((_predict(p, position, own, batch) - batch.counts) ** 2)

    steps = epochs * (len(events.counts) // batch_size)
    result = fit(
        train, stateless(loss), model.params, events,
        optimizer=optax.adam(optax.cosine_decay_schedule(rate, steps)), epochs=epochs,
        batch_size=batch_size, progress=progress,
    )  # fmt: skip
    return SequenceModel(result.params, position)


def _straight_line(events: Events) -> dict[str, Any]:
    """The offset and the gain that each column starts from."""
    charge = np.einsum("ne,nec->nc", events.inputs, events.weights)
    fits = np.stack(
        [np.polyfit(charge[:, c], events.counts[:, c], 1) for c in range(charge.shape[1])]
    )
    return {"gain": jnp.asarray(fits[:, 0]), "offset": jnp.asarray(fits[:, 1])}


def _init(key: Any, rows: int, length: int, width: int, heads: int) -> dict[str, Any]:
    keys = iter(jax.random.split(key, 9))

    def dense(n: int, m: int, scale: float = 1.0) -> Any:
        return scale * jax.random.normal(next(keys), (n, m)) / np.sqrt(n)

    return {
        "embed": dense(4, width),
        "row": 0.1 * jax.random.normal(next(keys), (rows, width)),
        "when": 0.1 * jax.random.normal(next(keys), (length, width)),
        "lag": jnp.zeros((heads, 2 * length - 1)),
        "mix": dense(width, 3 * width),
        "out": dense(width, width),
        "up": dense(width, 2 * width),
        "down": dense(2 * width, width),
        "charge": 0.1 * dense(width, 1)[:, 0],
    }


def _predict(params: Any, position: str, key: Any, events: Events) -> Any:
    """Every column's counts, `[n, columns]`."""
    length = events.inputs.shape[1]
    time = jnp.broadcast_to(jnp.arange(length), events.inputs.shape)
    if position == "permuted":
        time = jnp.argsort(jax.random.uniform(key, events.inputs.shape), 1)
    lag = time[:, :, None] - time[:, None, :] + length - 1

    def column(p: Any, weights: Any) -> Any:
        h = p["row"][events.rows]
        if position != "none":
            h = h + p["when"][time]
        return _column(p, jnp.asarray(events.inputs), weights, h, lag, position != "none")

    weights = jnp.moveaxis(jnp.asarray(events.weights), 2, 0)
    return jax.vmap(column)(params, weights).T


def _column(p: Any, a: Any, w: Any, h: Any, lag: Any, timed: bool) -> Any:
    charge = a * w
    h = h + jnp.stack([a, w, charge, jnp.abs(charge)], -1) @ p["embed"]
    heads = p["lag"].shape[0]
    n, length, width = h.shape
    mixed = (h @ p["mix"]).reshape(n, length, 3, heads, width // heads)
    q, k, v = (mixed[:, :, i] for i in range(3))
    scores = jnp.einsum("nihd,njhd->nhij", q, k) / np.sqrt(width // heads).astype(np.float32)
    if timed:
        scores = scores + jnp.moveaxis(p["lag"][:, lag], 0, 1)
    seen = jnp.einsum("nhij,njhd->nihd", jax.nn.softmax(scores), v).reshape(n, length, width)
    h = h + seen @ p["out"]
    h = h + jax.nn.gelu(h @ p["up"]) @ p["down"]
    passed = charge * (1 + h @ p["charge"])
    return p["offset"] + p["gain"] * passed.sum(1)
