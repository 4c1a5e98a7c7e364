"""Names of layers with parameters: the module, or one parameter of it.

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

from collections.abc import Iterable, Sequence

from jaxeff.program.ir import Layer
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading._regions import owner

_LOOK_UPS = {prim.p.gather_p, prim.p.dynamic_slice_p}
_SUMS = {prim.p.add_p, prim.p.sub_p, prim.p.add_jaxvals_p}


def parameter_names(layers: Sequence[Layer]) -> dict[Layer, str]:
    """Returns the name, without an occurrence, of every layer that reads parameters or state.

    Args:
        layers: All layers of a program that have a site, in order of execution.
    """
    # A loop's own layer reads what several layers in its body do.
    own = (layer for layer in layers if layer.kind != "control flow")
    paths = {layer: found for layer in own if (found := _paths(layer))}
    ranks = {layer: _rank(layer) for layer in paths}
    multiplied = {paths[layer][0] for layer in paths if ranks[layer] == 0}
    together = _together(_rest(paths[la], multiplied) for la in paths if ranks[la])
    keys = {}
    for layer, found in paths.items():
        rest = _rest(found, multiplied) if ranks[layer] else []
        keys[layer] = together[rest[0]] if rest else found[0]
    weights: dict[str, tuple[int, set[str]]] = {}
    for layer, key in keys.items():
        rank, module = ranks[layer], owner(key)
        best, of_module = weights.get(module, (rank, set()))
        if rank < best:
            best, of_module = rank, set()
        weights[module] = best, of_module | {key} if rank == best else of_module
    return {
        layer: owner(key) if weights[owner(key)][1] == {key} else key for layer, key in keys.items()
    }


def _paths(layer: Layer) -> list[str]:
    """Returns the leaves a layer mainly reads, weights before biases."""
    return [layer.inputs[i].path for i in layer.weights + layer.biases]


def _rank(layer: Layer) -> int:
    """Classifies the use of parameters: 0 multiplied or looked up, 2 only added, 1 other."""
    if layer.kind == "linear" or any(n.primitive in _LOOK_UPS for n in layer.nodes):
        return 0
    meets = [n for n in layer.nodes if {(v.is_data, bool(v.leaves)) for v in n.values} >= _MEETING]
    return 2 if meets and all(n.primitive in _SUMS for n in meets) else 1


_MEETING = {(True, False), (False, True)}  # data, and what came from a parameter


def _rest(paths: Sequence[str], multiplied: set[str]) -> list[str]:
    """Returns the leaves of one module that are read beside its products, the first one's."""
    rest = [path for path in paths if path not in multiplied]
    return [path for path in rest if owner(path) == owner(rest[0])]


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
