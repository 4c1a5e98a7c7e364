"""Splits a connected region of functions of one tensor into layers.

A region holds every node that depends on one data value (its root) through pointwise functions,
reductions, and the reshapes that bring a reduction back to its tensor. A *cut* is a value that
everything after it depends on alone: `relu(batch_norm(x))` has one in the middle, `x * sigmoid(x)`
has none. Between cuts lie segments; neighbours are put together again where they are one layer in
the field's terms (a chain of pointwise functions, softmax's centering, exponential and
normalisation, a sum and its division), and kept apart where different parameters, a tag, dropout or
another reader of the cut value separate them.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Node, Role, Value
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
        scale = {prim.p.div_p, prim.p.mul_p}
        return all(n.primitive in scale and len(n.values) == 1 for n in self.nodes)


def owner(path: str) -> str:
    """Returns a parameter's module: its path without the last part, if there is more."""
    return path.rpartition("/")[0] or path


def split(nodes: Sequence[Node], root: Value, read_elsewhere: Collection[Value]) -> list[Segment]:
    """Cuts a region into segments and merges those that form one layer.

    Args:
        nodes: The region's nodes in topological order.
        root: The data value that they are functions of.
        read_elsewhere: Values that nodes outside the region read, or that leave the function.

    Returns:
        Segments, each a future layer.
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
    # Liveness: where a single value is live, everything after depends on it alone. That is
    # a cut.
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
    found: list[Segment] = []
    for segment in segments:
        before = found[-1] if found and segment.drops else None
        if (
            before is not None
            and before.is_scaling
            and before.exit is segment.root
            and before.exit not in read_elsewhere
        ):
            segment = Segment(before.nodes + segment.nodes, before.root, segment.exit)
            found.pop()
        found.append(segment)
    return found


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
            whole = _join(_join(before, middle), after)
            rest = [*segments[: i - 1], whole, *segments[i + 2 :]]
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
    # Centering and scaling by the deviation are one layer, as long as only one module is
    # read.
    if kinds == ("normalization", "normalization"):
        return not a.owners or not b.owners or a.owners == b.owners
    # The affine part of a normalization reads the same module's parameters. A ReLU reads
    # none.
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
