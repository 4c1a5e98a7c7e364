"""Fuses the layers that have to be integrated as a whole, and notes where independence is assumed.

The program's layers follow names. Moments need another partition: a layer that combines entries
which depend on one another (`x * sigmoid(x)` as two layers, the mean square of a centred tensor,
`x @ x.T`) is joined with the layers before it, back to values whose entries are independent of each
other and from which everything between follows. The nearest such values are taken, so that a
bottleneck (a centred tensor before a ReLU) stays one. A chain of pointwise functions is joined too.

Products with weights, poolings and loops aren't followed back: their results are *atoms*, unless
following a product is exact and cheap (`x @ A @ x` of a few entries). Where entries of atoms depend
on one another through noise they share further back, independence is assumed, and the place is
noted, for people to read, as an `Assumption`.

Sharp edges
- A site inside a fused layer isn't evaluated on its own unless others read it: a transform of the
  result sees the last site of the fused layer only.
- A loop's body is integrated by itself: what it reads is taken as independent. What that combines
  is found by following lineages through its steps; of a loop of unknown length it is noted at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import _lineage as lineage
from jaxeff.moment_propagation.dependence._pointwise import degrees, has_rule, is_pointwise
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Node, Scan, Value, branch_operands, fixed_point
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import reduces


class Ratio(NamedTuple):
    """Ratio of a rule's variance to Monte Carlo's, over the entries of a result.

    Attributes:
        median: Half of the entries are below.
        low: One entry in twenty is below.
        high: One entry in twenty is above.
        error: The standard error of one entry's ratio that the number of samples leaves.
    """

    median: float
    low: float
    high: float
    error: float

    @classmethod
    def of(cls, ratios: np.ndarray, error: float) -> Ratio | None:
        """Summarizes ratios of entries, or returns None if no entry varies."""
        # Entries that never vary (a dead unit) have no ratio.
        values = ratios[np.isfinite(ratios)]
        if not values.size:
            return None
        low, median, high = (float(q) for q in np.quantile(values, (0.05, 0.5, 0.95)))
        return cls(median, low, high, error)

    def __str__(self) -> str:
        """Returns the median and the range."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Assumption:
    """A place where independence is assumed.

    Attributes:
        site: The layer's name; for one without a site, what it prepares an operand of is unnamed.
        kind: The layer's kind.
        reason: The values taken as independent.
        shares: The random arrays that more than one entry of its operands depends on: parameter
            paths, `input`, or the site of a loop.
        line: Source line of the operation, `file:line (function)`.
        ratio: Ratio of the rule's variance to Monte Carlo's, given its inputs' true moments;
            None until it was estimated.
        adds_up: Whether what entries share adds up, so that the variance may be several times off,
            rather than cancels under weights of either sign.
    """

    site: str
    kind: str
    reason: str
    shares: tuple[str, ...]
    line: str
    ratio: Ratio | None = None
    adds_up: bool = True

    @classmethod
    def of(
        cls,
        layer: Layer,
        meeting: lineage.DependentCombination,
        leaves: Mapping[Value, lineage.Lineage] | None = None,
    ) -> Assumption:
        """Makes the assumption that a layer combines independent entries where they meet.

        `leaves` are lineages from the random inputs.
        """
        name = meeting.eqn.primitive.name
        reason = (
            f"{name} combines entries of one array that share noise"
            if meeting.along
            else f"{name} combines values that share noise"
        )
        shared = _shared(meeting, leaves or {}) or [meeting.source]
        return cls.at(layer, meeting.eqn, reason, shared, adds_up=meeting.adds_up)

    @classmethod
    def at(
        cls, layer: Layer, eqn: Any, reason: str, sources: Iterable[Any], *, adds_up: bool
    ) -> Assumption:
        """Makes an assumption that an equation of a layer asks for, by what its entries share."""
        line = _compat.source_line(eqn)
        return cls(layer.site, layer.kind, reason, _names(sources), line, adds_up=adds_up)

    def __str__(self) -> str:
        """Returns one line: where, what, and how far off."""
        where = self.site or "(operand)"
        off = "" if self.ratio is None else f", variance {self.ratio} of the true one"
        return f"{where}: {self.reason} of {', '.join(self.shares)}{off} [{self.line}]"


Note = Callable[[Assumption], None]


def _shared(
    meeting: lineage.DependentCombination, leaves: Mapping[Value, lineage.Lineage]
) -> list[Any]:
    """Returns the random arrays that dependent entries have in common."""
    leaves_of_source = leaves.get(meeting.source, {})
    if meeting.partners:
        return [
            s for s in leaves_of_source if any(s in leaves.get(v, {}) for v in meeting.partners)
        ]
    # Within one value: the sources that several of its entries depend on; all of them where the
    # labels cannot tell.
    return [
        s for s, labels in leaves_of_source.items() if any(map(lineage.is_common, labels))
    ] or list(leaves_of_source)


def _names(sources: Iterable[Any]) -> tuple[str, ...]:
    sources = [s.source if isinstance(s, _Step) else s for s in sources]
    return tuple(dict.fromkeys(s.path or "input" for s in sources if isinstance(s, Value)))


class Assumptions(tuple[Assumption, ...]):
    """Assumptions in order of execution; prints as a list."""

    __slots__ = ()

    @classmethod
    def merged(cls, assumptions: Sequence[Assumption]) -> Assumptions:
        """Merges the assumptions of one place and reason, with everything that is shared there."""
        places: dict[tuple[str, ...], Assumption] = {}
        for one in assumptions:
            place = (one.site, one.kind, one.reason, one.line)
            known = places.get(place)
            shares = dict.fromkeys((*(known.shares if known else ()), *one.shares))
            adds_up = one.adds_up or (known is not None and known.adds_up)
            places[place] = replace(one, shares=tuple(shares), adds_up=adds_up)
        return cls(places.values())

    def __str__(self) -> str:
        """Returns a line for each."""
        if not self:
            return "Nothing is assumed to be independent that may not be."
        return "\n".join(str(one) for one in self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("Assumptions(...)" if cycle else str(self))


_JOINABLE = {"elementwise", "normalization", "reduction", "shape", "other"}
_PRODUCTS = {"linear", "matmul"}
_POWERS = {p.sqrt_p, p.rsqrt_p, p.pow_p, p.integer_pow_p, p.div_p, p.log_p}
_MOST_NODES = 96


class FusedLayer(Layer):
    """Layers that are integrated as one: the equations of all, the name and kind of the last."""


class WholeLayer(Layer):
    """Layers that have a rule together, which takes their inputs: joined with no others."""


def fuse_dependent(program: Program, random: Collection[Value], note: Note) -> Program:
    """Joins layers that combine dependent values with those that make them.

    Returns a program of the same inputs and outputs, with a `FusedLayer` in the place of the last
    of such layers; layers that nobody reads any more are dropped. `note` is called for each place
    where independence is assumed.
    """
    state = _DependenceState(note)
    for value in random:
        # Entries of the inputs are independent by definition: each input is its own source.
        state.begin(value, {value: lineage.identity(value.aval.shape)})
    layers = [state.visit(layer) for layer in program.layers]
    if not any(isinstance(layer, FusedLayer) for layer in layers):
        return program
    return with_layers(program, layers)


def with_layers(program: Program, layers: Sequence[Layer]) -> Program:
    """Puts layers in the place of a program's, and drops those that are read no more.

    Layers that nobody read in the program are kept.
    """
    results = {v for v in program.outputs if isinstance(v, Value)}
    before = results.union(*(layer.inputs for layer in program.layers))
    after = set(results)
    kept: list[Layer] = []
    for layer in reversed(layers):
        if before.isdisjoint(layer.outputs) or not after.isdisjoint(layer.outputs):
            kept.append(layer)
            after.update(layer.inputs)
    return replace(program, layers=tuple(kept[::-1]))


@dataclass
class _DependenceState:
    """The lineages and makers of the values so far.

    Attributes:
        note: Function that notes assumptions.
        atoms: Each random value's lineage from atoms.
        roots: The lineage from what not even products are followed through.
        leaves: The lineage from the program's random inputs.
        made_by: The layers that others can be joined with, by what they make, in order.
        product_of: The products that others can be joined with where that is exact.
        position: The order of those layers.
    """

    note: Note
    atoms: dict[Value, lineage.Lineage] = field(default_factory=dict)
    leaves: dict[Value, lineage.Lineage] = field(default_factory=dict)
    roots: dict[Value, lineage.Lineage] = field(default_factory=dict)
    made_by: dict[Value, Layer] = field(default_factory=dict)
    product_of: dict[Value, Layer] = field(default_factory=dict)
    position: dict[Layer, int] = field(default_factory=dict)

    def begin(self, value: Value, leaves: lineage.Lineage) -> None:
        """Makes a value an atom: towards later layers its entries are independent."""
        self.leaves[value] = leaves
        self.atoms[value] = self.roots[value] = {value: lineage.identity(value.aval.shape)}

    def visit(self, layer: Layer) -> Layer:
        """Returns the layer, or the fused layer that takes its place."""
        random = self._random(layer)
        if not random:
            return layer
        if not layer.nodes:
            for value, result in zip(layer.inputs, layer.outputs, strict=True):
                for lineages in (self.atoms, self.roots, self.leaves):
                    lineages[result] = lineages[value]
            return layer
        if layer.kind == "control flow":
            self._pass(layer, random)
            return layer
        # A layer that another transform has acted on is evaluated by its own program: never joined.
        apart = bool(layer.mark) or isinstance(layer, WholeLayer)
        joined = layer if apart else self._joined(layer)
        # After joining back to atoms, atoms may still share noise through products that were not
        # followed. Only where they do is the dearer exact treatment tried.
        assumed = lineage.external(self._random(joined), joined.nodes, self.leaves)
        if assumed and not apart and (exact := self._exact(layer)) is not None:
            joined, assumed = exact, []
        for meeting in assumed:
            self.note(Assumption.of(joined, meeting, self.leaves))
        self._follow(joined)
        return joined

    def _random(self, layer: Layer) -> list[Value]:
        return [v for v in layer.inputs if v in self.leaves]

    def _pass(self, layer: Layer, random: Sequence[Value]) -> None:
        """Passes a loop or branch, whose rule takes all that it reads as independent."""
        (node,) = layer.nodes
        lineages = self._through(layer, node)
        sources = list(dict.fromkeys(s for v in random for s in self.leaves[v]))
        if lineages is None:
            reason = f"{node.primitive.name} takes what it reads as independent, at every step anew"
            self.note(Assumption.at(layer, node.eqn, reason, sources, adds_up=True))
        for value in layer.outputs:
            # Conservative: a body may mix any entries. Towards later layers the results are atoms,
            # so none of them is joined with a loop.
            everything = {s: (lineage.SHARED,) * len(value.aval.shape) for s in sources}
            leaves = everything if lineages is None else lineages.get(value, {})
            if leaves:
                self.begin(value, leaves)

    def _through(self, layer: Layer, node: Node) -> Mapping[Value, lineage.Lineage] | None:
        """Follows lineages through the bodies of a layer; None for a loop of unknown length."""
        operands = [self._leaves_of(a) for a in node.inputs]
        inputs = branch_operands(node, operands)
        if node.primitive is p.scan_p:
            results = self._scanned(layer.programs[0], Scan.of(node, operands))
        elif inputs is not None:
            branches = [self._in_body(body, inputs, self.note) for body in layer.programs]
            results = [lineage.union(of) for of in zip(*branches, strict=True)]
        else:
            return None
        return dict(zip(node.outputs, results, strict=True))

    def _leaves_of(self, atom: Any) -> lineage.Lineage:
        return self.leaves.get(atom, {}) if isinstance(atom, Value) else {}

    def _scanned(self, body: Program, loop: Scan[lineage.Lineage]) -> list[lineage.Lineage]:
        """Follows lineages through a scan, whose steps read other rows of the same constants."""
        rows = [
            {_row(s, labels): labels[1:] for s, labels in of_rows.items()} for of_rows in loop.xs
        ]
        constants = {s for of in loop.consts for s in of}

        def step(
            carry: Sequence[lineage.Lineage], note: Note = lambda _: None
        ) -> tuple[list[lineage.Lineage], list[lineage.Lineage]]:
            after, ys = loop.split(self._in_body(body, loop.inputs(carry, rows), note))
            return [_kept(one, constants) for one in after], ys

        carry, _ = fixed_point(step, loop.carry, lambda a, b: lineage.union((a, b)))
        again = set(_names(constants & {s for of in carry for s in of}))

        def note(one: Assumption) -> None:
            # What the same weights make of their own results adds up from step to step.
            self.note(one if again.isdisjoint(one.shares) else replace(one, adds_up=True))

        after, ys = step(carry, note)
        return [*map(_after_last_step, after), *map(_stacked, ys)]

    def _in_body(
        self, body: Program, inputs: Sequence[lineage.Lineage], note: Note
    ) -> list[lineage.Lineage]:
        """Follows lineages from a body's inputs to its outputs, and notes what it combines."""
        inside = _DependenceState(note)
        for value, leaves in zip(body.inputs, inputs, strict=True):
            if leaves:
                inside.begin(value, leaves)
        for layer in body.layers:
            inside.visit(layer)
        return [inside._leaves_of(v) for v in body.outputs]

    def _joined(self, layer: Layer) -> Layer:
        """Joins a layer with those before it until its inputs are independent."""
        if layer.kind not in _JOINABLE | _PRODUCTS:
            return layer
        parts = self._back(
            layer, self.atoms, self.made_by, lambda one: len(one.nodes) <= _MOST_NODES
        )
        if parts is None:
            return layer
        joined = layer if len(parts) == 1 else join(parts)
        # The rule of a product is exact for independent operands. For dependent ones a fused layer
        # is worth its cost only if it is exact as well.
        if layer.kind in _PRODUCTS:
            if len(parts) == 1 and not lineage.internal(self._random(layer), layer.nodes):
                return layer
            joined = join(parts)
            return joined if has_rule(joined, self._random(joined)) else layer
        # Two curved functions in a row are one integral instead of two approximations by a
        # Gaussian.
        extended = self._extended(parts, joined)
        return layer if len(extended) == 1 else join(extended)

    def _exact(self, layer: Layer) -> Layer | None:
        """Joins a layer with products before it, if the fused layer is exact and cheap."""
        if layer.kind not in _JOINABLE | _PRODUCTS:
            return None

        def is_exact(one: Layer) -> bool:
            # The cost is checked at each turn, for it only grows with more layers.
            return one is layer or has_rule(one, self._random(one))

        makers = {**self.product_of, **self.made_by}
        parts = self._back(layer, self.roots, makers, is_exact)
        if parts is None or len(parts) == 1:
            return None
        joined = join(parts)
        return joined if is_exact(joined) else None

    def _back(
        self,
        layer: Layer,
        lineages: Mapping[Value, lineage.Lineage],
        makers: Mapping[Value, Layer],
        goes_on: Callable[[Layer], bool],
    ) -> list[Layer] | None:
        """Returns a layer behind those that it is joined with until its inputs are independent.

        None where they never are, or where what is joined so far mustn't be joined with more.
        """
        parts, joined = [layer], layer
        # Invariant: `joined` is the join of `parts`, which are in program order. Each turn adds the
        # nearest maker of an input that isn't independent, so that as few layers as possible are
        # joined and a bottleneck on the way stays one.
        while wrong := self._wrong(joined, lineages):
            before = [makers[v] for v in wrong if v in makers]
            if not before or not goes_on(joined):
                return None
            nearest = max(before, key=self.position.__getitem__)
            parts = [*sorted([nearest, *parts[:-1]], key=self.position.__getitem__), layer]
            joined = join(parts)
        return parts

    def _wrong(self, joined: Layer, lineages: Mapping[Value, lineage.Lineage]) -> list[Value]:
        """Returns the inputs that aren't independent, or that are decisions by random values."""
        random = self._random(joined)
        # A discrete result is taken at the means, whatever its operands share.
        if _is_discrete(joined.outputs[0]):
            return []
        meetings = lineage.external(random, joined.nodes, lineages)
        # A mask made by a random comparison has no moments of its own: joined with the comparison
        # it becomes part of the function that is integrated.
        discrete = [v for v in random if _is_discrete(v)]
        sums = self._running_sums(joined, random)
        return list(dict.fromkeys([*discrete, *(m.source for m in meetings), *sums]))

    def _running_sums(self, joined: Layer, random: Sequence[Value]) -> list[Value]:
        """Returns the running sums whose entries are subtracted from each other."""
        subtracted = any(n.primitive is p.sub_p for n in joined.nodes)
        sums = [v for v in random if self._is_running_sum(v)] if subtracted else []
        if not sums:
            return []
        # What two entries have in common cancels, which is seen where the sum is made.
        met = [m for m in lineage.internal(random, joined.nodes) if m.eqn.primitive is p.sub_p]
        return [v for v in sums if any(m.source is v for m in met)]

    def _is_running_sum(self, value: Value) -> bool:
        """Returns whether a value is a running sum, or one that was moved."""
        layer = self.made_by.get(value)
        while layer is not None and all(n.primitive in prim.SHAPE for n in layer.nodes):
            layer = self.made_by.get(layer.inputs[0])
        return layer is not None and layer.nodes[-1].primitive is p.cumsum_p

    def _extended(self, parts: list[Layer], joined: Layer) -> list[Layer]:
        """Goes back along a chain of pointwise functions to the first curved one."""
        if not _is_curved(joined, self._random(joined)):
            return parts
        # Affine functions are exact one by one: those before the first curved layer of the chain
        # stay out.
        chain: list[Layer] = []
        curved = 0
        random = self._random(joined)
        while len(random) == 1 and (before := self.made_by.get(random[0])) is not None:
            random = self._random(before)
            if len(random) != 1 or len(before.outputs) != 1:
                break
            if not _is_chain(before.nodes):
                # The root, the inverse or the logarithm of a variance is a statistic of its own.
                powers = any(n.primitive in _POWERS for n in joined.nodes)
                if powers and any(reduces(n) for n in before.nodes):
                    chain += [before, *self._squares(random[0])]
                    curved = len(chain)
                break
            chain.append(before)
            curved = len(chain) if _is_curved(before, random) else curved
        return [*reversed(chain[:curved]), *parts]

    def _squares(self, value: Value) -> list[Layer]:
        """Returns the pointwise layer of degree two that makes the terms of a sum, if any."""
        before = self.made_by.get(value)
        if before is None or len(before.outputs) != 1 or not _is_chain(before.nodes):
            return []
        return [before] if degrees(before.nodes, self._random(before)).get(value) == 2 else []

    def _follow(self, layer: Layer) -> None:
        """Records the lineages of what a layer makes."""
        joinable = not layer.mark and (isinstance(layer, FusedLayer) or layer.kind in _JOINABLE)
        product = not (layer.mark or joinable) and layer.kind in _PRODUCTS
        product = product and not isinstance(layer, WholeLayer)
        followed = [self.leaves]
        if joinable or product:
            followed.append(self.roots)
        if joinable:
            followed.append(self.atoms)
        # One walk for all of them, with a number beside each source.
        sources = {
            v: {(i, s): x for i, known in enumerate(followed) for s, x in known[v].items()}
            for v in self._random(layer)
        }
        followed_to = lineage.follow_lineages(layer.nodes, sources)[0]
        statistics = _statistics_axes(layer, self._random(layer))
        statistic = lineage.MixedBy(frozenset((layer,)))
        for value in layer.outputs:
            by_kind: list[dict[Value, lineage.Labels]] = [{}, {}, {}]
            for (i, source), labels in followed_to.get(value, {}).items():
                by_kind[i][source] = tuple(
                    statistic if axis in statistics and x == lineage.SHARED else x
                    for axis, x in enumerate(labels)
                )
            leaves, roots, atoms = by_kind
            if not leaves:
                continue
            self.leaves[value] = leaves
            # What isn't followed back is a source of its own: an atom.
            self.atoms[value] = atoms or {value: lineage.identity(value.aval.shape)}
            self.roots[value] = roots or {value: lineage.identity(value.aval.shape)}
            if joinable or product:
                (self.made_by if joinable else self.product_of)[value] = layer
                self.position.setdefault(layer, len(self.position))


def _statistics_axes(layer: Layer, random: Sequence[Value]) -> set[int]:
    """Returns the axes along which a normalization's entries share statistics of many alone."""
    if layer.kind != "normalization" or len(random) != 1 or len(layer.outputs) != 1:
        return set()
    shape = random[0].aval.shape
    if layer.outputs[0].aval.shape != shape:
        return set()
    itself = lineage.follow_lineages(layer.nodes, lineage.independent_lineages(random))[0]
    labels = itself.get(layer.outputs[0], {}).get(random[0], ())
    common = {axis for axis, x in enumerate(labels) if lineage.is_common(x)}
    sizes = [shape[axis] for axis in common if isinstance(shape[axis], int)]
    return common if math.prod(sizes) >= lineage.FEW else set()


def join(parts: Sequence[Layer]) -> FusedLayer:
    """Joins layers, the last of which makes the results, to one."""
    last = parts[-1]
    # A fused layer among the parts may have made what a part before it reads.
    nodes = _in_order(dict.fromkeys(n for part in parts for n in part.nodes))
    results = {v for n in nodes for v in n.outputs}
    # Values made inside aren't inputs. Only the last part's results leave the fused layer: others
    # that are read elsewhere keep their own layer as well, at the cost of evaluating it twice.
    inputs = tuple(dict.fromkeys(v for n in nodes for v in n.values if v not in results))
    return FusedLayer(last.kind, nodes, inputs, last.outputs, last.site, last.base, last.occurrence)


def _in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Sorts equations after those whose results they read, otherwise as given."""
    made_by = {v: n for n in nodes for v in n.outputs}
    ordered: dict[Node, None] = {}

    def place(node: Node) -> None:
        for value in node.values:
            before = made_by.get(value)
            if before is not None and before not in ordered:
                place(before)
        ordered[node] = None

    for node in nodes:
        if node not in ordered:
            place(node)
    return tuple(ordered)


class _Step(NamedTuple):
    """What a scan reads of a source: a row of it, in a step, or rows of the steps before."""

    source: Any
    past: bool = False


def _row(source: Any, labels: lineage.Labels) -> Any:
    """Names what a step reads of a source; of entries that all rows share, the source itself."""
    return source if lineage.is_common(labels[0]) else _Step(source)


def _kept(leaves: lineage.Lineage, constants: Collection[Any]) -> lineage.Lineage:
    """Returns what a step hands on to the next one: its row is one of those before."""
    kept: list[lineage.Lineage] = []
    for source, labels in leaves.items():
        if isinstance(source, _Step):
            kept.append({_Step(source.source, past=True): labels})
        elif source in constants:
            # The next step's weights are the same: what they mix again adds up.
            of_weights = (lineage.SHARED if lineage.is_common(x) else x for x in labels)
            kept.append({source: tuple(of_weights)})
        else:
            kept.append({source: labels})
    return lineage.union(kept) if kept else {}


def _after_last_step(leaves: lineage.Lineage) -> lineage.Lineage:
    """Returns the sources of what a scan leaves after its last step."""
    parts = [{s.source if isinstance(s, _Step) else s: x} for s, x in leaves.items()]
    return lineage.union(parts) if parts else {}


def _stacked(leaves: lineage.Lineage) -> lineage.Lineage:
    """Returns the sources of what the steps of a scan make, one beside the other."""
    parts: list[lineage.Lineage] = []
    for source, labels in leaves.items():
        of_this_step = isinstance(source, _Step) and not source.past
        along: lineage.Label = lineage.APART if of_this_step else lineage.SHARED
        parts.append({source.source if isinstance(source, _Step) else source: (along, *labels)})
    return lineage.union(parts) if parts else {}


def _is_discrete(value: Value) -> bool:
    return not jnp.issubdtype(value.aval.dtype, jnp.inexact)


def _is_chain(nodes: Sequence[Node]) -> bool:
    return all(is_pointwise(n.eqn) for n in nodes)


def _is_curved(layer: Layer, random: Sequence[Value]) -> bool:
    """Returns whether a layer is a pointwise function, and none of degree one."""
    if not _is_chain(layer.nodes):
        return False
    degree_of = degrees(layer.nodes, random)
    return any(degree_of.get(v, 0) > 1 for v in layer.outputs)
