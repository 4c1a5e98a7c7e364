"""Recognises attention in a program, and puts it in the place of its layers.

Attention is a softmax of random scores whose probabilities weigh values. The product with the
values is where a pattern starts. From its operands the equations are followed back through what is
pointwise or only moves entries, to a softmax however it is written, and on to the product of
queries and keys. Axes get letters on the way, so it doesn't matter in which order heads, batch and
tokens stand, and whether queries share keys in groups. A mask, a scale, a bias and a cap are
functions of single scores.

Sharp edges
- Of reshapes that merge or split axes between the scores and the values those are followed that
  merge the batch axes of a product, as for `torch.bmm`, or heads and their groups for the softmax.
  Nothing but a move may come between the probabilities and the values: no dropout.
- A random factor of the scores (a learnt temperature with a posterior) isn't recognised.
- Queries, keys and values that are one array aren't attention: they are dependent.
"""

from __future__ import annotations

import functools
import itertools
import operator
import string
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxeff.core import Literal, make_jaxpr
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _statistics as statistics
from jaxeff.moment_propagation import dependence
from jaxeff.moment_propagation._attention import AttentionLayer, AxisLetters, Score
from jaxeff.moment_propagation.dependence import is_pointwise, with_layers
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Contraction, Node, Value
from jaxeff.program.ir import axes as following
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import known_number

_MOST_NODES = 96
_REDUCTIONS = {p.reduce_max_p, p.reduce_sum_p, p.reduce_or_p, p.reduce_and_p}
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
        equations: set[Node] = set()
        left = [value]
        while left and len(equations) <= _MOST_NODES:
            node, _ = self.made_by.get(left.pop(), (None, None))
            if node is None or node in equations or len(node.outputs) != 1:
                continue
            if through(node):
                equations.add(node)
                left += [v for v in node.values if v in self.dependent]
        return sorted(equations, key=self.position.__getitem__)

    def number(self, atom: Any) -> float | None:
        """Returns the number an operand is everywhere, None where that isn't known."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        node, _ = self.made_by.get(atom, (None, None))
        if node is None or atom in self.dependent:
            return None
        return known_number(node.eqn, [self.number(a) for a in node.inputs])


class Alphabet:
    """Letters that nobody has yet: small ones, then capitals."""

    def __init__(self) -> None:
        self._left: Iterator[str] = iter(string.ascii_letters)

    def take(self, count: int) -> str:
        """Returns new letters."""
        return "".join(itertools.islice(self._left, count))


def is_followed(node: Node) -> bool:
    """Returns whether letters go through an equation: pointwise, or moving whole axes."""
    if is_pointwise(node.eqn) or node.primitive is p.convert_element_type_p:
        return True
    return node.primitive in prim.MOVES and _moved(node) is not None


def _moved(node: Node) -> following.Axes | None:
    """Returns where each axis of the operand has gone, by its number."""
    return following.followed(node.signature, tuple(range(node.inputs[0].aval.ndim)))


def letters_before(node: Node, result: str, operand: Value, alphabet: Alphabet) -> str | None:
    """Returns the letters of a followed equation's operand, given its result's; None if unknown."""
    shape, after = operand.aval.shape, node.outputs[0].aval.shape
    if node.primitive not in prim.MOVES:
        if len(shape) != len(after):
            return None
        # An axis of one entry is repeated along the result's.
        pairs = zip(result, shape, after, strict=True)
        return "".join(of if n == m else alphabet.take(1) for of, n, m in pairs)
    moved = _moved(node)
    if moved is None:
        return None
    places = {axis: letter for axis, letter in zip(moved, result, strict=True) if axis is not None}
    if any(n != 1 and axis not in places for axis, n in enumerate(shape)):
        return None
    return "".join(places.get(axis) or alphabet.take(1) for axis in range(len(shape)))


def letters_of_values(
    nodes: Sequence[Node],
    dependent: Collection[Value],
    known: Mapping[Value, str],
    alphabet: Alphabet,
) -> dict[Value, str] | None:
    """Follows letters back through equations that are pointwise or move entries.

    Returns the letters of all values; None where an axis can't be followed, or goes two ways.
    """
    letters = dict(known)
    for node in reversed(nodes):
        for value in (v for v in node.values if v in dependent):
            of_value = letters_before(node, letters[node.outputs[0]], value, alphabet)
            if of_value is None or letters.setdefault(value, of_value) != of_value:
                return None
    return letters


def letters_of_operands(node: Node, result: str, alphabet: Alphabet) -> tuple[str, str]:
    """Returns the letters of a dot product's operands, given its result's."""
    c = Contraction.of(node)
    batch = result[: len(c.batch(0))]
    rows = result[len(batch) :][: len(c.free(0))]
    columns = result[len(batch) + len(rows) :]
    summed = alphabet.take(len(c.summed(0)))
    sides = []
    for side, free in enumerate((rows, columns)):
        places = dict(
            zip(c.batch(side) + c.summed(side) + c.free(side), batch + summed + free, strict=True)
        )
        sides.append("".join(places[axis] for axis in range(len(places))))
    return sides[0], sides[1]


def letters_of_product(node: Node, side: int, operand: str, alphabet: Alphabet) -> tuple[str, str]:
    """Returns letters of a dot product's other operand and its result, given one operand's."""
    c = Contraction.of(node)
    other = 1 - side
    places = {
        o: operand[axis]
        for pair in (c.batch, c.summed)
        for axis, o in zip(pair(side), pair(other), strict=True)
    }
    letters = [places.get(axis) or alphabet.take(1) for axis in range(len(c.shapes[other]))]
    both = {side: operand, other: "".join(letters)}
    batch = [operand[axis] for axis in c.batch(side)]
    free = [both[i][axis] for i in (0, 1) for axis in c.free(i)]
    return both[other], "".join(batch + free)


def softmax_of(
    equations: Equations, nodes: Sequence[Node], result: Value | None
) -> tuple[Value, statistics.Statistic] | None:
    """Finds the softmax that a value is among the equations behind it, or any softmax.

    Returns what the softmax is taken of, and the statistic of it that the value is.
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
        for statistic in results:
            if statistic is not None and statistic.name == "softmax" and statistic.is_plain:
                return x, statistic
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
    nodes = equations.behind(
        probabilities, lambda node: node.primitive in _REDUCTIONS or is_followed(node)
    )
    match = softmax_of(equations, nodes, probabilities)
    if match is None:
        return None
    scores, softmax = match
    alphabet = Alphabet()
    of_scores = alphabet.take(len(scores.aval.shape))
    # Probabilities that are repeated along an axis aren't followed.
    if any(i is None and n != 1 for i, n in zip(softmax.labels, softmax.shape, strict=True)):
        return None
    of_softmax = "".join(alphabet.take(1) if i is None else of_scores[i] for i in softmax.labels)
    of_values, of_result = letters_of_product(product, side, of_softmax, alphabet)
    over = "".join(of_scores[i] for i in softmax.axes)
    summed = set(of_softmax) & set(of_values) - set(of_result)
    if summed != set(over):
        return None
    inner = equations.behind(scores, is_followed)
    known = letters_of_values(inner, equations.dependent, {scores: of_scores}, alphabet)
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
    joined = dependence.join([*dict.fromkeys(parts), layer])
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


def passes(node: Node) -> bool:
    """Returns whether an equation moves or sums entries, or is pointwise, however that is done."""
    return node.primitive in _PASSED or is_pointwise(node.eqn)


def _holds_product(equations: Equations, value: Value) -> bool:
    """Returns whether a value is a product whose axes can't be followed."""
    ends = {value}.union(*(n.values for n in equations.behind(value, passes)))
    makers = (equations.made_by.get(v) for v in ends & equations.dependent)
    return any(maker is not None and maker[0].primitive is p.dot_general_p for maker in makers)


def _score(
    equations: Equations, terms: Mapping[Value, str], over: str, alphabet: Alphabet
) -> Score | None:
    """Returns the first product of queries and keys among the terms of scores."""
    for value, of_term in terms.items():
        node, _ = equations.made_by.get(value, (None, None))
        if node is None or node.primitive is not p.dot_general_p:
            continue
        sides = letters_of_operands(node, of_term, alphabet)
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

    Attention with one of the user's rules stays as it is. Returns a program of the same inputs and
    outputs, with an `AttentionLayer` for each attention.
    """
    nodes = [n for layer in program.layers if not layer.mark for n in layer.nodes]
    if not any(n.primitive is p.exp_p for n in nodes):
        return program
    program = with_batch_axes(program)
    equations = Equations.of(program, random)
    layers: list[Layer] = []
    for layer in program.layers:
        fused = attention_layer(equations, layer)
        if fused is not None and any(n.primitive in rules for n in fused.nodes):
            fused = None
        layers.append(fused or layer)
    if not any(isinstance(layer, AttentionLayer) for layer in layers):
        return program
    return with_layers(program, layers)


def with_batch_axes(program: Program) -> Program:
    """Gives products the batch axes that were merged to one for them.

    `torch.bmm` takes [n heads, ...], so scores of [n, heads, ...] are split behind one product and
    merged in front of the next. Here both products have the axes n and heads.
    """
    if any(n.primitive is p.exp_p for layer in program.layers for n in layer.nodes):
        program = _with_groups_apart(program)
    nodes = [n for layer in program.layers if not layer.mark for n in layer.nodes]
    reshapes = [n for n in nodes if n.primitive is p.reshape_p]
    made_by = {v: n for n in reshapes for v in n.outputs}
    readers: dict[Any, list[Node]] = {}
    for node in reshapes:
        readers.setdefault(node.inputs[0], []).append(node)
    split: dict[Value, Value] = {}  # what a product wrote, and the same with all its batch axes
    layers: list[Layer] = []
    for layer in program.layers:
        if not split.keys().isdisjoint(layer.inputs):
            layer = _reading(layer, split)
        sizes = _batch_sizes(layer, made_by, readers)
        if sizes is None:
            layers.append(layer)
            continue
        (product,) = layer.nodes
        operands = []
        for v in product.values:
            shape = (*sizes, *v.aval.shape[1:])
            if v in made_by and made_by[v].inputs[0].aval.shape == shape:
                operands.append(made_by[v].inputs[0])
                continue
            before = _traced(lambda x, shape=shape: x.reshape(shape), [v])
            layers.append(Layer("shape", (before,), (v,), before.outputs))
            operands += before.outputs
        contracted, _ = product.params["dimension_numbers"]
        moved = tuple(tuple(axis + len(sizes) - 1 for axis in of) for of in contracted)
        numbers = moved, (tuple(range(len(sizes))),) * 2
        batched = _traced(
            lambda *xs, eqn=product.eqn, numbers=numbers: _compat.bind(
                eqn, *xs, dimension_numbers=numbers
            )[0],
            operands,
        )
        after = _traced(
            lambda x, shape=product.outputs[0].aval.shape: x.reshape(shape), batched.outputs
        )
        after = replace(after, outputs=product.outputs)
        inputs = tuple(dict.fromkeys(operands))
        layers.append(replace(layer, nodes=(batched,), inputs=inputs, outputs=batched.outputs))
        layers.append(Layer("shape", (after,), batched.outputs, product.outputs))
        split[product.outputs[0]] = batched.outputs[0]
    return with_layers(program, layers) if split else program


@dataclass
class _Heads:
    """Scores whose axis of heads is split behind their softmax, as the products around it have it.

    Where queries share keys in groups, products have axes [key heads, group], and the mask and the
    softmax between them one of all heads.

    Attributes:
        equations: The program's.
        place: The axis of heads.
        sizes: The sizes of the axes that it is split to.
        followed: The values that are made of others whose axes of heads were merged.
        layers: What computes the same with these axes, so far.
        known: The values with these axes.
    """

    equations: Equations
    place: int
    sizes: tuple[int, ...]
    followed: set[Value] = field(default_factory=set)
    layers: list[Layer] = field(default_factory=list)
    known: dict[Value, Value] = field(default_factory=dict)

    def follow(self, nodes: Sequence[Node]) -> None:
        """Finds what is made of values whose axes of heads were merged."""
        for node in nodes:
            (result,) = node.outputs
            if node.primitive is p.reshape_p:
                if node.inputs[0].aval.shape == self.shape(result):
                    self.followed.add(result)
                continue
            if node.primitive in _REDUCTIONS:
                passed = all(axis > self.place for axis in node.params["axes"])
            elif node.primitive is p.broadcast_in_dim_p:
                first = tuple(range(self.place + 1))
                passed = node.params["broadcast_dimensions"][: self.place + 1] == first
            else:
                passed = is_pointwise(node.eqn)
            if passed and not self.followed.isdisjoint(node.values):
                self.followed.add(result)

    def shape(self, value: Value) -> tuple[int, ...]:
        """Returns a value's shape with the axis of heads split."""
        shape = tuple(value.aval.shape)
        return (*shape[: self.place], *self.sizes, *shape[self.place + 1 :])

    def split(self, value: Value) -> Value:
        """Returns a value with the axis of heads split."""
        if value in self.known:
            return self.known[value]
        node, layer = self.equations.made_by.get(value, (None, None))
        if node is None or layer is None or value not in self.followed:
            self._keep(value)
            shape = self.shape(value)
            new = _traced(lambda x: x.reshape(shape), [value])
            layer = Layer("shape", (), (), ())
        elif node.primitive is p.reshape_p:
            return node.inputs[0]
        else:
            operands = [self.split(a) if a.aval.shape else a for a in node.inputs]
            more, params = len(self.sizes) - 1, {}
            if node.primitive in _REDUCTIONS:
                params["axes"] = tuple(axis + more for axis in node.params["axes"])
            elif node.primitive is p.broadcast_in_dim_p:
                params["shape"] = self.shape(value)
                later = node.params["broadcast_dimensions"][self.place + 1 :]
                first = range(self.place + 1 + more)
                params["broadcast_dimensions"] = (*first, *(i + more for i in later))
            new = _traced(lambda *xs: _compat.bind(node.eqn, *xs, **params)[0], operands)
        self._add(layer, new)
        self.known[value] = new.outputs[0]
        return new.outputs[0]

    def _keep(self, value: Value) -> None:
        """Keeps what makes a value inside a layer, which nothing else may read any more."""
        node, layer = self.equations.made_by.get(value, (None, None))
        if node is not None and layer is not None and value not in layer.outputs:
            for operand in node.values:
                self._keep(operand)
            self._add(layer, node)

    def _add(self, layer: Layer, node: Node) -> None:
        inputs = tuple(dict.fromkeys(node.values))
        self.layers.append(replace(layer, nodes=(node,), inputs=inputs, outputs=node.outputs))


def _with_groups_apart(program: Program) -> Program:
    """Gives scores and their softmax the axes of heads that the product behind them has."""
    equations, layers = Equations.of(program, program.inputs), list[Layer]()
    for layer in program.layers:
        node = layer.nodes[0] if len(layer.nodes) == 1 and not layer.mark else None
        heads = None if node is None else _heads(equations, node)
        if node is None or heads is None:
            layers.append(layer)
            continue
        heads.split(node.inputs[0])
        *before, last = heads.layers
        (end,) = last.nodes
        end = replace(end, outputs=node.outputs)
        layers += [*before, replace(last, nodes=(end,), outputs=node.outputs)]
    return program if len(layers) == len(program.layers) else with_layers(program, layers)


def _heads(equations: Equations, node: Node) -> _Heads | None:
    """Returns the heads that an equation splits behind a softmax; None for any other equation."""
    if node.primitive is not p.reshape_p:
        return None
    before, after = (tuple(v.aval.shape) for v in (*node.values, *node.outputs))
    more = len(after) - len(before)
    place = next((i for i, (n, m) in enumerate(zip(before, after, strict=False)) if n != m), None)
    if more < 1 or place is None or before[place + 1 :] != after[place + 1 + more :]:
        return None
    heads = _Heads(equations, place, after[place : place + 1 + more])
    nodes = equations.behind(node.inputs[0], passes)
    heads.follow(nodes)
    is_softmax = any(n.primitive is p.exp_p for n in nodes)
    return heads if is_softmax and node.inputs[0] in heads.followed else None


def _batch_sizes(
    layer: Layer, made_by: Mapping[Value, Node], readers: Mapping[Value, Sequence[Node]]
) -> tuple[int, ...] | None:
    """Returns the sizes of the axes that were merged to the one batch axis of a product."""
    if layer.mark or len(layer.nodes) != 1 or layer.nodes[0].primitive is not p.dot_general_p:
        return None
    (node,) = layer.nodes
    if node.params["dimension_numbers"][1] != ((0,), (0,)) or len(node.values) < 2:
        return None
    pairs = [(made_by[v].inputs[0], v) for v in node.values if v in made_by]
    pairs += [(n.outputs[0], node.outputs[0]) for n in readers.get(node.outputs[0], ())]
    for apart, merged in pairs:
        rest = merged.aval.shape[1:]
        count = len(apart.aval.shape) - len(rest)
        if count > 1 and apart.aval.shape[count:] == rest:
            return tuple(apart.aval.shape[:count])
    return None


def _reading(layer: Layer, split: Mapping[Value, Value]) -> Layer:
    """Returns a layer that reads products with all their batch axes, where it split them itself."""
    nodes = []
    for node in layer.nodes:
        batched = split.get(node.inputs[0]) if node.primitive is p.reshape_p else None
        if batched is not None and batched.aval.shape == node.outputs[0].aval.shape:
            again = _traced(lambda x, eqn=node.eqn: _compat.bind(eqn, x)[0], [batched])
            node = replace(again, outputs=node.outputs)
        nodes.append(node)
    results = {v for n in nodes for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in nodes for v in n.values if v not in results))
    return replace(layer, nodes=tuple(nodes), inputs=inputs)


def _traced(f: Callable[..., Any], operands: Sequence[Any]) -> Node:
    """Returns the one equation that a function is, of values and numbers."""
    closed, _ = make_jaxpr(f)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands))
    (eqn,) = _compat.equations(closed)
    role = functools.reduce(operator.or_, (v.role for v in operands if isinstance(v, Value)))
    return Node(eqn, tuple(operands), tuple(Value(v.aval, role) for v in eqn.outvars))
