"""Finds attention with random weights whose results are added up over tokens, and warns of it.

All tokens read the same weights, so that what attention makes of their noise has a part that all
tokens share. A mean over tokens keeps this part; taken as independent, it would be averaged away.

Sharp edges
- Tokens are followed through functions of entries, moves and products of other axes.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.attention._layer import AttentionLayer, behind
from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Program
from jaxeff.program.ir import Axes, Contraction, Node, Value, axes
from jaxeff.program.ir import primitives as prim

_TOKENS = 0


def pooled_attention(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first attention with random weights whose results are added up over tokens.

    Args:
        program: A program or a loop's body, in which attention is one layer.
        random: Inputs of it that are random.

    Returns:
        Its site, None if there is none.
    """
    if not any(isinstance(layer, AttentionLayer) for layer in program.layers):
        return None
    noisy, weighed = set(random), set[Value]()
    known: dict[Value, tuple[str, Axes]] = {}
    for layer in program.layers:
        # Noise of an input is another one at every token: only that of weights is shared.
        weights = [v for v in layer.inputs if v in noisy and not v.is_data]
        if not weighed.isdisjoint(layer.inputs) or (layer.kind == "linear" and weights):
            weighed.update(layer.outputs)
        if not noisy.isdisjoint(layer.inputs):
            noisy.update(layer.outputs)
        if isinstance(layer, AttentionLayer):
            if _is_pooling(layer, weighed):
                return layer.site
            if not weighed.isdisjoint(layer.inputs):
                known.update(_tokens_of(layer))
            continue
        for node in layer.nodes:
            site = _follow(node, known)
            if site is not None:
                return site
    return None


def warn_of_pooled(site: str) -> None:
    """Warns of attention whose results are added up over tokens."""
    warnings.warn(
        f"moments: what attention {site!r} makes of random weights is added up over tokens, which "
        "share that noise; they are taken as independent, and variances may be several times too "
        "small. Take method='linear', or moments(f, shared=False) to leave it so.",
        MomentsWarning,
        stacklevel=2,
    )


def _is_pooling(layer: AttentionLayer, weighed: Collection[Value]) -> bool:
    """Returns whether attention adds up what weights make of tokens, for one query of its own.

    A learnt query weighs all tokens alike, so that its result keeps the noise that these share.
    """
    read = {layer.values, *(v for node in behind(layer.nodes, layer.values) for v in node.values)}
    return not read.isdisjoint(weighed) and not any(_own(layer))


def _tokens_of(layer: AttentionLayer) -> Mapping[Value, tuple[str, Axes]]:
    """Returns the result of attention with its axis of tokens: the queries' own."""
    made = layer.outputs[0]
    if len(layer.axes.result) != len(made.aval.shape):
        return {}
    own = _own(layer)
    if sum(own) != 1:
        return {}
    return {made: (layer.site, tuple(_TOKENS if x else None for x in own))}


def _own(layer: AttentionLayer) -> list[bool]:
    """Returns which axes of the result are the queries' own."""
    letters, sizes = layer.axes, dict[str, int]()
    for letter, n in zip(letters.scores, layer.scores.aval.shape, strict=True):
        sizes[letter] = n
    # An axis of one entry, as of a group of queries with its own keys, holds no tokens.
    return [a not in letters.v and sizes.get(a, 1) != 1 for a in letters.result]


def _follow(node: Node, known: dict[Value, tuple[str, Axes]]) -> str | None:
    """Follows the axis of tokens through an equation; returns the site if it adds them up."""
    read = [v for v in node.values if v in known]
    if not read or len(node.outputs) != 1:
        return None
    value, made = read[0], node.outputs[0]
    site, layout = known[value]
    shape = tuple(value.aval.shape)
    after: Axes | None = None
    if node.primitive is p.reduce_sum_p:
        if any(layout[i] == _TOKENS for i in node.params["axes"]):
            return site
        after = axes.dropped(layout, node.params["axes"])
    elif node.primitive in axes.MOVES:
        after = _moved(node, layout, shape)
    elif node.primitive is p.dot_general_p:
        c, side = Contraction.of(node), node.inputs.index(value)
        free = [[layout[a] if i == side else None for a in c.free(i)] for i in (0, 1)]
        after = (*(layout[a] for a in c.batch(side)), *free[0], *free[1])
    elif made.aval.shape == shape and (
        node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn)
    ):
        after = layout
    if after is not None and _TOKENS in after:
        known[made] = site, after
    return None


def _moved(node: Node, layout: Axes, shape: tuple[int, ...]) -> Axes | None:
    """Follows the axis of tokens through a move; heads and features may be merged behind it."""
    found = axes.moved(node.eqn, layout, shape)
    if found is not None or node.primitive is not p.reshape_p:
        return found
    place, after = layout.index(_TOKENS), tuple(node.outputs[0].aval.shape)
    if shape[: place + 1] != after[: place + 1]:
        return None
    return tuple(_TOKENS if i == place else None for i in range(len(after)))
