"""The kernels of a module: its TIR functions."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import tirx


def map_kernels(
    mod: tvm.IRModule, rewrite: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """Return a copy of a module in which every kernel is rewritten."""
    result = mod.clone()
    for name, function in mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            result[name] = rewrite(function)
    return result
