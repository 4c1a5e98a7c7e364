"""Fold integer and boolean scalars at import time: loop counters, trip counts, static indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

from .attributes import direction
from .types import TensorType

_COMPARE: dict[str, Callable] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_FOLD: dict[str, Callable] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.minimum": np.minimum,
    "stablehlo.maximum": np.maximum,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
    "stablehlo.not": np.invert,
    "stablehlo.negate": np.negative,
    "stablehlo.select": np.where,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "stablehlo.convert": lambda x: x,
    "stablehlo.reshape": lambda x: x,
    "stablehlo.broadcast_in_dim": lambda x: x,
}
_ANY_DTYPE = ("stablehlo.reshape", "stablehlo.broadcast_in_dim")


def fold(
    op: ir.Operation, constants: Sequence[np.ndarray | None], kinds: Sequence[TensorType]
) -> np.ndarray | None:
    """Return the value of ``op`` on splat constants as a 0-d array, or None if it isn't folded.

    Only integers and booleans are folded (their arithmetic is exact and the same everywhere);
    moving a splat of any dtype is.
    """
    if len(kinds) != 1 or not constants or any(c is None or c.ndim for c in constants):
        return None
    if op.name not in _ANY_DTYPE and not (
        _integral(kinds[0].dtype) and all(c.dtype.kind in "biu" for c in constants)  # type: ignore[union-attr]
    ):
        return None
    if op.name == "stablehlo.compare":
        return np.asarray(_COMPARE[direction(op)](*constants))
    if op.name not in _FOLD:
        return None
    if kinds[0].dtype == "bool" and op.name in ("stablehlo.subtract", "stablehlo.negate"):
        return None
    with np.errstate(over="ignore"):
        folded = np.asarray(_FOLD[op.name](*constants))
    if op.name == "stablehlo.convert" and kinds[0].dtype == "bool":
        return folded != 0
    return folded.astype(kinds[0].numpy_dtype)


def _integral(dtype: str) -> bool:
    return dtype == "bool" or "int" in dtype
