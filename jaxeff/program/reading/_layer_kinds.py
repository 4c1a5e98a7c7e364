"""Layers by what nodes compute: a product with its bias, a pooling, members of a region."""

from collections.abc import Sequence

from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Layer, Node, Role, Value
from jaxeff.program.ir import primitives as prim

# What may stand in a function with derivatives of its own that is a function of one tensor.
_POINTWISE = (
    prim.ELEMENTWISE
    | prim.REDUCTION.keys()
    | prim.CALLS
    | prim.CUSTOM
    | {prim.p.broadcast_in_dim_p, prim.NAME}
)

Readers = dict[Value, set[Node | None]]


def layer_of(
    kind: str, nodes: Sequence[Node], readers: Readers, first: Value | None = None
) -> Layer:
    """Returns a layer over nodes: reads what they don't produce, yields what others read."""
    members, made = set(nodes), {v for n in nodes for v in n.outputs}
    # Dictionaries keep the order of first use, so that a layer's inputs don't depend on
    # hashes.
    inputs = dict.fromkeys(v for n in nodes for v in n.values if v not in made)
    outputs = [v for n in nodes for v in n.outputs if readers[v] - members]
    if first is not None and first in outputs:
        outputs = [first, *(v for v in outputs if v is not first)]
    return Layer(kind, tuple(nodes), tuple(inputs), tuple(outputs))


def kind_of_node(node: Node) -> str:
    if node.graphs:
        return "control flow"
    if node.primitive in prim.LINEAR:
        return "linear"
    if node.primitive in prim.WINDOW:
        return "pooling"
    if node.primitive in prim.REDUCTION:
        return "reduction"
    if node.primitive in prim.ELEMENTWISE or (
        node.primitive in prim.CUSTOM and _is_pointwise(node)
    ):
        return "elementwise"
    return "shape" if node.primitive in prim.SHAPE else "other"


def sources_of(node: Node) -> list[Value]:
    """Returns the inputs that a result varies with: data, or without any, parameters."""
    # A parameter beside data (scale, bias) does not make a second root.
    data = [v for v in node.values if v.is_data]
    return data or [v for v in node.values if v.is_weight]


def is_in_region(node: Node, sources: Sequence[Value], statistics: set[Value]) -> bool:
    if node.graphs or len(node.outputs) != 1:
        return False
    if node.primitive in prim.ELEMENTWISE or node.primitive in prim.REDUCTION:
        return True
    if node.primitive in prim.CUSTOM:
        return _is_pointwise(node)
    # vmap moves a tensor's axes beside those of its statistics.
    if node.primitive in {prim.NAME, prim.p.transpose_p}:
        return True
    # A reshape belongs to a region only when it brings a statistic back to its tensor.
    return node.primitive in prim.BROADCAST_BACK and sources[0] in statistics


def regroups(node: Node, readers: Readers, free: set[Node]) -> bool:
    """Returns whether a reshape only serves statistics of its tensor, as in a group norm."""
    if node.primitive is not prim.p.reshape_p or not node.values or not node.values[0].is_data:
        return False
    # Follow every use of the reshaped view until its statistics meet the original tensor
    # again; any other use makes the reshape a layer of its own.
    tensor, view = node.values[0], node.outputs[0]
    tensors, statistics = {view}, set[Value]()
    pending, followed = [view], set[Node]()
    meets = False
    while pending:
        value = pending.pop()
        for reader in readers[value] - followed:
            if reader is None or reader not in free or len(reader.outputs) != 1:
                return False
            others = {v for v in reader.values if v.is_data} - tensors - statistics
            if value in statistics and others:
                meets |= tensor in others
                continue  # or followed from the last of several statistics that meet
            reduces = reader.primitive in prim.REDUCTION
            moves = reader.primitive in prim.BROADCAST_BACK and value in statistics
            if not (reduces or moves or reader.primitive in prim.ELEMENTWISE):
                return False
            followed.add(reader)
            pending += reader.outputs
            is_tensor = not reduces and not tensors.isdisjoint(reader.values)
            (tensors if is_tensor else statistics).update(reader.outputs)
    inside = tensors | statistics
    return meets and all(v in inside for n in followed for v in n.values if v.is_data)


def _is_pointwise(node: Node) -> bool:
    """Returns whether a custom-derivative call holds pointwise functions and statistics only."""
    (body, *_) = _compat.sub_jaxprs(node.eqn)
    # With a statistic inside, a broadcast brings it back to its tensor; without one, a
    # broadcast would change the shape of the result.
    found = set(_compat.primitives_in(body))
    if found & prim.REDUCTION.keys():
        found -= prim.BROADCAST_BACK
    elif node.outputs[0].aval.shape not in [v.aval.shape for v in node.values]:
        return False
    return found <= _POINTWISE


def linear_layer(node: Node, readers: Readers, free: set[Node], taken: set[Node]) -> Layer:
    """Returns a dot product or convolution, with the bias that is added to it."""
    # Two data operands: no weights to quantize or prune, as in attention.
    operands = [v for v in node.inputs if isinstance(v, Value) and v.is_data]
    if not operands:
        return layer_of("linear", [node], readers)
    if len(operands) == 2:
        return layer_of("matmul", [node], readers)
    nodes, value = [node], node.outputs[0]
    # Look for the bias through conversions and moves of axes (NHWC to NCHW) that only this
    # product feeds. If none comes, these nodes are left to the layers after it.
    while (reader := _only_reader(value, readers, free)) and len(reader.outputs) == 1:
        others = [v for v in reader.inputs if v is not value]
        # A tag ends the search: it names the product itself, without a bias.
        moves = reader.primitive in prim.SHAPE and not others and reader.primitive is not prim.NAME
        adds = (
            reader.primitive is prim.p.add_p
            and len(others) == 1
            and isinstance(others[0], Value)
            and others[0].is_weight
            and reader.outputs[0].aval.shape == value.aval.shape
        )
        if adds:
            nodes.append(reader)
            taken.update(nodes)
            return layer_of("linear", nodes, readers)
        if not moves and reader.primitive is not prim.p.convert_element_type_p:
            break
        nodes.append(reader)
        value = reader.outputs[0]
    return layer_of("linear", [node], readers)


def pooling_layer(node: Node, readers: Readers, free: set[Node], taken: set[Node]) -> Layer:
    """Returns a windowed reduction; a windowed sum together with its division by a constant."""
    value = node.outputs[0]
    reader = _only_reader(value, readers, free)
    if (
        node.primitive is prim.p.reduce_window_sum_p
        and reader is not None
        and reader.primitive in {prim.p.div_p, prim.p.mul_p}
        and all(v is value or v.role == Role.CONSTANT for v in reader.values)
        and reader.outputs[0].aval.shape == value.aval.shape
    ):
        taken.add(reader)
        return layer_of("pooling", [node, reader], readers)
    return layer_of("pooling", [node], readers)


def _only_reader(value: Value, readers: Readers, free: set[Node]) -> Node | None:
    """Returns the one node that reads a value, unless it belongs to a layer marked before."""
    found = readers[value]
    reader = next(iter(found)) if len(found) == 1 else None
    return reader if reader in free else None
