"""Which parameter a value consists of, followed through what only moves or converts entries.

A product of two parameters, or one that is fake-quantized already, is no parameter that could be
replaced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.program import Layer, Program
from jaxeff.program.ir import Node, Role, Value, run_nodes
from jaxeff.program.ir import primitives as prim

CONVERSIONS = {prim.p.convert_element_type_p, prim.p.copy_p, prim.NAME}
_MOVES = CONVERSIONS | {
    prim.p.reshape_p, prim.p.transpose_p, prim.p.rev_p, prim.p.squeeze_p, prim.p.broadcast_in_dim_p,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Origin:
    """The parameter that a layer's input is made of, entry by entry.

    Attributes:
        leaf: Position among the flattened arguments, parameters first.
        path: The path of the parameter.
        value: The value in the program.
        nodes: Operations on it on the way.
        target: The layer's input.
    """

    leaf: int
    path: str
    value: Value
    nodes: tuple[Node, ...]
    target: Value

    def to_input(self, leaf: Array) -> Array:
        """Computes the layer's input for a value of the parameter."""
        if not self.nodes:
            return leaf
        made: Array = run_nodes(self.nodes, (self.value,), (leaf,), (self.target,))[0]
        return made

    def to_leaf(self, x: Array, like: Array) -> Array:
        """Computes the parameter for a value of the input, undoing moves by transposition."""
        if not self.nodes:
            return x
        # Moves permute entries, so the transposed map is the inverse.
        moved: Array = jax.jit(lambda x, like: jax.vjp(self.to_input, like)[1](x)[0])(x, like)
        return moved


def producers(program: Program) -> dict[Value, Node]:
    """Maps values to the equations that make them."""
    return {v: n for layer in program.layers for n in layer.nodes for v in n.outputs}


def origin(
    program: Program, value: Value, makers: dict[Value, Node], grows: bool = False
) -> Origin | None:
    """Finds the parameter that a value consists of, if there is one.

    Args:
        program: The program.
        value: An input of one of its layers.
        makers: Result of `producers`.
        grows: Whether entries may be repeated, as those of a bias are.
    """
    nodes: list[Node] = []
    target = value
    while value in makers:
        node = makers[value]
        moves = node.primitive in _MOVES and len(node.values) == 1
        # A broadcast that repeats entries isn't invertible: allowed only where it is asked
        # for.
        if not moves or not (grows or node.values[0].aval.size == value.aval.size):
            return None
        nodes.append(node)
        (value,) = node.values
    if value not in program.inputs or not value.role & Role.PARAM:
        return None
    leaf = program.inputs.index(value)
    return Origin(leaf, value.path, value, tuple(reversed(nodes)), target)


def users(program: Program, path: str) -> list[str]:
    """Lists the sites that depend on a parameter, and "the result" if that does so directly."""
    named = [
        layer.site
        for layer in program.layers
        if layer.site and any(v.is_weight and path in v.leaves for v in layer.inputs)
    ]
    outputs = [v for v in program.outputs if isinstance(v, Value) and v.is_weight]
    return named + (["the result"] if any(path in v.leaves for v in outputs) else [])


def mean_per_entry(
    layer: Layer, bias: Origin, index: int, leaf: Array, values: Sequence[Any], x: Any
) -> Array:
    """Averages an array like a layer's output over the places that a bias entry adds to.

    The transposition of adding a bias is summing over those places.
    """

    def add(leaf: Array) -> Array:
        inputs = list(values)
        inputs[index] = bias.to_input(leaf)
        made: Array = layer.fn(*inputs)[0]
        return made

    @jax.jit
    def mean(x: Array) -> Array:
        transposed = jax.vjp(add, leaf)[1]
        # Sum over the places divided by their number, both by the same transposed map.
        (total,), (count,) = transposed(x), transposed(jnp.ones_like(x))
        return total / count

    return mean(x)


def parameter_values(program: Program, leaves: Sequence[Any]) -> dict[Value, Any]:
    """Computes the values that depend on no data, and adds the arguments."""
    known: set[Value] = {*program.constants, *program.inputs}
    layers: list[Layer] = []
    for layer in program.layers:
        # What parameters alone determine, such as a normalized weight, is computed in one program.
        passed = not layer.nodes or any(v.is_data for v in layer.outputs)
        if not passed and layer.kind != "control flow" and known.issuperset(layer.inputs):
            layers.append(layer)
            known.update(layer.outputs)

    @jax.jit
    def made(leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        env = dict(zip(program.inputs, leaves, strict=True))
        env.update(zip(program.constants, constants, strict=True))
        for layer in layers:
            env.update(zip(layer.outputs, layer.fn(*(env[v] for v in layer.inputs)), strict=True))
        return [env[v] for layer in layers for v in layer.outputs]

    env: dict[Value, Any] = dict(program.constants)
    env.update(zip(program.inputs, leaves, strict=True))
    values = made(list(leaves), list(program.constants.values())) if layers else []
    env.update(zip((v for layer in layers for v in layer.outputs), values, strict=True))
    return env
