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
        # The function of the last call, the form of its arguments, its program and its results'.
        self._last: tuple[Any, Any, Any, Any] | None = None

    def __call__(self, f: Callable[..., Any], *args: Any) -> Any:
        """Computes `f(*args)`; what `f` closes over becomes part of the program."""
        leaves, structure = jax.tree.flatten(args)
        form = structure, [jax.typeof(leaf) for leaf in leaves]
        # A loop over batches or over candidates calls one function: it is lowered once.
        if self._last is None or self._last[0] is not f or self._last[1] != form:
            self._last = f, form, *self._program(f, args)
        *_, program, results = self._last
        return jax.tree.unflatten(results, jax.tree.leaves(program(*args)))

    def _program(self, f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Returns a function's compiled program, and the structure of its results."""

        # One name for all: that of a function is part of the text.
        def shared(*args: Any) -> Any:
            return f(*args)

        lowered = jax.jit(shared).lower(*args)
        # Settings that differ in name alone lower to the same text, but are arguments of two forms.
        key = lowered.as_text(), lowered.in_tree
        if key not in self._compiled:
            self._compiled[key] = lowered.compile()
        # The structure of results is that of this function, though its program is another's.
        return self._compiled[key], lowered.out_tree


__all__ = ["SharedPrograms"]
