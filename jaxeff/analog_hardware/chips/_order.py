"""`order_effect`: whether the order in which a chip gets the terms of a sum changes the sum.

```python
import dataclasses
import jax

from jaxeff.analog_hardware import PUBLISHED_PHYSICS, Chip, Design, order_effect

design = Design(rows=16, columns=8, active=(16,))
chip = Chip(3, rows=16, columns=8)
print(order_effect(jax.random.key(0), chip, design))                # order and control
static = dataclasses.replace(chip, physics=dataclasses.replace(PUBLISHED_PHYSICS, ordered=False))
print(order_effect(jax.random.key(0), static, design))              # zero but for noise
```

The same codes reach the same synapses at other times: rows keep their synapses, so mismatch can't
pass for an effect of order. Permuting rows instead would send every code to another synapse.

Source: Klein's thesis, section 5.4; Kuhn et al., arXiv:2309.14292.
"""

from __future__ import annotations

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
from jaxeff.core import check_key, instance_of, static_integer, validate


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


@validate(
    design=instance_of(Design),
    active=static_integer(),
    vectors=static_integer(),
    orders=static_integer(),
)
def order_effect(
    key: Any,
    query: Query,
    design: Design | None = None,
    *,
    active: int | None = None,
    vectors: int = 16,
    orders: int = 16,
    repeats: int = 8,
) -> OrderEffect:
    """Sends the same operands in many orders.

    Args:
        key: Random key of codes and orders, and of a twin's noise.
        query: A `Chip`, or a callable that takes a fourth argument, the order `[vectors, rows]`.
        design: The size of the array.
        active: Active rows; all of them if None.
        vectors: Different vectors.
        orders: Orders of each.
        repeats: Read-outs of each order, from which the noise is known.
    """
    check_key("order_effect: key", key)
    check_query("order_effect", query)
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
