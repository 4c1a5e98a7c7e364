"""Rules of primitives that take or make a part of an axis, or put its entries in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxeff.core import split_p
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._alignment import cut, unify
from jaxeff.pruning.dependencies._dimensions import (
    Axis,
    Concatenation,
    fresh,
    hold,
    is_held,
    kept_if,
)
from jaxeff.pruning.dependencies._errors import BLOCK
from jaxeff.pruning.dependencies._labels import Axes, ChannelReader, Rule

p = prim.p


def slicing(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Cuts ranges out of axes."""
    q = eqn.params
    strides = q["strides"] or (1,) * len(axes[0])
    result: list[Axis] = []
    for axis, start, stop, stride in zip(
        axes[0], q["start_indices"], q["limit_indices"], strides, strict=True
    ):
        result.append(_part(eqn, axis, start, stop, stride, reader))
    return [tuple(result)]


def splitting(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Cuts an axis into parts."""
    along, start = eqn.params["axis"], 0
    results = []
    for size in eqn.params["sizes"]:
        found = list(axes[0])
        found[along] = _part(eqn, axes[0][along], start, start + size, 1, reader)
        results.append(tuple(found))
        start += size
    return results


def _part(eqn: Any, axis: Axis, start: int, stop: int, stride: int, reader: ChannelReader) -> Axis:
    if stride == 1 and (start, stop) == (0, axis.size):
        return axis
    size = len(range(start, stop, stride))
    # Nothing can go from it: the part needs no relation to the rest, and cutting it would split it
    # for nothing.
    if is_held(axis):
        return fresh(size, reader.reason(eqn))
    # A strided slice takes every k-th index: no expression of dimensions describes that.
    found = cut(axis, start, stop) if stride == 1 else None
    if found is None:
        reason = reader.reason(eqn, BLOCK)
        hold(axis, reason)
        return fresh(size, reason)
    return found


def padding(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Puts constants around axes: a concatenation with ends that can't lose indices."""
    result: list[Axis] = []
    sizes = eqn.outvars[0].aval.shape
    for axis, (low, high, inside), n in zip(
        axes[0], eqn.params["padding_config"], sizes, strict=True
    ):
        if (low, high, inside) == (0, 0, 0):
            result.append(axis)
        # Interior padding and cropping move indices: no concatenation describes them.
        elif is_held(axis) or inside or low < 0 or high < 0:
            hold(axis, reader.reason(eqn))
            result.append(fresh(int(n), reader.reason(eqn)))
        else:
            ends = [fresh(k, reader.reason(eqn)) for k in (low, high)]
            parts = [part for part, k in ((ends[0], low), (axis, 1), (ends[1], high)) if k]
            result.append(Concatenation(tuple(parts)))
    return [tuple(result)]


def gather(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Takes rows of a table: axes that are taken in full are the result's, others are held."""
    q = eqn.params
    numbers = q["dimension_numbers"]
    table, indices = axes
    batching = {*numbers.operand_batching_dims}
    gone = {*numbers.collapsed_slice_dims, *batching}
    whole: list[Axis] = []
    for i, (axis, n) in enumerate(zip(table, q["slice_sizes"], strict=True)):
        # Only axes that every look-up takes completely can lose indices; where the start is
        # data, an index means a position.
        full = n == axis.size and i not in numbers.start_index_map
        if not full and i not in batching:
            hold(axis, reader.reason(eqn))
        if i not in gone:
            whole.append(axis if full else fresh(int(n), reader.reason(eqn)))
    for one, other in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        # Batched look-ups pair rows of the table with rows of indices.
        unify(table[one], indices[other], reader.reason(eqn))
    # The last axis of the indices holds coordinates, one per indexed axis.
    hold(indices[-1], reader.reason(eqn))
    rows, offsets = iter(indices[:-1]), iter(whole)
    rank = eqn.outvars[0].aval.ndim
    places = set(numbers.offset_dims)
    return [tuple(next(offsets) if i in places else next(rows) for i in range(rank))]


def dynamic_slice(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds axes whose range is known only when it runs."""
    sizes = zip(axes[0], eqn.params["slice_sizes"], strict=True)
    return [tuple(kept_if(axis.size == n, axis, int(n), reader.reason(eqn)) for axis, n in sizes)]


def dynamic_update(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Relates an array to a part that is written into it."""
    for axis, part in zip(axes[0], axes[1], strict=True):
        if axis.size == part.size:
            unify(axis, part, reader.reason(eqn))
        else:
            hold(axis, reader.reason(eqn))
            hold(part, reader.reason(eqn))
    return [axes[0]]


def sort(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis whose entries change places."""
    first, *others = axes
    hold(first[eqn.params["dimension"]], reader.reason(eqn))
    for other in others:
        for a, b in zip(first, other, strict=True):
            unify(a, b, reader.reason(eqn))
    return [first] * len(axes)


def top(eqn: Any, axes: Sequence[Axes], reader: ChannelReader) -> list[Axes]:
    """Holds the axis whose largest entries are taken."""
    # The places it returns are indices among all entries: with fewer they would mean others.
    along = eqn.params["axis"] % len(axes[0]) if "axis" in eqn.params else len(axes[0]) - 1
    hold(axes[0][along], reader.reason(eqn))
    found = list(axes[0])
    found[along] = fresh(eqn.outvars[0].aval.shape[along], reader.reason(eqn))
    return [tuple(found)] * len(eqn.outvars)


RULES: dict[Any, Rule] = {
    p.slice_p: slicing,
    split_p: splitting,
    p.pad_p: padding,
    p.gather_p: gather,
    p.dynamic_slice_p: dynamic_slice,
    p.dynamic_update_slice_p: dynamic_update,
    p.sort_p: sort,
    p.top_k_p: top,
}
"""By primitive."""
