"""`compensate_drift`: recalibration of a chip whose columns have drifted.

```python
import jax

from jaxeff.analog_hardware import Chip, Design, compensate_drift, reference

chip, design = Chip(3, rows=16, columns=8), Design(rows=16, columns=8, active=(8,))
before = reference(jax.random.key(0), chip, design)
correction = compensate_drift(jax.random.key(0), chip.after(24.0), before, design)
```

The same codes are sent as when the chip was characterised; what each column answers now is brought
back to what it answered then by one gain and one offset per column, after conversion. Nothing is
trained again. A `Crossbar` takes the result as its `correction`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.analog_hardware.chips import (
    Design,
    Query,
    check_query,
    random_inputs,
    random_weights,
    read_counts,
)
from jaxeff.analog_hardware.crossbar import Correction
from jaxeff.core import check_key, instance_of, static_integer, validate


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


@validate(design=instance_of(Design), vectors=static_integer())
def reference(
    key: Any, query: Query, design: Design | None = None, vectors: int = 128, repeats: int = 8
) -> Reference:
    """Sends random vectors of all sizes, which `compensate_drift` sends again later.

    Args:
        key: Random key of the codes, and of a twin's noise.
        query: The chip.
        design: The size of the array and its codes.
        vectors: Number of different vectors.
        repeats: Read-outs of each.
    """
    check_key("reference: key", key)
    check_query("reference", query)
    design = design or Design()
    draw, chosen, noise = jax.random.split(key, 3)
    # Sums from near zero to full drive, which tell a column's gain from its offset.
    w, a = random_weights(draw, design), random_inputs(chosen, design, vectors)
    counts = _mean(query, noise, w, a, repeats)
    return Reference(np.asarray(w), np.asarray(a), counts)


@validate(before=instance_of(Reference), design=instance_of(Design))
def compensate_drift(
    key: Any, query: Query, before: Reference, design: Design | None = None, repeats: int = 8
) -> Correction:
    """Fits a gain and an offset per column that undo a chip's drift.

    Args:
        key: Random key of a twin's noise.
        query: The chip as it is now.
        before: Answers of the chip when it was characterised.
        design: The size of the array.
        repeats: Read-outs of each vector.

    Raises:
        ValueError: A column doesn't answer any more: its counts don't depend on what is sent.
    """
    check_key("compensate_drift: key", key)
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
    counts = read_counts(query, key, weights, np.repeat(np.asarray(inputs), repeats, 0))
    return counts.reshape(len(inputs), repeats, -1).mean(1)
