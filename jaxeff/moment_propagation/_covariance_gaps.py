"""Finds where variances go wrong by covariances that are left out, and warns of it.

One walk over a program looks for six patterns. One place is warned of, whatever there are.

Attention in a stream: a residual sum adds a block to the stream that the block is made of. All
tokens share the weights of attention, and weigh each other; what they make is one noise of all
channels and tokens, which the blocks and the head after it read as if it were independent. Noise of
an input alone isn't warned of: weights between the stream and the sum have to be random. A stream
is followed through casts, moves and scales; other operations begin a new one.

Pooled attention: all tokens read the same weights, so that what attention makes of their noise has
a part that all tokens share. A mean over tokens keeps this part; taken as independent, it would be
averaged away. Tokens are followed through functions of entries, moves and products of other axes.

Reuse: random values that are applied to what they made before. A recurrence, `h = tanh(h @ w + x)`,
reads one w at all steps. Noise of w moves h at every step, and these moves depend on one another;
the pass takes each as a new one. Whether they add up or cancel depends on the states and inputs
that w meets, not on the structure: of eight units at noise of 5 % the variances after five steps
are .8 to 1.3 of the true ones where inputs are new at every step, and .8 to 2.2 where they repeat.
A state that is kept in part adds them up: `.5 * h + x @ w` has .35 of the true variance where
inputs repeat, `h + .2 * (tanh(h @ w) - h)` .21 whatever they are. Blocks with one kernel, written
one after the other (ALBERT, arXiv 1909.11942; the steps of an integrator), are alike in this.

A scan, `h = a_t h + b_t`, whose a_t or b_t the same random weights make of every row is alike: what
they share adds up in the state. With b_t alone the variances were .57 of the true ones after eight
rows, .58 with both; in a block of a state-space model (arXiv 2312.00752) .5 to 3.2, in the median
1.2.

Mixed streams: residual streams of dense layers whose entries share much noise. A block of an
MLP-Mixer (arXiv 2105.01601) applies a dense layer along tokens, which all channels share, and one
along channels, which all tokens share. Each adds up what the other's noise has in common, and the
stream hands it on from block to block. After training, four blocks kept .16 of the true variance
where entries were taken as independent.

Own sums: random values that are divided by their own sums over segments. Graph attention (arXiv
1710.10903) normalises its scores over the edges of a node. What all edges share cancels in such a
quotient; taken as independent of its sum, a score keeps it. The variances of a small network of two
such layers were eleven times the true ones.

Narrow codes: a dense layer that makes many values of a few random entries, as an autoencoder's
decoder does. All of them have the noise of these few, n say, and a product adds them up. With
slopes of random signs the true variance is that of independent ones times chi^2_n / n: right in the
mean, but mostly smaller. Of a dense layer of 64 behind n entries and two more, variances were in
the median 1.7, 1.6, 1.1, 1.6 and 1.3 of the true ones for n = 1, 2, 3, 4 and 6 (.2 to 47, .4 to 8,
.3 to 9, .5 to 7 and .5 to 5 for nine in ten), and 1.0 for eight. Other data's noise, where it is
added or multiplies, hides it.

Sharp edges
- Products with one kernel that don't follow on each other (two towers with the same weights) aren't
  looked for.
- Steps that read another row of an array each, by a count, read no row twice.
- Softmax and norms along an axis are recognised as wholes, and aren't looked for here.
- Results of convolutions have axes of their own: what they share is followed to a pooling instead.
- A stream is followed through sums, functions of entries and moves that keep its axes apart.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation._attention import AttentionLayer, behind
from jaxeff.moment_propagation._values import CovarianceGap, Gaps
from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Contraction, Node, OperationFamily, Scan, Value, While, axes
from jaxeff.program.ir import primitives as prim


class _Pattern(Protocol):
    """A pattern that is looked for, layer by layer."""

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the gap that it completes.

        `noisy` are the random values so far, those of the layer among them.
        """
        ...


def find_gaps(program: Program, random: Collection[Value], gaps: Gaps) -> None:
    """Looks for the first gap of each pattern that has none yet.

    In the program, or a loop's body, attention is one layer; `gaps` gets what is seen.
    """
    attends = any(isinstance(layer, AttentionLayer) for layer in program.layers)
    patterns: list[_Pattern] = [
        *((_AttentionInStream(), _PooledAttention()) if attends else ()),
        _Reuse({v: frozenset((v,)) for v in random}),
        _MixedStream(),
        _OwnSums(),
        _NarrowCode(),
    ]
    left = {type(one): one for one in patterns if type(one) not in gaps}
    noisy = set(random)
    for layer in program.layers:
        if not noisy.isdisjoint(layer.inputs):
            noisy.update(layer.outputs)
        for node in layer.nodes:
            if not noisy.isdisjoint(node.values):
                noisy.update(node.outputs)
        for kind, pattern in list(left.items()):
            if (gap := pattern.visit(layer, noisy)) is not None:
                gaps[kind] = gap
                del left[kind]
    if _AttentionInStream in gaps:
        gaps.pop(_PooledAttention, None)  # it is the same attention


_MOVES = prim.SHAPE | {prim.NAME, p.convert_element_type_p, p.mul_p, p.div_p}


def _in_stream(site: str) -> CovarianceGap:
    return CovarianceGap(f"what channels and tokens of a stream share of attention {site!r}")


class _Product(NamedTuple):
    """A product of arrays or attention; values are bits.

    Attributes:
        attention: The site of attention; None for a product.
        operands: What each operand is made of, and whether it is random.
        result: The result.
    """

    attention: str | None
    operands: tuple[tuple[int, bool], ...]
    result: int


@dataclass
class _AttentionInStream:
    """What has been read of a program; values are bits.

    Attributes:
        bit_of: The bit of a value; one that only moves or scales another has that one's.
        behind: The bits of all that a value is made of, its own among them.
        products: Products and attention so far.
    """

    bit_of: dict[Value, int] = field(default_factory=dict)
    behind: dict[Value, int] = field(default_factory=dict)
    products: list[_Product] = field(default_factory=list)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the attention whose result it adds to a stream."""
        if isinstance(layer, AttentionLayer):
            self._make(layer.inputs, layer.outputs, noisy)
            self._keep(layer.site, layer.inputs, layer.outputs[0], noisy)
            return None
        if not layer.nodes:
            self._make(layer.inputs, layer.outputs, noisy)
        for node in layer.nodes:
            self._make(node.values, node.outputs, noisy, moves=node.primitive in _MOVES)
            if node.primitive in prim.LINEAR:
                self._keep(None, node.values, node.outputs[0], noisy)
            if node.primitive is p.add_p and len(node.values) == 2:
                one, other = node.values
                site = self._block(one, other) or self._block(other, one)
                if site is not None:
                    return _in_stream(site)
        return None

    def _make(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        noisy: Collection[Value],
        *,
        moves: bool = False,
    ) -> None:
        """Gives bits to results."""
        for value in inputs:
            if value not in self.bit_of:  # an input or a constant of the program
                self.bit_of[value] = self.behind[value] = 1 << len(self.bit_of)
        carried = inputs if len(inputs) == 1 else [v for v in inputs if v in noisy]
        behind = 0
        for value in inputs:
            behind |= self.behind[value]
        for result in outputs:
            alike = moves and len(carried) == 1
            self.bit_of[result] = self.bit_of[carried[0]] if alike else 1 << len(self.bit_of)
            self.behind[result] = behind | self.bit_of[result]

    def _keep(
        self,
        attention: str | None,
        inputs: Sequence[Value],
        result: Value,
        noisy: Collection[Value],
    ) -> None:
        operands = tuple((self.behind[v], v in noisy) for v in inputs)
        self.products.append(_Product(attention, operands, self.bit_of[result]))

    def _block(self, stream: Value, block: Value) -> str | None:
        """Returns the site of attention with random weights in a block that a stream gets."""
        at, behind = self.bit_of[stream], self.behind[block]
        if at == self.bit_of[block] or not behind & at:
            return None
        inside = [
            q for q in self.products if q.result & behind and any(of & at for of, _ in q.operands)
        ]
        # Weights aren't made of the stream.
        weighed = any(noisy and not of & at for q in inside for of, noisy in q.operands)
        sites = [q.attention for q in inside if q.attention is not None]
        return sites[0] if weighed and sites else None


_TOKENS = 0


@dataclass
class _PooledAttention:
    """What attention makes of tokens that share the noise of weights.

    Attributes:
        weighed: Values that random weights have had part in.
        known: The attention that a value is made of, with its axis of tokens, by value.
    """

    weighed: set[Value] = field(default_factory=set)
    known: dict[Value, tuple[str, Axes]] = field(default_factory=dict)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the attention whose results it adds up over tokens."""
        # Noise of an input is another one at every token: only that of weights is shared.
        weights = [v for v in layer.inputs if v in noisy and not v.is_data]
        if not self.weighed.isdisjoint(layer.inputs) or (layer.kind == "linear" and weights):
            self.weighed.update(layer.outputs)
        site = None
        if not isinstance(layer, AttentionLayer):
            sites = (_follow(node, self.known) for node in layer.nodes)
            site = next((one for one in sites if one is not None), None)
        elif _is_pooling(layer, self.weighed):
            site = layer.site
        elif not self.weighed.isdisjoint(layer.inputs):
            self.known.update(_tokens_of(layer))
        if site is None:
            return None
        what = f"what tokens share of attention {site!r}, over which they are added up,"
        return CovarianceGap(what, "too small")


def _is_pooling(layer: AttentionLayer, weighed: Collection[Value]) -> bool:
    """Returns whether attention adds up what weights make of tokens, for one query of its own.

    A learnt query weighs all tokens alike, so that its result keeps the noise that these share.
    """
    read = {layer.values, *(v for node in behind(layer.nodes, layer.values) for v in node.values)}
    return not read.isdisjoint(weighed) and not any(_query_axes(layer))


def _tokens_of(layer: AttentionLayer) -> Mapping[Value, tuple[str, Axes]]:
    """Returns the result of attention with its axis of tokens: the queries' own."""
    result = layer.outputs[0]
    if len(layer.axes.result) != len(result.aval.shape):
        return {}
    of_queries = _query_axes(layer)
    if sum(of_queries) != 1:
        return {}
    return {result: (layer.site, tuple(_TOKENS if x else None for x in of_queries))}


def _query_axes(layer: AttentionLayer) -> list[bool]:
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
    value, result = read[0], node.outputs[0]
    site, layout = known[value]
    shape = tuple(value.aval.shape)
    after: Axes | None = None
    if node.primitive is p.reduce_sum_p and any(
        layout[i] == _TOKENS for i in node.signature.operands[0].combined
    ):
        return site
    if node.primitive in {p.reduce_sum_p, p.dot_general_p}:
        after = axes.followed(node.signature, layout, node.inputs.index(value))
    elif node.primitive in prim.MOVES:
        after = _moved(node, layout, shape)
    elif result.aval.shape == shape and (
        node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn)
    ):
        after = layout
    if after is not None and _TOKENS in after:
        known[result] = site, after
    return None


def _moved(node: Node, layout: Axes, shape: tuple[int, ...]) -> Axes | None:
    """Follows the axis of tokens through a move; heads and features may be merged behind it."""
    after_move = axes.followed(node.signature, layout)
    if after_move is not None or node.primitive is not p.reshape_p:
        return after_move
    place, after = layout.index(_TOKENS), tuple(node.outputs[0].aval.shape)
    if shape[: place + 1] != after[: place + 1]:
        return None
    return tuple(_TOKENS if i == place else None for i in range(len(after)))


# Without a sum, twice in a row keeps .99 of the true variance (.86 to 1.18); three convolutions
# .88 (.64 to 1.15), three dense layers with repeated inputs 1.11 (.74 to 2.81).
_FEW_TIMES = 2

_SUMS = {p.add_p, p.add_jaxvals_p, p.sub_p}
_CUTS = {p.slice_p, split_p}
_LOOKED_UP = {p.dynamic_slice_p, p.gather_p}

Times = Mapping[Hashable, tuple[int, int]]
"""How often each random kernel was applied to what it had made; of factors, the least and most."""


@dataclass
class _Reuse:
    """Which random parameters have made a value, and how often.

    Attributes:
        origins: The random parameters that a value without data is made of.
        times: How often random kernels were applied, by value with data.
    """

    origins: dict[Value, frozenset[Hashable]]
    times: dict[Value, Times] = field(default_factory=dict)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the loop or layer that applies a random value to what it made."""
        if all(v not in noisy for v in layer.inputs):
            return None
        site = layer.site or layer.kind
        if _repeats(layer, noisy):
            what = f"that all steps of {site!r} read the same random values"
        elif _keeps_rows(layer, self.times):
            what = f"that {site!r} keeps what the same random weights make of every row"
        elif any(self._is_met(node) for node in layer.nodes):
            what = f"that {site!r} is made by a random kernel applied to its own results"
        else:
            return None
        return CovarianceGap(what)

    def _is_met(self, node: Node) -> bool:
        """Reads an equation; returns whether a kernel meets what it made before."""
        if not any(v.is_data for v in node.values):
            self._make_parameter(node)
            return False
        counts_before = [self.times[v] for v in node.values if v in self.times]
        times: dict[Hashable, tuple[int, int]] = {}
        for w in frozenset[Hashable]().union(*counts_before):
            counts = [one[w] for one in counts_before if w in one]
            times[w] = min(n for n, _ in counts), max(n for _, n in counts)
            if node.primitive in _SUMS and len(counts) > 1 and len(set(counts)) > 1:
                return True
        if node.primitive in prim.LINEAR:
            kernels = [self.origins.get(v, frozenset()) for v in node.values if not v.is_data]
            for w in frozenset[Hashable]().union(*kernels):
                n = times.get(w, (0, 0))[1] + 1
                times[w] = n, n
        if times:
            self.times.update(dict.fromkeys(node.outputs, times))
        return any(most > _FEW_TIMES for _, most in times.values())

    def _make_parameter(self, node: Node) -> None:
        inherited = [self.origins[v] for v in node.values if v in self.origins]
        if not inherited:
            return
        origins = frozenset[Hashable]().union(*inherited)
        for place, result in enumerate(node.outputs):
            if node.primitive in _CUTS:
                # Another block of stacked kernels is another one; the same block, cut again, isn't.
                cut = (str(node.eqn.params), place)
                self.origins[result] = frozenset((w, *cut) for w in origins)
            else:
                looked_up = node.primitive in _LOOKED_UP
                self.origins[result] = frozenset((result,)) if looked_up else origins


def _repeats(layer: Layer, random: Collection[Value]) -> bool:
    """Returns whether steps of a loop read the same random values and what these made before."""
    loop = _loop(layer)
    if loop is None or (isinstance(loop, Scan) and loop.length < 2):
        return False
    body, first = layer.programs[-1], len(loop.consts)
    # What a step hands on as it is, is read by all steps as well.
    ends = dict(zip(body.inputs[first : first + len(loop.carry)], body.outputs, strict=False))
    states = {v: end for v, end in ends.items() if end is not v}
    entering = zip(body.inputs, [*loop.consts, *loop.carry], strict=False)
    noisy = {v for v, outer in entering if isinstance(outer, Value) and outer in random}
    changing = _made_of(body, {*states, *body.inputs[first + len(ends) :]}, floats=False)
    tied = {v for v in noisy - states.keys() if not _is_looked_up(body, v, changing)}
    moved = set[Value]()  # states that have noise of what is tied
    while (noisy_values := _made_of(body, tied | moved)) and (
        more := {v for v, end in states.items() if end in noisy_values} - moved
    ):
        moved |= more
    again = _made_of(body, moved)
    return any(end in again for end in states.values())


def _keeps_rows(layer: Layer, products: Collection[Value]) -> bool:
    """Returns whether a scan's state keeps what random kernels have made of every row."""
    loop = _loop(layer)
    if not isinstance(loop, Scan) or loop.length < 2:
        return False
    body, first = layer.programs[-1], len(loop.consts)
    last = first + len(loop.carry)
    pairs = zip(body.inputs[last:], loop.xs, strict=True)
    rows = {v for v, outer in pairs if isinstance(outer, Value) and outer in products}
    if not rows:
        return False
    of_rows, of_states = _made_of(body, rows), _made_of(body, body.inputs[first:last])
    return any(end in of_rows and end in of_states for end in body.outputs[: len(loop.carry)])


def _loop(layer: Layer) -> Scan[Any] | While[Any] | None:
    if layer.kind != "control flow":
        return None
    (node,) = layer.nodes
    if node.primitive is p.scan_p:
        return Scan.of(node, node.inputs)
    return While.of(node, node.inputs) if node.primitive is p.while_p else None


def _is_looked_up(body: Program, value: Value, changing: Collection[Value]) -> bool:
    """Returns whether steps read a value only in part, each by another index."""
    readers = [node for node in _nodes(body) if value in node.values]
    return value not in body.outputs and all(
        node.primitive in _LOOKED_UP
        and node.inputs[0] is value
        and not set(changing).isdisjoint(node.values)
        for node in readers
    )


def _made_of(program: Program, values: Iterable[Value], *, floats: bool = True) -> set[Value]:
    """Returns what a program makes of some values, and these; of it floats alone pass on noise."""
    followed = set(values)
    for node in _nodes(program):
        if not followed.isdisjoint(node.values):
            followed.update(
                v for v in node.outputs if not floats or jnp.issubdtype(v.aval.dtype, jnp.floating)
            )
    return followed


def _nodes(program: Program) -> Iterable[Node]:
    return (node for layer in program.layers for node in layer.nodes)


# One axis is what every residual network of dense layers mixes.
_FEW_AXES = 1


@dataclass
class _MixedStream:
    """Which axis of which value a dense layer has made of which other one.

    Attributes:
        labels: A number for each axis of a value; what keeps an axis keeps its number.
        before: The axis that a dense layer has made one of.
        sites: The layer that has made an axis.
        noisy: Axes that random weights have had part in.
        mixed: Axes of a stream, by its labels, that blocks have mixed, and what they made of them.
        numbers: Numbers for new axes.
    """

    labels: dict[Value, Axes] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)
    noisy: set[int] = field(default_factory=set)
    mixed: dict[Axes, dict[int, int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the stream that it completes."""
        site = next(self._completed(layer, noisy), None)
        if site is None:
            return None
        what = f"what a stream shares of {site!r} and of layers along another axis"
        return CovarianceGap(what, "too small")

    def _completed(self, layer: Layer, noisy: Collection[Value]) -> Iterator[str]:
        for node in layer.nodes:
            # What nothing is known of, as an input or a convolution's result, has axes of its own.
            for value in node.values:
                if value.is_data and value not in self.labels:
                    self.labels[value] = tuple(next(self.numbers) for _ in value.aval.shape)
            if len(node.outputs) != 1:
                continue
            if node.primitive is p.dot_general_p:
                self._multiply(layer.site, node, noisy)
                continue
            known = [v for v in node.values if v in self.labels]
            if node.primitive is p.add_p and len(known) == 2:
                yield from self._add(*known)
            if known and (after := self._followed(node, known)) is not None:
                self.labels[node.outputs[0]] = after

    def _multiply(self, site: str, node: Node, noisy: Collection[Value]) -> None:
        """Gives labels to a product of data with weights."""
        contraction = Contraction.of(node)
        side = 1 - contraction.side
        image, kernel = node.inputs[side], node.inputs[contraction.side]
        # Of two arrays with data, as in attention or a graph, neither is a layer's kernel.
        if not getattr(image, "is_data", False) or getattr(kernel, "is_data", False):
            return
        summed = contraction.summed(side)
        after = axes.followed(node.signature, self.labels[image], side)
        if after is None or len(summed) != 1 or len(contraction.free(contraction.side)) != 1:
            return
        source, new_axis = self.labels[image][summed[0]], next(self.numbers)
        if source is not None:
            self.before[new_axis] = source
        self.sites[new_axis] = site
        if kernel in noisy or source in self.noisy:
            self.noisy.add(new_axis)
        (new,) = contraction.free(contraction.side)
        place = node.signature.target(new, contraction.side)
        self.labels[node.outputs[0]] = tuple(
            new_axis if r == place else a for r, a in enumerate(after)
        )

    def _add(self, one: Value, other: Value) -> Iterator[str]:
        """Notes which axes of a stream a block has mixed."""
        for values in ((one, other), (other, one)):
            stream, block = (self.labels[v] for v in values)
            for a, b in zip(stream, block, strict=False):
                if a is None or b is None or a == b or not self._is_made_of(b, a):
                    continue
                mixed = self.mixed.setdefault(stream, {})
                # One of them made by random weights is enough: what it makes is mixed by the other.
                mixed[a] = mixed[a] if mixed.get(a) in self.noisy else b
                noisy = [axis for axis in mixed.values() if axis in self.noisy]
                if len(mixed) > _FEW_AXES and noisy:
                    yield self.sites[noisy[-1]]

    def _is_made_of(self, axis: int, source: int) -> bool:
        """Returns whether dense layers have made an axis of another one."""
        origin: int | None = axis
        while origin is not None and origin != source:
            origin = self.before.get(origin)
        return origin is not None

    def _followed(self, node: Node, known: list[Value]) -> Axes | None:
        """Returns the labels of what an equation makes of values, where it keeps axes apart."""
        of, result = node.signature, node.outputs[0]
        if node.primitive in prim.MOVES or of.family is OperationFamily.REDUCE:
            return axes.followed(of, self.labels[known[0]])
        same = [self.labels[v] for v in known if v.aval.shape == result.aval.shape]
        if not same or not (
            node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn)
        ):
            return None
        # The oldest label is the stream's: what a block made is added to it and has gone.
        along = ([a for a in places if a is not None] for places in zip(*same, strict=True))
        return tuple(min(places, default=None) for places in along)


_MOVING = prim.MOVES | {p.convert_element_type_p}


@dataclass
class _OwnSums:
    """Sums over segments, and what went into them.

    Attributes:
        origin: What a value is only another form of.
        summed: What went into sums that a value is made of.
    """

    origin: dict[Value, Value] = field(default_factory=dict)
    summed: dict[Value, set[Value]] = field(default_factory=dict)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives a quotient of random values and sums of the same ones."""
        for node in layer.nodes:
            if all(v not in noisy for v in node.values):
                continue
            if node.primitive is p.div_p and self._meets(node):
                site = layer.site or str(node.primitive)
                what = f"that {site!r} divides random values by their own sums over segments"
                return CovarianceGap(what, "too large")
            if node.primitive in _MOVING:
                value = node.values[0]
                self.origin[node.outputs[0]] = self.origin.get(value, value)
            sums = set().union(*(self.summed.get(v, set()) for v in node.values))
            if node.primitive is p.scatter_add_p and isinstance(node.inputs[2], Value):
                sums.add(self.origin.get(node.inputs[2], node.inputs[2]))
            # Behind a product with other weights there is nothing left that could cancel.
            if sums and node.primitive not in prim.LINEAR:
                self.summed.update((v, sums) for v in node.outputs)
        return None

    def _meets(self, node: Node) -> bool:
        above, below = node.inputs
        if not isinstance(above, Value) or not isinstance(below, Value):
            return False
        return self.origin.get(above, above) in self.summed.get(below, set())


# Of chi^2_n / n the median is .89 at n = 6, and .93 at n = 9.
_FEW_ENTRIES = 6
_MANY_TIMES = 4


@dataclass
class _NarrowCode:
    """Values whose noise is that of a few entries alone.

    Attributes:
        of: How many entries, and the layer that has made many of them, by value.
    """

    of: dict[Value, tuple[int, str]] = field(default_factory=dict)

    def visit(self, layer: Layer, noisy: Collection[Value]) -> CovarianceGap | None:
        """Reads a layer; gives the one that adds up what a few entries have spread noise over."""
        for node in layer.nodes:
            read = [v for v in node.values if v in noisy and v.is_data]
            codes = [v for v in read if v in self.of]
            if node.primitive not in prim.LINEAR:
                if codes and len(codes) == len(read):
                    self.of.update((v, self.of[codes[0]]) for v in node.outputs)
            elif len(read) == 1:
                if codes:
                    return self._gap(layer, *self.of[codes[0]])
                self._widen(layer, node, read[0])
        return None

    def _widen(self, layer: Layer, node: Node, code: Value) -> None:
        """Notes a dense layer that makes many values of a few."""
        contraction = Contraction.of(node)
        image, kernel = 1 - contraction.side, contraction.side
        if contraction.is_convolution or node.inputs[image] is not code:
            return
        entries, results = (
            math.prod(node.inputs[side].aval.shape[i] for i in of(side))
            for side, of in ((image, contraction.summed), (kernel, contraction.free))
        )
        if entries <= _FEW_ENTRIES and results >= _MANY_TIMES * entries:
            self.of[node.outputs[0]] = entries, layer.site

    def _gap(self, layer: Layer, entries: int, site: str) -> CovarianceGap:
        reader = layer.site or layer.kind
        what = f"that {reader!r} adds up what {site!r} makes of only {entries} random entries"
        return CovarianceGap(what, "mostly too large")
