"""Groups a graph's nodes into layers.

Nodes that another transform evaluated carry that layer's mark in their name scope and are taken
together as they are; everything else is grouped by what it computes. The result is in an order in
which it can run.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxeff.core import NEW_STATE_TAG
from jaxeff.program.ir import Graph, Layer, Node, Program, Value
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading._layer_kinds import (
    Readers,
    is_in_region,
    kind_of_node,
    layer_of,
    linear_layer,
    pooling_layer,
    regroups,
    sources_of,
)
from jaxeff.program.reading._regions import split

_MARK = re.compile(r"jaxeff\[(?P<kind>[a-z ]+)#(?P<occurrence>\d+)\]\((?P<site>.*)\)", re.DOTALL)


def mark(kind: str, site: str, occurrence: int = 0) -> str:
    """Returns the name scope by which a later transform recognizes a layer."""
    return f"jaxeff[{kind}#{occurrence}]({site})"


# Around what an interpreter adds that is nobody's layer.
UNNAMED = mark("other", "")


def group(graph: Graph, depth: int = 0) -> Program:
    """Returns the program of a graph; layers have no sites yet.

    Args:
        graph: Nodes with roles.
        depth: Number of marks around a node that have been read already (inside a marked layer).
    """
    updates = _state_updates(graph)
    auxiliary = updates | {n for n in graph.nodes if UNNAMED in n.scopes and not n.graphs}
    readers = _readers(graph)
    marked, rest = _by_mark(graph.nodes, depth, auxiliary)
    # Marks win over what a node computes: an earlier transform may have replaced a layer's
    # product by arithmetic that no longer looks like one.
    layers = [_marked_layer(found, nodes, readers) for found, nodes in marked]
    # An auxiliary node is a layer by itself: grouped with its neighbours it would become
    # part of a named layer.
    for node in rest:
        if node in auxiliary:
            layer = _operand_layer(node, readers)
            layer.auxiliary = True
            layers.append(layer)
    layers += _natural([n for n in rest if n not in auxiliary], readers)
    layers = _inline_constants(layers, graph)
    for layer in layers:
        if layer.mark:
            # The inside is grouped by the next mark inwards: transforms nest.
            inner = Graph(layer.inputs, {}, list(layer.nodes), layer.outputs)
            layer.programs = (group(inner, depth + 1),)
        for value in layer.outputs:
            # A batch's statistics leave its normalization for the running ones: no signal.
            value.spread |= readers[value] - set(layer.nodes) <= updates
    return Program(graph.inputs, graph.constants, tuple(_ordered(layers, graph)), graph.outputs)


_Mark = tuple[str, ...]  # kind, site, occurrence


def _readers(graph: Graph) -> Readers:
    """Returns who reads each value; `None` stands for the function's result."""
    readers: Readers = defaultdict(set)
    for node in graph.nodes:
        for value in node.values:
            readers[value].add(node)
    for result in graph.outputs:
        if isinstance(result, Value):
            readers[result].add(None)
    return readers


def _state_updates(graph: Graph) -> set[Node]:
    """Returns the nodes that only serve a new-state result: computed, but part of no layer."""
    readers = _readers(graph)
    found: set[Node] = set()
    # Backwards, so that a node's readers are classified before the node itself.
    for node in reversed(graph.nodes):
        # `None` among the readers is the function's own result: such a node computes a
        # signal too.
        tagged = node.primitive is prim.NAME and node.params["name"].startswith(NEW_STATE_TAG)
        uses = set().union(*(readers[v] for v in node.outputs))
        if tagged or (uses and None not in uses and uses <= found):
            found.add(node)
    return found


def _by_mark(
    nodes: Sequence[Node], depth: int, auxiliary: set[Node]
) -> tuple[list[tuple[_Mark, list[Node]]], list[Node]]:
    """Runs of nodes with the same mark, and the nodes without one.

    A mark that comes again after another, or that reads what others made of its run, is another
    use of that layer.
    """
    runs: list[tuple[_Mark, list[Node]]] = []
    rest: list[Node] = []
    made: set[Value] = set()  # by the last run
    beyond: set[Value] = set()  # by others, from what the last run made
    for node in nodes:
        marks = [m for s in node.scopes if (m := _MARK.fullmatch(s))]
        is_marked = len(marks) > depth and marks[depth]["site"] and node not in auxiliary
        if not is_marked:
            rest.append(node)
            # Follow what the run computed through unmarked nodes: a marked node that reads
            # such a value can't run before them, so it can't belong to the same run.
            if not made.isdisjoint(node.values) or not beyond.isdisjoint(node.values):
                beyond.update(node.outputs)
            continue
        found = marks[depth].group("kind", "site", "occurrence")
        if not runs or runs[-1][0] != found or not beyond.isdisjoint(node.values):
            runs.append((found, []))
            made, beyond = set(), set()
        runs[-1][1].append(node)
        made.update(node.outputs)
    return runs, rest


def _marked_layer(found: _Mark, nodes: list[Node], readers: Readers) -> Layer:
    kind, site, occurrence = found
    layer = layer_of(kind, nodes, readers)
    layer.mark, layer.occurrence = site, int(occurrence)
    # One character stands between the base and the occurrence.
    layer.base = site[: -len(occurrence) - 1] if layer.occurrence else site
    return layer


def _operand_layer(node: Node, readers: Readers) -> Layer:
    layer = layer_of(kind_of_node(node), [node], readers)
    if node.graphs:
        layer.kind, layer.programs = "control flow", tuple(group(g) for g in node.graphs)
    return layer


@dataclass
class _Region:
    root: Value
    nodes: list[Node]


def _natural(nodes: Sequence[Node], readers: Readers) -> list[Layer]:
    layers: list[Layer] = []
    taken: set[Node] = set()
    regions: dict[Value, _Region] = {}
    root_of: dict[Value, Value] = {}
    statistics: set[Value] = set()
    free = set(nodes)
    # A region is rooted at the one tensor all of its values are functions of. Statistics
    # are values with fewer axes than the root (means, variances); they may be broadcast
    # back to it.
    regroupings = {n for n in nodes if regroups(n, readers, free)}

    for node in nodes:
        if node in taken:
            continue
        sources = sources_of(node)
        # Two roots mean that the node combines two tensors (a residual sum): it starts a
        # new layer.
        roots = {root_of.get(v, v) for v in sources}
        if node.primitive in prim.LINEAR:
            layers.append(linear_layer(node, readers, free, taken))
        elif node.primitive in prim.WINDOW:
            layers.append(pooling_layer(node, readers, free, taken))
        elif len(roots) == 1 and (node in regroupings or is_in_region(node, sources, statistics)):
            (root,) = roots
            # Counted, not sorted: symbolic sizes have no order.
            is_back = Counter(node.outputs[0].aval.shape) == Counter(root.aval.shape)
            derived = all(v in statistics for v in sources) and not is_back
            if node.primitive in prim.REDUCTION or derived:
                statistics.update(node.outputs)
            regions.setdefault(root, _Region(root, [])).nodes.append(node)
            root_of.update(dict.fromkeys(node.outputs, root))
        else:
            layers.append(_operand_layer(node, readers))
    for region in regions.values():
        members = set(region.nodes)
        # What others read must be some segment's result, so a region is split there.
        elsewhere = {v for n in region.nodes for v in n.outputs if readers[v] - members}
        for segment in split(region.nodes, region.root, elsewhere):
            layers.append(layer_of(segment.kind, segment.nodes, readers, segment.exit))
    return _absorb_tags(layers, readers)


def _absorb_tags(layers: list[Layer], readers: Readers) -> list[Layer]:
    """Gives a tag that stands alone to the layer whose result it names."""
    made_by = {v: layer for layer in layers for v in layer.outputs}
    kept: list[Layer] = []
    for layer in layers:
        alone = all(n.primitive is prim.NAME for n in layer.nodes)
        producer = made_by.get(layer.inputs[0]) if layer.inputs else None
        # A loop stays one node, from which its parts are read.
        takes = producer is not None and not any(n.graphs for n in producer.nodes)
        if not alone or not takes or readers[layer.inputs[0]] - set(layer.nodes):
            kept.append(layer)
            continue
        # No other node reads the value, so the tag can replace it among the producer's
        # outputs.
        assert producer is not None
        producer.nodes += layer.nodes
        producer.outputs = tuple(
            layer.outputs[0] if v is layer.inputs[0] else v for v in producer.outputs
        )
        made_by[layer.outputs[0]] = producer
    return kept


def _inline_constants(layers: list[Layer], graph: Graph) -> list[Layer]:
    """Moves what depends on nothing at all (a broadcast zero, an iota) into the layers using it."""

    def is_constant(layer: Layer) -> bool:
        values = [v for n in layer.nodes for v in (*n.values, *n.outputs)]
        return not any(v.role for v in values) and not any(n.graphs for n in layer.nodes)

    # A broadcast zero that two layers read would otherwise be a value between layers,
    # stored and counted as an activation. Computing it in each reader costs nothing.
    constant = [layer for layer in layers if is_constant(layer)]
    maker = {v: n for layer in constant for n in layer.nodes for v in n.outputs}

    position = {node: i for i, node in enumerate(graph.nodes)}

    def needed(values: Iterable[Value]) -> list[Node]:
        found: set[Node] = set()
        stack = [maker[v] for v in values if v in maker]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += [maker[v] for v in node.values if v in maker]
        return sorted(found, key=position.__getitem__)

    aside = set(constant)
    kept = [layer for layer in layers if layer not in aside]
    for layer in kept:
        nodes = needed(layer.inputs)
        if nodes and not any(n.graphs for n in layer.nodes):
            made = {v for n in nodes for v in n.outputs}
            extra = [v for n in nodes for v in n.values if v not in made]
            inputs = [v for v in layer.inputs if v not in made]
            layer.nodes = (*nodes, *layer.nodes)
            layer.inputs = tuple(dict.fromkeys([*inputs, *extra]))
    # What leaves the function, or enters a loop, stays a layer.
    leaving = [v for v in graph.outputs if isinstance(v, Value)]
    read = set(needed([*leaving, *(v for layer in kept for v in layer.inputs)]))
    return kept + [layer for layer in constant if read & set(layer.nodes)]


def _ordered(layers: Iterable[Layer], graph: Graph) -> list[Layer]:
    """Sorts layers topologically, among free ones by their first node."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    pending = sorted(layers, key=lambda la: position[la.head])
    made_by = {v: layer for layer in pending for v in layer.outputs}
    done: list[Layer] = []
    placed: set[Layer] = set()
    # Depth-first with an explicit stack: long chains of layers exceed Python's recursion
    # limit.
    stack = pending[::-1]
    while stack:
        layer = stack[-1]
        needed = {made_by[v] for v in layer.inputs if v in made_by} - placed - {layer}
        if layer in placed:
            stack.pop()
        elif not needed:
            placed.add(layer)
            done.append(layer)
            stack.pop()
        else:
            stack.extend(sorted(needed, key=lambda la: -position[la.head]))
            if len(stack) > 4 * len(pending) + len(graph.nodes) ** 2:
                raise RuntimeError(f"The layers around {layer!r} depend on each other.")
    return done
