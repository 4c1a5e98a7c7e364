"""`in_the_loop`: the forward pass on a chip, the backward pass on a model of it.

```python
import jax
import optax

from jaxeff.analog_hardware import Chip, Crossbar, in_the_loop
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, (x, y) = small_classifier()
data = (x - x.min(), y)
spec = {"fc*:linear": Crossbar(gain=0.004)}              # whose model has the gradients
g = in_the_loop(f, spec, Chip(3))                        # g(key, params, x)
loss = cross_entropy(g, keyed=True)
fit(jax.random.key(0), loss, params, data, optimizer=optax.adam(1e-3), epochs=1, batch_size=64)
```

The chip may be a `Chip`, which is traced like anything else and can be vmapped over devices, or a
Python callable ``query(key, weights, inputs)``, which is called back once per tile
(`jaxeff.analog_hardware.chips`). Codes in, counts out: nothing of the chip's inside is used.

Sharp edges:
    A callable that raises stops the training with its message; `fit(checkpoint=...)` keeps the last
    epoch, and goes on from there when it is called again.
    A callable is called in whatever order XLA runs tiles, once per tile and vector batch.

Source: Klein's thesis, table 5.1; Schemmel et al., arXiv:2003.13750; Cramer et al.,
arXiv:2006.07239.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.analog_hardware.chips import Hardware, Query, check_query, query_counts
from jaxeff.analog_hardware.crossbar import Counts, Crossbar, with_chip
from jaxeff.core import validate


@validate()
def in_the_loop(
    f: Callable[..., Any], spec: Mapping[str, Crossbar | None], query: Query
) -> Callable[..., Any]:
    """Runs layers of a model on a chip, with the gradients of the models in the spec.

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

    def one(own: Any, tile: Any, vectors: Any) -> Any:
        return query_counts(f"in_the_loop: {site!r}", query, own, tile, vectors)

    if not isinstance(query, Hardware):  # nothing to be gained from a vmap
        places = [*np.ndindex(groups, down, across)]
        tiles = jnp.stack([one(keys[place], w[place], a[place[:2]]) for place in places])
        return tiles.reshape(groups, down, across, *tiles.shape[1:])
    by_column = jax.vmap(one, (0, 0, None))
    return jax.vmap(jax.vmap(by_column))(keys, w, a)
