"""Training for a chip: with the chip in the loop, by the whole recipe, and against its drift.

`train_for_chip` goes from a digital network to one that works on a given chip, in one call:

```python
import jax
import optax

from jaxeff.analog_hardware import Chip, Design, train_for_chip
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
result = train_for_chip(
    jax.random.key(0), f, params, (x - x.min(), y), Chip(3), sites="fc*:linear",
    optimizer=optax.adam(1e-3), epochs=(1, 1, 1), batch_size=64,
    design=Design(programs=2, drives=2, vectors=32, repeats=8, active=(8, 64)), progress=False,
)
result.params, result.spec                        # for in_the_loop(f, result.spec, chip)
```

References:
    Klein's thesis, table 5.1; Schemmel et al., arXiv:2003.13750; Cramer et al., arXiv:2006.07239.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxeff import core
from jaxeff.analog_hardware import _measurements as measurements
from jaxeff.analog_hardware._chip import Hardware, Query, check_query, query_counts
from jaxeff.analog_hardware._crossbar import Correction, Crossbar
from jaxeff.analog_hardware._mapping import calibrate_ranges
from jaxeff.analog_hardware._products import Counts, analog, with_chip
from jaxeff.analog_hardware._white_box import fit_white_box
from jaxeff.hardening import incremental_noise
from jaxeff.training import Loss, cross_entropy, fit


@core.validate()
def in_the_loop(
    f: Callable[..., Any], spec: Mapping[str, Crossbar | None], query: Query
) -> Callable[..., Any]:
    """Runs layers of a model on a chip, with the gradients of the models in the spec.

    The forward pass is on the chip, the backward pass on a model of it:

    ```python
    import jax
    import optax
    from jaxeff.analog_hardware import Chip, Crossbar, in_the_loop
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy, fit

    f, params, (x, y) = small_classifier()
    g = in_the_loop(f, {"fc*:linear": Crossbar(gain=0.004)}, Chip(3))        # g(key, params, x)
    fit(jax.random.key(0), cross_entropy(g, keyed=True), params, (x - x.min(), y),
        optimizer=optax.adam(1e-3), epochs=1, batch_size=64)
    ```

    The chip may be a `Chip`, which is traced like anything else and can be vmapped over devices, or
    a Python callable ``query(key, weights, inputs)``, which is called back once per tile
    (`jaxeff.analog_hardware.Hardware`). Codes in, counts out: nothing of the chip's inside is used.

    Sharp edges:
        A callable that raises stops the training with its message; `fit(checkpoint=...)` keeps the
        last epoch, and goes on from there when it is called again.
        A callable is called in whatever order XLA runs tiles, once per tile and vector batch.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Crossbars by site, as for `analog`; a crossbar's `correction` applies to the chip's
            counts.
        query: A chip, or a Python callable.

    Returns:
        A pure function `g(key, params, *args)`; the key is that of the chip's noise.

    Raises:
        TypeError: The spec isn't one of crossbars, or `query` can't be asked.
        ValueError: As for `analog`.
    """
    check_query("in_the_loop", query)

    def at(site: str) -> Counts:
        return lambda key, weights, inputs: _counts(site, query, key, weights, inputs)

    return with_chip(f, spec, at)


def _counts(site: str, query: Query, key: Any, weights: Any, inputs: Any) -> Any:
    """Reads the counts of every tile, with codes converted to integers."""
    # A chip has no gradient; that of the model takes its place once counts are back.
    w, a = (jnp.asarray(jax.lax.stop_gradient(x), jnp.int32) for x in (weights, inputs))
    groups, down, across = w.shape[:3]
    # Tiles are read one after the other, each with noise of its own.
    keys = jax.random.split(key, groups * down * across)
    keys = keys.reshape(groups, down, across, *keys.shape[1:])

    def one(tile_key: Any, tile: Any, vectors: Any) -> Any:
        return query_counts(f"in_the_loop: {site!r}", query, tile_key, tile, vectors)

    if not isinstance(query, Hardware):  # nothing to be gained from a vmap
        places = [*np.ndindex(groups, down, across)]
        tiles = jnp.stack([one(keys[place], w[place], a[place[:2]]) for place in places])
        return tiles.reshape(groups, down, across, *tiles.shape[1:])
    by_column = jax.vmap(one, (0, 0, None))
    return jax.vmap(jax.vmap(by_column))(keys, w, a)


STAGES = ("quantized", "white_box", "in_the_loop")


class ForChip(NamedTuple):
    """A network that was trained for a chip.

    `train_for_chip` makes it by the recipe of Klein's thesis, chapter 5: a digital network,
    quantization-aware training, training through a white box with noise that grows from nothing to
    what was measured, and a few epochs with the chip in the loop. The noise grows over the first
    half of the epochs: an optimizer whose rate decays would learn little of noise that is whole at
    their end alone.

    Attributes:
        params: The parameters.
        spec: The crossbars, with ranges and the white box, for `analog` and `in_the_loop`.
        history: The records of each stage, by its name.
    """

    params: Any
    spec: dict[str, Crossbar]
    history: dict[str, Any]


class StageOptions(TypedDict, total=False):
    """How a chip's network is trained; `StageSettings` has their meaning and defaults."""

    optimizer: Required[optax.GradientTransformation]
    epochs: Required[tuple[int, int, int]]
    batch_size: Required[int]
    design: measurements.Design | None
    checkpoints: str | Path | None
    progress: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageSettings:
    """How a network is trained for a chip.

    Attributes:
        optimizer: Optimizer of every stage, which starts it anew.
        epochs: Epochs of quantization-aware training, of the white box, and in the loop, or 0.
        batch_size: Examples per update.
        design: Sizes of the measurements of the chip.
        checkpoints: Folder for a checkpoint of every stage.
        progress: Whether to show bars.
    """

    optimizer: optax.GradientTransformation
    epochs: tuple[int, int, int]
    batch_size: int
    design: measurements.Design | None = None
    checkpoints: str | Path | None = None
    progress: bool | None = None

    def checkpoint(self, stage: str) -> Path | None:
        """Names the file that keeps a stage."""
        return None if self.checkpoints is None else Path(self.checkpoints) / f"{stage}.safetensors"


@core.validate(
    data=core.labelled_data,
    sites=core.string,
    array=core.instance_of(Crossbar),
    epochs=core.static_integers(),
    design=core.instance_of(measurements.Design),
    checkpoints=core.path_like,
)
@core.forwards(StageSettings, StageOptions)
def train_for_chip(
    key: Any,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    query: Query,
    *,
    sites: str = "*:linear",
    array: Crossbar | None = None,
    **options: Unpack[StageOptions],
) -> ForChip:
    """Retrains a classifier for a chip.

    Args:
        key: Random key.
        f: A pure function `f(params, x)` that returns logits.
        params: Trained digitally.
        data: Non-negative inputs, and integer labels.
        query: The chip, or a Python callable.
        sites: The layers that run on it.
        array: The size and gain; `Crossbar(gain=0.004)`, the twin's, if None.
        **options: `optimizer` of every stage, which starts it anew; `epochs` of quantization-aware
            training, of the white box, and in the loop, or 0; `batch_size`, the examples per
            update; `design`, the sizes of the measurements of the chip; `checkpoints`, a folder for
            a checkpoint of every stage, with which a call that failed goes on; and `progress`,
            whether to show bars.

    Raises:
        RuntimeError: A callable failed; what the last epochs left is in `checkpoints`.
        ValueError: A layer reads negative activations, or a count is negative.
    """
    check_query("train_for_chip", query)
    asked = StageSettings(**options)
    for stage, count in zip(STAGES, asked.epochs, strict=True):
        core.check_count(f"train_for_chip: epochs of {stage}", count, 0)
    *keys, measured = jax.random.split(key, 4)
    x, labels = data
    spec = {sites: array or Crossbar(gain=0.004)}
    # Fixed ranges: the codes of a deployed network must not depend on its batch.
    spec = calibrate_ranges(f, params, [x[: max(asked.batch_size, 256)]], spec)
    one = _one(spec)
    design = asked.design or measurements.Design(rows=one.rows, columns=one.columns)
    # Measured once: the white box then replaces the chip in all stages but the last.
    boxed = with_model(spec, fit_white_box(measurements.characterize(measured, query, design)))
    steps = asked.epochs[1] * (len(labels) // asked.batch_size)
    losses = _losses_of_stages(f, spec, boxed, query, steps)
    history: dict[str, Any] = {}
    for stage, stage_key, count in zip(STAGES, keys, asked.epochs, strict=True):
        if not count:
            continue
        result = fit(
            stage_key, losses[stage], params, data, optimizer=asked.optimizer, epochs=count,
            batch_size=asked.batch_size, checkpoint=asked.checkpoint(stage),
            progress=asked.progress,
        )  # fmt: skip
        params, history[stage] = result.params, result.history
    return ForChip(params, boxed, history)


def _losses_of_stages(
    f: Callable[..., Any],
    spec: Mapping[str, Crossbar],
    boxed: Mapping[str, Crossbar],
    query: Query,
    steps: int,
) -> dict[str, Loss]:
    """Makes what each stage minimises; `steps` are those with the white box, `boxed`."""
    # The ramp ends halfway: the rest of the stage learns under the noise that was measured.
    ramp = optax.linear_schedule(0.0, 1.0, max(steps // 2, 1))
    return {
        "quantized": cross_entropy(analog(f, spec), keyed=True),
        "white_box": growing_noise(f, boxed, ramp),
        "in_the_loop": cross_entropy(in_the_loop(f, boxed, query), keyed=True),
    }


@core.validate(spec=core.spec_of(Crossbar), schedule=core.function_of_form("schedule(step)"))
def growing_noise(
    f: Callable[..., Any], spec: Mapping[str, Crossbar], schedule: optax.Schedule
) -> Loss:
    """Makes a cross entropy through models whose noise follows a schedule, from 0 to 1.

    "Incremental noise" of Klein's thesis, section 5.3.1; it doesn't give the shape of the ramp.

    `train_for_chip` has this stage of a spec with a white box; by hand, with any fitted model:

    ```python
    import jax
    import optax
    from jaxeff.analog_hardware import (
        Chip, Crossbar, Design, characterize, fit_columnar, growing_noise, with_model
    )
    from jaxeff.nn import small_classifier
    from jaxeff.training import fit

    f, params, (x, y) = small_classifier()
    design = Design(programs=2, drives=2, vectors=32, repeats=8, active=(8, 64))
    model = fit_columnar(characterize(jax.random.key(0), Chip(3), design))
    spec = with_model({"fc*:linear": Crossbar(gain=0.004)}, model)
    loss = growing_noise(f, spec, optax.linear_schedule(0.0, 1.0, 2))
    fit(jax.random.key(0), loss, params, (x - x.min(), y),
        optimizer=optax.adam(1e-3), epochs=1, batch_size=64, progress=False)
    ```
    """

    def at(level: Any) -> Loss:
        return cross_entropy(analog(f, with_noise_level(spec, level)), keyed=True)

    return incremental_noise(at, schedule)(1.0)


@core.validate(spec=core.spec_of(Crossbar))
def with_model(spec: Mapping[str, Crossbar], model: Any) -> dict[str, Crossbar]:
    """Sets the model of a spec's crossbars.

    ```python
    from jaxeff.analog_hardware import Crossbar, Wires, with_model

    spec = with_model({"fc*:linear": Crossbar(gain=0.004)}, Wires(resistance=1e-3))
    ```
    """
    return {site: dataclasses.replace(array, model=model) for site, array in spec.items()}


@core.validate(spec=core.spec_of(Crossbar), level=core.non_negative)
def with_noise_level(spec: Mapping[str, Crossbar], level: Any) -> dict[str, Crossbar]:
    """Sets the share of their measured noise for a spec's fitted models, 0 to 1.

    ```python
    import jax
    from jaxeff.analog_hardware import (
        Chip, Crossbar, Design, analog, characterize, fit_linear, with_noise_level
    )
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    design = Design(programs=2, drives=2, vectors=32, repeats=8, active=(8, 64))
    model = fit_linear(characterize(jax.random.key(0), Chip(3), design))
    spec = {"fc*:linear": Crossbar(gain=0.004, model=model)}
    silent = analog(f, with_noise_level(spec, 0.0))(jax.random.key(0), params, x - x.min())
    ```
    """

    def quieter(model: Any) -> Any:
        return dataclasses.replace(model, noise=dataclasses.replace(model.noise, level=level))

    return {
        site: dataclasses.replace(array, model=quieter(array.model)) for site, array in spec.items()
    }


def _one(spec: Mapping[str, Crossbar]) -> Crossbar:
    return next(iter(spec.values()))


class Reference(NamedTuple):
    """Answers of a chip to known codes.

    Attributes:
        weights: int32 `[rows, columns]`.
        inputs: int32 `[vectors, rows]`.
        counts: Means over repeats, `[vectors, columns]`.
    """

    weights: np.ndarray
    inputs: np.ndarray
    counts: np.ndarray


@core.validate(design=core.instance_of(measurements.Design), vectors=core.static_integer())
def reference(
    key: Any,
    query: Query,
    design: measurements.Design | None = None,
    vectors: int = 128,
    repeats: int = 8,
) -> Reference:
    """Sends random vectors of all sizes, which `compensate_drift` sends again later.

    ```python
    import jax
    from jaxeff.analog_hardware import Chip, Design, reference

    design = Design(rows=16, columns=8, active=(8,))
    before = reference(jax.random.key(0), Chip(3, rows=16, columns=8), design)
    ```

    Args:
        key: Random key of the codes, and of a twin's noise.
        query: The chip.
        design: The size of the array and its codes.
        vectors: Number of different vectors.
        repeats: Read-outs of each.
    """
    check_query("reference", query)
    design = design or measurements.Design()
    draw, chosen, noise = jax.random.split(key, 3)
    # Sums from near zero to full drive, which tell a column's gain from its offset.
    w, a = (
        measurements.random_weights(draw, design),
        measurements.random_inputs(chosen, design, vectors),
    )
    counts = _mean(query, noise, w, a, repeats)
    return Reference(np.asarray(w), np.asarray(a), counts)


@core.validate(before=core.instance_of(Reference), design=core.instance_of(measurements.Design))
def compensate_drift(
    key: Any,
    query: Query,
    before: Reference,
    design: measurements.Design | None = None,
    repeats: int = 8,
) -> Correction:
    """Fits a gain and an offset per column that undo a chip's drift.

    ```python
    import jax
    from jaxeff.analog_hardware import Chip, Design, compensate_drift, reference

    chip, design = Chip(3, rows=16, columns=8), Design(rows=16, columns=8, active=(8,))
    before = reference(jax.random.key(0), chip, design)
    correction = compensate_drift(jax.random.key(0), chip.after(24.0), before, design)
    ```

    The same codes are sent as when the chip was characterised; what each column answers now is
    brought back to what it answered then by one gain and one offset per column, after conversion.
    Nothing is trained again. A `Crossbar` takes the result as its `correction`.

    Args:
        key: Random key of a twin's noise.
        query: The chip as it is now.
        before: Answers of the chip when it was characterised.
        design: The size of the array.
        repeats: Read-outs of each vector.

    Raises:
        ValueError: A column doesn't answer any more: its counts don't depend on what is sent.
    """
    check_query("compensate_drift", query)
    now = _mean(query, key, before.weights, before.inputs, repeats)
    centred, wanted = now - now.mean(0), before.counts - before.counts.mean(0)
    power = (centred**2).sum(0)
    # With hardly any signal left, the gain below would amplify noise.
    dead = np.flatnonzero((power < 1e-3 * (wanted**2).sum(0)) | (power == 0))
    if len(dead):
        raise ValueError(
            f"compensate_drift: column {dead[0]} (and {len(dead) - 1} others) answers the same "
            "whatever is sent; a correction can't bring it back: leave its column out."
        )
    # Least squares of then on now: cov(now, then) / var(now), through both means.
    scale = (centred * wanted).sum(0) / power
    shift = before.counts.mean(0) - scale * now.mean(0)
    return Correction(jnp.asarray(scale, jnp.float32), jnp.asarray(shift, jnp.float32))


def _mean(query: Query, key: Any, weights: Any, inputs: Any, repeats: int) -> np.ndarray:
    counts = measurements.read_counts(
        query, key, weights, np.repeat(np.asarray(inputs), repeats, 0)
    )
    return counts.reshape(len(inputs), repeats, -1).mean(1)
