"""Floats of 16 bits where they are squared or summed up.

In float16 the square of 256 is infinite and that of 1e-4 zero, bfloat16 has eight bits for a sum of
thousands: norms, distances and mean squares of such arrays are computed in float32.
"""

from typing import Any

import jax
import jax.numpy as jnp


def widened(x: Any) -> jax.Array:
    """Returns an array of floats in float32 at least; others as they are."""
    x = jnp.asarray(x)
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x.astype(jnp.float32) if narrow else x
