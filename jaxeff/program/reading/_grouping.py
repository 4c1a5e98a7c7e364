"""Groups a graph's nodes into layers, and gives every layer its site: a name that lasts.

Nodes that another transform evaluated carry that layer's mark in their name scope and are taken
together as they are; everything else is grouped by what it computes. The result is in an order in
which it can run.

A layer with weights is named by the module whose parameters it reads, or by the parameter where a
module has several that layers of their own read. One without is named by its tag
(`jax.ad_checkpoint.checkpoint_name`), else by the module scope it ran in (Linen) and what it does,
else by what it does: `relu`, `relu_1`, `max_pool`. A layer that another transform has evaluated
keeps the name it had then. Occurrences are counted in order of execution: the second use of `fc` is
`fc#1`, the second unnamed ReLU is `relu_1`.

A module is what the parameters `fc/kernel` and `fc/bias` have in common, `fc`. It is one site as
long as one weight in it makes layers: `fc` then is that weight's name, in every use (`fc#1`). A
module whose weights make layers of their own gives each the name of its parameter: `block/w1` and
`block/w2`, `lora/a` and `lora/b`. Which of its parameters are weights is read from what layers do:

1. those that are multiplied in a dot product or convolution, or looked up; if there are none,
2. those that do more than be added, such as the scale of a normalization; if there are none,
3. all of them.

Parameters that one layer reads together count as one. A layer that reads only what is no weight (a
bias that is added elsewhere than right after its product) is called by that parameter, `fc/bias`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxeff.core import NEW_STATE_TAG, STATE_TAG
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Graph, Layer, Node, Program, Value
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import _regions
from jaxeff.program.reading._expression import known_name

_MARK = re.compile(r"jaxeff\[(?P<kind>[a-z ]+)#(?P<occurrence>\d+)\]\((?P<site>.*)\)", re.DOTALL)


def mark(kind: str, site: str, occurrence: int = 0) -> str:
    """Returns the name scope by which a later transform recognizes a layer."""
    return f"jaxeff[{kind}#{occurrence}]({site})"


# Around what an interpreter adds that is nobody's layer.
UNNAMED = mark("other", "")


def group(graph: Graph, depth: int = 0) -> Program:
    """Returns the program of a graph; layers have no sites yet.

    Nodes have roles; `depth` marks around a node have been read already (inside a marked layer).
    """
    updates = _state_updates(graph)
    auxiliary = updates | {n for n in graph.nodes if UNNAMED in n.scopes and not n.graphs}
    readers = _readers(graph)
    marked, rest = _by_mark(graph.nodes, depth, auxiliary)
    # Marks win over what a node computes: an earlier transform may have replaced a layer's
    # product by arithmetic that no longer looks like one.
    layers = [_marked_layer(mark, nodes, readers) for mark, nodes in marked]
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


def _readers(graph: Graph) -> _regions.Readers:
    """Returns who reads each value; `None` stands for the function's result."""
    readers: _regions.Readers = defaultdict(set)
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
    updates: set[Node] = set()
    # Backwards, so that a node's readers are classified before the node itself.
    for node in reversed(graph.nodes):
        # `None` among the readers is the function's own result: such a node computes a signal too.
        tagged = node.primitive is prim.NAME and node.params["name"].startswith(NEW_STATE_TAG)
        uses = set().union(*(readers[v] for v in node.outputs))
        if tagged or (uses and None not in uses and uses <= updates):
            updates.add(node)
    return updates


def _by_mark(
    nodes: Sequence[Node], depth: int, auxiliary: set[Node]
) -> tuple[list[tuple[_Mark, list[Node]]], list[Node]]:
    """Runs of nodes with the same mark, and the nodes without one.

    A mark that comes again after another, or that reads what others made of its run, is another
    use of that layer.
    """
    runs: list[tuple[_Mark, list[Node]]] = []
    rest: list[Node] = []
    results: set[Value] = set()  # by the last run
    beyond: set[Value] = set()  # by others, from what the last run made
    for node in nodes:
        marks = [m for s in node.scopes if (m := _MARK.fullmatch(s))]
        is_marked = len(marks) > depth and marks[depth]["site"] and node not in auxiliary
        if not is_marked:
            rest.append(node)
            # Follow what the run computed through unmarked nodes: a marked node that reads
            # such a value can't run before them, so it can't belong to the same run.
            if not results.isdisjoint(node.values) or not beyond.isdisjoint(node.values):
                beyond.update(node.outputs)
            continue
        mark = marks[depth].group("kind", "site", "occurrence")
        if not runs or runs[-1][0] != mark or not beyond.isdisjoint(node.values):
            runs.append((mark, []))
            results, beyond = set(), set()
        runs[-1][1].append(node)
        results.update(node.outputs)
    return runs, rest


def _marked_layer(mark: _Mark, nodes: list[Node], readers: _regions.Readers) -> Layer:
    kind, site, occurrence = mark
    layer = _regions.layer_of(kind, nodes, readers)
    layer.mark, layer.occurrence = site, int(occurrence)
    # One character stands between the base and the occurrence.
    layer.base = site[: -len(occurrence) - 1] if layer.occurrence else site
    return layer


def _operand_layer(node: Node, readers: _regions.Readers) -> Layer:
    layer = _regions.layer_of(_regions.kind_of_node(node), [node], readers)
    if node.graphs:
        layer.kind, layer.programs = "control flow", tuple(group(g) for g in node.graphs)
    return layer


@dataclass
class _Region:
    root: Value
    nodes: list[Node]


def _natural(nodes: Sequence[Node], readers: _regions.Readers) -> list[Layer]:
    layers: list[Layer] = []
    taken: set[Node] = set()
    regions: dict[Value, _Region] = {}
    root_of: dict[Value, Value] = {}
    statistics: set[Value] = set()
    free = set(nodes)
    # A region is rooted at the one tensor all of its values are functions of. Statistics are values
    # with fewer axes than the root (means, variances); they may be broadcast back to it.
    regroupings = {n for n in nodes if _regions.regroups(n, readers, free)}

    for node in nodes:
        if node in taken:
            continue
        sources = _regions.sources_of(node)
        # Two roots mean that the node combines two tensors (a residual sum): it starts a new layer.
        roots = {root_of.get(v, v) for v in sources}
        if node.primitive in prim.LINEAR:
            layers.append(_regions.linear_layer(node, readers, free, taken))
        elif node.primitive in prim.WINDOW:
            layers.append(_regions.pooling_layer(node, readers, free, taken))
        elif len(roots) == 1 and (
            node in regroupings or _regions.is_in_region(node, sources, statistics)
        ):
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
        for segment in _regions.split(region.nodes, region.root, elsewhere):
            layers.append(_regions.layer_of(segment.kind, segment.nodes, readers, segment.exit))
    return _absorb_tags(layers, readers)


def _absorb_tags(layers: list[Layer], readers: _regions.Readers) -> list[Layer]:
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
        # No other node reads the value, so the tag can replace it among the producer's outputs.
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
        preparing: set[Node] = set()
        stack = [maker[v] for v in values if v in maker]
        while stack:
            node = stack.pop()
            if node not in preparing:
                preparing.add(node)
                stack += [maker[v] for v in node.values if v in maker]
        return sorted(preparing, key=position.__getitem__)

    aside = set(constant)
    kept = [layer for layer in layers if layer not in aside]
    for layer in kept:
        nodes = needed(layer.inputs)
        if nodes and not any(n.graphs for n in layer.nodes):
            prepared = {v for n in nodes for v in n.outputs}
            extra = [v for n in nodes for v in n.values if v not in prepared]
            inputs = [v for v in layer.inputs if v not in prepared]
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
    # Depth-first with an explicit stack: long chains of layers exceed Python's recursion limit.
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


_LOOK_UPS = {prim.p.gather_p, prim.p.dynamic_slice_p}


def parameter_names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """Returns the name, without an occurrence, of every layer that reads parameters or state.

    Layers are all those of a program that have a site, in order of execution.
    """
    # A loop's own layer reads what several layers in its body do.
    computing = (layer for layer in layers if layer.kind != "control flow")
    paths = {layer: read_paths for layer in computing if (read_paths := _paths(layer))}
    ranks = {layer: _rank(layer) for layer in paths}
    multiplied = {paths[layer][0] for layer in paths if ranks[layer] == 0}
    together = _together(_rest(paths[la], multiplied) for la in paths if ranks[la])
    keys = {}
    for layer, read_paths in paths.items():
        rest = _rest(read_paths, multiplied) if ranks[layer] else []
        keys[layer] = together[rest[0]] if rest else read_paths[0]
    weights: dict[str, tuple[int, set[str]]] = {}
    for layer, key in keys.items():
        rank, module = ranks[layer], _regions.owner(key)
        best, of_module = weights.get(module, (rank, set()))
        if rank < best:
            best, of_module = rank, set()
        weights[module] = best, of_module | {key} if rank == best else of_module
    return {
        layer: _regions.owner(key) if weights[_regions.owner(key)][1] == {key} else key
        for layer, key in keys.items()
    }


def _paths(layer: Layer) -> list[str]:
    """Returns the leaves a layer mainly reads, weights before biases."""
    return [layer.inputs[i].path for i in layer.weights + layer.biases]


def _rank(layer: Layer) -> int:
    """Classifies the use of parameters: 0 multiplied or looked up, 2 only added, 1 other."""
    if layer.kind == "linear" or any(n.primitive in _LOOK_UPS for n in layer.nodes):
        return 0
    meets = [n for n in layer.nodes if {(v.is_data, bool(v.leaves)) for v in n.values} >= _MEETING]
    return 2 if meets and all(n.primitive in prim.SUMS for n in meets) else 1


_MEETING = {(True, False), (False, True)}  # data, and what came from a parameter


def _rest(paths: Sequence[str], multiplied: set[str]) -> list[str]:
    """Returns the leaves of one module that are read beside its products, the first one's."""
    rest = [path for path in paths if path not in multiplied]
    return [path for path in rest if _regions.owner(path) == _regions.owner(rest[0])]


def _together(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Maps each leaf to the first of those that it is read with, directly or transitively."""
    first: dict[str, str] = {}
    for group in groups:
        roots = [first[path] for path in group if path in first]
        root = roots[0] if roots else next(iter(group), "")
        merged = set(roots)
        first.update({path: root for path, other in first.items() if other in merged})
        first.update(dict.fromkeys(group, root))
    return first


def name_layers(program: Program) -> None:
    """Sets `site`, `base` and `occurrence` of every layer, sub-programs included."""
    layers = [layer for layer in program.walk() if _computes(layer)]
    taken: set[str] = set()
    unnamed: list[Layer] = []
    # Names of marked layers are taken first: an earlier transform's sites must not change.
    for layer in layers:
        if layer.mark and layer.mark not in taken:
            layer.site = layer.mark
            taken.add(layer.site)
        else:
            unnamed.append(layer)
    read = parameter_names(layers)
    counts: Counter[str] = Counter()
    sizes = Counter(call for layer in layers for node in layer.nodes for call in node.calls)
    for layer in unnamed:
        # A second use of a marked layer is another occurrence of it.
        base, separator = (
            (layer.base, _separator(layer)) if layer.mark else _base(layer, read, sizes)
        )
        _name(layer, base, separator, counts, taken)


def _computes(layer: Layer) -> bool:
    tags = [_tag(n) for n in layer.nodes]
    internal = bool(tags) and all(t.startswith((STATE_TAG, NEW_STATE_TAG)) for t in tags)
    return any(v.is_data for v in layer.outputs) and not internal and not layer.auxiliary


def _name(layer: Layer, base: str, separator: str, counts: Counter[str], taken: set[str]) -> None:
    """Sets the first free name; a module may be called what an occurrence would be."""
    while True:
        occurrence = counts[base]
        counts[base] += 1
        site = base if occurrence == 0 else f"{base}{separator}{occurrence}"
        if site not in taken:
            break
    layer.base, layer.occurrence, layer.site = base, occurrence, site
    taken.add(site)


def _separator(layer: Layer) -> str:
    """Returns what stands between base and occurrence in the name of a layer marked before."""
    if layer.occurrence:
        return layer.mark[len(layer.base)]
    return "#" if layer.weights + layer.biases else "_"


def _base(
    layer: Layer, read: Mapping[Layer, str], sizes: Counter[tuple[str, int]]
) -> tuple[str, str]:
    """Returns the name without its occurrence, and what separates the two."""
    if layer.kind == "input":
        return "input", "_"
    if layer.kind == "control flow":
        return layer.nodes[0].primitive.name.rstrip("0123456789"), "_"
    if layer in read:
        return read[layer], "#"
    for node in reversed(layer.nodes):
        tag = _tag(node)
        if tag and not tag.startswith("jaxeff."):
            return tag, "#"
    # The first scope is the model's own: the same on every site, so it says nothing.
    scopes = [s for s in layer.head.scopes if not s.startswith("jaxeff[")]
    return "/".join([*scopes[1:], _what(layer, sizes)]), "_"


def _tag(node: Node) -> str:
    return node.params["name"] if node.primitive is prim.NAME else ""


def _what(layer: Layer, sizes: Counter[tuple[str, int]]) -> str:
    """Returns a short name for what a layer does."""
    primitive = layer.head.primitive
    if layer.kind == "pooling":
        average = primitive is prim.p.reduce_window_sum_p and layer.nodes[-1] is not layer.head
        return "avg_pool" if average else prim.WINDOW[primitive]
    if layer.kind == "reduction":
        # There is no primitive of a mean: it is a sum that is scaled afterwards.
        scaled = primitive is prim.p.reduce_sum_p and any(
            n.primitive in prim.SCALING for n in layer.nodes
        )
        return "mean" if scaled else prim.REDUCTION.get(primitive, "reduction")
    if layer.kind in {"elementwise", "normalization"}:
        return _function_name(layer, sizes)
    if layer.kind == "matmul":
        return "matmul"
    if layer.kind == "linear":
        return "linear"
    return primitive.name


def _function_name(layer: Layer, sizes: Counter[tuple[str, int]]) -> str:
    nodes = [n for n in layer.nodes if n.primitive is not prim.NAME]
    known = known_name(layer)
    if known:
        return known
    if any(_regions.drops(node) for node in nodes):
        return "dropout"
    # A call that holds this layer and nothing else is named after what it does.
    calls = Counter(call for node in layer.nodes for call in node.calls)
    # Equal counts mean that the call holds no other layer. The outermost one has the lowest number.
    for name, _ in sorted((c for c in calls if calls[c] == sizes[c] >= len(nodes)), key=_by_id):
        if _is_name(name.strip("_")):
            return name.strip("_")
    if len(nodes) == 1:
        return _compat.call_name(nodes[0].eqn).strip("_") or nodes[0].primitive.name
    if layer.kind == "normalization":
        return "group_norm" if _regroups(layer) else "normalize"
    return "elementwise"


def _regroups(layer: Layer) -> bool:
    """Returns whether a normalization reshapes its tensor, not only statistics of it."""
    sizes = {layer.inputs[i].aval.size for i in layer.data}
    tensors = map(_regions.reshaped, layer.nodes)
    return any(v is not None and v.aval.size in sizes for v in tensors)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("lambda")


def _by_id(call: tuple[str, int]) -> int:
    return call[1]
