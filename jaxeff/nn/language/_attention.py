"""Attention to a cache, and caches of 8 bits.

A function lowered for export holds `cached_attention` as the composite `jaxeff.cached_attention`,
whose decomposition is the plain attention below: the artifact runs wherever StableHLO runs, and an
operator library that knows the name reads only the slots that are filled. Operands, in order:

    query       float32, [batch, length, heads, size]
    keys        float32, or codes in int8, [batch, room, key heads, size]
    values      the same
    before      int32, []: how many slots were filled before these queries
    key_steps   float32, [batch, room, key heads], beside codes: key = code times step
    value_steps the same

Query t attends to the slots up to `before + t`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Int8

from jaxeff.core import jax_internals as _compat

_MOST = 127.0  # of a symmetric code of 8 bits


class Int8Rows(NamedTuple):
    """Keys or values in 8 bits, each head and slot with a step of its own.

    Attributes:
        codes: Whole numbers from -127 to 127.
        steps: What a unit of each head and slot is worth.
    """

    codes: Int8[Array, "batch room heads size"]
    steps: Float[Array, "batch room heads"]

    @classmethod
    def of(cls, x: Float[Array, "batch room heads size"]) -> Int8Rows:
        """Rounds rows to the nearest codes; the largest of a row is exact."""
        largest = jnp.max(jnp.abs(x), axis=-1).astype(jnp.float32)
        # A row of zeros has zeros for codes, whatever its step.
        steps = jnp.where(largest > 0, largest, 1.0) / _MOST
        codes = jnp.round(x.astype(jnp.float32) / steps[..., None])
        return cls(codes.astype(jnp.int8), steps)

    def floats(self) -> Float[Array, "batch room heads size"]:
        """Gives the numbers that the codes stand for."""
        return self.codes.astype(jnp.float32) * self.steps[..., None]


Rows = jax.Array | Int8Rows


def written(
    old: Rows, new: Float[Array, "batch length heads size"], before: Int[Array, ""]
) -> Rows:
    """Puts the rows of new tokens behind those that a cache holds, in its own form.

    Rows beyond the cache's room are left out: they may be what fills a block up.
    """
    rows = Int8Rows.of(new) if isinstance(old, Int8Rows) else new.astype(old.dtype)
    room, length = jax.tree.leaves(old)[0].shape[1], new.shape[1]
    # XLA moves a window back until it ends inside, over rows that earlier tokens wrote. So it is
    # begun where it ends inside, and its first rows are those that are there.
    begin = jnp.minimum(before, room - length)
    moved = before - begin

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        there = jax.lax.dynamic_slice_in_dim(old, begin, length, axis=1)
        both = jnp.concatenate([there, new], axis=1)
        shifted = jax.lax.dynamic_slice_in_dim(both, length - moved, length, axis=1)
        is_old = (jnp.arange(length) < moved).reshape(-1, *[1] * (old.ndim - 2))
        window = jnp.where(is_old, there, shifted)
        return jax.lax.dynamic_update_slice_in_dim(old, window, begin, axis=1)

    return jax.tree.map(put, old, rows)


def cached_attention(
    query: Float[Array, "batch length heads size"],
    keys: Rows,
    values: Rows,
    before: Int[Array, ""],
) -> Float[Array, "batch length heads size"]:
    """Attends to the slots of a cache that are filled, the queries' own among them."""
    operands: list[jax.Array]
    if isinstance(keys, Int8Rows) or isinstance(values, Int8Rows):
        (key, key_steps), (value, value_steps) = keys, values
        operands = [query, key, value, before, key_steps, value_steps]
    else:
        operands = [query, keys, values, before]
    floats = all(a.dtype in (jnp.float32, jnp.int8) for a in operands if a.ndim)
    # Other dtypes have no kernel: they stay what they are, operation by operation.
    if not floats or before.dtype != jnp.int32:
        return _attention(*operands)[0]
    (mixed,) = _compat.export_composite(_attention, operands, "jaxeff.cached_attention", {})
    return mixed


def _attention(
    query: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    before: jax.Array,
    *steps: jax.Array,
) -> tuple[jax.Array]:
    """Attends to all slots, under a mask of those that are filled."""
    if steps:
        keys, values = (
            Int8Rows(codes, step).floats()
            for codes, step in zip((keys, values), steps, strict=True)
        )
    groups = query.shape[2] // keys.shape[2]
    wide_keys, wide_values = (jnp.repeat(a, groups, 2) for a in (keys, values))
    at = before + jnp.arange(query.shape[1])
    allowed = jnp.arange(keys.shape[1])[None] <= at[:, None]
    return (nnx.dot_product_attention(query, wide_keys, wide_values, mask=allowed[None, None]),)
