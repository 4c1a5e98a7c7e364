"""Sorting, the largest entries, and running results, as nodes of ONNX.

Sharp edge: `TopK` takes equal entries in their own order, as JAX does, but to it zeros of both
signs are equal; where NaN stands in the order is the engine's affair.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxeff.core import primitives as p
from jaxeff_export.onnx_files._elementwise import Rule
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value, integers


def sorted_values(g: OnnxGraph, eqn: Any, values: list[Value]) -> list[Value]:
    """Sorts arrays along an axis by the first of them."""
    axis, n = eqn.params["dimension"], eqn.invars[0].aval.shape[eqn.params["dimension"]]
    if eqn.params["num_keys"] != 1:
        raise OnnxError("to_onnx: `sort` by more than one key has no operator in ONNX.")
    made, places = _ranked(g, eqn.invars[0].aval, values[0], axis, n, largest=False)
    # What goes with the key follows its places.
    others = [g.emit("GatherElements", [value, places], axis=axis) for value in values[1:]]
    return [made, *others]


def largest(g: OnnxGraph, eqn: Any, values: list[Value]) -> list[Value]:
    """Takes the largest entries of an axis, and says where they were."""
    q = eqn.params
    made, places = _ranked(g, eqn.invars[0].aval, values[0], q["axis"], q["k"], largest=True)
    return [made, g.cast(places, eqn.outvars[1].aval.dtype)]


def _ranked(
    g: OnnxGraph, aval: Any, value: Value, axis: int, k: int, *, largest: bool
) -> tuple[Value, Value]:
    # The operator takes neither booleans nor small integers; an int32 holds them all.
    small = aval.dtype.kind in "biu" and aval.dtype.itemsize < 4
    given = g.cast(value, np.int32) if small else value
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    made, places = g.emit_all("TopK", [given, integers([k])], 2, **attributes)
    return (g.cast(made, aval.dtype) if small else made), places


def _running_sum(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    axis = np.asarray(eqn.params["axis"], np.int64)
    return g.emit("CumSum", [values[0], axis], reverse=int(eqn.params["reverse"]))


def _running(op: str) -> Rule:
    """Running products and extremes, which ONNX lacks: each step joins twice as many entries."""

    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        axis, reverse = eqn.params["axis"], eqn.params["reverse"]
        shape, x, apart = eqn.invars[0].aval.shape, values[0], 1
        while apart < shape[axis]:
            # Entries that have a neighbour so far away take it; the others are done.
            done, rest = ((-apart, None), (0, -apart)) if reverse else ((0, apart), (apart, None))
            far = (apart, None) if reverse else (0, -apart)
            joined = g.emit(op, [_part(g, x, axis, *rest), _part(g, x, axis, *far)])
            kept = _part(g, x, axis, *done)
            x = g.emit("Concat", [joined, kept] if reverse else [kept, joined], axis=axis)
            apart *= 2
        return x

    return rule


def _part(g: OnnxGraph, x: Value, axis: int, start: int, end: int | None) -> Value:
    last = np.iinfo(np.int64).max if end is None else end
    return g.emit("Slice", [x, *(integers([number]) for number in (start, last, axis))])


RUNNING: dict[Any, Rule] = {
    p.cummax_p: _running("Max"),
    p.cummin_p: _running("Min"),
    p.cumprod_p: _running("Mul"),
    p.cumsum_p: _running_sum,
}
"""How running results are written."""
