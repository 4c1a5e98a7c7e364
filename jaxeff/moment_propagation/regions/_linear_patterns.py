"""Layers of several equations that are one composite: linear ones with their bias, average pooling.

The reader of programs gives a linear layer its bias as it is added, broadcast to the shape of the
result. `with_bias_vectors` gives it the vector instead, so that the layer is one function of the
arrays an operator takes; `linear_patterns` evaluates such a layer.

Sharp edges
- Only dot products `x (..., K) . w (K, N)` and 2-d convolutions NHWC, HWIO are recognised, with a
  bias over the last axis or none. Anything else is left to `propagate`.
- An average pooling divides by the window's size; one that counts its entries isn't recognised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.regions._propagation import Environment, propagate
from jaxeff.moment_propagation.rules import Attribute, Rule, composite, read_window, window_mean
from jaxeff.moment_propagation.values import Gaussian, RawMoments, is_random, to_variance
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Contraction, Node, Value
from jaxeff.program.reading import UNNAMED


def with_bias_vectors(program: Program) -> None:
    """Lets linear layers read the vectors that their biases are broadcast from, in place."""
    _absorb(program, {})


def _absorb(program: Program, outside: Mapping[Value, Layer]) -> list[Value]:
    """Absorbs bias vectors; returns those that have to come from outside the program."""
    made = {v: layer for layer in program.layers if not layer.site for v in layer.outputs}
    known = {v for layer in program.layers for v in layer.outputs} | set(program.inputs)
    needed: list[Value] = []
    absorbed: set[Layer] = set()
    for layer in program.layers:
        for inside in layer.programs:
            vectors = _absorb(inside, {**outside, **made} if layer.mark else {})
            if layer.mark:  # its inside shares its values
                layer.inputs = tuple(dict.fromkeys([*layer.inputs, *vectors]))
                inside.inputs = layer.inputs
            needed += vectors
        add = _bias_sum(layer)
        for value in add.values if add else ():
            steps = _broadcast_of_vector(value, {**outside, **made})
            # The broadcasts become equations of the layer, which then reads the vector itself.
            if value in layer.inputs and steps:
                nodes = [step.nodes[0] for step in steps]
                vector = nodes[0].values[0]
                layer.inputs = tuple(vector if v is value else v for v in layer.inputs)
                layer.nodes = (*nodes, *layer.nodes)
                absorbed.update(steps)
                needed.append(vector)
    _drop_unread(program, absorbed)
    return [v for v in needed if v not in known]


def _bias_sum(layer: Layer) -> Node | None:
    """Returns the sum of a linear layer with its bias, or None."""
    if layer.kind != "linear" or layer.mark:
        return None
    return next((n for n in layer.nodes if n.primitive is p.add_p), None)


def _broadcast_of_vector(value: Value, made: Mapping[Value, Layer]) -> list[Layer]:
    """Returns the layers that broadcast a vector over the last axis of `value`, or none."""
    steps: list[Layer] = []
    while (layer := made.get(value)) and value.aval.ndim > 1 and _is_broadcast(layer.nodes):
        steps.insert(0, layer)
        (value,) = layer.inputs
    return steps if value.aval.ndim == 1 else []


def _is_broadcast(nodes: Sequence[Node]) -> bool:
    """Returns whether one equation only adds axes before the last one, or repeats along them."""
    if len(nodes) != 1 or len(nodes[0].values) != 1:
        return False
    (node,) = nodes
    before, after = node.values[0].aval.shape, node.outputs[0].aval.shape
    if not before or before[-1] != after[-1]:
        return False
    if node.primitive is p.reshape_p:
        return after[:-1] == (1,) * (len(after) - 1)
    if node.primitive is not p.broadcast_in_dim_p:
        return False
    return node.params["broadcast_dimensions"][-1] == len(after) - 1


def _drop_unread(program: Program, candidates: set[Layer]) -> None:
    """Drops those of the candidates whose results nobody reads any more."""
    read = {v for v in program.outputs if isinstance(v, Value)}
    kept: list[Layer] = []
    for layer in reversed(program.layers):
        if layer not in candidates or not read.isdisjoint(layer.outputs):
            kept.insert(0, layer)
            read.update(layer.inputs)
    program.layers = tuple(kept)


def linear_patterns(
    layer: Layer, values: Sequence[Any], rules: Mapping[Any, Rule]
) -> list[Any] | None:
    """Computes the moments of a layer of several equations as one composite.

    Args:
        layer: A layer with a random input, after `with_bias_vectors`.
        values: The inputs, arrays or random arrays; `RawMoments` are handed on as such.
        rules: The user's rules by primitive.

    Returns:
        Its one output, or None where the layer isn't of a form that operators are made for.
    """
    if any(node.primitive in rules for node in layer.nodes):
        return None
    if layer.kind == "pooling":
        return _average(layer, values)
    return _linear(layer, values) if layer.kind == "linear" else None


def _average(layer: Layer, values: Sequence[Any]) -> list[Any] | None:
    if len(layer.nodes) != 2 or len(layer.outputs) != 1:
        return None
    total, quotient = layer.nodes
    if total.primitive is not p.reduce_window_sum_p or quotient.primitive is not p.div_p:
        return None
    window, count = read_window(total), quotient.inputs[1]
    # A divisor computed from the padding (its entries counted) is no constant.
    if not isinstance(count, Literal) or count.val != math.prod(window.size):
        return None
    return [window_mean(to_variance(values[0]), window)]


def _linear(layer: Layer, values: Sequence[Any]) -> list[Any] | None:
    form = _form(layer)
    if form is None:
        return None
    given = dict(zip(layer.inputs, values, strict=True))
    operands = [_forget(given[v]) for v in form.operands]
    x, w, *bias = operands
    # Random through its bias alone: an addition, which needs no operator.
    if not (is_random(x) or is_random(w)):
        return None
    arrays, structure = jax.tree.flatten(operands)

    def rule(*arrays: Any) -> Gaussian:
        parts = jax.tree.unflatten(structure, arrays)
        rebuilt = dict(zip(form.operands, parts, strict=True))
        env = Environment.of(layer, [rebuilt[v] for v in layer.inputs], {})
        with jax.named_scope(UNNAMED):  # as without `with_bias_vectors`, it is no part of the layer
            propagate(form.broadcast, env)
        propagate(form.sum, env)
        return env.read(layer.outputs[0])

    attributes = {
        "input": "raw" if isinstance(x, RawMoments) else _kind(x),
        "weight": _kind(w),
        "bias": _kind(bias[0]) if bias else "none",
    }
    return [composite(form.operator, rule, *arrays, **attributes, **form.attributes)]


def _forget(value: Any) -> Any:
    """Drops what a random array was computed from; its form is kept."""
    return to_variance(value) if isinstance(value, Gaussian) else value


def _kind(value: Any) -> str:
    return "variance" if is_random(value) else "deterministic"


@dataclass(frozen=True)
class _Form:
    """The parts of a linear layer.

    Attributes:
        operator: Name in an operator library.
        attributes: Attributes of the operator beside its operands.
        operands: Input, weight, and the bias vector if there is one.
        broadcast: The equations that broadcast the bias vector.
        sum: The operation and the addition of the bias.
    """

    operator: str
    attributes: Mapping[str, Attribute]
    operands: tuple[Value, ...]
    broadcast: tuple[Node, ...]
    sum: tuple[Node, ...]


def _form(layer: Layer) -> _Form | None:
    """Returns a linear layer's parts, or None where it has others than an operator covers."""
    op = layer.op
    known = None if op is None else _operator(op)
    if op is None or known is None or len(layer.outputs) != 1:
        return None
    if layer.nodes == (op,):
        return _Form(*known, tuple(op.values), (), (op,))
    # Operators take exactly a product and a bias: with anything between them or after them the
    # layer is left to the rules of its equations.
    *broadcast, product, add = layer.nodes
    if product is not op or add.primitive is not p.add_p or add.outputs != layer.outputs:
        return None
    (value,) = [v for v in add.values if v is not op.outputs[0]]
    for node in reversed(broadcast):
        if value not in node.outputs or not _is_broadcast([node]):
            return None
        (value,) = node.values
    if value not in layer.inputs or value.aval.shape != add.outputs[0].aval.shape[-1:]:
        return None
    return _Form(*known, (*op.values, value), tuple(broadcast), (op, add))


def _operator(op: Node) -> tuple[str, dict[str, Attribute]] | None:
    """Returns the operator of a product of data and weights, with its attributes, or None."""
    if len(op.values) != 2 or not op.values[0].is_data:
        return None
    if op.outputs[0].aval.dtype != op.values[0].aval.dtype:
        return None
    contraction, q = Contraction.of(op), op.params
    if not contraction.is_channels_last:
        return None
    if not contraction.is_convolution:
        return "pfp_dense", {}
    plain = len(contraction.window(0)) == 2 and q["batch_group_count"] == 1
    padding = tuple(edge for edges in q["padding"] for edge in edges)
    if not plain or any(d != 1 for d in q["lhs_dilation"]) or any(edge < 0 for edge in padding):
        return None
    return "pfp_conv2d", {
        "strides": tuple(q["window_strides"]),
        "padding": padding,
        "dilation": tuple(q["rhs_dilation"]),
        "groups": contraction.groups,
    }
