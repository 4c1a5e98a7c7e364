"""Follows which entries of random sources values depend on, and finds where dependent ones meet.

The lineage of a value holds for every *source* (a random array) how the value's entries depend on
the source's entries, one label per axis of the value:

    an integer   entries at different places along this axis depend on different entries of the
                 source, those at the same place of that axis of the source
    APART        on different entries, in an order that isn't followed (a slice, a merged axis)
    SHARED       on the same ones (a broadcast, a matrix product's columns), or maybe so

Two operands with a common source are dependent, and so are the terms of a sum along a `SHARED`
axis. Everything in between is independent, and the rules of `rules` are exact for it.

Sharp edges
- A conservative answer is SHARED: what is called independent is, what is called dependent may not
  be. A gather by indices that happen to differ counts as shared.

`varying_axes` says along which axes results vary by themselves. What a function makes of one
example alone is what it makes of it in a batch only if nothing but the example itself differs from
row to row. A captured array with a row per example does, and so do positions that are counted along
the examples, rows of a table of them, and random bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxeff.core import primitives as p
from jaxeff.core import split_p, stack_p, tile_p
from jaxeff.program import Program
from jaxeff.program.ir import (
    Contraction,
    Node,
    Scan,
    Value,
    entering,
    fixed_point,
    walk,
    walk_nodes,
)
from jaxeff.program.ir import primitives as prim

APART: Literal["apart"] = "apart"
SHARED: Literal["shared"] = "shared"
Label = int | Literal["apart", "shared"]
Labels = tuple[Label, ...]
Lineage = Mapping[Any, Labels]

# These put entries side by side: no entry meets another.
PLACING = {
    p.concatenate_p, p.dynamic_update_slice_p, p.pad_p, p.scatter_p, p.select_n_p, stack_p,
}  # fmt: skip
_SLICING = {p.slice_p, p.dynamic_slice_p, p.rev_p, p.pad_p, split_p}
_RUNNING = {p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p, p.cumlogsumexp_p}
_REDUCING = prim.REDUCTION.keys()
_SCATTERING = {p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p}
_ALIGNED = prim.ELEMENTWISE | prim.IN_PLACE
FOLLOWED = {
    *_ALIGNED, *_SLICING, *_RUNNING, *_REDUCING, *_SCATTERING, *PLACING, *prim.SHAPE, *prim.LINEAR,
    *prim.WINDOW, p.broadcast_in_dim_p, p.gather_p, p.reshape_p, p.squeeze_p, p.transpose_p, tile_p,
}  # fmt: skip
"""Primitives whose labels are derived; of others every entry is called shared."""


@dataclass(frozen=True)
class DependentCombination:
    """A place where dependent entries are combined.

    Attributes:
        source: The source they share.
        eqn: The equation that combines them.
        along: Whether they are entries of one operand, combined along an axis, rather than entries
            of two operands.
        partners: Other values that depend on what the source depends on.
    """

    source: Any
    eqn: Any
    along: bool
    partners: tuple[Any, ...] = ()


def identity(shape: Sequence[int]) -> Labels:
    """Returns the labels of a source with respect to itself."""
    return tuple(range(len(shape)))


def through(
    eqn: Any, lineages: Sequence[Lineage]
) -> tuple[list[Lineage], list[DependentCombination]]:
    """Follows lineages through an equation, and finds the dependent entries it combines.

    Args:
        eqn: An equation without control flow.
        lineages: One per operand; empty for a deterministic one.
    """
    # Beside the lineages: what meets inside a call belongs to no result of it.
    meetings: list[DependentCombination] = []

    def rule(inner: Any, given: list[Lineage]) -> list[Lineage]:
        results, found = _through(inner, given)
        meetings.extend(found)
        return results

    return list(entering(rule, lambda *_: {})(eqn, list(lineages))), meetings


def _through(
    eqn: Any, lineages: Sequence[Lineage]
) -> tuple[list[Lineage], list[DependentCombination]]:
    if not any(lineages):
        return [{} for _ in eqn.outvars], []
    shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.invars]
    meetings = list(_crossings(eqn, lineages))
    # Many sources, few distinct labels: deep in a network there is a source per weight before it.
    distinct = [set(lineage.values()) for lineage in lineages]
    for lineage, labels, axes in zip(lineages, distinct, _combined_axes(eqn, shapes), strict=True):
        met = {x for x in labels if any(x[a] == SHARED for a in axes)}
        meetings += [
            DependentCombination(s, eqn, along=True) for s, x in lineage.items() if x in met
        ]
    outputs = []
    for var in eqn.outvars:
        shape = tuple(var.aval.shape)
        moved = []
        for i, (lineage, labels) in enumerate(zip(lineages, distinct, strict=True)):
            to = {x: _labels(eqn, i, x, shapes, shape) for x in labels}
            moved.append({s: to[x] for s, x in lineage.items()})
        outputs.append(union(moved))
    return outputs, meetings


def _crossings(eqn: Any, lineages: Sequence[Lineage]) -> Iterator[DependentCombination]:
    """Finds two operands with one source whose entries meet."""
    # Put side by side, entries don't meet; but a selection by a random mask depends on mask and
    # case.
    if eqn.primitive in PLACING and not (eqn.primitive is p.select_n_p and lineages[0]):
        return
    seen: set[Any] = set()
    for lineage in lineages:
        for source in lineage:
            if source in seen:
                yield DependentCombination(source, eqn, along=False)
        seen |= set(lineage)


def union(moved: Sequence[Lineage]) -> Lineage:
    """Returns the lineage of entries each of which may be of any of several arrays of one shape."""
    result: dict[Any, Labels] = {}
    for lineage in moved:
        for source, labels in lineage.items():
            if source in result:
                pairs = zip(result[source], labels, strict=True)
                # Two views in an order of their own may reach for the same entries.
                labels = tuple(a if a == b and a != APART else SHARED for a, b in pairs)
            result[source] = labels
    return result


def _combined_axes(eqn: Any, shapes: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Returns for each operand the axes along which its entries are combined into one result."""
    q, primitive = eqn.params, eqn.primitive
    if primitive in _REDUCING:
        axes = list(q["axes"])
        return [[a for a in axes if shape[a] != 1] for shape in shapes]
    if primitive in _RUNNING:
        return [[q["axis"]] if shapes[0][q["axis"]] != 1 else []]
    if primitive in prim.LINEAR:
        c = Contraction.of(eqn)
        # A kernel tells how many terms there are: an image has the channels of all groups, and
        # more places than a window covers.
        pairs = zip(c.summed(0) + c.window(0), c.summed(1) + c.window(1), strict=True)
        several = [pair for pair in pairs if shapes[1][pair[1]] != 1]
        return [[pair[side] for pair in several] for side in (0, 1)]
    if primitive in prim.WINDOW and "window_dimensions" in q:
        return [[a for a, n in enumerate(q["window_dimensions"]) if n != 1] for _ in shapes]
    if primitive in _SCATTERING:
        return [[], [], _scattered_axes(q, shapes)]
    # An unknown primitive may combine anything: every axis counts, which errs on the safe side.
    known = _ALIGNED | _SLICING | prim.SHAPE | PLACING
    if primitive in known:
        return [[] for _ in shapes]
    return [[a for a, n in enumerate(shape) if n != 1] for shape in shapes]


def _labels(
    eqn: Any, operand: int, labels: Labels, shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]
) -> Labels:
    """Returns the labels of a result with respect to one source of one operand."""
    q, primitive, shape = eqn.params, eqn.primitive, shapes[operand]
    if primitive in _ALIGNED:
        if len(shape) != len(out):
            return (SHARED,) * len(out)  # a scalar beside an array
        return tuple(x if n == m else SHARED for x, n, m in zip(labels, shape, out, strict=True))
    if primitive is p.broadcast_in_dim_p:
        result: list[Label] = [SHARED] * len(out)
        for source, target in enumerate(q["broadcast_dimensions"]):
            if shape[source] == out[target]:
                result[target] = labels[source]
        # Along an axis of one place there are no two that could share anything.
        return tuple(APART if n == 1 else x for x, n in zip(result, out, strict=True))
    if primitive is tile_p:
        return tuple(x if n == m else SHARED for x, n, m in zip(labels, shape, out, strict=True))
    if primitive is p.transpose_p:
        return tuple(labels[i] for i in q["permutation"])
    if primitive in {p.reshape_p, p.squeeze_p}:
        return _reshaped(labels, shape, out)
    if primitive in _REDUCING:
        return tuple(x for i, x in enumerate(labels) if i not in q["axes"])
    if primitive in _SLICING or primitive is p.dynamic_update_slice_p:
        if len(shape) != len(out):
            return (SHARED,) * len(out)  # where to slice, or what to pad with
        return tuple(
            x if shape[i] == out[i] and primitive is not p.rev_p else _unordered(x)
            for i, x in enumerate(labels)
        )
    if primitive in _RUNNING:
        return tuple(SHARED if i == q["axis"] else x for i, x in enumerate(labels))
    if primitive is p.concatenate_p:
        axis = q["dimension"]
        return tuple(_unordered(x) if i == axis else x for i, x in enumerate(labels))
    if primitive is stack_p:
        # Of one operand only one place of the new axis depends.
        return (*labels[: q["axis"]], APART, *labels[q["axis"] :])
    if primitive is p.gather_p and operand == 0:
        return _gathered(q, labels, shape, out)
    if primitive is p.gather_p:
        # All axes of the indices but the last, which holds their coordinates, are the result's.
        rest = iter(labels[:-1])
        offset = q["dimension_numbers"].offset_dims
        return tuple(SHARED if i in offset else next(rest) for i in range(len(out)))
    if primitive in _SCATTERING | {p.scatter_p}:
        return labels if operand == 0 else _scattered(q, operand, labels, shapes)
    if primitive is p.dot_general_p:
        return _contracted(Contraction.of(eqn), operand, labels)
    if primitive is p.conv_general_dilated_p:
        return _convolved(Contraction.of(eqn), operand, labels)
    if primitive in prim.WINDOW and "window_dimensions" in q and operand == 0:
        windows = zip(
            q["window_dimensions"], q["window_strides"], q["window_dilation"], labels, strict=True
        )
        return tuple(
            x if (n, s) == (1, 1) else _unordered(x) if s >= n and d == 1 else SHARED
            for n, s, d, x in windows
        )
    return (SHARED,) * len(out)


def _unordered(label: Label) -> Label:
    return SHARED if label == SHARED else APART


def _reshaped(labels: Labels, shape: tuple[int, ...], out: tuple[int, ...]) -> Labels:
    """Returns the labels after a reshape, by the groups of axes that keep their product."""
    result: list[Label] = []
    i = j = 0
    while j < len(out):
        if out[j] == 1:
            result.append(APART)
            j += 1
            continue
        while i < len(shape) and shape[i] == 1:
            i += 1
        if i < len(shape) and shape[i] == out[j]:
            result.append(labels[i])
            i, j = i + 1, j + 1
            continue
        group = _next_group(shape[i:], out[j:])
        if group is None:
            return (SHARED,) * len(out)
        before, after = group
        # A merged axis has different source entries at different places only if each of its parts
        # has; which ones isn't followed further.
        merged = [x for x, n in zip(labels[i:], shape[i : i + before], strict=False) if n != 1]
        result += [SHARED if SHARED in merged else APART] * after
        i, j = i + before, j + after
    return tuple(result)


def _next_group(shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the least numbers of leading axes with the same product; None if there are none.

    Symbolic sizes are compared for equality only, for they have no order.
    """
    for before in range(1, len(shape) + 1):
        for after in range(1, len(out) + 1):
            if math.prod(shape[:before]) == math.prod(out[:after]):
                return before, after
    return None


def _gathered(q: Any, labels: Labels, shape: tuple[int, ...], out: tuple[int, ...]) -> Labels:
    numbers = q["dimension_numbers"]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [
        x if size == shape[i] else _unordered(x)
        for i, (x, size) in enumerate(zip(labels, q["slice_sizes"], strict=True))
        if i not in dropped
    ]
    result: list[Label] = [SHARED] * len(out)
    for target, label in zip(numbers.offset_dims, kept, strict=True):
        result[target] = label
    return tuple(result)


def made_apart(eqn: Any) -> set[int]:
    """Returns axes along which an equation makes entries differ that were alike."""
    q = eqn.params
    shapes = [tuple(v.aval.shape) for v in eqn.invars]
    (out,) = (tuple(v.aval.shape) for v in eqn.outvars[:1])
    if eqn.primitive is p.iota_p:
        return {q["dimension"]}
    if eqn.primitive in _RUNNING or eqn.primitive is stack_p:
        return {q["axis"]}
    if eqn.primitive is p.concatenate_p:
        return {q["dimension"]}
    if eqn.primitive is p.pad_p:
        return {a for a, (n, m) in enumerate(zip(shapes[0], out, strict=True)) if n != m}
    if eqn.primitive is p.dynamic_update_slice_p:
        return {a for a, (n, m) in enumerate(zip(shapes[1], out, strict=True)) if n != m}
    if eqn.primitive in _SCATTERING | {p.scatter_p}:
        return set(range(len(out))) - set(_windows(q, shapes).values())
    return set()


def _windows(q: Any, shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """Returns the axes of a scatter's updates that lie along a whole axis of its operand."""
    numbers = q["dimension_numbers"]
    inserted = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    moved = set(numbers.scatter_dims_to_operand_dims)
    kept = [a for a in range(len(shapes[0])) if a not in inserted]
    return {
        axis: target
        for axis, target in zip(numbers.update_window_dims, kept, strict=True)
        if target not in moved and shapes[2][axis] == shapes[0][target]
    }


def _scattered_axes(q: Any, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """Returns the axes of a scatter's updates along which entries may reach the same place."""
    # Indices are unknown while tracing: entries at different indices may be added to one place.
    windows = _windows(q, shapes)
    return [a for a, n in enumerate(shapes[2]) if a not in windows and n != 1]


def _scattered(q: Any, operand: int, labels: Labels, shapes: Sequence[tuple[int, ...]]) -> Labels:
    """Returns the labels of a scatter's result for a source of its updates or indices."""
    result: list[Label] = [SHARED] * len(shapes[0])
    if operand == 2:
        for axis, target in _windows(q, shapes).items():
            result[target] = labels[axis]
    return tuple(result)


def _contracted(c: Contraction, operand: int, labels: Labels) -> Labels:
    # An entry of one operand goes into the results of all free indices of the other.
    left, right = (
        [labels[a] if side == operand else SHARED for a in c.free(side)] for side in (0, 1)
    )
    return (*(labels[a] for a in c.batch(operand)), *left, *right)


def _convolved(c: Contraction, operand: int, labels: Labels) -> Labels:
    q, (image, kernel, result) = c.params, c.layouts
    out: list[Label] = [SHARED] * len(result)
    if operand == 1:
        # A kernel is the same at all places and for all examples: only output channels have their
        # own.
        out[result[1]] = labels[kernel[0]]
        return tuple(out)
    out[result[0]] = labels[image[0]] if q["batch_group_count"] == 1 else SHARED
    taps = [c.shapes[1][t] for t in c.window(1)]
    windows = zip(
        c.window(0), c.window(2), taps, q["window_strides"], q["rhs_dilation"], strict=True
    )
    for place, target, size, stride, dilation in windows:
        # Windows that don't overlap see different entries, up to a permutation that isn't followed.
        disjoint = size == 1 or (stride >= size and dilation == 1)
        out[target] = _unordered(labels[place]) if disjoint else SHARED
    # Depthwise, one kernel per channel: a channel is made of itself alone.
    if c.groups == c.shapes[0][image[1]] == c.shapes[1][kernel[0]]:
        out[result[1]] = labels[image[1]]
    return tuple(out)


def follow_lineages(
    nodes: Sequence[Node], given: Mapping[Value, Lineage]
) -> tuple[dict[Value, Lineage], dict[Node, list[DependentCombination]]]:
    """Follows lineages through nodes, and finds the dependent entries that each node combines."""
    lineages = dict(given)
    meetings: dict[Node, list[DependentCombination]] = {}
    for node in nodes:
        operands = [lineages.get(a, {}) if isinstance(a, Value) else {} for a in node.inputs]
        if any(operands):
            results, found = through(node.eqn, operands)
            lineages.update(zip(node.outputs, results, strict=True))
            if found:
                meetings[node] = found
    return lineages, meetings


def independent_lineages(values: Sequence[Value]) -> dict[Value, Lineage]:
    """Returns the lineages of values that are independent of each other, entries and all."""
    return {v: {v: identity(v.aval.shape)} for v in values}


def internal(values: Sequence[Value], nodes: Sequence[Node]) -> list[DependentCombination]:
    """Finds the dependent entries that nodes combine even where the values are independent."""
    return [
        m
        for found in follow_lineages(nodes, independent_lineages(values))[1].values()
        for m in found
    ]


def external(
    values: Sequence[Value], nodes: Sequence[Node], lineages: Mapping[Value, Lineage]
) -> list[DependentCombination]:
    """Finds the dependent entries that nodes combine because values share sources further back.

    Returns:
        Meetings whose source is one of the values.
    """
    clouded = {v: {v: _clouded(v, lineages[v])} for v in values}
    # No value has dependent entries of its own: only pairs of values can meet.
    if not any(SHARED in labels for found in clouded.values() for labels in found.values()):
        return _across(values, nodes, lineages)
    found = [m for found in follow_lineages(nodes, clouded)[1].values() for m in found if m.along]
    if found:
        # Meetings that even independent entries have are the layer's own: its rule sees them.
        known = {(id(m.eqn), m.source) for m in internal(values, nodes) if m.along}
        found = [m for m in found if (id(m.eqn), m.source) not in known]
    return [*found, *_across(values, nodes, lineages)]


def shared_sources(values: Sequence[Value], lineages: Mapping[Value, Lineage]) -> list[Any]:
    """Returns the sources that more than one of the values depends on."""
    seen: set[Any] = set()
    shared: dict[Any, None] = {}
    for value in values:
        shared.update(dict.fromkeys(s for s in lineages[value] if s in seen))
        seen |= set(lineages[value])
    return list(shared)


def _clouded(value: Value, lineage: Lineage) -> tuple[Any, ...]:
    """Returns identity labels, SHARED along axes on which entries depend on one another."""
    distinct = set(lineage.values())
    return tuple(
        SHARED if any(labels[axis] == SHARED for labels in distinct) else axis
        for axis in range(len(value.aval.shape))
    )


def _across(
    values: Sequence[Value], nodes: Sequence[Node], lineages: Mapping[Value, Lineage]
) -> list[DependentCombination]:
    """Finds equations whose operands come from different values that share a source."""
    if not shared_sources(values, lineages):
        return []
    combinations: list[DependentCombination] = []
    # For each value made the inputs it follows from: a meeting is an equation with two operands
    # that follow from inputs with a common source.
    # Dictionaries for sets: what is reported has the order of the values in every process.
    reached = {v: {v: None} for v in values}
    # What was put side by side (`concatenate([x, relu(x)])`) may be combined later on.
    beside = follow_lineages(nodes, {v: lineages[v] for v in values})[1] if _places(nodes) else {}
    for node in nodes:
        sets = [reached.get(a, {}) for a in node.inputs if isinstance(a, Value)]
        pairs = [
            (one, other)
            for i, one in enumerate(sets)
            for other in (sets[i + 1 :] if _meets(node) else ())
        ]
        if any(m.along for m in beside.get(node, ())):
            pairs += [(one, one) for one in sets if len(one) > 1]
        for one, other in pairs:
            for a in one:
                partners = [
                    b for b in other if a is not b and lineages[a].keys() & lineages[b].keys()
                ]
                if partners:
                    combinations.append(DependentCombination(a, node.eqn, False, tuple(partners)))
                    combinations += [
                        DependentCombination(b, node.eqn, False, (a,)) for b in partners
                    ]
        if any(sets):
            reached.update(dict.fromkeys(node.outputs, dict.fromkeys(v for s in sets for v in s)))
    return combinations


def _places(nodes: Sequence[Node]) -> bool:
    """Returns whether an equation puts several values side by side, and others follow."""
    return any(n.primitive in PLACING and len(n.values) > 1 for n in nodes[:-1])


def _meets(node: Node) -> bool:
    """Returns whether entries of different operands are combined, rather than put side by side."""
    if len(node.values) < 2:
        return False
    # A trial with one common source: what meets then are operands, not entries of one of them.
    operands = [{None: identity(getattr(a.aval, "shape", ()))} for a in node.inputs]
    return any(not m.along for m in through(node.eqn, operands)[1])


Axes = tuple[bool, ...]
"""Whether an array may vary along each axis, for another reason than the data."""

_NEW = {
    p.cond_p, p.while_p,
    p.random_bits_p, p.random_fold_in_p, p.random_gamma_p, p.random_seed_p, p.random_split_p,
    p.rng_bit_generator_p, p.rng_uniform_p, p.threefry2x32_p,
}  # fmt: skip


def varying_axes(program: Program) -> list[Axes]:
    """Finds the axes of a program's outputs along which more differs than its data.

    In doubt (a branch, a loop that isn't a scan) every axis is one.
    """
    known: dict[Any, Axes] = {v: _all_of(v.aval.shape) for v in program.constants}
    for value in program.inputs:
        shape = value.aval.shape
        known[value] = (False,) * len(shape) if value.is_data else _all_of(shape)
    for layer in program.layers:
        if not layer.nodes:
            known.update(zip(layer.outputs, (known[v] for v in layer.inputs), strict=True))
        walk_nodes(layer.nodes, known, (), _rule, _constant)
    outputs = program.outputs
    return [known[v] if isinstance(v, Value) else _all_of(v.aval.shape) for v in outputs]


def _all_of(shape: Sequence[int]) -> Axes:
    # Along an axis of one place there is nothing to differ.
    return tuple(n != 1 for n in shape)


def _constant(atom: Any, value: Any) -> Axes:
    del value
    return _all_of(atom.aval.shape)


def _equation(eqn: Any, operands: list[Axes]) -> list[Axes]:
    shapes = [tuple(v.aval.shape) for v in eqn.outvars]
    if eqn.primitive is p.scan_p:
        return _scan(eqn, operands)
    if eqn.primitive in _NEW or (eqn.primitive not in FOLLOWED and any(map(any, operands))):
        return [_all_of(shape) for shape in shapes]
    # Each operand is a source of its own, so that two views of one array don't hide each other.
    lineages = [
        {i: tuple(a if varies else SHARED for a, varies in enumerate(axes))} if any(axes) else {}
        for i, axes in enumerate(operands)
    ]
    results, _ = through(eqn, lineages)
    apart = made_apart(eqn)
    return [
        tuple(
            n != 1 and (a in apart or any(x[a] != SHARED for x in found.values()))
            for a, n in enumerate(shape)
        )
        for found, shape in zip(results, shapes, strict=True)
    ]


_rule = entering(_equation, _constant)


def _scan(eqn: Any, operands: list[Axes]) -> list[Axes]:
    loop = Scan.of(eqn, operands)
    rows = [axes[1:] for axes in loop.xs]

    def step(carry: Sequence[Axes]) -> tuple[Sequence[Axes], list[Axes]]:
        return loop.split(walk(loop.body, loop.inputs(carry, rows), _rule, _constant))

    def either(a: Axes, b: Axes) -> Axes:
        return tuple(x or y for x, y in zip(a, b, strict=True))

    carry, stacked = fixed_point(step, loop.carry, either)
    # Steps may differ from one another.
    return [*carry, *((True, *axes) for axes in stacked)]
