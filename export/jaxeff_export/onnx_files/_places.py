"""Parts at computed places along any axes, taken and written, as `GatherND` and `ScatterND`.

Both take coordinates of entries; JAX gives the starts of windows. So every window is spread to the
coordinates of its entries, along the axes that it doesn't fill. Sharp edge: ONNX Runtime refuses
places beyond the array. What is taken from there is replaced after the fact; what is written there
goes to one row more, which is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode

from jaxeff.core import primitives as p
from jaxeff_export.onnx_files._elementwise import Rule
from jaxeff_export.onnx_files._graph import OnnxGraph, Value, integers


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
    found = _windows(
        g, eqn, values[1], numbers.start_index_map, joined, numbers.start_indices_batching_dims,
        q["slice_sizes"],
    )  # fmt: skip
    taken: Value = g.emit("GatherND", [g.transpose(values[0], found.order), found.coordinates])
    if found.inside is not None:
        mask = g.reshape(found.inside, [*found.batch, *(1 for _ in found.sizes)])
        taken = g.emit("Where", [mask, taken, fill])
    # From the order of cut axes to the array's; then axes of one entry go, and batches to their
    # places among those of windows.
    count, order = len(found.batch), found.order
    back = [*range(count), *(count + order.index(i) for i in range(len(order)))]
    gone = {*numbers.collapsed_slice_dims, *joined}
    kept = [found.sizes[i] for i in range(len(order)) if i not in gone]
    taken = g.reshape(g.transpose(taken, back), [*found.batch, *kept])
    slices, batch = iter(range(count, count + len(kept))), iter(range(count))
    places = range(len(out.shape))
    return g.transpose(taken, [next(slices if i in numbers.offset_dims else batch) for i in places])


def _scatter(reduction: str) -> Rule:
    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        table, _, given = (v.aval for v in eqn.invars)
        numbers = eqn.params["dimension_numbers"]
        joined, gone = numbers.operand_batching_dims, numbers.inserted_window_dims
        windows = iter(given.shape[i] for i in numbers.update_window_dims)
        flat = {*gone, *joined}
        sizes = [1 if i in flat else next(windows) for i in range(len(table.shape))]
        found = _windows(
            g, eqn, values[1], numbers.scatter_dims_to_operand_dims, joined,
            numbers.scatter_indices_batching_dims, sizes,
        )  # fmt: skip
        rank, count = len(given.shape), len(found.batch)
        batches = [i for i in range(rank) if i not in numbers.update_window_dims]
        added = g.transpose(values[2], [*batches, *numbers.update_window_dims])
        added = g.reshape(added, [*found.batch, *sizes])
        order = found.order
        added = g.transpose(added, [*range(count), *(count + i for i in order)])
        array, places = g.transpose(values[0], order), found.coordinates
        shape = [table.shape[i] for i in order]
        if found.inside is not None:
            row = np.zeros((1, *shape[1:]), table.dtype)
            array, places = g.emit("Concat", [array, row], axis=0), _moved_out(g, shape[0], found)
        # Without a reduction the last of equal places decides, which JAX leaves open.
        made: Value = g.emit("ScatterND", [array, places, added], reduction=reduction)
        if found.inside is not None:
            made = g.emit("Slice", [made, *(integers([n]) for n in (0, shape[0], 0))])
        return g.transpose(made, [int(i) for i in np.argsort(order)])

    return rule


def _moved_out(g: OnnxGraph, row: int, found: _Windows) -> Value:
    """Gives what would be written outside the array the row after its last one."""
    assert found.inside is not None
    mask = g.reshape(found.inside, [*found.batch, *(1 for _ in found.cut), 1])
    # Only the first coordinate says which row it is.
    outside = integers([row, *(0 for _ in found.cut[1:])])
    return g.emit("Where", [mask, found.coordinates, outside])


SCATTERS: dict[Any, Rule] = {
    p.scatter_p: _scatter("none"),
    p.scatter_add_p: _scatter("add"),
    p.scatter_mul_p: _scatter("mul"),
    p.scatter_max_p: _scatter("max"),
    p.scatter_min_p: _scatter("min"),
}
"""How entries are written."""
