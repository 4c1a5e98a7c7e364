"""Recognises attention in a program, puts it in the place of its layers, and warns where it errs.

Attention is a softmax of random scores whose probabilities weigh values. The product with the
values is where a pattern starts. From its operands the equations are followed back through what is
pointwise or only moves entries, to a softmax however it is written, and on to the product of
queries and keys. Axes get letters on the way, so it doesn't matter in which order heads, batch and
tokens stand, and whether queries share keys in groups. A mask, a scale, a bias and a cap are
functions of single scores.

Sharp edges
- A reshape that merges or splits axes between the scores and the values isn't followed, and
  nothing but a move may come between the probabilities and the values: no dropout.
- A random factor of the scores (a learnt temperature with a posterior) isn't recognised.
- Queries, keys and values that are one array aren't attention: they are dependent.

Two warnings are of attention with random weights. Where its results are added up over tokens: all
tokens read the same weights, so that what attention makes of their noise has a part that all
tokens share. A mean over tokens keeps this part; taken as independent, it would be averaged away.
Tokens are followed through functions of entries, moves and products of other axes.

And where it stands in a residual stream: a residual sum adds a block to the stream that the block
is made of. All tokens share the weights of attention, and weigh each other; what they make is one
noise of all channels and tokens, which the blocks and the head after it read as if it were
independent.

Sharp edges
- Noise of an input alone isn't warned of: weights between the stream and the sum have to be random.
- A stream is followed through casts, moves and scales; other operations begin a new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _attention as letters
from jaxeff.moment_propagation import _statistics as statistics
from jaxeff.moment_propagation._attention import AttentionLayer, AxisLetters, Score, behind
from jaxeff.moment_propagation._values import MomentsWarning
from jaxeff.moment_propagation.dependence import is_pointwise, join, with_layers
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Contraction, Node, Value, axes
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import known_number

_MOST_NODES = 96
_REDUCTIONS = {p.reduce_max_p, p.reduce_sum_p}
_PASSED = prim.SHAPE | _REDUCTIONS | {p.convert_element_type_p}


@dataclass
class Equations:
    """A program's equations by what they make.

    Attributes:
        made_by: The equation that makes a value, and its layer.
        position: The order of equations.
        dependent: The values that depend on what is random.
    """

    made_by: dict[Value, tuple[Node, Layer]]
    position: dict[Node, int]
    dependent: set[Value]

    @classmethod
    def of(cls, program: Program, random: Collection[Value]) -> Equations:
        """Reads a program some of whose inputs are random."""
        equations = cls({}, {}, set(random))
        for layer in program.layers:
            # Layers without equations pass their inputs on; loops and layers of other transforms
            # have no equations that can be followed.
            if not layer.nodes and not equations.dependent.isdisjoint(layer.inputs):
                equations.dependent.update(layer.outputs)
            for node in layer.nodes:
                equations.position[node] = len(equations.position)
                if not equations.dependent.isdisjoint(node.values):
                    equations.dependent.update(node.outputs)
                if not layer.mark and layer.kind != "control flow":
                    equations.made_by.update((v, (node, layer)) for v in node.outputs)
        return equations

    def behind(self, value: Value, through: Callable[[Node], bool]) -> list[Node]:
        """Returns the equations that a value's noise comes through, those that are followed."""
        found: set[Node] = set()
        left = [value]
        while left and len(found) <= _MOST_NODES:
            node, _ = self.made_by.get(left.pop(), (None, None))
            if node is None or node in found or len(node.outputs) != 1:
                continue
            if through(node):
                found.add(node)
                left += [v for v in node.values if v in self.dependent]
        return sorted(found, key=self.position.__getitem__)

    def number(self, atom: Any) -> float | None:
        """Returns the number an operand is everywhere, None where that isn't known."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        node, _ = self.made_by.get(atom, (None, None))
        if node is None or atom in self.dependent:
            return None
        return known_number(node.eqn, [self.number(a) for a in node.inputs])


def softmax_of(
    equations: Equations, nodes: Sequence[Node], result: Value | None
) -> tuple[Value, statistics.Statistic] | None:
    """Finds the softmax that a value is, or any softmax among equations.

    Args:
        equations: The program's.
        nodes: Equations, in order.
        result: The value; None for any.

    Returns:
        What the softmax is taken of, and the statistic of it that the value is.
    """
    starts = {p.exp_p, p.reduce_max_p}
    candidates = [v for n in nodes if n.primitive in starts for v in n.values]
    for x in dict.fromkeys(candidates):
        symbols: dict[Any, Any] = {x: statistics.tensor(x.aval)}
        for node in nodes:
            symbol = _symbol(equations, node, symbols)
            if symbol is not None:
                symbols[node.outputs[0]] = symbol
        results = list(symbols.values()) if result is None else [symbols.get(result)]
        for found in results:
            if found is not None and found.name == "softmax" and found.is_plain:
                return x, found
    return None


def _symbol(equations: Equations, node: Node, symbols: Mapping[Any, Any]) -> Any:
    operands = [symbols.get(a) if isinstance(a, Value) else None for a in node.inputs]
    if not any(operands):
        return None
    if node.primitive is p.convert_element_type_p:
        return operands[0]
    return statistics.read(node, operands, [equations.number(a) for a in node.inputs])


def attention_layer(equations: Equations, layer: Layer) -> AttentionLayer | None:
    """Returns the attention whose last product a layer is, if it is one."""
    if layer.mark or len(layer.nodes) != 1 or layer.nodes[0].primitive is not p.dot_general_p:
        return None
    for side in (0, 1):
        attention = _attention(equations, layer, side)
        if attention is not None:
            return attention
    return None


def _attention(equations: Equations, layer: Layer, side: int) -> AttentionLayer | None:
    (product,) = layer.nodes
    probabilities, values = product.inputs[side], product.inputs[1 - side]
    if probabilities not in equations.dependent:
        return None
    nodes = equations.behind(probabilities, _in_softmax)
    found = softmax_of(equations, nodes, probabilities)
    if found is None:
        return None
    scores, softmax = found
    alphabet = letters.Alphabet()
    of_scores = alphabet.take(len(scores.aval.shape))
    # Probabilities that are repeated along an axis aren't followed.
    if any(i is None and n != 1 for i, n in zip(softmax.labels, softmax.shape, strict=True)):
        return None
    own = "".join(alphabet.take(1) if i is None else of_scores[i] for i in softmax.labels)
    of_values, of_result = letters.of_product(product, side, own, alphabet)
    over = "".join(of_scores[i] for i in softmax.axes)
    summed = set(own) & set(of_values) - set(of_result)
    if summed != set(over):
        return None
    inner = equations.behind(scores, letters.is_followed)
    known = letters.of_values(inner, equations.dependent, {scores: of_scores}, alphabet)
    if known is None:
        return None
    results = {v for n in inner for v in n.outputs}
    terms = {v: of for v, of in known.items() if v not in results}
    score = _score(equations, terms, over, alphabet)
    if score is None and any(_holds_product(equations, v) for v in terms):
        return None
    biases = {v: of for v, of in terms.items() if score is None or v is not score.value}
    # A bias along some of the softmax's axes only is shared by the scores along the others.
    if any(0 < len(set(over) & set(of)) < len(over) for of in biases.values()):
        return None
    pair = (score.of_queries, score.of_keys) if score else ("", "")
    # Axes of one entry that no array has are added at the end.
    of_result = "".join(a for a in of_result if a in of_scores + of_values)
    axes = AxisLetters(*pair, of_values, of_scores, of_result, over)
    parts = [equations.made_by[n.outputs[0]][1] for n in (*nodes, *([score.node] if score else []))]
    joined = join([*dict.fromkeys(parts), layer])
    operands = [*((score.queries, score.keys) if score else ()), values]
    random = [v for v in joined.inputs if v in equations.dependent]
    known_inputs = set(operands) | set(biases)
    # Random operands come from outside. Certain ones may be made inside, as from constants.
    inside = set(operands) & equations.dependent - set(joined.inputs)
    if inside or not set(random) <= known_inputs:
        return None
    if len(set(operands)) < len(operands) or not biases.keys().isdisjoint(operands):
        return None
    return AttentionLayer(
        joined.kind, joined.nodes, joined.inputs, joined.outputs, joined.site, joined.base,
        joined.occurrence, axes=axes, scores=scores, score=score, values=values, terms=biases,
    )  # fmt: skip


def _in_softmax(node: Node) -> bool:
    return node.primitive in _REDUCTIONS or letters.is_followed(node)


def passes(node: Node) -> bool:
    """Returns whether an equation moves or sums entries, or is pointwise, however that is done."""
    return node.primitive in _PASSED or is_pointwise(node.eqn)


def _holds_product(equations: Equations, value: Value) -> bool:
    """Returns whether a value is a product whose axes can't be followed."""
    ends = {value}.union(*(n.values for n in equations.behind(value, passes)))
    made = (equations.made_by.get(v) for v in ends & equations.dependent)
    return any(found is not None and found[0].primitive is p.dot_general_p for found in made)


def _score(
    equations: Equations, terms: Mapping[Value, str], over: str, alphabet: letters.Alphabet
) -> Score | None:
    """Returns the first product of queries and keys among the terms of scores."""
    for value, own in terms.items():
        node, _ = equations.made_by.get(value, (None, None))
        if node is None or node.primitive is not p.dot_general_p:
            continue
        sides = letters.of_operands(node, own, alphabet)
        for queries, keys in ((0, 1), (1, 0)):
            if set(over) <= set(sides[keys]) and set(over).isdisjoint(sides[queries]):
                q, k = node.inputs[queries], node.inputs[keys]
                if isinstance(q, Value) and isinstance(k, Value):
                    return Score(node, q, k, sides[queries], sides[keys])
    return None


def fuse_attention(
    program: Program, random: Collection[Value], rules: Mapping[Any, Any]
) -> Program:
    """Puts one layer in the place of each attention's scores, softmax and products.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.
        rules: The user's rules by primitive: attention with one of these stays as it is.

    Returns:
        A program of the same inputs and outputs, with an `AttentionLayer` for each attention.

    Warns:
        MomentsWarning: Probabilities of random scores weigh something along the softmax's axis, and
            that isn't recognised as attention.
    """
    nodes = [n for layer in program.layers if not layer.mark for n in layer.nodes]
    if not any(n.primitive is p.exp_p for n in nodes):
        return program
    equations = Equations.of(program, random)
    layers: list[Layer] = []
    for layer in program.layers:
        found = attention_layer(equations, layer)
        if found is not None and any(n.primitive in rules for n in found.nodes):
            found = None
        elif found is None and _weighs(equations, layer):
            warnings.warn(
                f"moments: the softmax before {layer.site or layer.kind!r} wasn't recognised as "
                "attention. Its probabilities are taken as independent, and variances may be far "
                'too large or too small; moments(f, method="linear") takes into account what '
                "they share.",
                MomentsWarning,
                stacklevel=2,
            )
        layers.append(found or layer)
    if not any(isinstance(layer, AttentionLayer) for layer in layers):
        return program
    return with_layers(program, layers)


def _weighs(equations: Equations, layer: Layer) -> bool:
    """Returns whether a layer is a product that takes probabilities of random scores."""
    if layer.mark or len(layer.nodes) != 1 or layer.nodes[0].primitive is not p.dot_general_p:
        return False
    operands = [v for v in layer.nodes[0].values if v in equations.dependent]
    return any(
        softmax_of(equations, equations.behind(v, passes), None) is not None for v in operands
    )


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
    result = layer.outputs[0]
    if len(layer.axes.result) != len(result.aval.shape):
        return {}
    own = _own(layer)
    if sum(own) != 1:
        return {}
    return {result: (layer.site, tuple(_TOKENS if x else None for x in own))}


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


_MOVES = prim.SHAPE | {prim.NAME, p.convert_element_type_p, p.mul_p, p.div_p}


def attention_in_stream(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first attention with random weights whose result is added to a residual stream.

    Args:
        program: A program or a loop's body, in which attention is one layer.
        random: Inputs of it that are random.

    Returns:
        Its site, None if there is none.
    """
    if not any(isinstance(layer, AttentionLayer) for layer in program.layers):
        return None
    search = _StreamSearch(set(random))
    sites = (search.visit(layer) for layer in program.layers)
    return next((site for site in sites if site is not None), None)


def warn_of_stream(site: str) -> None:
    """Warns of attention in a residual stream."""
    warnings.warn(
        f"moments: what attention {site!r} makes of random weights is added to a residual stream, "
        "whose channels and tokens share that noise; they are taken as independent, and variances "
        "may be several times too small or too large. Take method='linear', or make only the last "
        "layer random; moments_check says how far they are off, and moments(f, shared=False) "
        "leaves it so.",
        MomentsWarning,
        stacklevel=2,
    )


class _Product(NamedTuple):
    """A product of arrays or attention; values are bits.

    Attributes:
        attention: The site of attention; None for a product.
        operands: What each operand is made of, and whether it is random.
        made: The result.
    """

    attention: str | None
    operands: tuple[tuple[int, bool], ...]
    made: int


@dataclass
class _StreamSearch:
    """What has been read of a program; values are bits.

    Attributes:
        random: Random values.
        own: The bit of a value; one that only moves or scales another has that one's.
        behind: The bits of all that a value is made of, its own among them.
        products: Products and attention so far.
    """

    random: set[Value]
    own: dict[Value, int] = field(default_factory=dict)
    behind: dict[Value, int] = field(default_factory=dict)
    products: list[_Product] = field(default_factory=list)

    def visit(self, layer: Layer) -> str | None:
        """Reads a layer; returns the site of attention whose result it adds to a stream."""
        if isinstance(layer, AttentionLayer):
            self._make(layer.inputs, layer.outputs)
            self._keep(layer.site, layer.inputs, layer.outputs[0])
            return None
        if not layer.nodes:
            self._make(layer.inputs, layer.outputs)
        for node in layer.nodes:
            self._make(node.values, node.outputs, moves=node.primitive in _MOVES)
            if node.primitive in prim.LINEAR:
                self._keep(None, node.values, node.outputs[0])
            if node.primitive is p.add_p and len(node.values) == 2:
                one, other = node.values
                site = self._block(one, other) or self._block(other, one)
                if site is not None:
                    return site
        return None

    def _make(
        self, inputs: Sequence[Value], outputs: Sequence[Value], *, moves: bool = False
    ) -> None:
        """Gives bits to results."""
        for value in inputs:
            if value not in self.own:  # an input or a constant of the program
                self.own[value] = self.behind[value] = 1 << len(self.own)
        noisy = [v for v in inputs if v in self.random]
        carried = inputs if len(inputs) == 1 else noisy
        behind = 0
        for value in inputs:
            behind |= self.behind[value]
        for made in outputs:
            alike = moves and len(carried) == 1
            self.own[made] = self.own[carried[0]] if alike else 1 << len(self.own)
            self.behind[made] = behind | self.own[made]
            if noisy:
                self.random.add(made)

    def _keep(self, attention: str | None, inputs: Sequence[Value], made: Value) -> None:
        operands = tuple((self.behind[v], v in self.random) for v in inputs)
        self.products.append(_Product(attention, operands, self.own[made]))

    def _block(self, stream: Value, block: Value) -> str | None:
        """Returns the site of attention with random weights in a block that a stream gets."""
        at, behind = self.own[stream], self.behind[block]
        if at == self.own[block] or not behind & at:
            return None
        inside = [
            q for q in self.products if q.made & behind and any(of & at for of, _ in q.operands)
        ]
        # Weights aren't made of the stream.
        weighed = any(noisy and not of & at for q in inside for of, noisy in q.operands)
        sites = [q.attention for q in inside if q.attention is not None]
        return sites[0] if weighed and sites else None
