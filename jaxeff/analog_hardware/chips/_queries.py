"""The query of a chip, a synthetic one or a Python callable, in one form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np


@runtime_checkable
class Hardware(Protocol):
    """A chip whose query is JAX, as a `Chip`'s is: it is traced, and vmapped over chips."""

    def query(self, key: Any, weights: Any, inputs: Any, order: Any = None) -> Any:
        """Reads counts `[vectors, columns]` of integer codes, as `Chip.query` does."""
        ...


Query = Hardware | Callable[..., Any]
"""A `Hardware`, or a Python callable `query(key, weights, inputs)` on numpy arrays: `key` is the
data of a random key (uint32), `weights` `[rows, columns]` and `inputs` `[vectors, rows]` are int32
codes; it returns integer counts `[vectors, columns]`."""


def check_query(where: str, query: Any) -> None:
    """Checks that a chip can be queried.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(query, type) or not (isinstance(query, Hardware) or callable(query)):
        raise TypeError(
            f"{where}: query must be a chip with a method query(key, weights, inputs), such as "
            f"Chip(3), or a function of that form, not {query!r}."
        )


def query_counts(
    where: str, query: Query, key: Any, weights: Any, inputs: Any, order: Any = None
) -> Any:
    """Queries a chip, traced for a `Hardware`, by a callback for a function.

    Raises:
        RuntimeError: A function raised; under `jit` it comes as JAX's own error with this text.
        TypeError: It returned no integers, or takes no order.
        ValueError: It returned another shape.
    """
    if isinstance(query, Hardware):
        return query.query(key, weights, inputs, *(() if order is None else (order,)))
    shape = jax.ShapeDtypeStruct((inputs.shape[0], weights.shape[1]), jnp.int32)

    def call(seed: Any, w: Any, a: Any, *orders: Any) -> np.ndarray:
        return called(where, query, np.asarray(seed), np.asarray(w), np.asarray(a), *orders)

    # Callbacks get NumPy arrays, and a key is none: its data goes instead.
    seed = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    given = (seed, weights, inputs, *(() if order is None else (order,)))
    # One after the other under `vmap`: hardware holds one matrix at a time.
    return jax.pure_callback(call, shape, *given, vmap_method="sequential")


def called(where: str, query: Any, seed: Any, weights: Any, inputs: Any, *order: Any) -> np.ndarray:
    """Calls a Python callable and checks the form of its counts."""
    try:
        counts = np.asarray(query(seed, weights, inputs, *map(np.asarray, order)))
    except Exception as error:
        raise RuntimeError(
            f"{where}: the query of the chip failed ({type(error).__name__}: {error}). A training "
            "with a checkpoint goes on from its last epoch when it is called again."
        ) from error
    wanted = (inputs.shape[0], weights.shape[1])
    if counts.shape != wanted:
        raise ValueError(
            f"{where}: the query must return counts {list(wanted)}, [vectors, columns], but "
            f"returned {list(counts.shape)}."
        )
    if counts.dtype.kind not in "iu":
        raise TypeError(
            f"{where}: the query must return integer counts, but returned {counts.dtype}; convert "
            "them as the hardware's converter does."
        )
    return counts.astype(np.int32)
