"""Layers that rearrange channels or combine positions, and keep examples and the others apart.

Channels: `x.reshape(B, H, W, G, C // G)` has no axis of channels, and what follows it can't be read
axis by axis. Two things that models do with it keep channels apart nevertheless: a normalization
over positions and the channels of a group, and a shuffle, which only moves channels. So the
equations between the splitting reshape and the one that joins the channels again are read as one
layer.

Positions: a weighted sum over tokens, a matrix of neighbours, a running sum, the standard deviation
over time: each result is made of one channel's positions. To first order it is a linear map L of
the noise of entries, which is known from what they are made of (`_terms`). For each kernel weight,
source and residual,

    Var[L y] = sum_(t, i) v_(t, i, c) L[g x_(t, i)]^2 + Var[sum w z] L[g]^2 + L^2[g^2 residual],

with L^2 the map of the squared factors. Of what goes on, a gate G lets L^T G through to what comes
before: that is the gate there.
Rows of positions may also be taken by index, some of them several times: edges' ends, tokens.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation import _attention as attention
from jaxeff.moment_propagation import dependence
from jaxeff.moment_propagation.shared_kernels import _terms
from jaxeff.moment_propagation.shared_kernels._layouts import (
    BATCH,
    CHANNEL,
    canonical,
    restored,
    roles,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Node, Value, axes
from jaxeff.program.ir import primitives as prim

_MOST_JOINED = 8
_SOFTMAX = {p.exp_p, p.reduce_max_p}
_TYPES = {p.convert_element_type_p, p.copy_p}

# An axis of a value made of a tensor: the tensor's axes that it runs over, each with the stride of
# its steps there. A reshape of 24 channels to (4, 6) makes axes {(channel, 6)} and {(channel, 1)}.
_Part = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class ChannelGroups:
    """A normalization whose statistics run over positions and the channels of a group.

    Attributes:
        count: The number of groups; those of one group stand side by side.
        places: The axes of positions over which the statistics run.
        is_centred: Whether the mean is subtracted, as in a group norm; an RMS norm leaves it.
    """

    count: int
    places: frozenset[int | None]
    is_centred: bool

    @classmethod
    def of(cls, layer: Layer, value: Value, layout: Axes) -> ChannelGroups | None:
        """Reads a layer; None for another one."""
        shape = value.aval.shape
        kept = len(layer.outputs) == 1 and layer.outputs[0].aval.shape == shape
        if layer.kind != "normalization" or not kept or layout.count(CHANNEL) != 1:
            return None
        if any(node.primitive in _SOFTMAX for node in layer.nodes):
            return None
        channel = layout.index(CHANNEL)
        sums = _sums(layer.nodes, value, channel)
        if sums is None or len({one.parts for one in sums}) != 1:
            return None
        parts, count, size, _ = sums[0]
        summed = {a for a, stride in parts if a != channel and stride == 1}
        places = frozenset(layout[a] for a in summed if shape[a] != 1)
        # Of the channels a group's own are added up, which are the inner part of their axis.
        inner = [stride for a, stride in parts if a == channel] == [1]
        if not inner or not places or BATCH in places or len(parts) != len(summed) + 1:
            return None
        # A window of positions is no whole axis, though its steps are of one, too.
        if count != size * math.prod(shape[a] for a in summed):
            return None
        return cls(shape[channel] // size, places, any(one.is_plain for one in sums))


class _Sum(NamedTuple):
    """A sum of a tensor's entries, or of their squares.

    Attributes:
        parts: What it runs over.
        terms: The number of its terms.
        channels: The number of channels that it runs over.
        is_plain: Whether its terms are the entries themselves.
    """

    parts: _Part
    terms: int
    channels: int
    is_plain: bool


def _split(labels: Sequence[_Part | None], shape: Sequence[int], after: Sequence[int]) -> (
    list[_Part | None] | None
):  # fmt: skip
    """Follows axes through a reshape that splits single axes or merges several; else None."""
    result: list[_Part | None] = []
    left = [(x, n) for x, n in zip(labels, shape, strict=True) if n != 1]
    for product in after:
        if product == 1:
            result.append(None)
            continue
        if not left:
            return None
        label, n = left.pop(0)
        if label is None:
            return None
        if n > product:
            # One axis becomes several: the outer ones take steps over all of the inner ones.
            if len(label) != 1 or n % product:
                return None
            ((axis, stride),) = label
            rest = n // product
            result.append(frozenset({(axis, stride * rest)}))
            left.insert(0, (label, rest))
            continue
        while n < product:
            if not left or left[0][0] is None:
                return None
            more, size = left.pop(0)
            label, n = label | (more or frozenset()), n * size
        if n != product:
            return None
        result.append(label)
    return None if left else result


def _followed(
    nodes: Sequence[Node], value: Value
) -> tuple[dict[Value, list[_Part | None]], set[Value]]:
    """Follows the axes of a tensor through functions of its entries.

    Returns the parts of axes by value, and the values that are the tensor itself, elsewhere.
    """
    parts: dict[Value, list[_Part | None]] = {
        value: [frozenset({(i, 1)}) for i in range(len(value.aval.shape))]
    }
    plain = {value}
    for node in nodes:
        known = [a for a in node.inputs if isinstance(a, Value) and a in parts]
        if not known or len(node.outputs) != 1:
            continue
        shape, result = tuple(known[0].aval.shape), node.outputs[0]
        after: list[_Part | None] | None = None
        if node.primitive is p.reshape_p:
            after = _split(parts[known[0]], shape, result.aval.shape)
        elif node.primitive in prim.MOVES:
            origins = axes.followed(node.signature, tuple(range(len(shape))))
            if origins is not None:
                after = [None if i is None else parts[known[0]][i] for i in origins]
        elif result.aval.shape == shape and node.primitive in prim.ELEMENTWISE | _TYPES:
            after = parts[known[0]]
        if after is None:
            continue
        parts[result] = after
        if node.primitive in prim.MOVES | _TYPES and known[0] in plain:
            plain.add(result)
    return parts, plain


def _sums(nodes: Sequence[Node], value: Value, channel: int) -> list[_Sum] | None:
    """Reads the sums of a tensor's entries; None where one runs over axes that aren't known."""
    parts, plain = _followed(nodes, value)
    rearrangements = []
    for node in nodes:
        if node.primitive is not p.reduce_sum_p or node.inputs[0] not in parts:
            continue
        (operand,) = node.values
        shape = operand.aval.shape
        along = [(parts[operand][i], shape[i]) for i in node.params["axes"] if shape[i] != 1]
        if any(x is None for x, _ in along):
            return None
        known = [(x, n) for x, n in along if x is not None]
        channels = math.prod(n for x, n in known if any(a == channel for a, _ in x))
        every = frozenset[tuple[int, int]]().union(*(x for x, _ in known))
        rearrangements.append(
            _Sum(every, math.prod(n for _, n in known), channels, operand in plain)
        )
    return rearrangements or None


def chosen_channels(layer: Layer, value: Value, layout: Axes) -> tuple[int, ...] | None:
    """Returns which channels of a value a layer puts in which order; None if it does more."""
    if not layer.nodes or len(layer.outputs) != 1 or layout.count(CHANNEL) != 1:
        return None
    shape, after, channel = value.aval.shape, layer.outputs[0].aval.shape, layout.index(CHANNEL)
    if len(shape) != len(after) or layer.kind != "shape":
        return None
    if any(n != m for i, (n, m) in enumerate(zip(shape, after, strict=True)) if i != channel):
        return None
    # As small as a number of each entry may be: this is done while a program is traced.
    entries = np.arange(math.prod(shape), dtype=np.min_scalar_type(-math.prod(shape)))
    moved = _moved(layer.nodes, {value: entries.reshape(shape)})
    if moved is None or layer.outputs[0] not in moved:
        return None
    # An entry's number is the sum of its places, each times the entries of a step along that axis.
    # Without those of the other axes, numbers are the channel's, everywhere the same.
    numbers = moved[layer.outputs[0]]
    for i, steps in enumerate(np.indices(after, sparse=True, dtype=entries.dtype)):
        if i != channel:
            numbers = numbers - steps * math.prod(shape[i + 1 :])
    first = numbers[tuple(slice(None if i == channel else 1) for i in range(len(shape)))]
    channels, rest = np.divmod(first.ravel(), math.prod(shape[channel + 1 :]))
    if rest.any() or (channels < 0).any() or (channels >= shape[channel]).any():
        return None
    return tuple(channels.tolist()) if (numbers == first).all() else None


def _moved(nodes: Sequence[Node], known: dict[Value, np.ndarray]) -> dict[Value, np.ndarray] | None:
    """Evaluates equations that only move entries; None where one does more."""
    for node in nodes:
        if known.keys().isdisjoint(node.values):
            continue
        # A concatenation puts entries of other values beside these, which have no number here.
        if len(node.values) != 1:
            return None
        x, q = known[node.values[0]], node.params
        if node.primitive is p.reshape_p:
            x = x.reshape(node.outputs[0].aval.shape)
        elif node.primitive is p.transpose_p:
            x = x.transpose(q["permutation"])
        elif node.primitive is p.rev_p:
            x = np.flip(x, q["dimensions"])
        elif node.primitive is p.slice_p:
            steps = q["strides"] or (1,) * x.ndim
            cut = zip(q["start_indices"], q["limit_indices"], steps, strict=True)
            x = x[tuple(slice(*one) for one in cut)]
        elif node.primitive is split_p:
            parts = np.split(x, np.cumsum(q["sizes"])[:-1], q["axis"])
            known.update(zip(node.outputs, parts, strict=True))
            continue
        else:
            return None
        known[node.outputs[0]] = x
    return known


def with_splits_apart(program: Program) -> Program:
    """Makes a layer of each part that `split` cuts an array into, as of a slice."""
    layers: list[Layer] = []
    for layer in program.layers:
        is_split = [node.primitive for node in layer.nodes] == [split_p] and not layer.mark
        parts = [(v,) for v in layer.outputs]
        layers += [replace(layer, outputs=one) for one in parts] if is_split else [layer]
    return dependence.with_layers(program, layers)


def with_channels_joined(program: Program) -> list[Layer]:
    """Finds the layers between a reshape that splits an axis and one that takes it back.

    Returns layers of all equations between the two, where these are moves and at most one
    normalization, and nothing else reads what is between.
    """
    readers = Counter(v for layer in program.layers for v in layer.inputs)
    readers.update(v for v in program.outputs if isinstance(v, Value))
    next_of: Mapping[Value, Layer] = {v: layer for layer in program.layers for v in layer.inputs}
    joined = []
    for layer in program.layers:
        if layer.kind != "shape" or [n.primitive for n in layer.nodes] != [p.reshape_p]:
            continue
        (start,), chain = layer.inputs, [layer]
        while chain[-1].outputs[0].aval.shape != start.aval.shape and len(chain) < _MOST_JOINED:
            end = chain[-1].outputs[0]
            following = next_of.get(end)
            if readers[end] != 1 or following is None or not _joins(following, chain):
                break
            chain.append(following)
        if chain[-1].outputs[0].aval.shape == start.aval.shape and len(chain) > 1:
            joined.append(_as_one(chain))
    return joined


@dataclass(eq=False, kw_only=True)
class HeadsLayer(Layer):
    """Attention with the moves that split channels into heads and join them again.

    Attributes:
        inner: The attention.
        score: The product of its queries and keys.
        moves: What makes its queries, keys and values, and what is made of its result.
        operands: Queries, keys and values before they are split.
        heads: The letter of the heads' axis; empty for one head.
        place: The axis of the operands along which there are queries.
    """

    inner: attention.AttentionLayer
    score: attention.Score
    moves: tuple[tuple[Layer, ...], ...]
    operands: tuple[Value, ...]
    heads: str
    place: int

    def layout(self, start: Mapping[Value, Axes]) -> Axes | None:
        """Returns the layout of the result, which all operands have; None if they haven't."""
        layouts = [start[v] for v in self.operands if v in start]
        if len(layouts) < len(self.operands) or layouts[0][-1] != CHANNEL:
            return None
        return layouts[0] if all(roles(x) == roles(layouts[0]) for x in layouts) else None

    def moved(self, which: int, x: Array) -> Array:
        """Applies moves to an array: of queries, keys, values (0, 1, 2), or the result (3)."""
        for layer in self.moves[which]:
            (x,) = layer.fn(x)
        return x


def heads_layers(program: Program) -> list[HeadsLayer]:
    """Finds the attention of a program, whose channels are split into heads and joined again.

    Args:
        program: A program in which attention is one layer.
    """
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    readers = Counter(v for layer in program.layers for v in layer.inputs)
    readers.update(v for v in program.outputs if isinstance(v, Value))
    next_of = {v: layer for layer in program.layers for v in layer.inputs if readers[v] == 1}
    joined = [
        _with_heads(layer, makers, next_of)
        for layer in program.layers
        if isinstance(layer, attention.AttentionLayer)
    ]
    return [layer for layer in joined if layer is not None]


def _with_heads(
    inner: attention.AttentionLayer, makers: Mapping[Value, Layer], next_of: Mapping[Value, Layer]
) -> HeadsLayer | None:
    """Joins attention with the moves around it; None where they do more than to split heads."""
    axes = inner.axes
    features = "".join(a for a in axes.v if a not in axes.scores)
    queries = "".join(a for a in axes.rows if a not in axes.k)
    if inner.score is None or not all(
        len(of) == 1 for of in (axes.softmax, axes.features, queries, features)
    ):
        return None
    ends = (inner.score.queries, inner.score.keys, inner.values)
    behind = [_moves_behind(v, makers) for v in ends]
    operands = tuple(
        chain[0].inputs[0] if chain else v for chain, v in zip(behind, ends, strict=True)
    )
    ahead, result = list[Layer](), inner.outputs[0]
    while result.aval.shape != operands[0].aval.shape:
        following = next_of.get(result)
        if following is None or not _is_move(following):
            return None
        ahead.append(following)
        result = following.outputs[0]
    shape = result.aval.shape
    if any(v.aval.shape != shape or v not in makers for v in operands) or not set(ends) <= {
        *inner.inputs
    }:
        return None
    channel = len(shape) - 1
    arrays = [(axes.q, ends[0]), (axes.k, ends[1]), (axes.v, ends[2])]
    numbers = [_places(operands[i], behind[i], v, channel) for i, (_, v) in enumerate(arrays)]
    # A head's features stand side by side, and so do its results.
    heads = {
        _heads(of, x, one)
        for (of, _), x, one in zip(arrays, numbers, (axes.features,) * 2 + (features,), strict=True)
    }
    name = heads.pop()
    places = [
        i
        for i in range(channel)
        if (x := _places(operands[0], behind[0], ends[0], i)) is not None
        and np.ptp(x, axes.q.index(queries)).any()
    ]
    if heads or name is None or len(places) != 1:
        return None
    kept = {channel: name + features, places[0]: queries}
    if not all(_is_kept(inner, ahead, result, axis, of) for axis, of in kept.items()):
        return None
    parts = [*itertools.chain(*behind), inner, *ahead]
    results = {v for part in parts for v in part.outputs}
    inputs = dict.fromkeys(v for part in parts for v in part.inputs if v not in results)
    return HeadsLayer(
        inner.kind, tuple(dict.fromkeys(n for part in parts for n in part.nodes)), tuple(inputs),
        (result,), inner.site, inner.base, inner.occurrence, inner=inner, score=inner.score,
        moves=(*map(tuple, behind), tuple(ahead)), operands=operands, heads=name, place=places[0],
    )  # fmt: skip


def _is_kept(
    inner: attention.AttentionLayer, ahead: Sequence[Layer], result: Value, axis: int, letters: str
) -> bool:
    """Returns whether moves of attention's result bring some of its axes, in order, to one axis."""
    shape, after = inner.outputs[0].aval.shape, result.aval.shape
    sizes = [n if a in letters else 1 for a, n in zip(inner.axes.result, shape, strict=True)]
    numbers = np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), shape)
    nodes = [node for part in ahead for node in part.nodes]
    moved = _moved(nodes, {inner.outputs[0]: numbers})
    steps = np.arange(after[axis]).reshape([-1 if i == axis else 1 for i in range(len(after))])
    return moved is not None and bool((moved[result] == steps).all())


def _is_move(layer: Layer) -> bool:
    """Returns whether a layer moves the axes of one value."""
    moves = bool(layer.nodes) and all(node.primitive in prim.MOVES for node in layer.nodes)
    return moves and not layer.mark and len(layer.inputs) == 1


def _moves_behind(value: Value, makers: Mapping[Value, Layer]) -> list[Layer]:
    """Returns the moves that a value is made by, in order."""
    chain: list[Layer] = []
    while (maker := makers.get(value)) is not None and _is_move(maker):
        chain.insert(0, maker)
        value = maker.inputs[0]
    return chain


def _places(outer: Value, chain: Sequence[Layer], end: Value, axis: int) -> np.ndarray | None:
    """Returns the place along an axis of a value that each entry of what is made of it comes from.

    Returns:
        None where there are other layers than moves.
    """
    shape = outer.aval.shape
    steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    nodes = [node for part in chain for node in part.nodes]
    moved = _moved(nodes, {outer: np.broadcast_to(steps, shape)})
    return None if moved is None else moved.get(end)


def _heads(letters: str, channel: np.ndarray | None, feature: str) -> str | None:
    """Returns the letter of the heads' axis, given the channel of each entry; None if not so."""
    if channel is None:
        return None
    varying = [a for i, a in enumerate(letters) if np.ptp(channel, i).any()]
    heads = "".join(a for a in varying if a != feature)
    if len(heads) > 1:
        return None
    sizes = [n if a in heads + feature else 1 for a, n in zip(letters, channel.shape, strict=True)]
    order = np.arange(math.prod(sizes))
    if heads and letters.index(heads) > letters.index(feature):
        order = order.reshape(sizes[letters.index(heads)], -1).T
    return heads if (channel == order.reshape(sizes)).all() else None


def _joins(layer: Layer, chain: Sequence[Layer]) -> bool:
    if layer.mark or len(layer.outputs) != 1:
        return False
    is_norm = layer.kind == "normalization" and all(v.kind == "shape" for v in chain)
    return is_norm or layer.kind == "shape"


def _as_one(chain: Sequence[Layer]) -> Layer:
    """Puts the equations of layers that follow each other into one layer."""
    named = next((v for v in chain if v.kind == "normalization"), chain[-1])
    inner = {v for layer in chain for v in layer.outputs}
    inputs = dict.fromkeys(v for layer in chain for v in layer.inputs if v not in inner)
    nodes = tuple(node for layer in chain for node in layer.nodes)
    return replace(named, nodes=nodes, inputs=tuple(inputs), outputs=chain[-1].outputs)


def shared_parameters(layer: Layer, random: Collection[Value], layout: Axes) -> dict[Value, bool]:
    """Finds parameters that all positions share, and whether all channels share them, too."""
    result = layer.outputs[0]
    parameters = {}
    for value in random:
        lineages, _ = dependence.follow_lineages(
            layer.nodes, {value: {value: dependence.identity(value.aval.shape)}}
        )
        labels = lineages.get(result, {}).get(value)
        if labels is None:
            continue
        places = [
            x
            for x, a, n in zip(labels, layout, result.aval.shape, strict=True)
            if a not in (BATCH, CHANNEL) and n != 1
        ]
        if all(x == dependence.SHARED for x in places):
            parameters[value] = any(
                x == dependence.SHARED for x, a in zip(labels, layout, strict=True) if a == CHANNEL
            )
    return parameters


_NEW_AXES = 1000
_COMBINING = {"reduction", "matmul", "elementwise"}


class PositionMap(NamedTuple):
    """How a layer makes its result of the positions of a value.

    Attributes:
        layout: The layout of the result.
        combined: The axes of which several positions make one; none of them where they are only
            chosen or repeated.
    """

    layout: Axes
    combined: frozenset[int | None]

    @classmethod
    def of(cls, layer: Layer, value: Value, layout: Axes) -> PositionMap | None:
        """Reads a layer; None where it doesn't keep examples and channels apart."""
        if not layer.nodes or len(layer.outputs) != 1 or layer.kind == "control flow":
            return None
        shape, result = value.aval.shape, layer.outputs[0]
        labels = _labels(layer, value, dependence.identity(shape))
        if labels is None:
            return None
        kept = [layout[x] if isinstance(x, int) else None for x in labels]
        sizes = list(zip(layout, shape, strict=True))
        fixed = [a for a, n in sizes if a in (BATCH, CHANNEL) and n != 1]
        if any(kept.count(a) != 1 for a in fixed):
            return None
        places = [a for a, n in sizes if a not in (BATCH, CHANNEL, None) and n != 1]
        gone = [a for a in places if a not in kept]
        numbers = iter([*gone, *range(_NEW_AXES, _NEW_AXES + len(kept))])
        after = zip(kept, result.aval.shape, strict=True)
        positions_after = tuple(next(numbers) if a is None and n != 1 else a for a, n in after)
        return cls(positions_after, combined_axes(layer, value, layout))


def _labels(layer: Layer, value: Value, labels: dependence.Labels) -> dependence.Labels | None:
    lineages, _ = dependence.follow_lineages(layer.nodes, {value: {value: labels}})
    return lineages.get(layer.outputs[0], {}).get(value)


def combined_axes(layer: Layer, value: Value, layout: Axes) -> frozenset[int | None]:
    """Returns the axes of positions along which a layer adds or multiplies several of a value."""
    combined = set[int | None]()
    for axis, (place, n) in enumerate(zip(layout, value.aval.shape, strict=True)):
        if place in (BATCH, CHANNEL, None) or n == 1:
            continue
        # Were all positions along it the same entry, they would meet there.
        alike: dependence.Labels = tuple(
            dependence.SHARED if i == axis else i for i in range(len(layout))
        )
        meetings = dependence.follow_lineages(layer.nodes, {value: {value: alike}})[1]
        if any(one.along for met in meetings.values() for one in met):
            combined.add(place)
    return frozenset(combined)


def is_unruled(layer: Layer, value: Value, layout: Axes) -> bool:
    """Returns whether a layer combines positions in a way that no rule is meant for.

    Signs of a kernel's entries differ, so that a sum over positions by one (flattened, or of
    tokens) hardly adds up what they share; attention is warned of where a stream adds it up.
    """
    if layer.mark or layer.kind not in _COMBINING or isinstance(layer, dependence.WholeLayer):
        return False
    return bool(layer.nodes and combined_axes(layer, value, layout))


def keeps_positions(layer: Layer, value: Value, layout: Axes) -> bool:
    """Returns whether a layer makes each position of its result of all channels at the same one."""
    if not layer.nodes or len(layer.outputs) != 1:
        return False
    if layer.outputs[0].aval.shape != value.aval.shape:
        return False
    labels = _labels(layer, value, dependence.identity(value.aval.shape)) or ()
    pairs = zip(labels, layout, value.aval.shape, strict=True)
    return all(x == i or a == CHANNEL or n == 1 for i, (x, a, n) in enumerate(pairs))


def variance_of(terms: Sequence[_terms.NoiseTerm], by: _terms.LinearMap | None = None) -> Array:
    """Computes the variances of entries, or of what a linear map makes of them.

    One of the terms at most has a source; `by` is the map, None for the entries themselves.
    """
    by = by or _terms.LinearMap.identity()
    variances = []
    for term in terms:
        if isinstance(term, _terms.ResidualTerm):
            variances.append(by.squared(term.gate**2 * term.variance))
            continue
        if isinstance(term, _terms.MixedTerm):
            variances.append(variance_of([term.inner], term.map_to(by)))
            continue
        if isinstance(term, _terms.CrossedTerm):
            # Channel by channel of the source, as if these were independent.
            spreads = jnp.moveaxis(term.steps, -2, 0) * term.gate
            deviations = _terms.root(term.variance).T
            variances += [
                by.forward(one * std.reshape(-1, *(1,) * (one.ndim - 1))) ** 2
                for one, std in zip(spreads, deviations, strict=True)
            ]
            continue
        variances.append(
            by.forward(term.gate * _terms.spread(_terms.root(term.variance), term.gate)) ** 2
        )
        if isinstance(term, _terms.ContractionTerm):
            variances.append(_of_kernel(by, term))
    return sum(variances[1:], start=variances[0])


def _of_kernel(by: _terms.LinearMap, term: _terms.ContractionTerm) -> Array:
    """Computes what a kernel's own noise adds, a weight of each channel after the other."""
    read, gate = term.read, term.gate
    windows = read.taps.windows(term.image)
    deviations = _terms.root(read.by_group(term.kernel[1]))
    # An array for each tap, or one with taps and the channels of a group as axes.
    rows = (
        jnp.stack(windows).reshape(len(windows), len(gate), -1, read.groups, 1)
        if isinstance(windows, tuple)
        else jnp.moveaxis(windows, (2, 4), (0, 1)).reshape(-1, *windows.shape[:2], read.groups, 1)
    )
    by_weight = deviations.reshape(-1, *deviations.shape[2:])

    def add(total: Array, weight: tuple[Array, Array]) -> tuple[Array, None]:
        row, deviation = weight
        return total + by.forward((row * deviation).reshape(gate.shape) * gate) ** 2, None

    return jax.lax.scan(add, jnp.zeros_like(by.forward(gate)), (rows, by_weight))[0]


def gathered_layout(layer: Layer, value: Value, layout: Axes) -> Axes | None:
    """Returns the layout of what a layer takes from a value by a list of indices.

    Returns None for another layer, and where more than one axis of positions is indexed.
    """
    if not layer.nodes or len(layer.outputs) != 1:
        return None
    *before, node = layer.nodes
    if node.primitive is not p.gather_p or node.inputs[0] is not value:
        return None
    if any(value in other.values for other in before):
        return None
    numbers, shape = node.params["dimension_numbers"], value.aval.shape
    taken = numbers.collapsed_slice_dims
    sizes = zip(node.params["slice_sizes"], shape, strict=True)
    takes_rows = all(n == m or a in taken for a, (n, m) in enumerate(sizes))
    if len(taken) != 1 or not takes_rows or numbers.operand_batching_dims:
        return None
    if len(node.inputs[1].aval.shape) != 2 or layout[taken[0]] in (BATCH, CHANNEL):
        return None
    kept = iter(a for i, a in enumerate(layout) if i not in taken)
    axes = range(len(node.outputs[0].aval.shape))
    return tuple(next(kept) if i in numbers.offset_dims else layout[taken[0]] for i in axes)


def rows_by(
    gather: Callable[[Array], Array], layouts: Sequence[Axes], shape: Sequence[int]
) -> Callable[[Array], Array]:
    """Makes a function that takes the rows of canonical arrays, of any number of channels.

    `gather` takes them from an array in the layout of the value; layouts are those before and
    after; `shape` is the value's canonical one.
    """
    sizes = tuple(shape[1:-1])
    numbers = jnp.arange(math.prod(sizes)).reshape(1, *sizes, 1)
    before, after = layouts
    index = canonical(gather(restored(jnp.broadcast_to(numbers, shape), before)), after)[0, ..., 0]

    def rows(x: Array) -> Array:
        taken = x.reshape(len(x), -1, x.shape[-1])[:, index.reshape(-1)]
        return taken.reshape(len(x), *index.shape, x.shape[-1])

    return rows


def rearranged(
    terms: Sequence[_terms.NoiseTerm], rows: Callable[[Array], Array]
) -> list[_terms.NoiseTerm]:
    """Takes the rows of what noise is made of."""
    rearranged_terms: list[_terms.NoiseTerm] = []
    for term in terms:
        taken = replace(term, gate=rows(term.gate))
        if isinstance(taken, _terms.ResidualTerm):
            taken = replace(taken, variance=rows(taken.variance))
        elif isinstance(taken, _terms.ContractionTerm):
            through = taken.through and (rows(taken.through[0]), taken.through[1])
            taken = replace(taken, image=rows(taken.image), through=through)
        elif isinstance(taken, _terms.CrossedTerm):
            by_channel = jnp.moveaxis(taken.steps, -2, 0)
            taken = replace(taken, steps=jnp.moveaxis(jax.vmap(rows)(by_channel), 0, -2))
        rearranged_terms.append(taken)
    return rearranged_terms
