"""XLA: a function under `jax.jit`, compiled beforehand."""

from collections.abc import Callable
from typing import Any

import jax


def compiled(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A call of a function, its arguments on the device."""
    program = jax.jit(f).lower(*args).compile()
    return lambda: program(*args)
