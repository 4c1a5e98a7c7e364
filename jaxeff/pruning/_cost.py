"""The cost of a pruned model, as a function of how many channels its groups keep.

Counted on the axes of the program that was read, so that thousands of plans cost no trace: the
entries of parameters, and the multiply-accumulates that `jaxeff.cost` counts for the smaller model.

```python
from jaxeff.nn import small_classifier
from jaxeff.pruning import axis_size, channels
from jaxeff.pruning.dependencies import resolve

f, params, (x, y) = small_classifier(4)
found = channels(f, params, x)
conv1 = found.dimensions[0]                       # its channels
rows = resolve(found.leaves["fc1/kernel"][0])     # the pixels of these channels, flattened
assert axis_size(rows, {}) == params["fc1"]["kernel"].shape[0]
assert axis_size(rows, {conv1: 1}) == axis_size(rows, {}) // conv1.size
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxeff.program import Program
from jaxeff.program.costs import node_macs
from jaxeff.program.ir import Contraction, Node, Role, repetitions
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import Axis, Channels, Concatenation, Dimension, Labels, resolve

Counts = Mapping[Dimension, int]
Count = Callable[[Counts], float]


def parameters(channels: Channels) -> Count:
    """Returns a function from kept channels to entries of all parameters, without statistics."""
    # Resolved once: a count is then a product of numbers, for thousands of plans.
    read = {v.path for v in channels.program.inputs if v.role & Role.PARAM}
    shapes = [[*map(resolve, axes)] for path, axes in channels.leaves.items() if path in read]

    def count(counts: Counts) -> float:
        return float(sum(math.prod(axis_size(axis, counts) for axis in axes) for axes in shapes))

    return count


def macs(channels: Channels) -> Count:
    """Returns a function from kept channels to multiply-accumulates, for the traced batch."""
    return _macs(channels.program, channels.labels)


def _macs(program: Program, labels: Labels, times: int = 1) -> Count:
    terms: list[Count] = []
    for layer in program.layers:
        if layer.kind == "control flow":
            (node,) = layer.nodes
            bodies = [_macs(b, labels, times * repetitions(node)) for b in layer.programs]
            if node.primitive is prim.p.cond_p:
                # As `jaxeff.cost`: a branch costs as much as the dearest one.
                terms.append(_dearest(bodies))
            else:
                terms += bodies
            continue
        terms += [_term(times * node_macs(n), n, labels) for n in layer.nodes if node_macs(n)]

    def count(counts: Counts) -> float:
        return sum(term(counts) for term in terms)

    return count


def _dearest(bodies: list[Count]) -> Count:
    return lambda counts: max(body(counts) for body in bodies)


def _term(whole: int, node: Node, labels: Labels) -> Count:
    """Returns a product's cost, in proportion to the sizes of what it makes and sums."""
    contraction = Contraction.of(node)
    made, right = labels.of(node.outputs[0]), labels.of(node.inputs[1])
    # Without the places of the result: the cost per entry stays a whole number, and exact.
    axes = [axis for i, axis in enumerate(made) if i not in contraction.window(2)]
    axes += [right[i] for i in contraction.summed(1)]
    # A kernel's places and strides lose nothing: what is left over is the same for every plan.
    per_entry = whole / math.prod(axis.size for axis in axes)
    axes = [*map(resolve, axes)]

    def count(counts: Counts) -> float:
        return per_entry * math.prod(axis_size(axis, counts) for axis in axes)

    return count


def axis_size(axis: Axis, counts: Mapping[Dimension, Any]) -> Any:
    """Computes the number of indices of a resolved axis that stay; it may be traced."""
    if isinstance(axis, Dimension):
        return counts.get(axis, axis.size)
    sizes = [axis_size(part, counts) for part in axis.parts]
    return sum(sizes) if isinstance(axis, Concatenation) else math.prod(sizes)


__all__ = ["Counts", "axis_size", "macs", "parameters"]
