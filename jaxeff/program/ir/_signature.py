"""What an equation does, said once: its signature, which every analysis of programs reads.

A signature says of an equation's operands and results along which axes entries stay apart, and
along which they meet. (Whether it is smooth or affine, and where it is defined, is said by `FACTS`
of `_primitives.py`.) There is one row for each primitive, in `ROWS`; one without a row is *opaque*,
with a reason. What an analysis follows (dependence, layouts, channels, time) is a fold: it reads
signatures and no primitive.

    [examples, places, channels] @ [channels, outputs]:
        left    same 0, same 1, broadcast      combines its axis 2, in pairs with
        right   broadcast, broadcast, same 1   its axis 0

How a result's axis lies along an operand's:
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from jaxeff.core import primitives as p
from jaxeff.core import split_p, stack_p, tile_p
from jaxeff.program.ir import _primitives as prim

Shape: TypeAlias = tuple[int, ...]


class OperationFamily(Enum):
    """What kind of thing an equation does."""

    ELEMENTWISE = "elementwise"
    MOVE = "move"
    SELECT = "select"  # which entries move where is data
    REDUCE = "reduce"
    WINDOW = "window"
    CONTRACTION = "contraction"
    RUNNING = "running"
    SCATTER = "scatter"
    SOURCE = "source"  # entries that are made of none: counted, or drawn
    CALL = "call"
    LOOP = "loop"
    OPAQUE = "opaque"


class Relation(Enum):
    """How a result's axis lies along an operand's.

    Sharp edges
    - Sizes may be symbolic: they are compared for equality alone.
    - Of a loop, a branch or a call nothing is said but that it may do anything: readers look
      inside.
    """

    SAME = "same"
    MERGED = "merged"
    SPLIT = "split"
    PLACED = "placed"
    WINDOWED = "windowed"
    SUMMED = "summed"
    BROADCAST = "broadcast"
    UNKNOWN = "unknown"


class Window(NamedTuple):
    """The entries along an axis that each result reads.

    Attributes:
        size: How many.
        stride: Distance of neighbouring windows.
        dilation: Distance of a window's entries.
        base: Distance of the operand's entries, with zeros between them.
        padding: Entries that are added before and after.
    """

    size: int
    stride: int = 1
    dilation: int = 1
    base: int = 1
    padding: tuple[int, int] = (0, 0)

    @property
    def extent(self) -> int:
        """How many entries there are from the first to the last."""
        return (self.size - 1) * self.dilation + 1

    @property
    def is_single(self) -> bool:
        """Whether each result reads one entry at most: the others are zeros in between."""
        return self.size <= self.base // math.gcd(self.base, self.dilation)

    @property
    def is_disjoint(self) -> bool:
        """Whether no entry is in two windows."""
        return self.size == 1 or (self.stride >= self.size and self.dilation == 1)


class PlacedPart(NamedTuple):
    """Which entries of an operand's axis stand where in the result's.

    Attributes:
        start: The first entry that is taken.
        stop: End of what is taken.
        step: The distance of those that are taken; negative if they are reversed.
        at: The place of the first in the result.
        apart: The distance of their places.
    """

    start: int
    stop: int
    step: int = 1
    at: int = 0
    apart: int = 1


class Along(NamedTuple):
    """How an axis of a result lies along an operand.

    Attributes:
        relation: How.
        axes: The operand's axes that it is made of.
        window: Entries that each result reads, of what is windowed.
        part: Places of what is placed, if they are known.
    """

    relation: Relation
    axes: Shape = ()
    window: Window | None = None
    part: PlacedPart | None = None


@dataclass(frozen=True, slots=True)
class Operand:
    """What an equation makes of one operand.

    Attributes:
        along: For each result an `Along` for each of its axes; None for a result that it has no
            part in.
        combined: Axes of which several entries make one of the result.
    """

    along: tuple[tuple[Along, ...] | None, ...]
    combined: Shape = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """What an equation does.

    Attributes:
        family: What kind of thing.
        operands: What it makes of each operand.
        beside: Operands whose entries are put side by side: none meets one of another of these.
        pairs: Axes that are summed over in pairs, of the first and of the second operand.
        distinct: Axes of its results along which entries differ where those of operands are alike.
        reason: Why nothing is known, of what is opaque.
    """

    family: OperationFamily
    operands: tuple[Operand, ...]
    beside: frozenset[int] = frozenset()
    pairs: tuple[tuple[int, int], ...] = ()
    distinct: frozenset[int] = frozenset()
    reason: str = ""

    def source(self, axis: int, operand: int = 0, result: int = 0) -> int | None:
        """Returns which axis of an operand an axis of a result is, entry by entry; or None."""
        along = self.operands[operand].along[result]
        if along is None or along[axis].relation is not Relation.SAME:
            return None
        return along[axis].axes[0]

    def target(self, axis: int, operand: int = 0, result: int = 0) -> int | None:
        """Returns which axis of a result an axis of an operand is, entry by entry; or None."""
        along = self.operands[operand].along[result] or ()
        same = (r for r, one in enumerate(along) if one == (Relation.SAME, (axis,), None, None))
        return next(same, None)

    @property
    def repeated(self) -> frozenset[int]:
        """The axes along which a broadcast repeats the entries of its operand.

        They may have one entry: an axis that is only added, by a reshape too. Empty for all else.
        """
        first = self.operands[0].along if self.family is OperationFamily.MOVE else ()
        along = first[0] if len(first) == 1 else None
        if along is None or self.distinct:
            return frozenset()
        if any(one.relation not in {Relation.SAME, Relation.BROADCAST} for one in along):
            return frozenset()
        return frozenset(r for r, one in enumerate(along) if one.relation is Relation.BROADCAST)

    def meet(self, one: int, other: int) -> bool:
        """Returns whether entries of two operands are combined."""
        return not {one, other} <= self.beside

    @property
    def is_known(self) -> bool:
        """Whether it says how entries go from operands to results."""
        return self.family not in {
            OperationFamily.OPAQUE,
            OperationFamily.CALL,
            OperationFamily.LOOP,
        }


_BROADCAST = Along(Relation.BROADCAST)


def _same(axis: int) -> Along:
    return Along(Relation.SAME, (axis,))


def _unknown(*axes: int) -> Along:
    return Along(Relation.UNKNOWN, axes)


def _several(shape: Shape, axes: Sequence[int]) -> Shape:
    """Returns the axes of more than one entry."""
    return tuple(a for a in axes if shape[a] != 1)


def _spread_over(outs: Sequence[Shape]) -> Operand:
    """Returns what becomes of a scalar that all entries are made of."""
    return Operand(tuple((_BROADCAST,) * len(out) for out in outs))


def _any_of(shape: Shape, outs: Sequence[Shape]) -> Operand:
    """Returns what becomes of an operand of which any entry may be anywhere."""
    axes = tuple(range(len(shape)))
    return Operand(tuple((_unknown(*axes),) * len(out) for out in outs), _several(shape, axes))


Row = Callable[[Mapping[str, Any], Sequence[Shape], Sequence[Shape]], Signature]
"""Gives the signature for an equation's parameters, and the shapes of operands and results."""


def signature(eqn: Any) -> Signature:
    """Reads what an equation does; a `Node` keeps it as `node.signature`."""
    row = ROWS.get(eqn.primitive)
    ins = [tuple(getattr(v.aval, "shape", ())) for v in eqn.invars]
    outs = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
    if row is None:
        reason = _REASONS.get(eqn.primitive.name, UNDESCRIBED)
        return Signature(
            OperationFamily.OPAQUE, tuple(_any_of(n, outs) for n in ins), reason=reason
        )
    return row(eqn.params, ins, outs)


def row_axes(eqn: Any) -> Shape | None:
    """Returns the axes of a table along which a gather takes whole rows; None for all else."""
    if eqn.primitive is not p.gather_p:
        return None
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    axes = tuple(numbers.start_index_map)
    rows = tuple(1 if axis in axes else n for axis, n in enumerate(table))
    is_whole = tuple(eqn.params["slice_sizes"]) == rows and not numbers.operand_batching_dims
    return axes if is_whole else None


def _elementwise(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    return Signature(OperationFamily.ELEMENTWISE, tuple(_aligned(n, outs) for n in ins))


def _aligned(shape: Shape, outs: Sequence[Shape]) -> Operand:
    """Returns what becomes of an operand that lies along the result, but for axes of size one."""
    if any(len(out) != len(shape) for out in outs):
        return _spread_over(outs)
    pairs = [list(enumerate(zip(shape, out, strict=True))) for out in outs]
    kept = (
        tuple(_same(a) if n == m else Along(Relation.BROADCAST, (a,)) for a, (n, m) in each)
        for each in pairs
    )
    return Operand(tuple(kept))


def _passed(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    operands = []
    for number, shape in enumerate(ins):
        along = [tuple(map(_same, range(len(shape)))) if number == i else None
                 for i in range(len(outs))]  # fmt: skip
        operands.append(Operand(tuple(along)))
    return Signature(OperationFamily.MOVE, tuple(operands), frozenset(range(len(ins))))


def _select(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    # Cases are put side by side; the predicate meets each.
    operands = tuple(_aligned(n, outs) for n in ins)
    return Signature(OperationFamily.ELEMENTWISE, operands, frozenset(range(1, len(ins))))


def _move(*along: Along) -> Signature:
    return Signature(OperationFamily.MOVE, (Operand((along,)),))


def _broadcast(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    along = [_BROADCAST] * len(outs[0])
    for source, target in enumerate(q["broadcast_dimensions"]):
        repeated = ins[0][source] != outs[0][target]
        along[target] = Along(Relation.BROADCAST, (source,)) if repeated else _same(source)
    # Sizes that are known only when it runs are operands, too.
    sizes = (_spread_over(outs) for _ in ins[1:])
    return Signature(OperationFamily.MOVE, (Operand((tuple(along),)), *sizes))


def _squeeze(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    gone = {a % len(ins[0]) for a in q["dimensions"]}
    return _move(*(_same(a) for a in range(len(ins[0])) if a not in gone))


def _reshape(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    sizes = (_spread_over(outs) for _ in ins[1:])
    return Signature(OperationFamily.MOVE, (Operand((tuple(_regrouped(ins[0], outs[0])),)), *sizes))


def _regrouped(shape: Shape, out: Shape) -> list[Along]:
    """Reads a reshape by the groups of axes that keep their product."""
    along: list[Along] = []
    i = j = 0
    while j < len(out):
        if out[j] == 1:
            along.append(_BROADCAST)
            j += 1
            continue
        while i < len(shape) and shape[i] == 1:
            i += 1
        if i < len(shape) and shape[i] == out[j]:
            along.append(_same(i))
            i, j = i + 1, j + 1
            continue
        group = next_group(shape[i:], out[j:])
        if group is None:
            return [_unknown(*range(len(shape)))] * len(out)
        before, after = group
        axes = tuple(i + a for a in range(before) if shape[i + a] != 1)
        along += [Along(Relation.SPLIT if len(axes) == 1 else Relation.MERGED, axes)] * after
        i, j = i + before, j + after
    return along


def next_group(shape: Shape, out: Shape) -> tuple[int, int] | None:
    """Returns the least numbers of leading axes with the same product; None if there are none."""
    for before in range(1, len(shape) + 1):
        for after in range(1, len(out) + 1):
            if math.prod(shape[:before]) == math.prod(out[:after]):
                return before, after
    return None


def _tile(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    pairs = enumerate(zip(ins[0], outs[0], strict=True))
    return _move(*(_same(a) if n == m else _unknown(a) for a, (n, m) in pairs))


def _reverse(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    def along(axis: int, n: int) -> Along:
        reversed_ = axis in q["dimensions"] and n != 1
        return Along(Relation.PLACED, (axis,), part=_part(n - 1, -1, -1)) if reversed_ else (
            _same(axis)
        )  # fmt: skip

    return _move(*(along(a, n) for a, n in enumerate(ins[0])))


def _part(start: Any, stop: Any, step: Any = 1, at: Any = 0, apart: Any = 1) -> PlacedPart | None:
    """Returns the places of entries; None where one of them is symbolic."""
    numbers = (start, stop, step, at, apart)
    known = all(isinstance(n, int | np.integer) for n in numbers)
    return PlacedPart(*map(int, numbers)) if known else None


def _placed(axis: int, all_kept: bool, part: PlacedPart | None = None) -> Along:
    return _same(axis) if all_kept else Along(Relation.PLACED, (axis,), part=part)


def _slice(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    steps = q["strides"] or (1,) * len(ins[0])
    ranges = zip(q["start_indices"], q["limit_indices"], steps, ins[0], outs[0], strict=True)
    return _move(
        *(
            _placed(a, n == m and step == 1, _part(start, stop, step))
            for a, (start, stop, step, n, m) in enumerate(ranges)
        )
    )


def _split(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis, start, along = q["axis"], 0, []
    for size in q["sizes"]:
        each = [_same(a) for a in range(len(ins[0]))]
        each[axis] = _placed(axis, size == ins[0][axis], _part(start, start + size))
        along.append(tuple(each))
        start += size
    return Signature(OperationFamily.MOVE, (Operand(tuple(along)),))


def _pad(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    config, along = q["padding_config"], []
    for axis, ((low, high, between), n) in enumerate(zip(config, ins[0], strict=True)):
        # Negative: what is cut off.
        part = _part(0, n, 1, low, between + 1) if low >= 0 and high >= 0 else None
        along.append(_placed(axis, (low, high, between) == (0, 0, 0), part))
    padded = frozenset(a for a, one in enumerate(along) if one.relation is Relation.PLACED)
    operands = (Operand((tuple(along),)), _spread_over(outs))
    return Signature(OperationFamily.MOVE, operands, frozenset((0, 1)), distinct=padded)


def _concatenate(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis, at, operands = q["dimension"], 0, []
    for shape in ins:
        along = [_same(a) for a in range(len(shape))]
        part = _part(0, shape[axis], 1, at)
        along[axis] = _placed(axis, len(ins) == 1, part)
        operands.append(Operand((tuple(along),)))
        at += shape[axis]
    beside, distinct = frozenset(range(len(ins))), frozenset((axis,))
    return Signature(OperationFamily.MOVE, tuple(operands), beside, distinct=distinct)


def _stack(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis, operands = q["axis"], []
    for number, shape in enumerate(ins):
        along = [_same(a) for a in range(len(shape))]
        # Of each operand one place of the new axis is made.
        along.insert(axis, Along(Relation.PLACED, part=PlacedPart(0, 1, 1, number)))
        operands.append(Operand((tuple(along),)))
    beside, distinct = frozenset(range(len(ins))), frozenset((axis,))
    return Signature(OperationFamily.MOVE, tuple(operands), beside, distinct=distinct)


def _dynamic_slice(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    pairs = enumerate(zip(ins[0], outs[0], strict=True))
    first = Operand((tuple(_placed(a, n == m) for a, (n, m) in pairs),))
    return Signature(OperationFamily.SELECT, (first, *(_spread_over(outs) for _ in ins[1:])))


def _dynamic_update(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    pairs = list(enumerate(zip(ins[1], outs[0], strict=True)))
    first = Operand((tuple(map(_same, range(len(ins[0])))),))
    second = Operand((tuple(_placed(a, n == m) for a, (n, m) in pairs),))
    operands = (first, second, *(_spread_over(outs) for _ in ins[2:]))
    written = frozenset(a for a, (n, m) in pairs if n != m)
    return Signature(OperationFamily.SELECT, operands, frozenset((0, 1)), distinct=written)


def _gather(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    numbers, (table, indices), out = q["dimension_numbers"], ins, outs[0]
    batched = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    gone = {*numbers.collapsed_slice_dims, *batched.values()}
    indexed = tuple(numbers.start_index_map)
    offsets = iter(a for a in range(len(table)) if a not in gone)
    # The last axis of the indices has the coordinates of a place; the others are the result's.
    rows = iter(range(len(indices) - 1))
    of_table, of_indices = [], []
    for axis in range(len(out)):
        if axis in numbers.offset_dims:
            a = next(offsets)
            of_table.append(_placed(a, q["slice_sizes"][a] == table[a]))
            of_indices.append(_BROADCAST)
        else:
            row = next(rows)
            of_table.append(_same(batched[row]) if row in batched else _unknown(*indexed))
            of_indices.append(_same(row))
    coordinates = _several(indices, [len(indices) - 1])
    operands = Operand((tuple(of_table),)), Operand((tuple(of_indices),), coordinates)
    return Signature(OperationFamily.SELECT, operands)


def _scatter(adds: bool) -> Row:
    """Makes the row of scatters that add, or that replace."""

    def row(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
        numbers, (operand, indices, updates) = q["dimension_numbers"], ins
        rows = [a for a in range(len(updates)) if a not in numbers.update_window_dims]
        paired = dict(
            zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        )
        same = {to: rows[of] for to, of in paired.items()}
        # Along an axis that updates have all of, entries stay where they are.
        inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        kept = (a for a in range(len(operand)) if a not in inserted)
        moved = set(numbers.scatter_dims_to_operand_dims)
        for axis, to in zip(numbers.update_window_dims, kept, strict=True):
            if to not in moved and updates[axis] == operand[to]:
                same[to] = axis
        # Indices are unknown while tracing: entries at different ones may reach the same place.
        rest = tuple(a for a in range(len(updates)) if a not in same.values())
        to_rows = [same.get(a) for a in range(len(operand))]
        rest_of_indices = [a for a in range(len(indices)) if a not in paired.values()]
        every = _unknown(*range(len(indices)))
        of_indices = tuple(
            _same(paired[a]) if a in paired else _BROADCAST if a in same else every
            for a in range(len(operand))
        )
        of_updates = tuple(_unknown(*rest) if a is None else _same(a) for a in to_rows)
        operands = (
            Operand((tuple(map(_same, range(len(operand)))),)),
            Operand((of_indices,), _several(indices, rest_of_indices)),
            Operand((of_updates,), _several(updates, rest) if adds else ()),
        )
        beside = frozenset[int]() if adds else frozenset((0, 2))
        distinct = frozenset(a for a in range(len(operand)) if a not in same)
        return Signature(OperationFamily.SCATTER, operands, beside, distinct=distinct)

    return row


def _sort(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis = q["dimension"] % len(ins[0])
    along = [_same(a) for a in range(len(ins[0]))]
    along[axis] = _unknown(axis)
    keys, operands = range(q["num_keys"]), []
    for number, shape in enumerate(ins):
        # A key decides the order of all arrays; the others are moved.
        of = (tuple(along) if number in keys or i == number else None for i in range(len(outs)))
        operands.append(Operand(tuple(of), _several(shape, [axis]) if number in keys else ()))
    # Numbers beside a key stay as they were: those of equal keys differ.
    return Signature(OperationFamily.SELECT, tuple(operands), distinct=frozenset((axis,)))


def _top(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis = q.get("reduction_dimension", q.get("axis", -1)) % len(ins[0])
    along = [_same(a) for a in range(len(ins[0]))]
    along[axis] = _unknown(axis)
    operand = Operand((tuple(along),) * len(outs), _several(ins[0], [axis]))
    return Signature(OperationFamily.SELECT, (operand,), distinct=frozenset((axis,)))


def _reduction(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    gone = set(q["axes"] if "axes" in q else q["dimensions"])
    operands = []
    for shape in ins:
        if len(shape) != len(outs[0]) + len(gone):
            operands.append(_spread_over(outs))  # where a reduction begins
            continue
        along = tuple(_same(a) for a in range(len(shape)) if a not in gone)
        operands.append(Operand((along,) * len(outs), _several(shape, sorted(gone))))
    return Signature(OperationFamily.REDUCE, tuple(operands))


def _running(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    axis, (shape,) = q["axis"], ins
    along = [_same(a) for a in range(len(shape))]
    before = shape[axis] - 1
    window = Window(shape[axis], padding=(0, before) if q["reverse"] else (before, 0))
    along[axis] = Along(Relation.WINDOWED, (axis,), window)
    operand = Operand((tuple(along),), _several(shape, [axis]))
    return Signature(OperationFamily.RUNNING, (operand,), distinct=frozenset((axis,)))


_PLAIN = Window(1)


def _through(axis: int, window: Window) -> Along:
    return _same(axis) if window == _PLAIN else Along(Relation.WINDOWED, (axis,), window)


def _window(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    rank = len(outs[0])
    ones = (1,) * rank
    windows = [
        Window(*of_axis[:4], padding=tuple(of_axis[4]))
        for of_axis in zip(
            q["window_dimensions"], q["window_strides"], q.get("window_dilation", ones),
            q.get("base_dilation", ones), q["padding"], strict=True,
        )
    ]  # fmt: skip
    along = tuple(_through(a, window) for a, window in enumerate(windows))
    combined = tuple(a for a, window in enumerate(windows) if not window.is_single)
    of_array = Operand((along,) * len(outs), combined)
    operands = (of_array if len(shape) == rank and rank else _spread_over(outs) for shape in ins)
    return Signature(OperationFamily.WINDOW, tuple(operands), distinct=_bordered(along))


def _bordered(along: Sequence[Along]) -> frozenset[int]:
    """Returns the axes along which windows see fewer entries at a border, or between entries."""
    windows = ((a, one.window) for a, one in enumerate(along))
    return frozenset(a for a, w in windows if w and (w.padding != (0, 0) or w.base != 1))


def _picked(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    # Of the first operand one entry of each window is taken: where the second is largest.
    windowed = _window(q, ins, outs)
    first, second = windowed.operands
    return replace(windowed, operands=(replace(first, combined=()), second))


def _unpooled(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    windows = zip(q["window_dimensions"], q["window_strides"], q["padding"], strict=True)
    untouched = [(size, stride, tuple(pad)) == (1, 1, (0, 0)) for size, stride, pad in windows]
    along = tuple(_same(a) if same else _unknown(a) for a, same in enumerate(untouched))
    axes = [a for a, same in enumerate(untouched) if not same]
    operands = (Operand((along,), _several(shape, axes)) for shape in ins)
    return Signature(OperationFamily.WINDOW, tuple(operands), distinct=frozenset(axes))


def _dot(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    (summed, batched) = q["dimension_numbers"]
    operands = []
    for side, shape in enumerate(ins):
        taken = {*summed[side], *batched[side]}
        free = [_same(a) for a in range(len(shape)) if a not in taken]
        others = [_BROADCAST] * (len(ins[1 - side]) - len(taken))
        rest = [*free, *others] if side == 0 else [*others, *free]
        along = (*map(_same, batched[side]), *rest)
        operands.append(Operand((along,), _several(shape, summed[side])))
    pairs = tuple(zip(*summed, strict=True))
    return Signature(OperationFamily.CONTRACTION, tuple(operands), pairs=pairs)


def _convolution(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    numbers, groups = q["dimension_numbers"], q["feature_group_count"]
    (batch, channels, *places), (out, inner, *taps) = numbers.lhs_spec, numbers.rhs_spec
    rows, columns, *targets = numbers.out_spec
    batches = q["batch_group_count"]
    of_image = [_BROADCAST] * len(outs[0])
    of_kernel = [_BROADCAST] * len(outs[0])
    # A kernel is the same at all places and for all examples.
    of_kernel[columns] = _same(out)
    of_image[rows] = _same(batch) if batches == 1 else _unknown(batch)
    # Depthwise, one kernel per channel: a channel is made of itself alone.
    depthwise = groups == ins[0][channels] == ins[1][out]
    if depthwise and groups != 1:
        of_image[columns] = _same(channels)
    elif groups != 1:
        of_image[columns] = _unknown(channels)
    elif batches != 1:
        of_image[columns] = _unknown(batch)
    for i, (place, target) in enumerate(zip(places, targets, strict=True)):
        size = ins[1][taps[i]]
        window = Window(
            size, q["window_strides"][i], q["rhs_dilation"][i], q["lhs_dilation"][i],
            tuple(q["padding"][i]),
        )  # fmt: skip
        of_image[target] = Along(Relation.WINDOWED, (place,), window)
    # A kernel tells how many terms there are: an image has the channels of all groups.
    met = [(channels, inner)] if ins[1][inner] != 1 else []
    for place, target, tap in zip(places, targets, taps, strict=True):
        window = of_image[target].window
        met += [] if window is None or window.is_single else [(place, tap)]
    operands = (
        Operand((tuple(of_image),), tuple(a for a, _ in met)),
        Operand((tuple(of_kernel),), tuple(b for _, b in met)),
    )
    pairs = ((channels, inner),) if groups == 1 else ()
    borders = _bordered(of_image)
    return Signature(OperationFamily.CONTRACTION, operands, pairs=pairs, distinct=borders)


def _trailing(*ranks: int) -> Row:
    """Makes the row of a function of the last axes of arrays, the same for all leading ones.

    The last count is that of the other operands.
    """

    def row(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
        counts = [*ranks, *[ranks[-1]] * len(ins)]
        operands = []
        for shape, count in zip(ins, counts, strict=False):
            leading = len(shape) - count
            axes = tuple(range(leading, len(shape)))
            along = (
                tuple(_same(a) if a < leading else _unknown(*axes) for a in range(len(out)))
                for out in outs
            )
            operands.append(Operand(tuple(along), _several(shape, axes)))
        distinct = frozenset(range(len(ins[0]) - counts[0], max(map(len, outs))))
        return Signature(OperationFamily.CONTRACTION, tuple(operands), distinct=distinct)

    return row


def _solve(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    (*matrices, right), (out,) = ins, outs
    leading, last = len(out) - 2, len(out) - 1
    # Columns of the right side are solved each by itself; rows, if the matrix is on its right.
    rows, columns = (leading, last) if q.get("left_side", True) else (last, leading)
    kept = tuple(map(_same, range(leading)))

    def of(shape: Shape, read: Shape, column: Along) -> Operand:
        pair = {rows: _unknown(*read), columns: column}
        return Operand(((*kept, pair[leading], pair[last]),), _several(shape, read))

    of_matrices = (of(n, tuple(range(leading, len(n))), _BROADCAST) for n in matrices)
    operands = (*of_matrices, of(right, (rows,), _same(columns)))
    return Signature(OperationFamily.CONTRACTION, operands, distinct=frozenset((rows,)))


def _fourier(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    return _trailing(len(q["fft_lengths"]))(q, ins, outs)


def _bitcast(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    # Between types of other widths the last axis comes or goes.
    (shape,), (out,) = ins, outs
    along = tuple(_same(a) if a < len(shape) else _BROADCAST for a in range(len(out)))
    gone = _several(shape, range(len(out), len(shape)))
    family = OperationFamily.ELEMENTWISE if len(shape) == len(out) else OperationFamily.MOVE
    new = frozenset(range(len(shape), len(out)))
    return Signature(family, (Operand((along,), gone),), distinct=new)


def _counted(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    sizes = tuple(_spread_over(outs) for _ in ins)
    return Signature(OperationFamily.SOURCE, sizes, distinct=frozenset((q["dimension"],)))


def _drawn(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
    distinct = frozenset(range(max(map(len, outs))))
    return Signature(
        OperationFamily.SOURCE, tuple(_any_of(n, outs) for n in ins), distinct=distinct
    )


def _holding(family: OperationFamily) -> Row:
    """Makes the row of what holds equations of its own."""

    def row(q: Mapping[str, Any], ins: Sequence[Shape], outs: Sequence[Shape]) -> Signature:
        return Signature(family, tuple(_any_of(n, outs) for n in ins))

    return row


_POINTWISE = {
    p.clz_p, p.complex_p, p.conj_p, p.igamma_grad_a_p, p.igamma_p, p.igammac_p, p.imag_p,
    p.polygamma_p, p.population_count_p, p.real_p, p.regularized_incomplete_beta_p, p.zeta_p,
}  # fmt: skip
"""Functions of single entries that layers of kind `elementwise` aren't made of."""

ROWS: dict[Any, Row] = {
    **dict.fromkeys(prim.ELEMENTWISE | _POINTWISE, _elementwise),
    **dict.fromkeys(prim.IN_PLACE, _passed),
    **dict.fromkeys({*prim.REDUCTION, p.reduce_p, p.reduce_xor_p}, _reduction),
    **dict.fromkeys(set(prim.WINDOW), _window),
    **dict.fromkeys({p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p, p.cumlogsumexp_p}, _running),
    **dict.fromkeys({p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p},
                    _scatter(adds=True)),
    **dict.fromkeys(prim.CALLS | prim.CUSTOM, _holding(OperationFamily.CALL)),
    **dict.fromkeys(prim.CONTROL | {p.linear_solve_p}, _holding(OperationFamily.LOOP)),
    **dict.fromkeys(
        {p.cholesky_p, p.eig_p, p.eigh_p, p.hessenberg_p, p.lu_p, p.qr_p, p.schur_p, p.svd_p,
         p.triangular_solve_p, p.tridiagonal_p}, _trailing(2)),
    **dict.fromkeys({p.random_bits_p, p.random_fold_in_p, p.random_gamma_p, p.random_seed_p,
                     p.random_split_p, p.rng_bit_generator_p, p.rng_uniform_p, p.threefry2x32_p},
                    _drawn),
    p.approx_top_k_p: _top,
    p.bitcast_convert_type_p: _bitcast,
    p.broadcast_in_dim_p: _broadcast,
    p.concatenate_p: _concatenate,
    p.conv_general_dilated_p: _convolution,
    p.dot_general_p: _dot,
    p.dynamic_slice_p: _dynamic_slice,
    p.dynamic_update_slice_p: _dynamic_update,
    p.fft_p: _fourier,
    p.gather_p: _gather,
    p.householder_product_p: _trailing(2, 1),
    p.iota_p: _counted,
    p.pad_p: _pad,
    p.reshape_p: _reshape,
    p.rev_p: _reverse,
    p.scatter_p: _scatter(adds=False),
    p.select_and_gather_add_p: _picked,
    p.select_and_scatter_add_p: _unpooled,
    p.select_n_p: _select,
    p.slice_p: _slice,
    p.sort_p: _sort,
    p.squeeze_p: _squeeze,
    p.top_k_p: _top,
    p.transpose_p: lambda q, ins, outs: _move(*map(_same, q["permutation"])),
    p.triangular_solve_p: _solve,
    p.tridiagonal_solve_p: _solve,
    split_p: _split,
    stack_p: _stack,
    tile_p: _tile,
}  # fmt: skip
"""By primitive: what makes an equation's signature."""

UNDESCRIBED = "no row describes what it does: add one to program.ir's table of signatures"

OPAQUE: dict[str, str] = {
    "it communicates between devices": """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
        all_gather_start all_to_all all_to_all_done all_to_all_start axis_index pbroadcast
        pbroadcast_done pbroadcast_dynamic pbroadcast_start pmax pmin ppermute ppermute_done
        ppermute_start precv preduced psend psum psum_done psum_invariant psum_invariant_start
        psum_start ragged_all_to_all reduce_scatter reduce_scatter_done reduce_scatter_start
        reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start
        vary_unreduced_cast vary_unreduced_cast_p
        """,
    "it reads or writes a reference": """
        accum_grad_in_ref addupdate box_get box_set empty empty2 empty_ref free_ref freeze get
        log_extend log_read new_box new_log new_ref pin run_state swap tie unpin
        """,
    "it calls code that isn't read": """
        call_exported call_hi_primitive call_hi_primitive_linearized cudnn_fusion
        custom_jvp_call_jaxpr custom_lin custom_partitioning custom_vmap_call debug_callback
        debug_print dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper eval_jaxpr ffi_call
        inspect_sharding io_callback linear_call pure_callback remat_opt scaled_dot scaled_matmul
        scaled_matmul_wrapper select_and_scatter shard_map stage tpu_custom_call
        xla_metadata_call
        """,
    "it makes tokens, sizes, keys or checks, and no array": """
        after_all check create_linear create_token dce_sink dim_as_value dimension_size from_edtype
        iota_2x32_shape philox2x32 philox4x32 platform_index random_clone random_unwrap random_wrap
        shape_assertion threefry4x32 to_edtype unreachable
        """,
    "JAX keeps it to itself": """
        broadcast_to cholesky_update eq_to geqp3 geqrf layout_constraint le_to lt_to
        lu_pivots_to_permutation mulhi optimization_barrier ormqr ragged_dot_general relayout
        scatter-sub symmetric_product with_memory_space_constraint xla_metadata_value zeros_like
        """,
}
"""By reason: names of JAX's primitives of which a signature says nothing."""
_REASONS = {name: reason for reason, names in OPAQUE.items() for name in names.split()}
