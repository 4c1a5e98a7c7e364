"""Splits a connected region of functions of one tensor into layers, by what its nodes compute.

A region holds every node that depends on one data value (its root) through pointwise functions,
reductions, and the reshapes that bring a reduction back to its tensor. A *cut* is a value that
everything after it depends on alone: `relu(batch_norm(x))` has one in the middle, `x * sigmoid(x)`
has none. Between cuts lie segments; neighbours are put together again where they are one layer in
the field's terms (a chain of pointwise functions, softmax's centering, exponential and
normalisation, a sum and its division), and kept apart where different parameters, a tag, dropout or
another reader of the cut value separate them. Products with their bias and poolings are layers of
their own.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Layer, Node, Role, Value
from jaxeff.program.ir import primitives as prim


@dataclass
class Segment:
    """Consecutive nodes between two cuts."""

    nodes: list[Node]
    root: Value
    exit: Value

    @functools.cached_property
    def kind(self) -> str:
        """The layer kind of these nodes."""
        if any(reduces(n) for n in self.nodes):
            return "normalization" if self._recombines() else "reduction"
        moves = [n for n in self.nodes if n.primitive in prim.BROADCAST_BACK]
        if len(moves) == len(self.nodes):
            return "shape"
        if any(n.primitive is not prim.NAME for n in moves):
            return "other"  # a tensor combined with a rearrangement of itself
        if self.root.is_data and any(
            v.role & Role.STATE and not v.is_data for n in self.nodes for v in n.values
        ):
            return "normalization"
        return "elementwise"

    def _recombines(self) -> bool:
        """Returns whether a tensor meets its own statistic again."""
        statistics: set[Value] = set()
        for node in self.nodes:
            data = [v for v in node.values if v.is_data or not self.root.is_data]
            # A node that reads both the tensor and one of its statistics is where they meet
            # (x - mean).
            derived = [v in statistics for v in data]
            if any(derived) and not all(derived):
                return True
            if any(derived) or node.primitive in prim.REDUCTION:
                statistics.update(node.outputs)
            elif reduces(node):  # a custom-derivative call: both happen inside, or neither
                same = node.outputs[0].aval.shape == data[0].aval.shape
                if same:
                    return True
                statistics.update(node.outputs)
        return False

    @functools.cached_property
    def owners(self) -> set[str]:
        """The modules whose parameters or state the nodes read."""
        return {owner(v.path) for n in self.nodes for v in n.values if v.is_weight and v.path}

    @property
    def drops(self) -> bool:
        """Whether it is a dropout: a mask of random numbers selects what stays."""
        # It joins only the scale before it, so there is no need to look through a long chain.
        return any(drops(n) for n in self.nodes[:2]) and self.kind == "elementwise"

    @property
    def is_scaling(self) -> bool:
        """Whether it only multiplies or divides by constants."""
        return all(n.primitive in prim.SCALING and len(n.values) == 1 for n in self.nodes)


def owner(path: str) -> str:
    """Returns a parameter's module: its path without the last part, if there is more."""
    return path.rpartition("/")[0] or path


def split(nodes: Sequence[Node], root: Value, read_elsewhere: Collection[Value]) -> list[Segment]:
    """Cuts a region into segments and merges those that form one layer.

    `nodes` are in topological order; `read_elsewhere` are values that nodes outside read, or that
    leave the function. Each segment is a future layer.
    """
    return [
        segment
        for component in _components(nodes, root)
        for segment in _merge(_cut(component, root), read_elsewhere)
    ]


def reduces(node: Node) -> bool:
    """Returns whether a node is a reduction, or a custom-derivative call that holds one."""
    if node.primitive in prim.CUSTOM:
        bodies = _compat.sub_jaxprs(node.eqn)
        return any(p in prim.REDUCTION for body in bodies for p in _compat.primitives_in(body))
    return node.primitive in prim.REDUCTION


def drops(node: Node) -> bool:
    """Returns whether a node selects by a mask that depends on a random key alone."""
    mask = node.inputs[0] if node.primitive is prim.p.select_n_p else None
    return isinstance(mask, Value) and mask.role == Role.KEY


def _components(nodes: Sequence[Node], root: Value) -> list[list[Node]]:
    """Finds connected components; links through the root don't count."""

    def joints(node: Node) -> list[Value]:
        return [v for v in node.values if v is not root and v.is_data] + list(node.outputs)

    # Every value is looked up once (`pop`): linear in the number of nodes.
    linked: dict[Value, list[Node]] = defaultdict(list)
    for node in nodes:
        for value in joints(node):
            linked[value].append(node)
    component: dict[Node, int] = {}
    for number, first in enumerate(nodes):
        stack = [first]
        while stack:
            node = stack.pop()
            if node not in component:
                component[node] = number
                for value in joints(node):
                    stack += linked.pop(value, ())
    members: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        members[component[node]].append(node)
    return list(members.values())


def _cut(nodes: Sequence[Node], root: Value) -> list[Segment]:
    """Returns the segments between the cuts of a connected component, the last ones apart."""
    # Liveness: where a single value is live, everything after depends on it alone. That is a cut.
    last_use = {v: i for i, node in enumerate(nodes) for v in node.values}
    segments: list[Segment] = []
    live: set[Value] = {root}
    start = 0
    for i, node in enumerate(nodes):
        live = {v for v in live | set(node.outputs) if last_use.get(v, -1) > i}
        if live == set(node.outputs) and len(live) == 1:
            (value,) = live
            segments.append(Segment(list(nodes[start : i + 1]), root, value))
            root, start = value, i + 1
    # After the last cut several results may be left (a mean and a variance that both
    # leave): each is a layer, and within it there may be cuts that the others hid.
    parts = _components(nodes[start:], root)
    if len(parts) == 1:
        return [*segments, Segment(parts[0], root, parts[0][-1].outputs[0])]
    return segments + [s for part in parts for s in _cut(part, root)]


def _merge(segments: list[Segment], read_elsewhere: Collection[Value]) -> list[Segment]:
    # A value that several segments start from is read by more than its neighbour: no
    # merging over it.
    roots = Counter(s.root for s in segments)
    read_elsewhere = {*read_elsewhere, *(v for v in roots if roots[v] > 1)}
    merged: list[Segment] = []
    for segment in _with_scales(segments, read_elsewhere):
        previous = merged[-1] if merged else None
        if previous is None or not _joins(previous, segment, read_elsewhere):
            merged.append(segment)
            continue
        merged[-1] = _join(previous, segment)
        # Softmax: a pointwise function between two normalisations belongs to both.
        while len(merged) > 1 and _joins(merged[-2], merged[-1], read_elsewhere):
            last = merged.pop()
            merged[-1] = _join(merged[-1], last)
    return _merge_sandwiches(merged, read_elsewhere)


def _with_scales(segments: list[Segment], read_elsewhere: Collection[Value]) -> list[Segment]:
    """Gives a dropout the division by the share that it keeps."""
    scaled: list[Segment] = []
    for segment in segments:
        before = scaled[-1] if scaled and segment.drops else None
        if (
            before is not None
            and before.is_scaling
            and before.exit is segment.root
            and before.exit not in read_elsewhere
        ):
            segment = Segment(before.nodes + segment.nodes, before.root, segment.exit)
            scaled.pop()
        scaled.append(segment)
    return scaled


def _merge_sandwiches(segments: list[Segment], read_elsewhere: Collection[Value]) -> list[Segment]:
    for i in range(1, len(segments) - 1):
        before, middle, after = segments[i - 1 : i + 2]
        # Log-softmax and similar: exp between two halves of one normalization belongs to
        # it, unless parameters or a mask say that it is a layer of its own.
        linked = before.exit is middle.root and middle.exit is after.root
        private = before.exit not in read_elsewhere and middle.exit not in read_elsewhere
        kinds = (before.kind, middle.kind, after.kind)
        plain = not before.owners and not middle.owners and not middle.drops
        if linked and private and plain and kinds == ("normalization", "elementwise", before.kind):
            joined = _join(_join(before, middle), after)
            rest = [*segments[: i - 1], joined, *segments[i + 2 :]]
            return _merge_sandwiches(rest, read_elsewhere)
    return segments


def _joins(a: Segment, b: Segment, read_elsewhere: Collection[Value]) -> bool:
    if a.exit is not b.root or a.exit in read_elsewhere or a.nodes[-1].primitive is prim.NAME:
        return False
    kinds = (a.kind, b.kind)
    if b.nodes[0].primitive is prim.NAME:
        return True
    if kinds == ("reduction", "shape"):
        return b.nodes[0].primitive is prim.p.broadcast_in_dim_p
    # A sum and its division: a mean.
    if kinds == ("reduction", "elementwise"):
        return b.is_scaling and not b.owners
    # Centering and scaling by the deviation are one layer, as long as only one module is read.
    if kinds == ("normalization", "normalization"):
        return not a.owners or not b.owners or a.owners == b.owners
    # The affine part of a normalization reads the same module's parameters. A ReLU reads none.
    if kinds in {("normalization", "elementwise"), ("elementwise", "normalization")}:
        return bool(a.owners) and a.owners == b.owners
    if a.drops or b.drops:
        return False
    return kinds == ("elementwise", "elementwise") and a.owners == b.owners


def _join(a: Segment, b: Segment) -> Segment:
    if a.kind == b.kind == "elementwise" and a.owners == b.owners:
        # The same kind again, known without looking at a long chain each time it grows.
        a.nodes += b.nodes
        a.exit = b.exit
        return a
    return Segment(a.nodes + b.nodes, a.root, b.exit)


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
    members, produced = set(nodes), {v for n in nodes for v in n.outputs}
    # Dictionaries keep the order of first use, so that a layer's inputs don't depend on hashes.
    inputs = dict.fromkeys(v for n in nodes for v in n.values if v not in produced)
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


def reshaped(node: Node) -> Value | None:
    """Returns the data that a reshape gives another shape; None for any other equation."""
    is_reshape = node.primitive is prim.p.reshape_p and node.values and node.values[0].is_data
    return node.values[0] if is_reshape else None


def regroups(node: Node, readers: Readers, free: set[Node]) -> bool:
    """Returns whether a reshape only serves statistics of its tensor, as in a group norm."""
    tensor = reshaped(node)
    if tensor is None:
        return False
    # Follow every use of the reshaped view until its statistics meet the original tensor
    # again; any other use makes the reshape a layer of its own.
    tensors, statistics = {*node.outputs}, set[Value]()
    pending, followed = [*node.outputs], set[Node]()
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
    primitives = set(_compat.primitives_in(body))
    if primitives & prim.REDUCTION.keys():
        primitives -= prim.BROADCAST_BACK
    elif node.outputs[0].aval.shape not in [v.aval.shape for v in node.values]:
        return False
    return primitives <= _POINTWISE


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
        and reader.primitive in prim.SCALING
        and all(v is value or v.role == Role.CONSTANT for v in reader.values)
        and reader.outputs[0].aval.shape == value.aval.shape
    ):
        taken.add(reader)
        return layer_of("pooling", [node, reader], readers)
    return layer_of("pooling", [node], readers)


def _only_reader(value: Value, readers: Readers, free: set[Node]) -> Node | None:
    """Returns the one node that reads a value, unless it belongs to a layer marked before."""
    nodes = readers[value]
    reader = next(iter(nodes)) if len(nodes) == 1 else None
    return reader if reader in free else None
