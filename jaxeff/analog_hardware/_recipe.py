"""`train_for_chip`: from a digital network to one that works on a given chip, in one call.

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

Its white-box stage by hand, of a fitted model such as `box`:

```python
from jaxeff.analog_hardware import analog, growing_noise, with_model, with_noise_level
from jaxeff.training import fit

box = next(iter(result.spec.values())).model
boxed = with_model(result.spec, box)
loss = growing_noise(f, boxed, optax.linear_schedule(0.0, 1.0, 2))
run = {"optimizer": optax.adam(1e-3), "epochs": 1, "batch_size": 64, "progress": False}
fit(jax.random.key(0), loss, result.params, (x - x.min(), y), **run)
silent = analog(f, with_noise_level(boxed, 0.0))(jax.random.key(0), result.params, x - x.min())
```

The recipe of Klein's thesis, chapter 5: a digital network, quantization-aware training, training
through a white box with noise that grows from nothing to what was measured, and a few epochs with
the chip in the loop. The noise grows over the first half of the epochs: an optimizer whose rate
decays would learn little of noise that is whole at their end alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxeff.analog_hardware._in_the_loop import in_the_loop
from jaxeff.analog_hardware.chips import (
    Design,
    Query,
    calibrate_ranges,
    characterize,
    check_query,
    fit_white_box,
)
from jaxeff.analog_hardware.crossbar import Crossbar, analog
from jaxeff.core import (
    check_count,
    check_key,
    function_of_form,
    instance_of,
    labelled_data,
    non_negative,
    path_like,
    spec_of,
    static_integers,
    string,
    validate,
)
from jaxeff.hardening import incremental_noise
from jaxeff.training import Loss, cross_entropy, fit

STAGES = ("quantized", "white_box", "in_the_loop")


class ForChip(NamedTuple):
    """A network that was trained for a chip.

    Attributes:
        params: The parameters.
        spec: The crossbars, with ranges and the white box, for `analog` and `in_the_loop`.
        history: The records of each stage, by its name.
    """

    params: Any
    spec: dict[str, Crossbar]
    history: dict[str, Any]


@validate(
    data=labelled_data,
    sites=string,
    array=instance_of(Crossbar),
    epochs=static_integers(),
    design=instance_of(Design),
    checkpoints=path_like,
)
def train_for_chip(
    key: Any,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    query: Query,
    *,
    sites: str = "*:linear",
    array: Crossbar | None = None,
    optimizer: optax.GradientTransformation,
    epochs: tuple[int, int, int],
    batch_size: int,
    design: Design | None = None,
    checkpoints: str | Path | None = None,
    progress: bool | None = None,
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
        optimizer: Optimizer of every stage, which starts it anew.
        epochs: Epochs of quantization-aware training, of the white box, and in the loop; 0 leaves a
            stage out.
        batch_size: Examples per update.
        design: Sizes of the measurements of the chip.
        checkpoints: Folder for a checkpoint of every stage, with which a call that failed goes on.
        progress: Whether to show bars.

    Raises:
        RuntimeError: A callable failed; what the last epochs left is in `checkpoints`.
        ValueError: A layer reads negative activations, or a count is negative.
    """
    check_key("train_for_chip: key", key)
    check_query("train_for_chip", query)
    for stage, count in zip(STAGES, epochs, strict=True):
        check_count(f"train_for_chip: epochs of {stage}", count, 0)
    keys = dict(zip((*STAGES, "measured"), jax.random.split(key, 4), strict=True))
    x, labels = data
    spec = {sites: array or Crossbar(gain=0.004)}
    # Fixed ranges: the codes of a deployed network must not depend on its batch.
    spec = calibrate_ranges(f, params, [x[: max(batch_size, 256)]], spec)
    design = design or Design(rows=_one(spec).rows, columns=_one(spec).columns)
    # Measured once: the white box then replaces the chip in all stages but the last.
    box = fit_white_box(characterize(keys["measured"], query, design))
    boxed = with_model(spec, box)
    # The ramp ends halfway: the rest of the stage learns under the noise that was measured.
    steps = epochs[1] * (len(labels) // batch_size)

    losses: dict[str, Loss] = {
        "quantized": cross_entropy(analog(f, spec), keyed=True),
        "white_box": growing_noise(f, boxed, optax.linear_schedule(0.0, 1.0, max(steps // 2, 1))),
        "in_the_loop": cross_entropy(in_the_loop(f, boxed, query), keyed=True),
    }
    history: dict[str, Any] = {}
    for stage, count in zip(STAGES, epochs, strict=True):
        if not count:
            continue
        file = None if checkpoints is None else Path(checkpoints) / f"{stage}.safetensors"
        result = fit(
            keys[stage], losses[stage], params, data, optimizer=optimizer, epochs=count,
            batch_size=batch_size, checkpoint=file, progress=progress,
        )  # fmt: skip
        params, history[stage] = result.params, result.history
    return ForChip(params, boxed, history)


@validate(spec=spec_of(Crossbar), schedule=function_of_form("schedule(step)"))
def growing_noise(
    f: Callable[..., Any], spec: Mapping[str, Crossbar], schedule: optax.Schedule
) -> Loss:
    """Makes a cross entropy through models whose noise follows a schedule, from 0 to 1.

    "Incremental noise" of Klein's thesis, section 5.3.1; it doesn't give the shape of the ramp.
    """

    def at(level: Any) -> Loss:
        return cross_entropy(analog(f, with_noise_level(spec, level)), keyed=True)

    return incremental_noise(at, schedule)(1.0)


@validate(spec=spec_of(Crossbar))
def with_model(spec: Mapping[str, Crossbar], model: Any) -> dict[str, Crossbar]:
    """Sets the model of a spec's crossbars."""
    return {site: dataclasses.replace(array, model=model) for site, array in spec.items()}


@validate(spec=spec_of(Crossbar), level=non_negative)
def with_noise_level(spec: Mapping[str, Crossbar], level: Any) -> dict[str, Crossbar]:
    """Sets the share of their measured noise for a spec's fitted models, 0 to 1."""

    def quieter(model: Any) -> Any:
        return dataclasses.replace(model, noise=dataclasses.replace(model.noise, level=level))

    return {
        site: dataclasses.replace(array, model=quieter(array.model)) for site, array in spec.items()
    }


def _one(spec: Mapping[str, Crossbar]) -> Crossbar:
    return next(iter(spec.values()))
