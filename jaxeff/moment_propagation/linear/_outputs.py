"""Results behind a stop of gradients, and results that outnumber the units they are made of.

A language model's logits are y_t = h_t E with a vocabulary larger than the width of h. Their slopes
are those of h_t times E, so the covariance S_t = J_t diag(v) J_t^T of one position's hidden state
gives all of its variances after as many passes backward as h_t has units:

    Var[y_tk] = (E^T S_t E)_kk + sum_i v_ik h_ti^2 + 2 c_tk,

where c is what an embedding that E is tied to adds, sum_w v_w (dy_tk/dh_t)(dh_t/dw) (dy_tk/dw) with
the last derivative at a fixed h.

The delta method follows derivatives, and would call results certain that only a `stop_gradient`
keeps from random inputs, as batch statistics in training. Where a result has another way to
what is random, as behind a straight-through estimator, that way is the one that is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import follow_lineages, identity
from jaxeff.program import Layer, Program, plain_rule
from jaxeff.program.ir import Node, Value
from jaxeff.program.ir import primitives as prim


@dataclass(frozen=True)
class OutputLayer:
    """A linear layer that makes the result, position by position, of fewer hidden units.

    Attributes:
        layer: The layer.
        hidden: The hidden state it reads, of the result's shape but for the last axis.
        arranging: Layers that rearrange its other operands, in order.
        sources: Random inputs among these operands, before they are rearranged.
        tied: Sources that other layers read, too.
    """

    layer: Layer
    hidden: Value
    arranging: tuple[Layer, ...]
    sources: tuple[Value, ...]
    tied: tuple[Value, ...]

    @property
    def units(self) -> int:
        """The size of a position's hidden state."""
        return self.hidden.aval.shape[-1]

    def result(self, hidden: Array, values: Mapping[Value, Any]) -> Array:
        """Evaluates the layer, given its hidden state and all other values it is made of."""
        env = {**values, self.hidden: hidden}
        for layer in (*self.arranging, self.layer):
            results = plain_rule(layer, None, *(env[v] for v in layer.inputs))
            env.update(zip(layer.outputs, results, strict=True))
        return env[self.layer.outputs[0]]

    def operands(self, known: Mapping[Value, Any], hidden: Array) -> list[Any]:
        """Returns the layer's operands, random ones as `Gaussian`s, and its hidden state."""
        env = {**known, self.hidden: hidden}
        for layer in self.arranging:
            (operand,) = (env[v] for v in layer.inputs)
            # Entries only change places, and so do their variances.
            env[layer.outputs[0]] = jax.tree.map(lambda a: layer.fn(a)[0], operand)  # noqa: B023
        return [env[v] for v in self.layer.inputs]


def last_layer(program: Program, random: Sequence[Value]) -> OutputLayer | None:
    """Finds a linear layer that makes the one result of fewer hidden units, or None."""
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    result = program.outputs[0]
    if len(program.outputs) != 1 or not isinstance(result, Value) or result not in makers:
        return None
    layer = makers[result]
    data = [v for v in layer.inputs if v.is_data]
    if layer.kind != "linear" or len(layer.outputs) != 1 or len(data) != 1:
        return None
    (hidden,) = data
    shape, wide = hidden.aval.shape, result.aval.shape
    if hidden not in makers or shape[:-1] != wide[:-1] or shape[-1] >= wide[-1]:
        return None
    # Every position of the result is made of the same position of the hidden state.
    lineages, _ = follow_lineages(layer.nodes, {hidden: {hidden: identity(shape)}})
    labels = lineages.get(result, {}).get(hidden, ())
    if tuple(labels[:-1]) != identity(shape)[:-1]:
        return None
    arranging: list[Layer] = []
    sources: list[Value] = []
    for operand in layer.inputs:
        value = operand
        while value in makers and value is not hidden:
            maker = makers[value]
            rearranges = all(node.primitive in prim.MOVES for node in maker.nodes)
            if len(maker.inputs) != 1 or len(maker.outputs) != 1 or not rearranges:
                return None
            arranging.insert(0, maker)
            value = maker.inputs[0]
        if value in random:
            sources.append(value)
        elif value not in program.inputs and value not in program.constants and value is not hidden:
            return None
    its_layers = {layer, *arranging}
    tied = tuple(
        v
        for v in sources
        if any(v in other.inputs for other in program.layers if other not in its_layers)
    )
    if len(set(sources)) != len(sources) or len(set(arranging)) != len(arranging):
        return None
    return OutputLayer(layer, hidden, tuple(arranging), tuple(sources), tied)


def variance_through(
    last: OutputLayer,
    slopes: Callable[[Array], tuple[Array, Sequence[Array]]],
    examples: int,
    env: Mapping[Value, Any],
    known: Mapping[Value, Any],
) -> Array:
    """Computes the variances of the last layer's result, but for what its own arrays make.

    Args:
        last: The layer.
        slopes: A function of a position: the covariance of each example's hidden state there,
            `[examples, units, units]`, and the slopes of its units by each tied source, `[units,
            examples, ...]`.
        examples: How many examples the first axis of the hidden state holds; one if it holds none.
        env: All values of the program.
        known: The values of its inputs; a `Gaussian` for random ones.
    """
    hidden, width = env[last.hidden], last.units
    shape = last.layer.outputs[0].aval.shape
    unit = jnp.eye(width, dtype=hidden.dtype)

    def along(tangent: Array) -> Array:
        return jax.jvp(lambda h: last.result(h, env), (hidden,), (tangent,))[1]

    def at(result: Array) -> Array:
        return result.reshape(examples, -1, shape[-1])

    def by_sources(steps: Sequence[Array], example: Array, number: Array) -> Array:
        def moved(sources: Sequence[Array]) -> Array:
            return last.result(hidden, {**env, **dict(zip(last.tied, sources, strict=True))})

        return at(jax.jvp(moved, ([env[v] for v in last.tied],), (list(steps),))[1])[
            example, number
        ]

    def position(number: Array) -> tuple[Array, Array]:
        covariance, by_tied = slopes(number)

        def cross(total: Array, i: Array) -> tuple[Array, None]:
            steps = [known[v].var[None] * s[i] for v, s in zip(last.tied, by_tied, strict=True)]
            directly = jax.lax.map(
                lambda each: by_sources(each[0], each[1], number), (steps, jnp.arange(examples))
            )
            through = at(along(jnp.broadcast_to(unit[i], hidden.shape)))[:, number]
            return total + through * directly, None

        none = jnp.zeros((examples, shape[-1]), hidden.dtype)
        shared = jax.lax.scan(cross, none, jnp.arange(width))[0] if last.tied else none
        return covariance, shared

    # One position after the other: the slopes of one are as many numbers as fit.
    covariance, shared = jax.lax.map(position, jnp.arange(hidden.size // (width * examples)))
    covariance = covariance.swapaxes(0, 1).reshape(*hidden.shape, width)
    through = _diagonal_of_product(along, covariance, shape)
    return through + 2 * shared.swapaxes(0, 1).reshape(shape)


def _diagonal_of_product(
    along: Callable[[Array], Array], covariance: Array, shape: tuple[int, ...]
) -> Array:
    """Computes the diagonal of E^T S E, a column of S at a time; `along` multiplies by E."""
    # One column after the other: E itself has as many numbers as the layer's Jacobian.
    width = covariance.shape[-1]
    unit = jnp.eye(width, dtype=covariance.dtype)

    def column(total: Array, i: Array) -> tuple[Array, None]:
        row = along(jnp.broadcast_to(unit[i], covariance.shape[:-1]))
        return total + row * along(covariance[..., i]), None

    through, _ = jax.lax.scan(column, jnp.zeros(shape, covariance.dtype), jnp.arange(width))
    return through


def let_through(program: Program, random: Sequence[Value]) -> Program:
    """Returns a program whose derivatives reach every result that depends on random inputs."""
    nodes = [node for layer in program.layers for node in layer.nodes]
    stops = [node for node in nodes if node.primitive is p.stop_gradient_p]
    if not stops:
        return program
    followed = _reached(nodes, random, stops)
    results = {v for v in program.outputs if isinstance(v, Value)}
    cut_off = (results & _reached(nodes, random, ())) - followed
    opened = [
        stop
        for stop in stops
        # The last one before such results, and before no other: an estimator's stays.
        if (ahead := _reached(nodes, stop.outputs, [s for s in stops if s is not stop])) & cut_off
        and not ahead & results & followed
    ]
    if not opened:
        return program

    def copied(node: Node) -> Node:
        if not any(node is stop for stop in opened):
            return node
        return replace(node, eqn=node.eqn.replace(primitive=p.copy_p, params={}))

    layers = (replace(layer, nodes=tuple(map(copied, layer.nodes))) for layer in program.layers)
    return replace(program, layers=tuple(layers))


def _reached(nodes: Iterable[Node], start: Iterable[Value], stops: Iterable[Node]) -> set[Value]:
    """Collects the values that depend on some, by no way through certain nodes."""
    values, closed = set(start), {id(stop) for stop in stops}
    for node in nodes:
        if id(node) not in closed and not values.isdisjoint(node.values):
            values |= set(node.outputs)
    return values
