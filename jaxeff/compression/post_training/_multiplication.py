"""Dot products and convolutions with the parameter that is their weight.

As matrices (`Contraction`), every linear layer is `Y[g] = X[g] @ W[g]`: X
`[groups, rows, inputs]`, W `[groups, inputs, outputs]`. Which parameter a weight is, is followed
through what only moves or converts entries; any other weight (a product of two, one that is
fake-quantized already) is no parameter that could be replaced, and is refused by name.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.program import Layer, Program, SharedPrograms
from jaxeff.program.ir import Contraction, Node, OperationFamily, Role, Value, making, run_nodes
from jaxeff.program.ir import primitives as prim

CONVERSIONS = {prim.p.convert_element_type_p, prim.p.copy_p, prim.NAME}
_MOVES = CONVERSIONS | prim.MOVES | {prim.p.rev_p}


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
        operand: Array = run_nodes(self.nodes, (self.value,), (leaf,), (self.target,))[0]
        return operand

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

    `makers` is what `producers` returns; with `grows` entries may be repeated, as those of a bias
    are.
    """
    nodes: list[Node] = []
    target = value
    while value in makers:
        node = makers[value]
        moves = node.primitive in _MOVES and len(node.values) == 1
        # A broadcast that repeats entries isn't invertible: allowed only where it is asked for.
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
        output: Array = layer.fn(*inputs)[0]
        return output

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
    def evaluate(leaves: Sequence[Any], constants: Sequence[Any]) -> list[Any]:
        env = dict(zip(program.inputs, leaves, strict=True))
        env.update(zip(program.constants, constants, strict=True))
        for layer in layers:
            env.update(zip(layer.outputs, layer.fn(*(env[v] for v in layer.inputs)), strict=True))
        return [env[v] for layer in layers for v in layer.outputs]

    env: dict[Value, Any] = dict(program.constants)
    env.update(zip(program.inputs, leaves, strict=True))
    values = evaluate(list(leaves), list(program.constants.values())) if layers else []
    env.update(zip((v for layer in layers for v in layer.outputs), values, strict=True))
    return env


_ROWS = 1 << 24
"""Entries of X at once; more are taken in parts, for a convolution has each value many times."""

Matrix = Float[Array, "groups inputs outputs"]


@dataclass(frozen=True, eq=False)
class Multiplication:
    """A linear layer that multiplies by entries of one parameter.

    Attributes:
        layer: The layer.
        index: The weight among the layer's inputs.
        origin: The parameter behind it.
    """

    layer: Layer
    index: int
    origin: Origin

    @property
    def node(self) -> Node:
        """The dot product or convolution."""
        node = self.layer.op
        assert node is not None
        return node

    @functools.cached_property
    def contraction(self) -> Contraction:
        """Its axes and matrices: `matrix` is for the weight, `rows` for the data."""
        return Contraction.of(self.node)

    def reads(self, values: Sequence[Any]) -> Array:
        """Computes the data operand from the layer's inputs."""
        operand = self.node.inputs[1 - self.contraction.side]
        if operand in self.layer.inputs:
            at: Array = values[self.layer.inputs.index(operand)]
            return at
        nodes = making(self.layer.nodes, [operand])
        values_read: Array = run_nodes(nodes, self.layer.inputs, values, (operand,))[0]
        return values_read

    def moment(
        self, x: Array, y: Array, run: SharedPrograms | None = None
    ) -> Float[Array, "groups inputs inputs"]:
        """Computes the mean of x y^T over rows, with a program of other layers' where it can."""

        def sums(a: Array, b: Array) -> Array:
            a, b = (self.contraction.rows(v.astype(jnp.float32)) for v in (a, b))
            return jnp.einsum("gni,gnj->gij", a, b, precision=lax.Precision.HIGHEST) / a.shape[1]

        return self._mean(sums, x, y, run=run)

    def magnitude(
        self, x: Array, run: SharedPrograms | None = None
    ) -> Float[Array, "groups inputs"]:
        """Computes the mean of |x| of every input."""
        rows = self.contraction.rows
        return self._mean(lambda x: jnp.abs(rows(x.astype(jnp.float32))).mean(1), x, run=run)

    def squares(self, x: Array) -> Float[Array, "groups inputs"]:
        """Computes the mean of x^2 of every input."""
        rows = self.contraction.rows
        return self._mean(lambda x: jnp.square(rows(x.astype(jnp.float32))).mean(1), x)

    def largest(self, x: Array) -> Float[Array, "groups inputs"]:
        """Computes the largest |x| of every input."""
        rows = jax.jit(lambda x: jnp.abs(self.contraction.rows(x.astype(jnp.float32))).max(1))
        magnitudes = [rows(*part) for part, _ in self.parts(x)]
        return jnp.max(jnp.stack(magnitudes), 0)

    def _mean(
        self, of: Callable[..., Array], *xs: Array, run: SharedPrograms | None = None
    ) -> Array:
        """Averages over parts of the batch, weighted by their sizes."""
        run = SharedPrograms() if run is None else run
        # Parts are added on the host in float64: float32 sums of many parts lose digits.
        total: Any = 0.0
        for part, share in self.parts(*xs):
            total = total + np.asarray(run(of, *part), np.float64) * share
        return jnp.asarray(total, jnp.float32)

    def parts(self, *xs: Array) -> Iterator[tuple[tuple[Array, ...], float]]:
        """Splits data operands into parts whose rows fit into memory, with their shares."""
        contraction = self.contraction
        if not contraction.is_convolution:
            yield xs, 1.0
            return
        (axis,) = contraction.free(0)
        images = xs[0].shape[axis]
        # Each value stands in as many patches as the kernel has taps.
        split = min(images, 1 + xs[0].size * contraction.taps // _ROWS)
        if split == 1:
            yield xs, 1.0
            return
        for piece in np.array_split(np.arange(images), split):
            part = tuple(lax.slice_in_dim(x, piece[0], piece[-1] + 1, axis=axis) for x in xs)
            yield part, len(piece) / images


def multiplications(program: Program) -> tuple[dict[str, Multiplication], dict[str, str]]:
    """Finds the linear layers of a program, outside loops.

    Returns:
        By site: those that multiply by a parameter, and why others don't.
    """
    makers = producers(program)
    by_site: dict[str, Multiplication] = {}
    refused: dict[str, str] = {}
    for layer in program.layers:
        if layer.kind == "linear" and layer.site:
            result = _multiplication(program, layer, makers)
            if isinstance(result, str):
                refused[layer.site] = result
            else:
                by_site[layer.site] = result
    return by_site, refused


def _multiplication(
    program: Program, layer: Layer, makers: dict[Value, Node]
) -> Multiplication | str:
    node = layer.op
    weights = layer.weights
    if node is None or len(weights) != 1:
        return f"it reads {len(weights)} weights"
    index, source = weights[0], layer.inputs[weights[0]]
    operand = next((v for v in node.inputs if not _is_data(v)), None)
    inside = operand
    # Conversions are allowed between the weight and the product: they keep entries and axes.
    while inside is not source and inside in makers:
        maker = makers[inside]
        if maker.primitive not in CONVERSIONS:
            break
        (inside,) = maker.values
    if inside is not source:
        return f"its weight reaches its {node.primitive.name} in another form"
    if Contraction.of(node).is_convolution:
        if _is_data(node.inputs[1]):
            return "its kernel is data and its image a parameter"
        if node.params["batch_group_count"] != 1:
            return "it is a convolution with groups of its batch"
    parameter = origin(program, source, makers)
    if parameter is None:
        return f"its weight is computed from parameters ({source.path}) and none of them itself"
    return Multiplication(layer, index, parameter)


def weight_entries(program: Program, layer: Layer, makers: dict[Value, Node]) -> np.ndarray | None:
    """Tells which entry of its parameter each entry of a layer's weight is.

    It is followed through moves and through pointwise operations, such as a rounding.

    Returns:
        Places in the flattened parameter as the layer's matrix, `[groups, inputs, outputs]`; None
        if they can't be told.
    """
    node = layer.op
    assert node is not None
    contraction = Contraction.of(node)
    value = node.inputs[contraction.side]
    moves: list[Node] = []
    while value in makers:
        maker = makers[value]
        if maker.primitive in _MOVES and len(maker.values) == 1:
            moves.append(maker)
            (value,) = maker.values
            continue
        alike = [
            v for v in maker.values
            if v.is_weight and v.leaves and v.aval.shape == value.aval.shape
        ]  # fmt: skip
        if not alike or maker.signature.family is not OperationFamily.ELEMENTWISE:
            return None
        value = alike[0]
    places = np.arange(value.aval.size, dtype=np.int32).reshape(value.aval.shape)
    with jax.ensure_compile_time_eval():  # places are numbers, also under jit
        for move in reversed(moves):
            if move.primitive not in CONVERSIONS:
                places = np.asarray(run_nodes((move,), move.values, (places,), move.outputs)[0])
    return np.asarray(contraction.matrix(places))


def _is_data(value: Any) -> bool:
    return isinstance(value, Value) and value.is_data
