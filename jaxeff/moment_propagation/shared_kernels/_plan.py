"""Where a random kernel's result reaches a pooling over all positions, found from shapes.

Nothing is computed: the layers between the two carry the covariance of channels' means; all other
layers are those of the diagonal pass. Where a layer on the way has no rule, the covariance is lost,
and the site is named.

A convolution says which axis holds the examples. A dense layer does the same along all axes but
the last, whatever they hold: tokens, points and time steps are what a sum or mean over them shows.
So does a scale or bias of channels behind a layer that isn't followed, such as attention.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation._values import CovarianceGap, Gaps
from jaxeff.moment_propagation.dependence import WholeLayer
from jaxeff.moment_propagation.shared_kernels._channels import (
    ChannelGroups,
    HeadsLayer,
    PositionMap,
    chosen_channels,
    combined_axes,
    gathered_layout,
    is_unruled,
    keeps_positions,
    shared_parameters,
)
from jaxeff.moment_propagation.shared_kernels._layouts import (
    BATCH,
    CHANNEL,
    FIRST_PLACE,
    PositionContraction,
    convolved_layout,
    depends,
    follow,
    only_moves,
    pooled,
    positions,
    roles,
    split_at_contraction,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Value
from jaxeff.program.ir import primitives as prim


def layouts_of_tokens(program: Program, random: Collection[Value]) -> dict[Value, Axes]:
    """Finds the dense layers whose results are pooled along some axes.

    Returns the layouts of their products, channels last. One axis at most is the examples'.
    """
    search = _TokenSearch(set(random))
    for layer in program.layers:
        search.visit(layer)
    laid_out = {v: search.layout(v) for v in search.begun}
    return {v: x for v, x in laid_out.items() if x.count(BATCH) < 2 and {*x} - {BATCH, CHANNEL}}


@dataclass
class _TokenSearch:
    """Follows the axes of dense layers' results, each with a number of its own.

    Attributes:
        random: The random values so far.
        known: The numbers of a value's axes.
        begun: The numbers of the axes of what nothing that is followed came before.
        same: The number that stands for another: of axes that met in a sum.
        pooled: Numbers of axes along which entries are combined.
    """

    random: set[Value]
    known: dict[Value, Axes] = field(default_factory=dict)
    begun: dict[Value, Axes] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    pooled: set[int | None] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(-1, -1))

    def visit(self, layer: Layer) -> None:
        """Follows axes through a layer."""
        if self.random.isdisjoint(layer.inputs):
            return
        start = {v: self._named(self.known[v]) for v in layer.inputs if v in self.known}
        alone = sum(v in self.random for v in layer.inputs) == 1
        self.random.update(layer.outputs)
        after: Mapping[Value, Axes] | None = None
        if layer.kind == "linear":
            after = self._through_product(layer, start)
        elif isinstance(layer, HeadsLayer):
            layout = layer.layout(start)
            if layout is not None:
                self._meet_all(start)
                after = {layer.outputs[0]: layout}
        elif start:
            after = self._through(layer, start)
        combined: frozenset[int | None] = frozenset()
        if after is None and len(start) == 1 and alone:
            after, combined = _mixed(layer, *next(iter(start.items())))
        if after is None:
            # What has no rule is warned of, if there are positions to share anything.
            for value, layout in start.items():
                if is_unruled(layer, value, layout):
                    self.pooled |= combined_axes(layer, value, layout)
        before = {self._number(a) for layout in start.values() for a in layout}
        for value in layer.outputs:
            if after is None or value not in after:
                continue
            # Axes that a layer has made have numbers above all others.
            axes = self._named(after[value])
            layout = tuple(next(self.numbers) if a and a > CHANNEL else a for a in axes)
            self.known[value] = layout
            self.pooled |= combined or before - {CHANNEL, *layout}

    def layout(self, product: Value) -> Axes:
        """Returns the layout of what nothing that is followed came before."""
        roles = {a: None for a in self._named(tuple(self.pooled))} | {CHANNEL: CHANNEL}
        axes = enumerate(self._named(self.begun[product]), FIRST_PLACE)
        return tuple((roles[a] or i) if a in roles else BATCH for i, a in axes)

    def _number(self, axis: int | None) -> int | None:
        while axis in self.same:
            axis = self.same[axis]
        return axis

    def _named(self, layout: Axes) -> Axes:
        return tuple(map(self._number, layout))

    def _meet_all(self, layouts: Mapping[Value, Axes]) -> None:
        first, *others = layouts.values()
        for other in others:
            self._meet(first, other)

    def _meet(self, one: Axes, other: Axes) -> None:
        for pair in zip(one, other, strict=True):
            a, b = self._named(pair)
            if a != b and a is not None and b is not None:
                self.same[b] = a

    def _through(self, layer: Layer, start: Mapping[Value, Axes]) -> Mapping[Value, Axes] | None:
        """Follows axes through a layer that is no product."""
        for value, layout in start.items():
            rows = gathered_layout(layer, value, layout)
            if rows is not None:
                return {layer.outputs[0]: rows}
        if (joined := joined_layout(layer, start)) is not None:
            self._meet_all(start)
            return {layer.outputs[0]: joined}
        return follow(layer.nodes, start, self._meet)

    def _through_product(
        self, layer: Layer, start: Mapping[Value, Axes]
    ) -> Mapping[Value, Axes] | None:
        """Follows axes through a dense layer, which begins some if no others came before."""
        before, op, after = split_at_contraction(layer)
        read = None if op is None else PositionContraction.of(op)
        moved = follow(before, start)
        if op is None or read is None or read.layouts is not None or moved is None:
            return None
        image, kernel = read.operands
        product = op.outputs[0]
        if kernel in moved or (start and image not in moved):
            return None
        if not start:
            places = [next(self.numbers) for _ in product.aval.shape[1:]]
            self.begun[product] = (*places, CHANNEL)
        axes = moved[image] if start else self.begun[product]
        return follow(after, {product: read.of_product(axes[:-1])})


def _mixed(
    layer: Layer, value: Value, layout: Axes
) -> tuple[Mapping[Value, Axes] | None, frozenset[int | None]]:
    """Follows axes through a layer of one value; and says which positions it combines."""
    result = layer.outputs[0]
    if (positions_map := PositionMap.of(layer, value, layout)) is not None:
        return {result: positions_map.layout}, positions_map.combined
    kept = layer.kind == "normalization" and (
        keeps_positions(layer, value, layout) or ChannelGroups.of(layer, value, layout) is not None
    )
    kept = kept or chosen_channels(layer, value, layout) is not None
    return ({result: layout} if kept else None), frozenset()


# Trained, at noise of 10 %: three sums kept .77 of the true variance, eight of them .21. Few
# positions and training lose more than depth: at 3 % eight sums kept .85 to .95 over 196 positions,
# .67 to .79 over 16, .69 over 4, and .93 to .99 before training.
FEW_SUMS = 3


def _deep_stream(site: str, sums: int) -> CovarianceGap:
    """Makes the gap of a residual stream, each sum of which loses some of what branches share."""
    what = f"what branches of convolutions share, summed {sums} times up to {site!r},"
    return CovarianceGap(what, "too small")


def _positions_apart(site: str, pooling: str = "") -> CovarianceGap:
    """Makes the gap of a layer without a rule for what positions share.

    `pooling` is what its result reaches; empty for a layer that combines positions itself.
    """
    end = f" up to {pooling!r}" if pooling else ""
    what = f"what positions share of a kernel, through {site!r}{end},"
    return CovarianceGap(what, "too small")


@dataclass
class GapSearch:
    """Follows what positions share where no rule does.

    Attributes:
        places: The layout of a value that lacks what positions share, and the layer that has no
            rule for it.
        gaps: Gets the first layer without a rule whose result reaches a pooling.
    """

    places: dict[Value, tuple[Axes, str]] = field(default_factory=dict)
    gaps: Gaps = field(default_factory=dict)

    def visit(self, layer: Layer, layouts: Mapping[Value, Axes], random: Collection[Value]) -> None:
        """Follows what was lost before a layer, or is lost at it.

        Layouts are of values that are followed, the layer's result among them if it has a rule;
        `random` has what the layer reads.
        """
        name = layer.site or layer.kind
        followed = layer.outputs[0] in layouts
        for value in layer.inputs:
            if value in self.places:
                layout, site = self.places[value]
            elif value in layouts and not followed:
                layout, site = layouts[value], name
            else:
                continue
            if positions(value.aval.shape, layout) == 1:
                continue
            if value not in self.places and is_unruled(layer, value, layout):
                self.gaps.setdefault("positions", _positions_apart(site))
                break
            for result in layer.outputs:
                after = layouts.get(result) or _after(layer, value, layout, result)
                if after is None:
                    continue
                if positions(result.aval.shape, after) > 1:
                    self.places.setdefault(result, (after, site))
                elif (site != name or layer.mark) and _pools(layer):
                    self.gaps.setdefault("positions", _positions_apart(site, name))
        for result, layout in _made_inside(layer, random).items():
            self.places.setdefault(result, (layout, name))


def _made_inside(layer: Layer, random: Collection[Value]) -> dict[Value, Axes]:
    """Returns the layout of what random parameters make in a convolution that a transform acted on.

    Its inside is a program of its own, which the diagonal pass evaluates.
    """
    op, result = layer.op if layer.mark else None, layer.outputs[0]
    layout = None if op is None else convolved_layout(op)
    if op is None or layout is None or len(layout) != len(result.aval.shape):
        return {}
    # All that doesn't make the image acts alike at all positions, an adapter's factors too.
    image = op.inputs[0]
    shared = [v for v in layer.inputs if v in random and not depends(layer.nodes, {v}, image)]
    return {result: layout} if shared else {}


def _after(layer: Layer, value: Value, layout: Axes, result: Value) -> Axes | None:
    """Returns the layout of what a layer makes of a value, as far as its shape tells."""
    if result.aval.shape == value.aval.shape:
        return layout
    if layer.kind == "linear" and layer.op is not None:
        same = len(result.aval.shape) == len(layout)
        return convolved_layout(layer.op) or (layout if same else None)
    followed = (follow(layer.nodes, {value: layout}) or {}).get(result)
    if followed is not None:
        return followed
    # Slices, what is put side by side and sums of segments keep the axes.
    beside = all(node.primitive in prim.SHAPE for node in layer.nodes)
    return layout if beside and len(result.aval.shape) == len(layout) else None


def _pools(layer: Layer) -> bool:
    """Returns whether a layer pools positions."""
    return any(node.primitive in {*prim.REDUCTION, *prim.WINDOW} for node in layer.nodes)


class Match(NamedTuple):
    """What a rule takes of a layer.

    Attributes:
        layout: The layout of the layer's result.
        sources: The inputs whose covariance is read.
        is_anchor: Whether positions are combined, so that what they share isn't averaged away.
    """

    layout: Axes
    sources: tuple[Value, ...]
    is_anchor: bool = False


@dataclass(frozen=True)
class LayerContext:
    """A layer with what is known in front of it.

    Attributes:
        layer: The layer; it has one result.
        start: Inputs that are followed, with their layouts.
        random: Random inputs.
        tokens: Products that are pooled behind a dense layer, with their layouts.
    """

    layer: Layer
    start: tuple[tuple[Value, Axes], ...]
    random: frozenset[Value]
    tokens: tuple[tuple[Value, Axes], ...]

    def only_source(self) -> tuple[Value, Axes] | None:
        """Returns the one input that is followed; None if there are others, or none."""
        return self.start[0] if len(self.start) == 1 else None

    def lone_source(self) -> tuple[Value, Axes] | None:
        """Returns the one input that is followed, if no other input is random."""
        return self.only_source() if len(self.random) == 1 else None


@dataclass(frozen=True)
class SharingRule:
    """How a kind of layer carries what positions share.

    Attributes:
        matches: Returns what the rule takes of a layer; None for a layer of another kind.
        apply: Computes a layer's outputs, and adds its result to the noise.
        resolves: Whether what positions share isn't taken as independent at such a layer any more.
        is_dense: Whether it is followed behind a pooling, too.
        is_pointwise: Whether entries are functions of entries: sums lose what branches share.
    """

    matches: Callable[[LayerContext], Match | None]
    apply: Callable[[Any, Layer, Sequence[Any]], Sequence[Any]]
    resolves: bool = False
    is_dense: bool = False
    is_pointwise: bool = False


@dataclass
class SharingPlan:
    """The layers that carry what positions share.

    Attributes:
        rules: The rule by layer.
        sources: The inputs of a layer whose covariance it reads.
        layouts: The layouts of the values that carry a covariance.
        last_read: The number of the last layer with a rule that reads a value.
        read_by_several: The values that several layers with a rule read.
        pooled: The values that reach a pooling over positions without another kernel.
        numbers: The order of the layers.
        gaps: A layer without a rule on the way to a pooling over positions, a stream too deep.
    """

    rules: dict[Layer, SharingRule] = field(default_factory=dict)
    sources: dict[Layer, tuple[Value, ...]] = field(default_factory=dict)
    layouts: dict[Value, Axes] = field(default_factory=dict)
    last_read: dict[Value, int] = field(default_factory=dict)
    read_by_several: Collection[Value] = ()
    pooled: Set[Value] = frozenset()
    numbers: dict[Layer, int] = field(default_factory=dict)
    gaps: Gaps = field(default_factory=dict)


Matcher = Callable[[LayerContext], tuple[SharingRule, Match] | None]


def matcher(rules: Sequence[SharingRule], own_rules: Mapping[Any, Any]) -> Matcher:
    """Makes the function that finds the first rule of a layer, once for each context.

    Rules are tried in their order; a layer with one of the user's has none here.
    """

    @functools.cache
    def match(at: LayerContext) -> tuple[SharingRule, Match] | None:
        layer = at.layer
        known = any(node.primitive in own_rules for node in layer.nodes)
        if known or layer.mark or len(layer.outputs) != 1 or layer.kind == "control flow":
            return None
        if layer.kind == "quantize" or isinstance(layer, WholeLayer):
            return None
        if not layer.outputs[0].aval.size:
            return None  # an empty batch has nothing to share
        matches = ((rule, rule.matches(at)) for rule in rules)
        return next(((rule, each) for rule, each in matches if each is not None), None)

    return match


def plan_of(program: Program, random: Collection[Value], match: Matcher) -> SharingPlan:
    """Finds the layers that carry what positions share, from a kernel to a pooling.

    The program is prepared. The plan has no rules where no random kernel reaches a pooling over all
    positions.
    """
    search = _KernelSearch(set(random), match, layouts_of_tokens(program, random))
    for layer in program.layers:
        search.visit(layer)
    return search.needed(program)


@dataclass
class _KernelSearch:
    random: set[Value]
    match: Matcher
    of_tokens: Mapping[Value, Axes]
    plan: SharingPlan = field(default_factory=SharingPlan)
    search: GapSearch = field(default_factory=GapSearch)
    anchors: set[Layer] = field(default_factory=set)

    def visit(self, layer: Layer) -> None:
        """Finds the rule of a layer and the layout of its result."""
        random = self.random.intersection(layer.inputs)
        if not random:
            return
        self.random.update(layer.outputs)
        layouts = self.plan.layouts
        if not layer.nodes:
            return
        start = tuple((v, layouts[v]) for v in dict.fromkeys(layer.inputs) if v in layouts)
        products = (v for node in layer.nodes for v in node.outputs if v in self.of_tokens)
        tokens = tuple((v, self.of_tokens[v]) for v in products)
        choice = self.match(LayerContext(layer, start, frozenset(random), tokens))
        if choice is not None:
            layouts[layer.outputs[0]] = choice[1].layout
        self.search.visit(layer, layouts, self.random)
        if choice is None:
            return
        self.plan.rules[layer], (_, self.plan.sources[layer], is_anchor) = choice
        several = any(positions(v.aval.shape, layouts[v]) > 1 for v in self.plan.sources[layer])
        if several and is_anchor:
            self.anchors.add(layer)

    def needed(self, program: Program) -> SharingPlan:
        """Keeps the rules of layers between a kernel and a pooling, and of dense layers after."""
        plan, wanted, kept, reaching = self.plan, set[Value](), set[Layer](), set[Value]()
        after = self._after_pooling(program)
        for layer in reversed(program.layers):
            if layer not in plan.rules:
                continue
            dense = plan.rules[layer].is_dense and after.intersection(layer.inputs)
            if layer in self.anchors or dense or wanted.intersection(layer.outputs):
                kept.add(layer)
                wanted.update(plan.sources[layer])
                through = not plan.rules[layer].is_dense and not reaching.isdisjoint(layer.outputs)
                if layer in self.anchors or through:
                    reaching.update(plan.sources[layer])
        rules = {layer: rule for layer, rule in plan.rules.items() if layer in kept}
        numbers = {layer: i for i, layer in enumerate(program.layers)}
        last = {v: numbers[layer] for layer in rules for v in plan.sources[layer]}
        readers = Counter(v for layer in rules for v in set(plan.sources[layer]))
        several = {v for v, n in readers.items() if n > 1}
        kept_values = wanted.union(*(layer.outputs for layer in rules))
        layouts = {v: layout for v, layout in plan.layouts.items() if v in kept_values}
        if (deep := self._deep_stream(rules)) is not None:
            self.search.gaps["stream"] = deep
        gaps = self.search.gaps
        return SharingPlan(rules, plan.sources, layouts, last, several, reaching, numbers, gaps)

    def _deep_stream(self, rules: Mapping[Layer, SharingRule]) -> CovarianceGap | None:
        """Returns the last of many sums of convolutions' branches; None if there are few."""
        convolves = any(v.op is not None and convolved_layout(v.op) for v in rules)
        sums = [v for v, rule in rules.items() if rule.is_pointwise and self._adds_branches(v)]
        if not convolves or len(sums) <= FEW_SUMS:
            return None
        return _deep_stream(sums[-1].site, len(sums))

    def _adds_branches(self, layer: Layer) -> bool:
        """Returns whether a layer adds values that both have positions."""
        layouts = self.plan.layouts
        of = {v for v in self.plan.sources[layer] if positions(v.aval.shape, layouts[v]) > 1}
        return any(
            node.primitive is p.add_p and len(of.intersection(node.values)) > 1
            for node in layer.nodes
        )

    def _after_pooling(self, program: Program) -> set[Value]:
        """Returns the values that are made of what was pooled over all positions."""
        pooled_values: set[Value] = set()
        for layer in program.layers:
            carried = layer in self.plan.rules and pooled_values.intersection(layer.inputs)
            if layer in self.anchors or carried:
                pooled_values.update(layer.outputs)
        return pooled_values


def match_contraction(at: LayerContext) -> Match | None:
    """Matches a convolution or dense layer whose kernel or image is followed."""
    layer, start = at.layer, dict(at.start)
    if layer.kind != "linear":
        return None
    before, op, after = split_at_contraction(layer)
    read = None if op is None else PositionContraction.of(op)
    if op is None or read is None:
        return None
    image, kernel = read.operands
    moved = follow(before, start) if only_moves(before, start) else None
    if moved is None or kernel in moved or (start and image not in moved):
        return None
    # A product of a value with itself: here a kernel is independent of what it is applied to.
    if any(depends(before, {v}, image) and depends(before, {v}, kernel) for v in layer.inputs):
        return None
    # Positions share a bias as they do a kernel; noise of the image isn't meant.
    result = layer.outputs[0]
    has_noise = depends(before, at.random, kernel) or depends([*before, *after], at.random, result)
    if not start and not has_noise:
        return None
    if read.layouts is None:
        layout = moved[image] if start else dict(at.tokens).get(op.outputs[0])
        if layout is None or layout[-1] != CHANNEL:
            return None
        layout = read.of_product(layout[:-1])
    elif start and not _agree(moved[image], read.layouts[0]):
        return None
    else:
        layout = read.layouts[1]
    product = {op.outputs[0]: layout}
    with_bias = (follow(after, product) or {}).get(result)
    if with_bias is None or pooled(after, product) != 1:
        return None
    places = [a for a in layout if a != CHANNEL]
    if read.layouts is None and places != [a for a in with_bias if a != CHANNEL]:
        return None  # the rule knows the order of positions from the result
    return Match(with_bias, tuple(start))


def joined_layout(layer: Layer, start: Mapping[Value, Axes]) -> Axes | None:
    """Returns the layout of what puts channels or positions side by side; else None."""
    node, *others = layer.nodes
    if others or node.primitive is not p.concatenate_p or not start:
        return None
    layout, *rest = start.values()
    if len(set(node.values)) < len(node.values) or any(roles(x) != roles(layout) for x in rest):
        return None  # one array twice, or channels of one beside positions of another
    return None if layout[node.params["dimension"]] in (BATCH, None) else layout


def match_join(at: LayerContext) -> Match | None:
    """Matches a layer that puts channels or positions side by side."""
    layout = joined_layout(at.layer, dict(at.start))
    return None if layout is None else Match(layout, tuple(v for v, _ in at.start))


def _of_entries(at: LayerContext) -> tuple[Match, int] | None:
    """Matches a function of entries or a pooling; also returns how many entries are pooled."""
    layer, start = at.layer, dict(at.start)
    if not start or any(node.primitive in prim.LINEAR for node in layer.nodes):
        return None
    after = follow(layer.nodes, start)
    if after is None:
        # What has no positions any more (a gate) is a factor of each channel, as a parameter.
        start = {v: x for v, x in start.items() if positions(v.aval.shape, x) != 1}
        after = follow(layer.nodes, start)
    result = layer.outputs[0]
    if after is None or result not in after:
        return None
    all_positions = positions(result.aval.shape, after[result]) == 1
    return Match(after[result], tuple(start), all_positions), pooled(layer.nodes, start)


def match_pointwise(at: LayerContext) -> Match | None:
    """Matches a function of entries."""
    match = _of_entries(at)
    return match[0]._replace(is_anchor=False) if match is not None and match[1] == 1 else None


def match_pooling(at: LayerContext) -> Match | None:
    """Matches a pooling of one state: no other noise, what is pooled is followed as one."""
    match = _of_entries(at) if len(at.random) == 1 else None
    return match[0] if match is not None and match[1] != 1 else None


def match_gathered(at: LayerContext) -> Match | None:
    """Matches a layer that takes rows of positions by index."""
    if (source := at.lone_source()) is None:
        return None
    rows = gathered_layout(at.layer, *source)
    return None if rows is None else Match(rows, (source[0],))


def match_mixing(at: LayerContext) -> Match | None:
    """Matches a layer that combines positions channel by channel."""
    if (source := at.lone_source()) is None:
        return None
    mixing = PositionMap.of(at.layer, *source)
    return None if mixing is None else Match(mixing.layout, (source[0],), bool(mixing.combined))


def match_chosen(at: LayerContext) -> Match | None:
    """Matches a layer that takes some of the channels, in an order of their own."""
    if (source := at.lone_source()) is None:
        return None
    value, layout = source
    # Parts of what was pooled modulate the layers after it, whose tokens would all be followed for
    # the little that they share: a diffusion transformer's pass took five times as long.
    if at.layer.nodes[0].primitive is split_p and positions(value.aval.shape, layout) == 1:
        return None
    return Match(layout, (value,)) if chosen_channels(at.layer, value, layout) is not None else None


def match_attended(at: LayerContext) -> Match | None:
    """Matches attention whose queries, keys and values are followed."""
    layer, start = at.layer, dict(at.start)
    if not isinstance(layer, HeadsLayer) or set(start) != set(layer.operands):
        return None
    layout = layer.layout(start)
    if layout is None or at.random - set(start):
        return None
    sizes = zip(layout, layer.outputs[0].aval.shape, strict=True)
    others = [a for i, (a, n) in enumerate(sizes) if i != layer.place and n != 1]
    return None if set(others) - {BATCH, CHANNEL} else Match(layout, tuple(start))


def _normalized(at: LayerContext) -> tuple[Value, Axes] | None:
    """Returns what a normalization is of, whose other random operands are the same everywhere."""
    source, layer = at.only_source(), at.layer
    if source is None or layer.kind != "normalization":
        return None
    value, layout = source
    others = at.random - {value}
    same = layer.outputs[0].aval.shape == value.aval.shape
    return source if same and len(shared_parameters(layer, others, layout)) == len(others) else None


def match_normalization(at: LayerContext) -> Match | None:
    """Matches a normalization of channels at each position."""
    if (source := _normalized(at)) is None or not keeps_positions(at.layer, *source):
        return None
    return Match(source[1], (source[0],))


def match_group_normalization(at: LayerContext) -> Match | None:
    """Matches a normalization over all positions and groups of channels."""
    if (source := _normalized(at)) is None or (
        groups := ChannelGroups.of(at.layer, *source)
    ) is None:
        return None
    value, layout = source
    sizes = zip(layout, value.aval.shape, strict=True)
    places = {a for a, n in sizes if a not in (BATCH, CHANNEL) and n != 1}
    return Match(layout, (value,)) if groups and groups.places == places else None


def _agree(one: Axes, other: Axes) -> bool:
    """Returns whether two layouts have examples, channels and positions along the same axes."""

    def role(axis: int | None) -> int | None:
        return axis if axis in (BATCH, CHANNEL) else None

    # An axis of size one may have lost its role: it is the one that is missing.
    pairs = [(role(a), role(b)) for a, b in zip(one, other, strict=True)]
    return all(a == b or (a is None and b not in one) for a, b in pairs)
