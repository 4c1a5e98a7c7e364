"""Entries and windows at computed places, taken, written and added, as nodes of ONNX.

`GatherND` and `ScatterND` take coordinates of entries; JAX gives the starts of windows. So every
window is spread to the coordinates of its entries, along the axes that it doesn't fill.

Sharp edge: ONNX Runtime refuses places beyond the array, so they are clamped here, as XLA does also
to those that JAX is promised to be inside (`x[i]`). Where JAX fills such entries the result is
replaced after the fact; what is written there goes to one row more, which is cut off.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from jaxeff.core import primitives as p
from jaxeff_export.onnx_files._graph import OnnxGraph, Value, integers, is_float
from jaxeff_export.onnx_files._operations import Rule


class _Windows(NamedTuple):
    """Windows of an array.

    Attributes:
        cut: Axes that windows don't fill, which come first in the array that is read or written.
        sizes: Entries of a window along each axis of the array.
        batch: Shape of the places: how many windows there are.
        coordinates: Places of entries, `[*batch, *sizes of the cut axes, len(cut)]`.
        inside: Marks of windows that lie in the array, `[*batch]`; None if all are taken to.
    """

    cut: list[int]
    sizes: list[int]
    batch: list[int]
    coordinates: Value
    inside: Value | None

    @property
    def order(self) -> list[int]:
        """The axes of the array, those that are cut first."""
        return [*self.cut, *(i for i in range(len(self.sizes)) if i not in self.cut)]


def _windows(
    g: OnnxGraph,
    eqn: Any,
    starts: Value,
    mapped: Sequence[int],
    joined: Sequence[int],
    joined_starts: Sequence[int],
    sizes: Sequence[int],
) -> _Windows:
    """Reads where windows are: `mapped` axes by `starts`, `joined` ones by the window's number."""
    shape, (*batch, _) = (v.aval.shape for v in eqn.invars[:2])
    room = [shape[axis] - sizes[axis] for axis in mapped]
    first, inside = g.cast(starts, np.int64), None
    mode = eqn.params["mode"]
    if mode is GatherScatterMode.FILL_OR_DROP:
        lower = g.emit("GreaterOrEqual", [first, integers([0])])
        upper = g.emit("LessOrEqual", [first, integers(room)])
        both = g.cast(g.emit("And", [lower, upper]), np.int32)
        # All axes have to be inside; no reduction of ONNX takes booleans.
        all_of = g.emit("ReduceMin", [both, integers([len(batch)])], keepdims=0)
        inside = g.cast(all_of, np.bool_)
    first = g.emit("Min", [g.emit("Max", [first, integers([0])]), integers(room)])
    cut = [i for i, n in enumerate(shape) if i in mapped or i in joined or sizes[i] != n]
    spread = [sizes[axis] for axis in cut]
    # The part of each coordinate that is known: places in the window, and numbers of windows.
    grid = np.zeros((*batch, *spread, len(cut)), np.int64)
    for i, axis in enumerate(cut):
        grid[..., i] += np.indices(spread, np.int64)[i]
        if axis in joined:
            at = joined_starts[list(joined).index(axis)]
            ones = [-1 if j == at else 1 for j in range(len(batch) + len(spread))]
            grid[..., i] += np.arange(batch[at]).reshape(ones)
    # Starts in the order of the array's axes; of an axis that has none it is zero.
    columns = [list(mapped).index(axis) if axis in mapped else len(mapped) for axis in cut]
    zeros = np.zeros((*batch, 1), np.int64)
    known = g.emit("Concat", [first, zeros], axis=len(batch))
    ordered = g.emit("Gather", [known, integers(columns)], axis=len(batch))
    moved = g.reshape(ordered, [*batch, *(1 for _ in spread), len(cut)])
    return _Windows(cut, list(sizes), list(batch), g.emit("Add", [grid, moved]), inside)


def gathered(g: OnnxGraph, eqn: Any, values: list[Value], fill: np.ndarray) -> Value:
    """Takes windows at computed places; `fill` stands where one isn't in the array."""
    q, out = eqn.params, eqn.outvars[0].aval
    numbers = q["dimension_numbers"]
    joined = numbers.operand_batching_dims
    windows = _windows(
        g, eqn, values[1], numbers.start_index_map, joined, numbers.start_indices_batching_dims,
        q["slice_sizes"],
    )  # fmt: skip
    taken: Value = g.emit("GatherND", [g.transpose(values[0], windows.order), windows.coordinates])
    if windows.inside is not None:
        mask = g.reshape(windows.inside, [*windows.batch, *(1 for _ in windows.sizes)])
        taken = g.emit("Where", [mask, taken, fill])
    # From the order of cut axes to the array's; then axes of one entry go, and batches to their
    # places among those of windows.
    count, order = len(windows.batch), windows.order
    back = [*range(count), *(count + order.index(i) for i in range(len(order)))]
    gone = {*numbers.collapsed_slice_dims, *joined}
    kept = [windows.sizes[i] for i in range(len(order)) if i not in gone]
    taken = g.reshape(g.transpose(taken, back), [*windows.batch, *kept])
    slices, batch = iter(range(count, count + len(kept))), iter(range(count))
    places = range(len(out.shape))
    return g.transpose(taken, [next(slices if i in numbers.offset_dims else batch) for i in places])


def _scatter(reduction: str) -> Rule:
    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        table, _, updates = (v.aval for v in eqn.invars)
        numbers = eqn.params["dimension_numbers"]
        joined, gone = numbers.operand_batching_dims, numbers.inserted_window_dims
        if not (numbers.scatter_dims_to_operand_dims or joined) and table.shape == updates.shape:
            # No axis has a start, as of `x.at[:].set(y)`: the only window is entry 0 of a new axis.
            array, added = (g.reshape(values[i], [1, *table.shape]) for i in (0, 2))
            begin = np.zeros((1, 1), np.int64)
            replaced = _written(g, reduction, table.dtype, array, begin, added)
            return g.reshape(replaced, table.shape)
        windows = iter(updates.shape[i] for i in numbers.update_window_dims)
        flat = {*gone, *joined}
        sizes = [1 if i in flat else next(windows) for i in range(len(table.shape))]
        targets = _windows(
            g, eqn, values[1], numbers.scatter_dims_to_operand_dims, joined,
            numbers.scatter_indices_batching_dims, sizes,
        )  # fmt: skip
        rank, count = len(updates.shape), len(targets.batch)
        batches = [i for i in range(rank) if i not in numbers.update_window_dims]
        added = g.transpose(values[2], [*batches, *numbers.update_window_dims])
        added = g.reshape(added, [*targets.batch, *sizes])
        order = targets.order
        added = g.transpose(added, [*range(count), *(count + i for i in order)])
        array, places = g.transpose(values[0], order), targets.coordinates
        shape = [table.shape[i] for i in order]
        if targets.inside is not None:
            row = np.zeros((1, *shape[1:]), table.dtype)
            array, places = g.emit("Concat", [array, row], axis=0), _moved_out(g, shape[0], targets)
        scattered = _written(g, reduction, table.dtype, array, places, added)
        if targets.inside is not None:
            scattered = g.emit("Slice", [scattered, *(integers([n]) for n in (0, shape[0], 0))])
        return g.transpose(scattered, [int(i) for i in np.argsort(order)])

    return rule


def _written(
    g: OnnxGraph, reduction: str, dtype: Any, array: Value, places: Value, added: Value
) -> Value:
    """Writes entries at places; NaN wins, as in JAX."""
    # Without a reduction the last of equal places decides, which JAX leaves open.
    scattered: Value = g.emit("ScatterND", [array, places, added], reduction=reduction)
    if reduction not in ("max", "min") or not is_float(dtype):
        return scattered
    # The runtime passes NaN over.
    nans = [g.cast(g.emit("IsNaN", [value]), np.uint8) for value in (array, added)]
    some = g.emit("ScatterND", [nans[0], places, nans[1]], reduction="max")
    nan = np.array(np.nan, dtype)
    return g.emit("Where", [g.cast(some, np.bool_), nan, scattered])


def _moved_out(g: OnnxGraph, row: int, windows: _Windows) -> Value:
    """Gives what would be written outside the array the row after its last one."""
    assert windows.inside is not None
    mask = g.reshape(windows.inside, [*windows.batch, *(1 for _ in windows.cut), 1])
    # Only the first coordinate says which row it is.
    outside = integers([row, *(0 for _ in windows.cut[1:])])
    return g.emit("Where", [mask, windows.coordinates, outside])


SCATTERS: dict[Any, Rule] = {
    p.scatter_p: _scatter("none"),
    p.scatter_add_p: _scatter("add"),
    p.scatter_mul_p: _scatter("mul"),
    p.scatter_max_p: _scatter("max"),
    p.scatter_min_p: _scatter("min"),
}
"""How entries are written."""


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


def _starts(g: OnnxGraph, values: list[Value], room: list[int]) -> Value:
    """Makes a vector of starts; those from which a part would go beyond the array are clamped."""
    each = [g.reshape(g.cast(start, np.int64), [1]) for start in values]
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
    updated = g.emit("ScatterND", [moved[0], places, moved[1]])
    return g.transpose(updated, [int(i) for i in np.argsort(order)])


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
