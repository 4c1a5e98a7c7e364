"""Which arguments of a function hold an example per place of their first axis.

The first axis of every data argument is followed to the first of every result, through scans too;
of a state that is fed back, what all steps have in common counts. In doubt (a while loop, a branch,
a mixed axis, rows that a captured array or their place makes different) the answer is that there
are no examples: dearer for those who ask, but never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import (
    APART,
    Lineage,
    identity,
    union,
    varying_axes,
    walk,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Scan, Value, fixed_point


def batched_leaves(program: Program, count: int) -> list[bool]:
    """Returns which of the first inputs hold an example per place of their first axis.

    Args:
        program: A program.
        count: Number of its inputs that may; data among the others leaves the answer in doubt.
    """
    inputs = program.inputs[:count]
    data = [v for v in inputs if v.is_data]
    none = [False] * count
    if (
        not data
        or any(v.is_data for v in program.inputs[count:])
        or not all(v.aval.ndim for v in data)
        or len({v.aval.shape[0] for v in data}) > 1
    ):
        return none
    given = [{v: identity(v.aval.shape)} if v in data else {} for v in program.inputs]
    for lineage in _followed(program, given) or [{}]:
        if not lineage or any(not labels or labels[0] != 0 for labels in lineage.values()):
            return none
    # What else differs from row to row isn't there when one example is computed alone.
    if any(axes[0] for axes in varying_axes(program)):
        return none
    return [v.is_data for v in inputs]


def _followed(program: Program, given: Sequence[Lineage]) -> list[Lineage] | None:
    """Follows lineages to a program's outputs; None where there is a loop that isn't followed."""
    lineages = {v: x for v, x in zip(program.inputs, given, strict=True) if x}
    for layer in program.layers:
        here = {v: lineages[v] for v in layer.inputs if v in lineages}
        if not here:
            continue
        if layer.kind == "control flow":
            made = _through_scan(layer, here)
            if made is None:
                return None
            # A layer has the outputs that are read; the loop's node has all of them.
            lineages.update(zip(layer.nodes[0].outputs, made, strict=True))
        elif not layer.nodes:
            lineages.update(
                (o, here[i]) for i, o in zip(layer.inputs, layer.outputs, strict=True) if i in here
            )
        else:
            found, _ = walk(layer.nodes, here)
            lineages.update((v, found[v]) for v in layer.outputs if v in found)
    return [lineages.get(v, {}) if isinstance(v, Value) else {} for v in program.outputs]


def _through_scan(layer: Layer, lineages: Mapping[Value, Lineage]) -> list[Lineage] | None:
    """Follows lineages through a scan; None if the layer is another loop or a branch."""
    if [node.primitive for node in layer.nodes] != [p.scan_p] or len(layer.programs) != 1:
        return None
    (node,), (body,) = layer.nodes, layer.programs
    operands = [lineages.get(a, {}) if isinstance(a, Value) else {} for a in node.inputs]
    loop = Scan.of(node, operands)
    # A step reads a place of the first axis. If that is the examples' own, no label of it is left,
    # so what is made of it isn't taken for an example's.
    rows = [{source: labels[1:] for source, labels in x.items()} for x in loop.xs]

    def step(carry: Sequence[Lineage]) -> tuple[Sequence[Lineage], list[Lineage] | None]:
        made = _followed(body, loop.inputs(carry, rows))
        # A loop inside that isn't followed: this one ends as it is, and is given up.
        return (carry, None) if made is None else loop.split(made)

    carry, stacked = fixed_point(step, loop.carry, lambda a, b: union((a, b)))
    if stacked is None:
        return None
    return [*carry, *({s: (APART, *labels) for s, labels in x.items()} for x in stacked)]
