"""Gives every layer its site: a name that lasts.

A layer with weights is named by the module whose parameters it reads, or by the parameter where a
module has several that layers of their own read (`_modules.py`). One without is named by its
tag (`jax.ad_checkpoint.checkpoint_name`), else by the module scope it ran in (Linen) and what it
does, else by what it does: `relu`, `relu_1`, `max_pool`. A layer that another transform has
evaluated keeps the name it had then. Occurrences are counted in order of execution: the second use
of `fc` is `fc#1`, the second unnamed ReLU is `relu_1`.
"""

from collections import Counter
from collections.abc import Mapping

from jaxeff.core import NEW_STATE_TAG, STATE_TAG
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Layer, Node, Program
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading._expression import known_name
from jaxeff.program.reading._modules import parameter_names
from jaxeff.program.reading._regions import drops


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
            n.primitive in {prim.p.div_p, prim.p.mul_p} for n in layer.nodes
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
    if any(drops(node) for node in nodes):
        return "dropout"
    # A call that holds this layer and nothing else is named after what it does.
    own = Counter(call for node in layer.nodes for call in node.calls)
    # Equal counts mean that the call holds no other layer. The outermost one has the lowest
    # number.
    for name, _ in sorted((c for c in own if own[c] == sizes[c] >= len(nodes)), key=_by_id):
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
    reshaped = (n.values[0] for n in layer.nodes if n.primitive is prim.p.reshape_p and n.values)
    return any(v.is_data and v.aval.size in sizes for v in reshaped)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("lambda")


def _by_id(call: tuple[str, int]) -> int:
    return call[1]
