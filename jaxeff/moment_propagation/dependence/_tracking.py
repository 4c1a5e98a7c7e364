"""Follows lineages through a layer's equations, and finds where dependent entries are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxeff.moment_propagation.dependence._lineage import (
    PLACING,
    SHARED,
    DependentCombination,
    Lineage,
    identity,
    through,
)
from jaxeff.program.ir import Node, Value


def walk(
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
    return [m for found in walk(nodes, independent_lineages(values))[1].values() for m in found]


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
    found = [m for found in walk(nodes, clouded)[1].values() for m in found if m.along]
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
    found: list[DependentCombination] = []
    # For each value made the inputs it follows from: a meeting is an equation with two operands
    # that follow from inputs with a common source.
    # Dictionaries for sets: what is reported has the order of the values in every process.
    reached = {v: {v: None} for v in values}
    # What was put side by side (`concatenate([x, relu(x)])`) may be combined later on.
    beside = walk(nodes, {v: lineages[v] for v in values})[1] if _places(nodes) else {}
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
                    found.append(DependentCombination(a, node.eqn, False, tuple(partners)))
                    found += [DependentCombination(b, node.eqn, False, (a,)) for b in partners]
        if any(sets):
            reached.update(dict.fromkeys(node.outputs, dict.fromkeys(v for s in sets for v in s)))
    return found


def _places(nodes: Sequence[Node]) -> bool:
    """Returns whether an equation puts several values side by side, and others follow."""
    return any(n.primitive in PLACING and len(n.values) > 1 for n in nodes[:-1])


def _meets(node: Node) -> bool:
    """Returns whether entries of different operands are combined, rather than put side by side."""
    if len(node.values) < 2:
        return False
    # A trial with one common source: what meets then are operands, not entries of one of them.
    given = [{None: identity(getattr(a.aval, "shape", ()))} for a in node.inputs]
    return any(not m.along for m in through(node.eqn, given)[1])
