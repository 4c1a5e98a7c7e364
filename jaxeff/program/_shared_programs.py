"""Compiled functions that layers of one shape share.

Each layer is a function of its own to `jit`, which would compile every block of a decoder anew.
What is lowered for two blocks is the same text, as long as weights, statistics and numbers of grids
are arguments: so the text is what compiled functions are kept by. Tracing and lowering a layer
takes milliseconds where compiling it takes tenths of a second.
"""

from collections.abc import Callable
from typing import Any

import jax


class SharedPrograms:
    """Runs functions of arrays compiled, the same ones once.

    `programs(f, *args)` is `jax.jit(f)(*args)`. Keep one for a loop over layers, and drop it after.
    """

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}

    def __call__(self, f: Callable[..., Any], *args: Any) -> Any:
        """Computes `f(*args)`; what `f` closes over becomes part of the program."""

        # One name for all: that of a function is part of the text.
        def shared(*args: Any) -> Any:
            return f(*args)

        lowered = jax.jit(shared).lower(*args)
        # Settings that differ in name alone lower to the same text, but are arguments of two forms.
        key = lowered.as_text(), lowered.in_tree
        if key not in self._compiled:
            self._compiled[key] = lowered.compile()
        # The structure of results is that of this function, though its program is another's.
        made = self._compiled[key](*args)
        return jax.tree.unflatten(lowered.out_tree, jax.tree.leaves(made))


__all__ = ["SharedPrograms"]
