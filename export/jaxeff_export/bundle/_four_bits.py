"""Parameters of four bits in a bundle: bytes, of which a file keeps what they say.

No library function that a kernel could call takes four-bit numbers, and memory has none. So the
parameters come as int8, and the function makes int4 of them, which the importer reads as numbers of
eight bits of the same value. Written, bytes of which half is one of two values compress to about
four bits each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_BYTES = {"int4": jnp.int8, "uint4": jnp.uint8}


def with_bytes(
    f: Callable[..., Any], args: Sequence[Any], parameters: int
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a function whose four-bit parameters are bytes, and its arguments.

    Args:
      f: a pure function.
      args: its arguments.
      parameters: number of leading arguments that are parameters.
    """
    leaves, structure = jax.tree.flatten(tuple(args[:parameters]))
    # What is no array is refused later, by its name.
    own = [getattr(leaf, "dtype", None) for leaf in leaves]
    if not any(str(dtype) in _BYTES for dtype in own):
        return f, tuple(args)

    def cast(leaves: Sequence[Any], dtypes: Sequence[Any]) -> tuple[Any, ...]:
        # Others stay what they are, NumPy arrays and numbers too.
        made = [
            jnp.asarray(leaf).astype(dtype) if str(kind) in _BYTES else leaf
            for leaf, dtype, kind in zip(leaves, dtypes, own, strict=True)
        ]
        bound: tuple[Any, ...] = jax.tree.unflatten(structure, made)
        return bound

    # Wrapped, so that arguments keep their names.
    @functools.wraps(f)
    def g(*given: Any) -> Any:
        return f(*cast(jax.tree.leaves(given[:parameters]), own), *given[parameters:])

    # What `integer(...).coded` says of its codes is no attribute that wrapping copies.
    if hasattr(f, "code_grids"):
        setattr(g, "code_grids", f.code_grids)  # noqa: B010
    stored = [_BYTES.get(str(dtype), dtype) for dtype in own]
    return g, (*cast(leaves, stored), *args[parameters:])
