"""What is known of a program's values before slopes are taken: examples, randomness, owners.

- Along which axis of a value its examples lie. A value that holds none is shared by all; where
  examples mix, as in a batch's statistics, it is `MIXED`. In doubt (a while loop, a mixed axis)
  they do: dearer for those who ask, but never wrong.
- Which values depend on random inputs.
- Which random arrays are read once, as the weights of a product or the table of a look-up. Their
  part of a variance is found there, and no slopes by them are returned (`sole_readers`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import dependence
from jaxeff.moment_propagation.rules import Kind, kind_of
from jaxeff.program import Layer, Program
from jaxeff.program.ir import (
    Contraction,
    Node,
    OperationFamily,
    Relation,
    Scan,
    Value,
    fixed_point,
    row_axes,
)

MIXED = -1
"""In the place of an axis: several examples, or parts of them, make one entry."""
Axis = int | None

_EXAMPLES = "examples"


def union(one: Axis, other: Axis) -> Axis:
    """Returns where examples lie in what is made of either of two values."""
    if one is None or other is None:
        return one if other is None else other
    return one if one == other else MIXED


def _lineage(axis: Axis, rank: int) -> dependence.Lineage:
    """Returns the lineage of a value: examples are a source, whose first axis is told apart."""
    if axis is None:
        return {}
    other: dependence.Label = dependence.SHARED if axis == MIXED else dependence.APART
    labels = [other] * rank
    if axis != MIXED:
        labels[axis] = 0
    return {_EXAMPLES: tuple(labels)}


def _axis(lineage: dependence.Lineage) -> Axis:
    if not lineage:
        return None
    labels = list(lineage[_EXAMPLES])
    return labels.index(0) if labels.count(0) == 1 else MIXED


def is_inexact(value: Any) -> bool:
    """Returns whether a value has slopes."""
    return bool(jnp.issubdtype(value.aval.dtype, jnp.inexact))


@dataclass
class ExampleFlow:
    """What is known of the values of a program, those inside its loops included.

    Attributes:
        examples: How many there are; None if everything is one, which no axis is of.
        strict: Whether what is certain and made of several examples is told from what they share.
        axes: The axis of examples by value, of those that hold any.
        random: Values that depend on random inputs, and have slopes by them.
        owned: Random arrays whose one reader finds their part of the variance, and what moves
            their entries on the way there.
    """

    examples: int | None
    strict: bool = False
    axes: dict[Value, Axis] = field(default_factory=dict)
    random: set[Value] = field(default_factory=set)
    owned: set[Value] = field(default_factory=set)

    def axis(self, atom: Any) -> Axis:
        """Returns where the examples of an operand lie."""
        return self.axes.get(atom) if isinstance(atom, Value) else None

    def is_random(self, atom: Any) -> bool:
        """Returns whether an operand depends on random inputs."""
        return isinstance(atom, Value) and atom in self.random

    def follow(self, program: Program, axes: Sequence[Axis], random: Sequence[bool]) -> None:
        """Follows what is known of a program's inputs to all its values."""
        for value, axis, is_random in zip(program.inputs, axes, random, strict=True):
            self._note(value, axis, is_random and is_inexact(value))
        for layer in program.layers:
            if layer.kind == "control flow":
                self._control_flow(layer)
            elif not layer.nodes:
                for source, output in zip(layer.inputs, layer.outputs, strict=True):
                    self._note(output, self.axis(source), self.is_random(source))
            else:
                self._nodes(layer.nodes)

    def _note(self, value: Value, axis: Axis, is_random: bool) -> None:
        if is_random and is_inexact(value):
            self.random.add(value)
        # What is certain and made of several examples is a constant like any other: it has no
        # slopes that would have to be kept apart.
        is_constant = axis == MIXED and value not in self.random and not self.strict
        self.axes[value] = None if is_constant else axis

    @classmethod
    def of(
        cls, program: Program, rows: Sequence[bool], random: Sequence[bool], strict: bool = False
    ) -> ExampleFlow:
        """Follows a program, the marked inputs of which hold an example per place of an axis."""
        sizes = [v.aval.shape[0] for v, row in zip(program.inputs, rows, strict=True) if row]
        flow = cls(sizes[0] if sizes else None, strict)
        flow.follow(program, [0 if row else None for row in rows], random)
        return flow

    def _nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            known = {v: _lineage(axis, v.aval.ndim)
                     for v in node.values if (axis := self.axis(v)) is not None}  # fmt: skip
            lineages, _ = dependence.follow_lineages([node], known)
            is_random = any(self.is_random(a) for a in node.inputs)
            for output in node.outputs:
                self._note(output, _axis(lineages.get(output, {})), is_random)

    def _control_flow(self, layer: Layer) -> None:
        (node,) = layer.nodes
        axes = [self.axis(a) for a in node.inputs]
        random = [self.is_random(a) for a in node.inputs]
        if node.primitive is p.scan_p:
            results = self._scan(node, layer.programs[0], axes, random)
        elif node.primitive is p.remat_p:
            results = self._body(layer.programs[0], axes, random)
        elif node.primitive is p.cond_p and axes[0] is None:
            # The same branch for all examples.
            branches = [self._body(one, axes[1:], random[1:]) for one in layer.programs]
            joined = zip(*branches, strict=True)
            results = [
                (functools.reduce(union, (a for a, _ in each), None), any(r for _, r in each))
                for each in joined
            ]
        else:
            held = MIXED if any(a is not None for a in axes) else None
            results = [(held, any(random))] * len(node.outputs)
        for output, (axis, is_random) in zip(node.outputs, results, strict=True):
            self._note(output, axis, is_random)

    def _body(
        self, program: Program, axes: Sequence[Axis], random: Sequence[bool]
    ) -> list[tuple[Axis, bool]]:
        self.follow(program, axes, random)
        return [(self.axis(v), self.is_random(v)) for v in program.outputs]

    def _scan(
        self, node: Node, body: Program, axes: Sequence[Axis], random: Sequence[bool]
    ) -> list[tuple[Axis, bool]]:
        loop = Scan.of(node, list(zip(axes, random, strict=True)))
        # A step reads a place of the first axis: examples that lie along it meet in the carry.
        rows = [(_inside(axis), is_random) for axis, is_random in loop.xs]

        def step(carry: Sequence[tuple[Axis, bool]]) -> Any:
            inputs = loop.inputs([*carry], rows)
            return loop.split(self._body(body, *(list(x) for x in zip(*inputs, strict=True))))

        carry, stacked = fixed_point(
            step, loop.carry, lambda a, b: (union(a[0], b[0]), a[1] or b[1])
        )
        return [*carry, *((_outside(axis), is_random) for axis, is_random in stacked)]


def is_apart(flow: ExampleFlow, value: Any) -> bool:
    """Returns whether a value is random and each of its rows is made of one example."""
    return flow.is_random(value) and flow.axis(value) not in (None, MIXED)


def example_leaves(inputs: Sequence[Value]) -> Iterator[list[bool]]:
    """Yields marks of inputs that may hold an example per place of their first axis.

    Data of one size are tried first, then each array alone: others are shared by all examples, as
    an adapter's factors are.
    """
    sizes = [v.aval.shape[0] if v.is_data and v.aval.ndim else None for v in inputs]
    for size in dict.fromkeys(n for n in sizes if n is not None):
        yield [n == size for n in sizes]
    for i, size in enumerate(sizes):
        if size is not None and sizes.count(size) > 1:
            yield [i == j for j in range(len(sizes))]


def batched_leaves(program: Program, count: int) -> list[bool]:
    """Returns which of the first inputs hold an example per place of their first axis.

    The first `count` inputs may; data among the others leaves the answer in doubt.
    """
    if not any(v.is_data for v in program.inputs[count:]):
        for rows in example_leaves(program.inputs):
            if _are_rows(program, rows):
                return rows[:count]
    return [False] * count


def _are_rows(program: Program, rows: Sequence[bool]) -> bool:
    """Returns whether each row of every result is made of its own example, as if it were alone."""
    flow = ExampleFlow.of(program, rows, [False] * len(rows), strict=True)
    if not program.outputs or any(flow.axis(v) != 0 for v in program.outputs):
        return False
    # What else differs from row to row isn't there when one example is computed alone.
    examples = [v for v, row in zip(program.inputs, rows, strict=True) if row]
    return not any(axes[0] for axes in dependence.varying_axes(program, examples))


def _inside(axis: Axis) -> Axis:
    """Returns the axis in a row of an array."""
    if axis is None or axis == MIXED:
        return axis
    return axis - 1 if axis else MIXED


def _outside(axis: Axis) -> Axis:
    """Returns the axis in a stack of arrays."""
    return axis if axis is None or axis == MIXED else axis + 1


def is_owned_step(node: Node, operand: int) -> bool:
    """Returns whether each entry of a node's result is made of one entry of an operand.

    All its other operands must be certain. No two entries of the result are made of the same one.
    """
    if len(node.outputs) != 1 or not is_inexact(node.outputs[0]):
        return False
    kind = kind_of(node.primitive)
    if kind is Kind.MOVE:
        return operand == 0
    scaled = kind in {Kind.POINTWISE, Kind.STEP} and node.primitive is not p.stop_gradient_p
    return scaled and node.inputs[operand].aval.shape == node.outputs[0].aval.shape


def is_product(node: Node, operand: int, flow: ExampleFlow) -> bool:
    """Returns whether a node multiplies its other operand, of examples, by matrices."""
    if (
        kind_of(node.primitive) is not Kind.BILINEAR
        or len(node.values) != 2
        or node.inputs[0] is node.inputs[1]
    ):
        return False
    if node.outputs[0].aval.dtype != node.inputs[operand].aval.dtype:
        return False
    if not _meets_examples(node, operand, flow):
        return False
    product = Contraction.of(node)
    if product.is_convolution and (operand != 1 or node.params["batch_group_count"] != 1):
        return False
    axis = flow.axis(node.inputs[1 - operand])
    return flow.examples is None or axis in product.free(1 - operand)


def _meets_examples(node: Node, operand: int, flow: ExampleFlow) -> bool:
    """Returns whether a node makes examples of what they share; if all is one, any does."""
    if flow.examples is None:
        return True
    return flow.axis(node.inputs[operand]) is None and flow.axis(node.outputs[0]) not in (
        None,
        MIXED,
    )


def is_look_up(node: Node, operand: int, flow: ExampleFlow) -> bool:
    """Returns whether a node looks up whole rows of a table by indices."""
    if row_axes(node.eqn) != (0,) or operand or not _meets_examples(node, 0, flow):
        return False
    numbers = node.params["dimension_numbers"]
    rank, out = node.inputs[0].aval.ndim, node.outputs[0].aval.ndim
    last = tuple(numbers.offset_dims) == tuple(range(out - rank + 1, out))
    return last and tuple(numbers.collapsed_slice_dims) == (0,)


def is_reader(node: Node, operand: int, flow: ExampleFlow) -> bool:
    """Returns whether a node finds the part of the variance of an operand that it alone reads."""
    return is_product(node, operand, flow) or is_look_up(node, operand, flow)


def sole_readers(flow: ExampleFlow, program: Program, inputs: Sequence[Value]) -> None:
    """Finds random inputs that a product or a look-up reads, and nobody else; notes the way."""
    readers: dict[Value, list[Layer]] = {}
    for layer in program.layers:
        for value in layer.inputs:
            readers.setdefault(value, []).append(layer)
    for value in inputs:
        way = _way(flow, program, readers, value)
        if way is not None:
            flow.owned.update(way)


def _way(
    flow: ExampleFlow, program: Program, readers: Mapping[Value, Sequence[Layer]], value: Value
) -> list[Value] | None:
    """Returns the values on the way of an array to its one reader; None if there are others."""
    way: list[Value] = []
    while True:
        if value in program.outputs or len(readers.get(value, ())) != 1:
            return None
        (layer,) = readers[value]
        way.append(value)
        if layer.kind == "control flow":
            inner = _way_inside(flow, layer, value)
            return None if inner is None else [*way, *inner]
        if not layer.nodes:
            if layer.inputs.count(value) != 1:
                return None
            value = layer.outputs[layer.inputs.index(value)]
            continue
        step = _way_in_layer(flow, layer, value)
        if step is None:
            return None
        inner, end = step
        way += inner
        if end is None:
            return way
        value = end


def _way_in_layer(
    flow: ExampleFlow, layer: Layer, value: Value
) -> tuple[list[Value], Value | None] | None:
    """Returns the way within a layer, and the output that it leaves by, if it does."""
    way: list[Value] = []
    while True:
        uses = [(n, i) for n in layer.nodes for i, a in enumerate(n.inputs) if a is value]
        if value in layer.outputs:
            # With no reader inside: another layer goes on.
            return None if uses else (way[:-1], value)
        if len(uses) != 1:
            return None
        ((node, operand),) = uses
        if is_reader(node, operand, flow):
            return way, None
        others = [a for i, a in enumerate(node.inputs) if i != operand]
        if any(flow.is_random(a) or flow.axis(a) is not None for a in others):
            return None
        if not is_owned_step(node, operand) or flow.axis(node.outputs[0]) is not None:
            return None
        value = node.outputs[0]
        way.append(value)


def _way_inside(flow: ExampleFlow, layer: Layer, value: Value) -> list[Value] | None:
    """Returns the way into a loop that reads a row of an array in each step."""
    (node,) = layer.nodes
    operands = list(node.inputs)
    if node.primitive not in {p.scan_p, p.remat_p} or operands.count(value) != 1:
        return None
    (body,) = layer.programs
    number = operands.index(value)
    # What all steps read has as many readers.
    if node.primitive is p.scan_p and number < len(operands) - len(Scan.of(node, operands).xs):
        return None
    readers: dict[Value, list[Layer]] = {}
    for one in body.layers:
        for each in one.inputs:
            readers.setdefault(each, []).append(one)
    return _way(flow, body, readers, body.inputs[number])


def keeps_rows(node: Node, operand: int, axis: int) -> int | None:
    """Returns the axis of an operand whose rows make those of a result, each its own; or None."""
    if node.signature.family is OperationFamily.CALL or not node.signature.is_known:
        return None
    along = node.signature.operands[operand].along[0]
    if along is None or along[axis].relation is not Relation.SAME:
        return None
    return along[axis].axes[0]


def value_of(atom: Any, env: Mapping[Any, Any]) -> Any:
    """Reads an operand."""
    return atom.val if isinstance(atom, Literal) else env[atom]
