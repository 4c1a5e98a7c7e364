"""Gives every layer its site: a name that lasts.

A layer with weights is named by the module whose parameters it reads. One without is named by its
tag (`jax.ad_checkpoint.checkpoint_name`), else by the module scope it ran in (Linen) and what it
does, else by what it does: `relu`, `relu_1`, `max_pool`. A layer that another transform has
evaluated keeps the name it had then. Occurrences are counted in order of execution: the second use
of `fc` is `fc#1`, the second unnamed ReLU is `relu_1`.
"""

from collections import Counter
from collections.abc import Iterable

from jaxeff import _compat
from jaxeff.program import primitives as prim
from jaxeff.program.expression import known_name
from jaxeff.program.graph import NEW_STATE_TAG, STATE_TAG, Node
from jaxeff.program.layers import Layer, Program
from jaxeff.program.regions import owner


def name_layers(program: Program) -> None:
    """Sets `site`, `base` and `occurrence` of every layer, sub-programs included."""
    counts: Counter[str] = Counter()
    for layer in program.walk():
        if layer.site or not _computes(layer):
            continue
        if layer.mark:
            _set(layer, *_parse(layer.mark))
            continue
        base, indexed = _base(layer)
        _set(layer, base, counts[base], indexed)
        counts[base] += 1


def _computes(layer: Layer) -> bool:
    if layer.kind in {"control flow", "input"}:
        return any(v.is_data for v in layer.outputs)
    tags = [t for n in layer.nodes if (t := _tag(n))]
    internal = all(t.startswith((STATE_TAG, NEW_STATE_TAG)) for t in tags) and len(tags) == len(
        layer.nodes
    )
    return any(v.is_data for v in layer.outputs) and not internal and not layer.auxiliary


def _set(layer: Layer, base: str, occurrence: int, indexed: str) -> None:
    layer.base, layer.occurrence = base, occurrence
    layer.site = base if occurrence == 0 else f"{base}{indexed}{occurrence}"


def _parse(site: str) -> tuple[str, int, str]:
    """Splits a recorded name into base, occurrence and separator."""
    for separator in "#_":
        base, found, number = site.rpartition(separator)
        if found and number.isdigit() and int(number) > 0:
            return base, int(number), separator
    return site, 0, "#"


def _base(layer: Layer) -> tuple[str, str]:
    """The name without its occurrence, and what separates the two."""
    if layer.kind == "input":
        return "input", "_"
    paths = [layer.inputs[i].path for i in layer.weights + layer.biases]
    if paths:
        return owner(paths[0]), "#"
    for node in reversed(layer.nodes):
        tag = _tag(node)
        if tag and not tag.startswith("jaxeff."):
            return tag, "#"
    scopes = [s for s in layer.nodes[0].scopes if not s.startswith("jaxeff[")]
    return "/".join([*scopes[1:], _what(layer)]), "_"


def _tag(node: Node) -> str:
    return node.params["name"] if node.primitive is prim.NAME else ""


def _what(layer: Layer) -> str:
    """A short name for what a layer does."""
    primitive = layer.nodes[0].primitive
    if layer.kind == "pooling":
        average = primitive is prim.p.reduce_window_sum_p and len(layer.nodes) > 1
        return "avg_pool" if average else prim.WINDOW[primitive]
    if layer.kind == "reduction":
        scaled = primitive is prim.p.reduce_sum_p and any(
            n.primitive in {prim.p.div_p, prim.p.mul_p} for n in layer.nodes
        )
        return "mean" if scaled else prim.REDUCTION.get(primitive, "reduction")
    if layer.kind in {"elementwise", "normalization"}:
        return _function_name(layer)
    if layer.kind == "contraction":
        return "contraction"
    if layer.kind == "linear":
        return "linear"
    return primitive.name


def _function_name(layer: Layer) -> str:
    nodes = [n for n in layer.nodes if n.primitive is not prim.NAME]
    known = known_name(layer)
    if known:
        return known
    shared = set.intersection(*(set(n.calls) for n in nodes)) if nodes else set()
    if shared:
        # The outermost call that holds the whole layer and nothing else is its name.
        name = min(shared, key=lambda call: call[1])[0].strip("_")
        if _is_name(name):
            return name
    if len(nodes) == 1:
        return _compat.call_name(nodes[0].eqn).strip("_") or nodes[0].primitive.name
    return "normalize" if layer.kind == "normalization" else "elementwise"


def _is_name(name: str) -> bool:
    return name.isidentifier() and not name.startswith("lambda")


def all_names(layers: Iterable[Layer]) -> list[str]:
    """The sites of layers, in order."""
    return [layer.site for layer in layers if layer.site]
