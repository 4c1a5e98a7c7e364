"""Black boxes of a column: a transformer that knows the order of events, and ones that don't.

```python
import jax

from jaxeff.analog_hardware import Chip, Crossbar, Design, analog, fit_sequence, measure_events
from jaxeff.nn import small_classifier

chip, design = Chip(3, rows=16, columns=10), Design(rows=16, columns=10, active=(8,))
events = measure_events(
    jax.random.key(0), chip, design, columns=10, active=None, programs=2, vectors=64
)
model = fit_sequence(jax.random.key(1), events, design, position="time", epochs=2, progress=False)
error = model.error(events)                               # squared counts, one per column

f, params, (x, y) = small_classifier()
array = Crossbar(rows=16, columns=10, gain=0.004, model=model)
logits = analog(f, {"fc*:linear": array})(jax.random.key(2), params, x.clip(0))
```
"""

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.analog_hardware._chip import INPUT_TOP, WEIGHT_TOP
from jaxeff.analog_hardware._measurements import Design, Events
from jaxeff.analog_hardware._white_box import ReadOutNoise
from jaxeff.training import fit, stateless

POSITIONS = ("time", "permuted", "shuffled", "none")


@core.register_setting
class SequenceModel(core.Setting):
    """A transformer per column.

    One small transformer per column (Klein's thesis, section 5.4.2) gets the events of a vector as
    a sequence: input code, weight code, and, apart from each other, the row (which synapse) and the
    time (when). With `position="time"` the time is the true one. There are three controls:

    - "permuted": the times of all vectors are permuted alike, as in the source. Events are in a
      wrong order, which learnt positions can find out;
    - "shuffled": times are random, anew for every vector, so that nothing of the order is left;
    - "none": the model has no time, a function of the set.

    Each column's output is a sum over events of their charge times what the transformer makes of
    it, plus an offset.

    On a crossbar a vector's events are its rows whose input isn't zero, in their order.

    Sharp edges:
        The size of the transformer isn't in the source; it is ours.
        Memory and time of a column grow with the square of its rows, for every vector: the gradient
        of 50 vectors through two tiles of 32 by 32 takes a tenth of a second of a processor's core.
        A model that was fitted to trains of one length knows no other;
        `measure_events(active=None)` has all of them.

    Attributes:
        params: The numbers, each with a first axis of columns.
        noise: Noise of the read-out.
        position: Knowledge of time: "time", "permuted", "shuffled" or "none".
        input_top: The largest input code.
        weight_top: The largest magnitude of a weight code.
    """

    params: Any
    noise: ReadOutNoise
    position: Annotated[str, core.Choice(*POSITIONS)] = core.static("time")
    input_top: Annotated[int, core.Count(1)] = core.static(INPUT_TOP)
    weight_top: Annotated[int, core.Count(1)] = core.static(WEIGHT_TOP)

    def predict(self, events: Events, key: Any = None) -> Float[Array, "n columns"]:
        """Predicts the counts of each column; the key is that of shuffled times."""
        weights = jnp.moveaxis(jnp.asarray(events.weights), 2, 0)
        key = jax.random.key(0) if key is None else key
        inputs, rows = jnp.asarray(events.inputs), jnp.asarray(events.rows)
        return _predicted(self.params, self.position, key, inputs, weights, rows)

    def error(self, events: Events) -> Float[Array, " columns"]:
        """Computes the mean squared error of each column, noise of the read-out included."""
        return jnp.mean((self.predict(events) - events.counts) ** 2, 0)

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Predicts the counts of vectors whose events come in the order of the rows.

        Raises:
            ValueError: The tile is larger than what was measured, or times are shuffled.
        """
        del gain
        if self.position == "shuffled":
            raise ValueError(
                "SequenceModel: shuffled times are a control, drawn anew for every vector; fit a "
                "model with position='time', 'permuted' or 'none' for a crossbar."
            )
        rows, columns = weights.shape
        known = self.params["when"].shape[-2], len(self.params["offset"])
        if rows > known[0] or columns > known[1]:
            raise ValueError(
                f"SequenceModel: a tile of {rows} rows and {columns} columns is larger than the "
                f"{known[0]} events and {known[1]} columns that were measured; set "
                "Crossbar(rows=, columns=), or measure_events(active=None, columns=)."
            )
        # A narrower tile lies on the first columns of the array.
        params = jax.tree.map(lambda p: jnp.asarray(p, inputs.dtype)[:columns], self.params)
        return _predict(
            params, self.position, None, inputs / self.input_top,
            (weights / self.weight_top).T[:, None], jnp.arange(rows)[None],
        )  # fmt: skip

    def variance(self, inputs: Any, weights: Any) -> Any:
        """Returns the variance of the columns."""
        return self.noise.variance(inputs, weights.shape[1])


class SequenceOptions(TypedDict, total=False):
    """How large a model of a sequence is, and how it is trained; see `SequenceSettings`."""

    width: int
    heads: int
    rate: float
    epochs: int
    batch_size: int
    progress: bool | None


@dataclass(frozen=True, kw_only=True)
class SequenceSettings:
    """How large a model of a sequence is, and how it is trained.

    Attributes:
        width: Features per event.
        heads: Number of attention heads; divides the width.
        rate: Learning rate of Adam, which decays to zero.
        epochs: Passes over the events.
        batch_size: Vectors per update.
        progress: Whether to show a bar.
    """

    width: int = 16
    heads: int = 2
    rate: float = 3e-3
    epochs: int = 30
    batch_size: int = 64
    progress: bool | None = None

    def check(self) -> None:
        """Refuses counts below 1, and heads that don't divide the width."""
        for name in ("width", "heads"):
            core.check_count(f"fit_sequence: {name}", getattr(self, name))
        if self.width % self.heads:
            raise ValueError(
                f"fit_sequence: {self.heads} heads don't divide a width of {self.width}."
            )


@core.validate(
    events=core.instance_of(Events),
    design=core.instance_of(Design),
    noise=core.instance_of(ReadOutNoise),
    position=core.one_of(*POSITIONS),
    width=core.static_integer(),
    heads=core.static_integer(),
    rate=core.positive,
)
@core.forwards(SequenceSettings, SequenceOptions)
def fit_sequence(
    key: Any,
    events: Events,
    design: Design | None = None,
    *,
    noise: ReadOutNoise | None = None,
    position: str = "time",
    **options: Unpack[SequenceOptions],
) -> SequenceModel:
    """Trains a transformer for every column.

    Args:
        key: Random key.
        events: Measured events.
        design: Size of the array and its codes.
        noise: Noise of the read-out, as `fit_noise` finds it; none if None.
        position: "time", "permuted", "shuffled" or "none"; see `SequenceModel`.
        **options: `width`, the features per event, 16; `heads`, the number of attention heads,
            which divides the width, 2; `rate`, the learning rate of Adam, which decays to zero;
            `epochs`, the passes over the events, 30; `batch_size`, the vectors per update, 64; and
            `progress`, whether to show a bar.

    Raises:
        ValueError: The heads don't divide the width, or another choice is unknown.
    """
    asked = SequenceSettings(**options)
    asked.check()
    design = design or Design()
    start, train = jax.random.split(key)
    columns, length = events.counts.shape[1], events.inputs.shape[1]
    # One network per column, trained side by side by `vmap`: columns share no circuit.
    keys = jax.random.split(start, columns)
    params = jax.vmap(lambda k: _init(k, design.rows, length, asked.width, asked.heads))(keys)
    if noise is None:
        noise = ReadOutNoise(jnp.zeros(columns), jnp.zeros(columns))
    model = SequenceModel(
        {**params, **_straight_line(events)}, noise, position, design.input_top, design.weight_top
    )

    def loss(step_key: Any, p: Any, batch: Any) -> Any:
        weights = jnp.moveaxis(batch.weights, 2, 0)
        predicted = _predict(p, position, step_key, batch.inputs, weights, batch.rows)
        return jnp.mean((predicted - batch.counts) ** 2)

    steps = asked.epochs * (len(events.counts) // asked.batch_size)
    result = fit(
        train, stateless(loss), model.params, events,
        optimizer=optax.adam(optax.cosine_decay_schedule(asked.rate, steps)),
        epochs=asked.epochs, batch_size=asked.batch_size, progress=asked.progress,
    )  # fmt: skip
    return SequenceModel(result.params, noise, position, design.input_top, design.weight_top)


def _straight_line(events: Events) -> dict[str, Any]:
    """Fits the offset and the gain that each column starts from."""
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
        # With lags of zero and a small `charge` the model starts near the ideal sum.
        "lag": jnp.zeros((heads, 2 * length - 1)),
        "mix": dense(width, 3 * width),
        "out": dense(width, width),
        "up": dense(width, 2 * width),
        "down": dense(2 * width, width),
        "charge": 0.1 * dense(width, 1)[:, 0],
    }


def _predict(params: Any, position: str, key: Any, inputs: Any, weights: Any, rows: Any) -> Any:
    """Predicts every column's counts, `[n, columns]`.

    `inputs` are `[n, events]`, of which zeros are none, `weights` `[columns, n, events]` and `rows`
    `[n, events]`; an axis `n` may be 1.
    """
    there = jax.lax.stop_gradient(inputs) > 0
    # Time counts events: rows without a pulse send none and take no time.
    time = jnp.maximum(jnp.cumsum(there, 1) - 1, 0)
    if position == "permuted":
        length = params["when"].shape[-2]
        time = jax.random.permutation(jax.random.key(length), length)[time]
    if position == "shuffled":
        # Ranks of random numbers: events change places, and what isn't sent stays behind.
        draw = jnp.where(there, jax.random.uniform(key, inputs.shape), 2.0)
        time = jnp.argsort(jnp.argsort(draw, 1), 1)
    between = time[:, :, None] - time[:, None, :]

    def column(p: Any, w: Any) -> Any:
        h, bias = p["row"][rows], jnp.zeros((), inputs.dtype)
        if position != "none":
            h = h + p["when"][time]
            # A number per distance in time, learnt: a line's memory fades with it.
            bias = jnp.moveaxis(p["lag"][:, between + p["when"].shape[0] - 1], 0, 1)
        # No attention to events that were not sent.
        bias = jnp.where(there[:, None, None, :], bias, -1e9)
        return _column(p, inputs, w, h, bias)

    return jax.vmap(column)(params, weights).T


_predicted = jax.jit(_predict, static_argnums=1)


def _column(p: Any, a: Any, w: Any, h: Any, bias: Any) -> Any:
    a, w = jnp.broadcast_arrays(a, w)
    charge = a * w
    # With the product and its size, which so small a network would spend itself on.
    h = h + jnp.stack([a, w, charge, jnp.abs(charge)], -1) @ p["embed"]
    heads = p["lag"].shape[0]
    n, length, width = h.shape
    mixed = (h @ p["mix"]).reshape(n, length, 3, heads, width // heads)
    q, k, v = (mixed[:, :, i] for i in range(3))
    scores = jnp.einsum("nihd,njhd->nhij", q, k) / np.sqrt(width // heads).astype(np.float32)
    seen = jnp.einsum("nhij,njhd->nihd", jax.nn.softmax(scores + bias), v)
    h = h + seen.reshape(n, length, width) @ p["out"]
    h = h + jax.nn.gelu(h @ p["up"]) @ p["down"]
    # Starts near the ideal sum: the transformer only learns how much of each event's charge
    # arrives.
    passed = charge * (1 + h @ p["charge"])
    return p["offset"] + p["gain"] * passed.sum(1)
