"""Finds where variances go wrong by covariances that are left out, and warns of it.

Reuse: random values that are applied to what they made before. A recurrence, `h = tanh(h @ w + x)`,
reads one w at all steps. Noise of w moves h at every step, and these moves depend on one another;
the pass takes each as a new one. Whether they add up or cancel depends on the states and inputs
that w meets, not on the structure: of eight units at noise of 5 % the variances after five steps
are .8 to 1.3 of the true ones where inputs are new at every step, and .8 to 2.2 where they repeat.
A state that is kept in part adds them up: `.5 * h + x @ w` has .35 of the true variance where
inputs repeat, `h + .2 * (tanh(h @ w) - h)` .21 whatever they are. Blocks with one kernel, written
one after the other (ALBERT, arXiv 1909.11942; the steps of an integrator), are alike in this.

Sharp edges
- Products with one kernel that don't follow on each other (two towers with the same weights) aren't
  looked for.
- Steps that read another row of an array each, by a count, read no row twice.

Own sums: random values that are divided by their own sums over segments. Graph attention (arXiv
1710.10903) normalises its scores over the edges of a node. What all edges share cancels in such a
quotient; taken as independent of its sum, a score keeps it. The variances of a small network of two
such layers were eleven times the true ones.

Sharp edges
- Softmax and norms along an axis are recognised as wholes, and aren't looked for here.

Mixed streams: residual streams of dense layers whose entries share much noise. A block of an
MLP-Mixer (arXiv 2105.01601) applies a dense layer along tokens, which all channels share, and one
along channels, which all tokens share. Each adds up what the other's noise has in common, and the
stream hands it on from block to block. After training, four blocks kept .16 of the true variance
where entries were taken as independent.

Sharp edges
- Results of convolutions have axes of their own: what they share is followed to a pooling instead.
- A stream is followed through sums, functions of entries and moves that keep its axes apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation._values import MomentsWarning
from jaxeff.moment_propagation.dependence._pointwise import is_pointwise
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Contraction, Node, Scan, Value, While, axes
from jaxeff.program.ir import primitives as prim

# Without a sum, twice in a row keeps .99 of the true variance (.86 to 1.18); three convolutions
# .88 (.64 to 1.15), three dense layers with repeated inputs 1.11 (.74 to 2.81).
_FEW_TIMES = 2

_SUMS = {p.add_p, p.add_jaxvals_p, p.sub_p}
_CUTS = {p.slice_p, split_p}
_LOOKED_UP = {p.dynamic_slice_p, p.gather_p}

Times = Mapping[Hashable, tuple[int, int]]
"""How often each random kernel was applied to what it had made; of factors, the least and most."""


class Reuse(NamedTuple):
    """Where a random value meets what it made before.

    Attributes:
        site: The site of a loop, or of the layer.
        is_loop: Whether it is a loop.
    """

    site: str
    is_loop: bool


def reused(program: Program, random: Collection[Value]) -> Reuse | None:
    """Finds the first loop or layer that applies a random value to what it made before.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.

    Returns:
        The place; None if there is none.
    """
    known, kernels = set(random), _UseSearch({v: frozenset((v,)) for v in random})
    for layer in program.layers:
        if known.isdisjoint(layer.inputs):
            continue
        known.update(layer.outputs)
        if _repeats(layer, known):
            return Reuse(layer.site or layer.kind, is_loop=True)
        if any(kernels.visit(node) for node in layer.nodes):
            return Reuse(layer.site or layer.kind, is_loop=False)
    return None


def warn_of_reuse(found: Reuse) -> None:
    """Warns of random values that are applied to what they made before."""
    what = (
        f"the steps of {found.site!r} read the same random values, and what these made at steps "
        "before"
        if found.is_loop
        else f"{found.site!r} is made of a random kernel that was applied to its own results"
    )
    warnings.warn(
        f"moments: {what}; noise that is the same each time is taken as independent, and variances "
        "may be several times too small or too large. Take method='linear' or correlations=True, "
        "or moments(f, shared=False) to leave it so.",
        MomentsWarning,
        stacklevel=2,
    )


@dataclass
class _UseSearch:
    """Which random parameters have made a value, and how often.

    Attributes:
        origins: The random parameters that a value without data is made of.
        times: How often random kernels were applied, by value with data.
    """

    origins: dict[Value, frozenset[Hashable]]
    times: dict[Value, Times] = field(default_factory=dict)

    def visit(self, node: Node) -> bool:
        """Reads an equation; returns whether a kernel meets what it made before."""
        if not any(v.is_data for v in node.values):
            self._make_parameter(node)
            return False
        found = [self.times[v] for v in node.values if v in self.times]
        times: dict[Hashable, tuple[int, int]] = {}
        for w in frozenset[Hashable]().union(*found):
            counts = [one[w] for one in found if w in one]
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
        given = [self.origins[v] for v in node.values if v in self.origins]
        if not given:
            return
        origins = frozenset[Hashable]().union(*given)
        for place, made in enumerate(node.outputs):
            if node.primitive in _CUTS:
                # Another block of stacked kernels is another one; the same block, cut again, isn't.
                cut = (str(node.eqn.params), place)
                self.origins[made] = frozenset((w, *cut) for w in origins)
            else:
                looked_up = node.primitive in _LOOKED_UP
                self.origins[made] = frozenset((made,)) if looked_up else origins


def _repeats(layer: Layer, random: Collection[Value]) -> bool:
    """Returns whether steps of a loop read the same random values and what these made before."""
    loop = _loop(layer)
    if loop is None or (isinstance(loop, Scan) and loop.length < 2):
        return False
    body, first = layer.programs[-1], len(loop.consts)
    # What a step hands on as it is, is read by all steps as well.
    ends = dict(zip(body.inputs[first : first + len(loop.carry)], body.outputs, strict=False))
    states = {v: end for v, end in ends.items() if end is not v}
    given = zip(body.inputs, [*loop.consts, *loop.carry], strict=False)
    noisy = {v for v, outer in given if isinstance(outer, Value) and outer in random}
    changing = _made_of(body, {*states, *body.inputs[first + len(ends) :]}, floats=False)
    tied = {v for v in noisy - states.keys() if not _is_looked_up(body, v, changing)}
    moved = set[Value]()  # states that have noise of what is tied
    while (made := _made_of(body, tied | moved)) and (
        more := {v for v, end in states.items() if end in made} - moved
    ):
        moved |= more
    again = _made_of(body, moved)
    return any(end in again for end in states.values())


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


_MOVING = {p.broadcast_in_dim_p, p.convert_element_type_p, p.reshape_p, p.squeeze_p}


def divided_by_own_sums(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first quotient of random values and sums of the same values over segments.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.

    Returns:
        Its site; None if there is none.
    """
    known = set(random)
    origin: dict[Value, Value] = {}  # what a value is only another form of
    summed: dict[Value, set[Value]] = {}  # what went into sums that a value is made of
    for layer in program.layers:
        for node in layer.nodes:
            if known.isdisjoint(node.values):
                continue
            known.update(node.outputs)
            if node.primitive is p.div_p and _meets(node, origin, summed):
                return layer.site or str(node.primitive)
            if node.primitive in _MOVING:
                (value,) = node.values
                origin[node.outputs[0]] = origin.get(value, value)
            sums = set().union(*(summed.get(v, set()) for v in node.values))
            if node.primitive is p.scatter_add_p and isinstance(node.inputs[2], Value):
                sums.add(origin.get(node.inputs[2], node.inputs[2]))
            # Behind a product with other weights there is nothing left that could cancel.
            if sums and node.primitive not in prim.LINEAR:
                summed.update((v, sums) for v in node.outputs)
    return None


def _meets(node: Node, origin: dict[Value, Value], summed: dict[Value, set[Value]]) -> bool:
    above, below = node.inputs
    if not isinstance(above, Value) or not isinstance(below, Value):
        return False
    return origin.get(above, above) in summed.get(below, set())


def warn_of_own_sums(site: str) -> None:
    """Warns of a quotient whose numerators and sums are taken as independent."""
    warnings.warn(
        f"moments: {site!r} divides what random weights make by its own sums over segments, as "
        "graph attention does; the two are taken as independent, and variances may be ten times "
        "too large. Take method='linear'; moments_check says how far they are off, and "
        "moments(f, shared=False) leaves it so.",
        MomentsWarning,
        stacklevel=2,
    )


# One axis is what every residual network of dense layers mixes.
_FEW_AXES = 1


def mixed_stream(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first residual stream that random weights mix along two axes.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.

    Returns:
        The site of a layer with random weights that has part in it; None if there is none.
    """
    search = _AxisSearch(set(random))
    return next((one for layer in program.layers for one in search.visit(layer)), None)


def warn_of_mixed(site: str) -> None:
    """Warns of a residual stream whose entries share noise."""
    warnings.warn(
        f"moments: {site!r} and layers along another axis add what they make of random weights to "
        "one residual stream, whose tokens and channels share that noise; they are taken as "
        "independent, and variances may be several times too small. Take method='linear' or "
        "correlations=True, or moments(f, shared=False) to leave it so.",
        MomentsWarning,
        stacklevel=2,
    )


@dataclass
class _AxisSearch:
    """Which axis of which value a dense layer has made of which other one.

    Attributes:
        random: Random values.
        labels: A number for each axis of a value; what keeps an axis keeps its number.
        before: The axis that a dense layer has made one of.
        sites: The layer that has made an axis.
        noisy: Axes that random weights have had part in.
        mixed: Axes of a stream, by its labels, that blocks have mixed, and what they made of them.
        numbers: Numbers for new axes.
    """

    random: set[Value]
    labels: dict[Value, Axes] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)
    noisy: set[int] = field(default_factory=set)
    mixed: dict[Axes, dict[int, int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def visit(self, layer: Layer) -> Iterator[str]:
        """Reads a layer; yields the site of a stream that it completes."""
        for node in layer.nodes:
            if not self.random.isdisjoint(node.values):
                self.random.update(node.outputs)
            # What nothing is known of, as an input or a convolution's result, has axes of its own.
            for value in node.values:
                if value.is_data and value not in self.labels:
                    self.labels[value] = tuple(next(self.numbers) for _ in value.aval.shape)
            if len(node.outputs) != 1:
                continue
            if node.primitive is p.dot_general_p:
                self._multiply(layer.site, node)
                continue
            known = [v for v in node.values if v in self.labels]
            if node.primitive is p.add_p and len(known) == 2:
                yield from self._add(*known)
            if known and (after := self._followed(node, known)) is not None:
                self.labels[node.outputs[0]] = after

    def _multiply(self, site: str, node: Node) -> None:
        """Gives labels to a product of data with weights."""
        contraction = Contraction.of(node)
        side = 1 - contraction.side
        image, kernel = node.inputs[side], node.inputs[contraction.side]
        # Of two arrays with data, as in attention or a graph, neither is a layer's kernel.
        if not getattr(image, "is_data", False) or getattr(kernel, "is_data", False):
            return
        given, contracted = self.labels[image], node.params["dimension_numbers"][0][side]
        if len(contracted) != 1 or len(contraction.free(contraction.side)) != 1:
            return
        source, made = given[contracted[0]], next(self.numbers)
        if source is not None:
            self.before[made] = source
        self.sites[made] = site
        if kernel in self.random or source in self.noisy:
            self.noisy.add(made)
        free: list[Axes] = [(), ()]
        free[side] = tuple(given[a] for a in contraction.free(side))
        free[1 - side] = (made,)
        batch = tuple(given[a] for a in contraction.batch(side))
        self.labels[node.outputs[0]] = (*batch, *free[0], *free[1])

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
                noisy = [made for made in mixed.values() if made in self.noisy]
                if len(mixed) > _FEW_AXES and noisy:
                    yield self.sites[noisy[-1]]

    def _is_made_of(self, axis: int, source: int) -> bool:
        """Returns whether dense layers have made an axis of another one."""
        made: int | None = axis
        while made is not None and made != source:
            made = self.before.get(made)
        return made is not None

    def _followed(self, node: Node, known: list[Value]) -> Axes | None:
        """Returns the labels of what an equation makes of values, where it keeps axes apart."""
        value, made = known[0], node.outputs[0]
        layout, shape = self.labels[value], tuple(value.aval.shape)
        if node.primitive in axes.MOVES:
            return axes.moved(node.eqn, layout, shape)
        if node.primitive in prim.REDUCTION:
            return axes.dropped(layout, node.params.get("axes", ()))
        same = [self.labels[v] for v in known if v.aval.shape == made.aval.shape]
        if not same or not (
            node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn)
        ):
            return None
        # The oldest label is the stream's: what a block made is added to it and has gone.
        along = ([a for a in places if a is not None] for places in zip(*same, strict=True))
        return tuple(min(places, default=None) for places in along)
