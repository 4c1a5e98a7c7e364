"""Finds residual streams of dense layers whose entries share much noise, and warns of them.

A block of an MLP-Mixer (arXiv 2105.01601) applies a dense layer along tokens, which all channels
share, and one along channels, which all tokens share. Each adds up what the other's noise has in
common, and the stream hands it on from block to block. After training, four blocks kept .16 of the
true variance where entries were taken as independent.

Sharp edges
- Results of convolutions have axes of their own: what they share is followed to a pooling instead.
- A stream is followed through sums, functions of entries and moves that keep its axes apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence._pointwise import is_pointwise
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Contraction, Node, Value, axes
from jaxeff.program.ir import primitives as prim

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
