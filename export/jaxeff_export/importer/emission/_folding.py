"""Folds small constants at import time: loop counters, trip counts, static indices, tables.

Only integers and booleans are computed with (their arithmetic is exact and the same everywhere);
constants of any dtype are moved about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

from jaxeff_export.importer.reading import TensorType, attribute, direction, integers

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
}
_SPLATS = ("stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.slice")
_MOVE: dict[str, Callable[..., np.ndarray]] = {
    "stablehlo.reshape": lambda op, kind, x: x.reshape(kind.shape),
    "stablehlo.slice": lambda op, kind, x: x[tuple(map(slice, *_slice_bounds(op)))],
    "stablehlo.concatenate": lambda op, kind, *xs: np.concatenate(xs, attribute(op, "dimension")),
    "stablehlo.transpose": lambda op, kind, x: x.transpose(integers(op, "permutation")),
    "stablehlo.dynamic_slice": lambda op, kind, x, *starts: x[
        tuple(
            slice(begin, begin + size)
            for start, size, n in zip(starts, kind.shape, x.shape, strict=True)
            for begin in [min(max(int(start), 0), n - size)]
        )
    ],
}
MAX_FOLDED = 1024  # elements


def fold(
    op: ir.Operation,
    operands: Sequence[np.ndarray | None],
    shapes: Sequence[tuple[int, ...]],
    kinds: Sequence[TensorType],
) -> np.ndarray | None:
    """Returns the value of ``op`` on constants, or None if it isn't folded.

    Args:
        op: the operation.
        operands: the constants it is applied to, of rank 0 for a splat; None for what is unknown.
        shapes: the operands' shapes.
        kinds: the types of its results.

    Returns:
        An array of the result's shape, or of rank 0 where all elements are the same.
    """
    if len(kinds) != 1 or not operands:
        return None
    (kind,) = kinds
    constants = [c for c in operands if c is not None]
    if len(constants) < len(operands):
        return None
    # A splat is one element whatever its shape; full arrays are folded only while small.
    if all(c.ndim == 0 for c in constants):
        if op.name in _SPLATS:
            return constants[0]
    elif kind.size > MAX_FOLDED or any(c.size > MAX_FOLDED for c in constants):
        return None
    if op.name in _MOVE and kind.size <= MAX_FOLDED:
        full = [np.broadcast_to(c, shape) for c, shape in zip(constants, shapes, strict=True)]
        return _MOVE[op.name](op, kind, *full).astype(kind.numpy_dtype)
    return _computed(op, kind, constants)


def _computed(
    op: ir.Operation, kind: TensorType, constants: Sequence[np.ndarray]
) -> np.ndarray | None:
    # Floats are computed on the target, so that they round like all others there.
    if not _integral(kind.dtype) or not all(c.dtype.kind in "biu" for c in constants):
        return None
    if op.name == "stablehlo.compare":
        return np.asarray(_COMPARE[direction(op)](*constants))
    if op.name not in _FOLD:
        return None
    # NumPy has neither of these for booleans.
    if kind.dtype == "bool" and op.name in ("stablehlo.subtract", "stablehlo.negate"):
        return None
    # Overflow wraps around modulo the width, in NumPy as in StableHLO.
    with np.errstate(over="ignore"):
        folded = np.asarray(_FOLD[op.name](*constants))
    if op.name == "stablehlo.convert" and kind.dtype == "bool":
        return folded != 0
    return folded.astype(kind.numpy_dtype)


def _slice_bounds(op: ir.Operation) -> list[list[int]]:
    return [integers(op, name) for name in ("start_indices", "limit_indices", "strides")]


def _integral(dtype: str) -> bool:
    return dtype == "bool" or "int" in dtype
