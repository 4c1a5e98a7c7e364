"""Entries at computed places, as embeddings and graphs take and add them, as nodes of ONNX.

Sharp edge: ONNX Runtime refuses places beyond the array, so they are clamped here, as XLA does also
to those that JAX is promised to be inside (`x[i]`); where JAX fills
such entries the result is replaced after the fact, and where it drops them zeros are added.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from jaxeff.core import primitives as p
from jaxeff_export.onnx_files._elementwise import Rule
from jaxeff_export.onnx_files._graph import OnnxGraph, Value, integers
from jaxeff_export.onnx_files._places import SCATTERS, gathered


def _gather(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    q, (table, at), out = eqn.params, (v.aval for v in eqn.invars), eqn.outvars[0].aval
    numbers = q["dimension_numbers"]
    axes, kept = numbers.start_index_map, len(at.shape) - 1
    wanted = [1 if i in axes else n for i, n in enumerate(table.shape)]
    if len(axes) != 1 or numbers.operand_batching_dims or list(q["slice_sizes"]) != wanted:
        return gathered(g, eqn, values, fill_of(q["fill_value"], out.dtype))
    (axis,) = axes
    n = table.shape[axis]
    rows, inside = _places(g, g.reshape(values[1], at.shape[:-1]), n, q["mode"])
    taken: Value = g.emit("Gather", [values[0], rows], axis=axis)
    if inside is not None:
        ones = [1] * axis + list(at.shape[:-1]) + [1] * (len(table.shape) - axis - 1)
        taken = g.emit(
            "Where", [g.reshape(inside, ones), taken, fill_of(q["fill_value"], out.dtype)]
        )
    # ONNX puts the axes of the indices in the place of the table's; JAX says where they go.
    others = [i for i in range(len(table.shape)) if i != axis]
    shape = [*table.shape[:axis], *at.shape[:-1], *table.shape[axis + 1 :]]
    if axis not in numbers.collapsed_slice_dims:  # stays, with size one
        place = axis + kept
        shape.insert(place, 1)
        taken = g.reshape(taken, shape)
        offsets = [*range(axis), place, *range(place + 1, len(shape))]
    else:
        offsets = [i if i < axis else i + kept - 1 for i in others]
    order: list[int] = []
    slices, batch = iter(offsets), iter(range(axis, axis + kept))
    for i in range(len(out.shape)):
        order.append(next(slices if i in numbers.offset_dims else batch))
    return g.transpose(taken, order)


def _places(g: OnnxGraph, at: Value, n: int, mode: Any) -> tuple[Value, Value | None]:
    """Clamps places to an axis of `n` entries; and says which were there, if others are dropped."""
    rows, inside = g.cast(at, np.int64), None
    first, last = np.asarray(0, np.int64), np.asarray(n - 1, np.int64)
    if mode is GatherScatterMode.FILL_OR_DROP:
        lower, upper = g.emit("GreaterOrEqual", [rows, first]), g.emit("LessOrEqual", [rows, last])
        inside = g.emit("And", [lower, upper])
    return g.emit("Min", [g.emit("Max", [rows, first]), last]), inside


def _starts(g: OnnxGraph, given: list[Value], room: list[int]) -> Value:
    """Makes a vector of starts; those from which a part would go beyond the array are clamped."""
    each = [g.reshape(g.cast(start, np.int64), [1]) for start in given]
    starts = g.emit("Concat", each, axis=0)
    return g.emit("Min", [g.emit("Max", [starts, integers([0])]), integers(room)])


def _dynamic_slice(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    starts = _starts(g, values[1:], [n - size for n, size in zip(shape, sizes, strict=True)])
    ends = g.emit("Add", [starts, integers(sizes)])
    return g.emit("Slice", [values[0], starts, ends, integers(range(len(shape)))])


def _dynamic_update_slice(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    shape, sizes = (v.aval.shape for v in eqn.invars[:2])
    # Only these axes have a start; they come first, as ScatterND writes whole entries.
    cut = [i for i, n in enumerate(shape) if sizes[i] != n]
    if not cut:
        return values[1]
    order = [*cut, *(i for i in range(len(shape)) if i not in cut)]
    room = [shape[i] - sizes[i] for i in cut]
    # The places of a part that starts at zero, one coordinate for each axis that is cut.
    grid = np.moveaxis(np.indices([sizes[i] for i in cut], np.int64), 0, -1)
    places = g.emit("Add", [grid, _starts(g, [values[2 + i] for i in cut], room)])
    moved = [g.transpose(value, order) for value in values[:2]]
    made = g.emit("ScatterND", [moved[0], places, moved[1]])
    return g.transpose(made, [int(i) for i in np.argsort(order)])


def fill_of(value: Any, dtype: Any) -> np.ndarray:
    """Returns what JAX puts where an index is beyond the table."""
    if value is None:
        if dtype == np.bool_:
            value = True
        elif jnp.issubdtype(dtype, jnp.inexact):
            value = np.nan
        else:
            info = np.iinfo(dtype)
            value = info.min if info.min else info.max
    return np.asarray(value, dtype)


GATHERS: dict[Any, Rule] = {
    p.dynamic_slice_p: _dynamic_slice,
    p.dynamic_update_slice_p: _dynamic_update_slice,
    p.gather_p: _gather,
    **SCATTERS,
}
"""How entries are taken and added."""
