"""`fidelity`: how far a model is from its chip, over the number of active rows.

```python
import jax

from jaxeff.analog_hardware import Chip, Design, Linear, fidelity

chip, design = Chip(3, rows=16, columns=8), Design(rows=16, columns=8, active=(1, 8, 16))
found = fidelity(jax.random.key(0), Linear(), chip, design, active=(4, 16), vectors=8, gain=0.004)
print(found)                                             # a row for 4 and for 16 active rows
assert found.error[1] > found.floor[1]                   # a real chip isn't ideal
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.analog_hardware.chips._characterize import (
    Design,
    random_inputs,
    random_weights,
    read_counts,
)
from jaxeff.analog_hardware.chips._queries import Query, check_query
from jaxeff.analog_hardware.crossbar import TileModel
from jaxeff.core import (
    Table,
    check_key,
    instance_of,
    positive,
    static_integer,
    static_integers,
    validate,
)


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
        return str(Table(("active rows>", "error>", "noise>", "ratio>"), rows))

    __repr__ = __str__


@validate(
    model=instance_of(TileModel),
    design=instance_of(Design),
    active=static_integers(1),
    vectors=static_integer(),
    gain=positive,
)
def fidelity(
    key: Any,
    model: TileModel,
    query: Query,
    design: Design | None = None,
    *,
    active: Sequence[int] = (8, 32, 128),
    vectors: int = 64,
    repeats: int = 8,
    gain: float = 1.0,
) -> Fidelity:
    """Measures a model on new weights and vectors that it wasn't fitted to.

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
    check_key("fidelity: key", key)
    check_query("fidelity", query)
    design = design or Design()
    errors, floors = [], []
    for i, n in enumerate(active):
        squared, noise = [], []
        # Several weight matrices: errors differ from matrix to matrix.
        for j in range(4):
            draw, chosen, own = jax.random.split(
                jax.random.fold_in(jax.random.fold_in(key, i), j), 3
            )
            w = random_weights(draw, design)
            a = random_inputs(chosen, design, -(-vectors // 4), n)
            y = read_counts(query, own, w, np.repeat(np.asarray(a), repeats, 0))
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
