"""Follows which entries of random sources values depend on, and finds where dependent ones meet.

The lineage of a value holds for every *source* (a random array) how the value's entries depend on
the source's entries, one label per axis of the value:

    an integer   entries at different places along this axis depend on different entries of the
                 source, those at the same place of that axis of the source
    APART        on different entries, in an order that isn't followed (a slice, a merged axis)
    MixedBy(w)     on the same ones, each by weights of its own out of w: a matrix product's columns
    SHARED       on the same ones (a broadcast, a kernel's noise at all positions), or maybe so

Two operands with a common source are dependent, and so are the terms of a sum along a `SHARED` or
`MixedBy` axis. Everything in between is independent, and the rules of `rules` are exact for it.

Sharp edges
- A conservative answer is SHARED: what is called independent is, what is called dependent may not
  be. A gather by indices that happen to differ counts as shared.
- Weights are parameters, and parameters are taken to have either sign. Products with fewer than
  `FEW` of them may be far from their mean: their results are SHARED.
"""

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program import Program, ir

APART: Literal["apart"] = "apart"
SHARED: Literal["shared"] = "shared"


class MixedBy(NamedTuple):
    """The label of entries that depend on the same ones, each by weights of its own.

    Attributes:
        by: What says which weights these are.
    """

    by: frozenset[Any]


Label = int | Literal["apart", "shared"] | MixedBy
Labels = tuple[Label, ...]
Lineage = Mapping[Any, Labels]

FEW = 8
"""Terms below which a sum with weights of random signs is far from its mean: of chi^2_n / n the
median is .92 at n = 8, .84 at n = 4 and .45 at n = 1."""


def is_common(label: Label) -> bool:
    """Returns whether entries along an axis depend on the same entries of a source."""
    return label == SHARED or isinstance(label, MixedBy)


@dataclass(frozen=True)
class DependentCombination:
    """A place where dependent entries are combined.

    Dependent terms are of two kinds. Where the same entries come with the same sign (a pooling of
    what a kernel makes at all positions, a layer that is called twice), what they share *adds up*:
    a sum that is taken as one of independent terms is off by as much as there are terms. Where they
    come by many weights of either sign, as between two dense layers, products of these cancel but
    for their spread: sum_k w_k^2 (sum_c v_kc^2 s_c) is the mean of the true variance over signs of
    v.

    Attributes:
        source: The source they share.
        eqn: The equation that combines them.
        along: Whether they are entries of one operand, combined along an axis, rather than entries
            of two operands.
        partners: Other values that depend on what the source depends on.
        adds_up: Whether what they share adds up, rather than cancels under weights of either sign.
    """

    source: Any
    eqn: Any
    along: bool
    partners: tuple[Any, ...] = ()
    adds_up: bool = True


def identity(shape: Sequence[int]) -> Labels:
    """Returns the labels of a source with respect to itself."""
    return tuple(range(len(shape)))


def through(
    eqn: Any, lineages: Sequence[Lineage]
) -> tuple[list[Lineage], list[DependentCombination]]:
    """Follows lineages, one per operand, through an equation, and finds what it combines.

    They are empty for a deterministic operand. The equation has no control flow.
    """
    # Beside the lineages: what meets inside a call belongs to no result of it.
    meetings: list[DependentCombination] = []

    def rule(inner: Any, operands: list[Lineage]) -> list[Lineage]:
        results, met = _through(inner, ir.signature(inner), operands)
        meetings.extend(met)
        return results

    return list(ir.entering(rule, lambda *_: {})(eqn, list(lineages))), meetings


def _through(
    eqn: Any, of: ir.Signature, lineages: Sequence[Lineage], weighed: Sequence[Any] = ()
) -> tuple[list[Lineage], list[DependentCombination]]:
    """Follows lineages through an equation without control flow.

    `weighed` says for each operand which weights, that aren't data, multiply its entries; None for
    none.
    """
    if not any(lineages):
        return [{} for _ in eqn.outvars], []
    meetings = list(_crossings(eqn, of, lineages, bool(weighed) and any(weighed)))
    weighed = weighed or [None] * len(lineages)
    # Many sources, few distinct labels: deep in a network there is a source per weight before it.
    distinct = [set(lineage.values()) for lineage in lineages]
    every = list(zip(eqn.invars, lineages, distinct, of.operands, weighed, strict=True))
    for atom, lineage, labels, operand, by in every:
        met = {x: by is None or _adds_up(x, operand.combined, atom.aval.shape)
               for x in labels if any(is_common(x[a]) for a in operand.combined)}  # fmt: skip
        meetings += [
            DependentCombination(s, eqn, along=True, adds_up=met[x])
            for s, x in lineage.items()
            if x in met
        ]
    outputs = []
    for result, var in enumerate(eqn.outvars):
        moved = []
        for atom, lineage, labels, operand, by in every:
            if lineage and (along := operand.along[result]) is not None:
                shape = var.aval.shape
                many = by is not None and _terms(operand, atom.aval.shape) >= FEW
                mixed = MixedBy(frozenset((by,))) if many else None
                axes = list(zip(along, shape, strict=True))
                to = {x: tuple(_label(one, x, n, mixed) for one, n in axes) for x in labels}
                kept = all(x == y for x, y in to.items())
                moved.append(lineage if kept else {s: to[x] for s, x in lineage.items()})
        outputs.append(union(moved))
    return outputs, meetings


def _terms(operand: ir.Operand, shape: Sequence[int]) -> int:
    """Returns how many entries of an operand are summed in an entry of the result."""
    return math.prod(shape[a] for a in operand.combined if isinstance(shape[a], int))


def _adds_up(labels: Labels, combined: Iterable[int], shape: Sequence[int]) -> bool:
    """Returns whether too few independent entries are weighed for what they share to cancel."""
    # Along a mixed axis, entries are sums of many already.
    if all(labels[a] != SHARED for a in combined):
        return False
    apart = [shape[a] for a in combined if not is_common(labels[a])]
    return math.prod(n for n in apart if isinstance(n, int)) < FEW


def _crossings(
    eqn: Any, of: ir.Signature, lineages: Sequence[Lineage], weighs: bool
) -> Iterator[DependentCombination]:
    """Finds two operands with one source whose entries meet; `weighs` if one of them is weights."""
    present = [i for i, lineage in enumerate(lineages) if lineage]
    for n, i in enumerate(present):
        others = [lineages[j] for j in present[:n] if of.meet(i, j)]
        for source in lineages[i] if others else ():
            met = [before[source] for before in others if source in before]
            if met:
                adds_up = not weighs and any(alike(lineages[i][source], x) for x in met)
                yield DependentCombination(source, eqn, along=False, adds_up=adds_up)


def alike(one: Labels, other: Labels) -> bool:
    """Returns whether two values may depend on the same entries of a source in the same way.

    They don't where other weights have mixed one than the other, as what a residual block adds.
    """
    return {x for x in one if isinstance(x, MixedBy)} == {
        x for x in other if isinstance(x, MixedBy)
    }


def _label(along: ir.Along, labels: Labels, size: int, mixed: MixedBy | None) -> Label:
    """Returns the label of a result's axis; `mixed` if many weights make each of its entries."""
    of = [labels[a] for a in along.axes]
    common = _common(of)
    match along.relation:
        case ir.Relation.SAME:
            return of[0]
        # A merged axis has different source entries at different places only if each of its parts
        # has; which ones isn't followed further.
        case ir.Relation.MERGED | ir.Relation.SPLIT | ir.Relation.PLACED:
            return common or APART
        # Windows that don't overlap see different entries.
        case ir.Relation.WINDOWED if along.window is not None and along.window.is_disjoint:
            return common or APART
        case ir.Relation.BROADCAST if size == 1:
            return APART  # there are no two that could share anything
        case ir.Relation.WINDOWED | ir.Relation.BROADCAST if mixed is not None and common is None:
            return mixed
    return SHARED


def _common(labels: Iterable[Label]) -> Label | None:
    """Returns the label of an axis that several make, if entries along one of them share any."""
    common = [x for x in labels if is_common(x)]
    if SHARED in common:
        return SHARED
    weights = [x.by for x in common if isinstance(x, MixedBy)]
    return MixedBy(frozenset().union(*weights)) if weights else None


def union(moved: Sequence[Lineage]) -> Lineage:
    """Returns the lineage of entries each of which may be of any of several arrays of one shape."""
    if len(moved) == 1:
        return moved[0]
    result: dict[Any, Labels] = {}
    for lineage in moved:
        for source, labels in lineage.items():
            if source in result:
                pairs = zip(result[source], labels, strict=True)
                labels = tuple(_either(a, b) for a, b in pairs)
            result[source] = labels
    return result


def _either(one: Label, other: Label) -> Label:
    """Returns the label of an axis along which entries are of either of two views."""
    if one == other and one != APART:
        return one
    # Two views in an order of their own may reach for the same entries.
    return _common((one, other)) or SHARED


def follow_lineages(
    nodes: Sequence[ir.Node], known: Mapping[ir.Value, Lineage]
) -> tuple[dict[ir.Value, Lineage], dict[ir.Node, list[DependentCombination]]]:
    """Follows lineages through nodes, and finds the dependent entries that each node combines."""
    lineages = dict(known)
    meetings: dict[ir.Node, list[DependentCombination]] = {}
    for node in nodes:
        operands = [lineages.get(a, {}) if isinstance(a, ir.Value) else {} for a in node.inputs]
        if any(operands):
            family = node.signature.family
            results, met = (
                through(node.eqn, operands)
                if family is ir.OperationFamily.CALL
                else _through(node.eqn, node.signature, operands, _weighed(node))
            )
            lineages.update(zip(node.outputs, results, strict=True))
            if met:
                meetings[node] = met
    return lineages, meetings


def _weighed(node: ir.Node) -> Sequence[Any]:
    """Returns for each operand of a product the weights that the other one is, or None."""
    if node.signature.family is not ir.OperationFamily.CONTRACTION or len(node.inputs) != 2:
        return ()
    left, right = (
        (a.path or a) if isinstance(a, ir.Value) and a.is_weight else None for a in node.inputs
    )
    return right, left


def independent_lineages(values: Sequence[ir.Value]) -> dict[ir.Value, Lineage]:
    """Returns the lineages of values that are independent of each other, entries and all."""
    return {v: {v: identity(v.aval.shape)} for v in values}


def internal(values: Sequence[ir.Value], nodes: Sequence[ir.Node]) -> list[DependentCombination]:
    """Finds the dependent entries that nodes combine even where the values are independent."""
    return [
        m for met in follow_lineages(nodes, independent_lineages(values))[1].values() for m in met
    ]


def external(
    values: Sequence[ir.Value], nodes: Sequence[ir.Node], lineages: Mapping[ir.Value, Lineage]
) -> list[DependentCombination]:
    """Finds the dependent entries that nodes combine because values share sources further back.

    Returns meetings whose source is one of the values.
    """
    clouded = {v: {v: _clouded(v, lineages[v])} for v in values}
    # No value has dependent entries of its own: only pairs of values can meet.
    shared = any(any(map(is_common, labels)) for of in clouded.values() for labels in of.values())
    if not shared or not any(map(_combines, nodes)):
        return _across(values, nodes, lineages)
    met = follow_lineages(nodes, clouded)[1].values()
    meetings = [m for of_node in met for m in of_node if m.along]
    if meetings:
        # Meetings that even independent entries have are the layer's own: its rule sees them.
        known = {(id(m.eqn), m.source) for m in internal(values, nodes) if m.along}
        meetings = [m for m in meetings if (id(m.eqn), m.source) not in known]
    return [*meetings, *_across(values, nodes, lineages)]


def _combines(node: ir.Node) -> bool:
    """Returns whether entries of one operand may be combined."""
    of = node.signature
    return of.family is ir.OperationFamily.CALL or any(x.combined for x in of.operands)


def _clouded(value: ir.Value, lineage: Lineage) -> tuple[Any, ...]:
    """Returns identity labels, those of axes on which entries depend on one another put in."""
    distinct = set(lineage.values())
    of_axes = [{labels[axis] for labels in distinct} for axis in range(len(value.aval.shape))]
    return tuple(_common(of_axis) or axis for axis, of_axis in enumerate(of_axes))


def _across(
    values: Sequence[ir.Value], nodes: Sequence[ir.Node], lineages: Mapping[ir.Value, Lineage]
) -> list[DependentCombination]:
    """Finds equations whose operands come from different values that share a source."""
    sources = [s for value in values for s in lineages[value]]
    if len(set(sources)) == len(sources):
        return []
    combinations: list[DependentCombination] = []
    # For each value made the inputs it follows from: a meeting is an equation with two operands
    # that follow from inputs with a common source.
    # Dictionaries for sets: what is reported has the order of the values in every process.
    reached = {v: {v: None} for v in values}
    # What was put side by side (`concatenate([x, relu(x)])`) may be combined later on.
    beside = follow_lineages(nodes, {v: lineages[v] for v in values})[1] if _places(nodes) else {}
    for node in nodes:
        sets = [of for a in node.inputs if isinstance(a, ir.Value) and (of := reached.get(a))]
        met = len(sets) > 1 and _meets(node)
        pairs = list(itertools.combinations(sets, 2)) if met else []
        if any(m.along for m in beside.get(node, ())):
            pairs += [(one, one) for one in sets if len(one) > 1]
        for one, other in pairs:
            for a in one:
                partners = [
                    b for b in other if a is not b and lineages[a].keys() & lineages[b].keys()
                ]
                if partners:
                    weighs = any(_weighed(node))
                    add_up = {b: not weighs and _add_up(lineages[a], lineages[b]) for b in partners}
                    combinations.append(
                        DependentCombination(
                            a, node.eqn, False, tuple(partners), any(add_up.values())
                        )
                    )
                    combinations += [
                        DependentCombination(b, node.eqn, False, (a,), add_up[b]) for b in partners
                    ]
        if any(sets):
            reached.update(dict.fromkeys(node.outputs, dict.fromkeys(v for s in sets for v in s)))
    return combinations


def _add_up(one: Lineage, other: Lineage) -> bool:
    return any(alike(labels, other[source]) for source, labels in one.items() if source in other)


def _places(nodes: Sequence[ir.Node]) -> bool:
    """Returns whether an equation puts several values side by side, and others follow."""
    return any(n.signature.beside and len(n.values) > 1 for n in nodes[:-1])


def _meets(node: ir.Node) -> bool:
    """Returns whether entries of different operands are combined, rather than put side by side."""
    of = node.signature
    if of.family is not ir.OperationFamily.CALL:
        return len(of.beside) < len(of.operands)
    # A trial with one common source: what meets then are operands, not entries of one of them.
    operands = [{None: identity(getattr(a.aval, "shape", ()))} for a in node.inputs]
    return any(not m.along for m in through(node.eqn, operands)[1])


Axes = tuple[bool, ...]
"""Whether an array may vary along each axis, for another reason than the data."""


def varying_axes(program: Program, examples: Container[ir.Value]) -> list[Axes]:
    """Finds the axes of a program's outputs along which more differs than its examples.

    What a function makes of one example alone is what it makes of it in a batch only if nothing but
    the example itself differs from row to row. A captured array with a row per example does, and so
    do positions that are counted along the examples, rows of a table of them, and random bits. In
    doubt (a branch, a loop that isn't a scan) every axis is one.
    """
    known: dict[Any, Axes] = {v: _all_of(v.aval.shape) for v in program.constants}
    for value in program.inputs:
        shape = value.aval.shape
        known[value] = (False,) * len(shape) if value in examples else _all_of(shape)
    for layer in program.layers:
        if not layer.nodes:
            known.update(zip(layer.outputs, (known[v] for v in layer.inputs), strict=True))
        ir.walk_nodes(layer.nodes, known, (), _rule, _constant)
    outputs = program.outputs
    return [known[v] if isinstance(v, ir.Value) else _all_of(v.aval.shape) for v in outputs]


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
    if eqn.primitive is p.remat_p:
        return ir.walk(_compat.as_closed(_compat.sub_jaxprs(eqn)[0]), operands, _rule, _constant)
    of = ir.signature(eqn)
    if of.family is ir.OperationFamily.LOOP or (
        of.family is ir.OperationFamily.OPAQUE and any(map(any, operands))
    ):
        return [_all_of(shape) for shape in shapes]
    # Which row of a table is taken is said by the indices.
    silent = {ir.Relation.UNKNOWN} if of.family is ir.OperationFamily.SELECT else set()

    def varies(axis: int, result: int) -> bool:
        return axis in of.distinct or any(
            along[axis].relation not in silent and any(axes[a] for a in along[axis].axes)
            for operand, axes in zip(of.operands, operands, strict=True)
            if (along := operand.along[result]) is not None
        )

    return [
        tuple(n != 1 and varies(a, result) for a, n in enumerate(shape))
        for result, shape in enumerate(shapes)
    ]


_rule = ir.entering(_equation, _constant)


def _scan(eqn: Any, operands: list[Axes]) -> list[Axes]:
    loop = ir.Scan.of(eqn, operands)
    rows = [axes[1:] for axes in loop.xs]

    def step(carry: Sequence[Axes]) -> tuple[Sequence[Axes], list[Axes]]:
        return loop.split(ir.walk(loop.body, loop.inputs(carry, rows), _rule, _constant))

    def either(a: Axes, b: Axes) -> Axes:
        return tuple(x or y for x, y in zip(a, b, strict=True))

    carry, stacked = ir.fixed_point(step, loop.carry, either)
    # Steps may differ from one another.
    return [*carry, *((True, *axes) for axes in stacked)]
