"""The nearest of a few given levels, for codebooks, learned bases and tables of levels.

Levels lie along a last axis of their own, `[..., levels]`, and are sorted along it: `[levels]` for
one set, or of size one along every axis of the array but those that have sets of their own. A value
in the middle between two levels belongs to the lower one.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer

from jaxeff.compression.numerics._grid import wide_dtype
from jaxeff.core import with_leading_axes


@jax.jit
def nearest(x: Float[Array, "*shape"], levels: Float[Array, "..."]) -> Integer[Array, "*shape"]:
    """Finds the index of the level nearest to each value; for NaN it is 0."""
    # Halved before adding: the sum of two large levels would overflow.
    middles = levels[..., 1:] / 2 + levels[..., :-1] / 2
    count = middles.shape[-1]
    codes = jnp.zeros(x.shape, jnp.int32)
    # By bisection, one bit at a time: an array of values by levels would be hundreds of times x.
    for bit in reversed(range(count.bit_length())):
        further = codes + 2**bit
        at = lookup_levels(middles, jnp.minimum(further, count) - 1)
        codes = jnp.where((further <= count) & (x > at), further, codes)
    return codes


def lookup_levels(levels: Float[Array, "..."], codes: Integer[Array, "*shape"]) -> Array:
    """Looks up the levels of codes; the gradient of a level is the sum over its members."""
    levels = with_leading_axes(levels, (*codes.shape, levels.shape[-1]))
    return jnp.take_along_axis(levels, codes[..., None], axis=-1, mode="clip")[..., 0]


@functools.partial(jax.jit, static_argnums=(2, 3))
def sums(
    x: Float[Array, "*shape"], codes: Integer[Array, "*shape"], count: int, shape: tuple[int, ...]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Counts the values of each code, and sums them in float32 at least.

    Args:
        x: Values.
        codes: Their codes, 0 to `count` - 1.
        count: Number of codes.
        shape: Shape of one set of levels; as `jaxeff.compression.numerics.kept_axes` gives it.

    Returns:
        Two arrays of the shape `(*shape, count)`.
    """
    x = at_least_float32(x)
    # The number of the set (such as the channel) that each value belongs to: one segment
    # sum then serves all sets.
    sets: Any = jnp.zeros(x.shape, jnp.int32)
    total = 1
    for axis, size in enumerate(shape):
        if size > 1:
            sets = sets * size + lax.broadcasted_iota(jnp.int32, x.shape, axis)
            total *= size
    flat = (sets * count + codes).ravel()

    def add(values: Array) -> Array:
        return jax.ops.segment_sum(values.ravel(), flat, total * count).reshape((*shape, count))

    return add(jnp.ones_like(x)), add(x)


def at_least_float32(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Casts an array to float32 at least."""
    return x.astype(wide_dtype(x))


def least_squares(gram: Float[Array, "... n n"], right: Float[Array, "... n"]) -> Array:
    """Solves normal equations; where bases coincide, by the shortest solution."""
    # Two equal bases make the Gram matrix singular; the pseudoinverse still gives a finite
    # solution.
    inverse = jnp.linalg.pinv(gram, hermitian=True)
    return jnp.sum(inverse * right[..., None, :], axis=-1)
