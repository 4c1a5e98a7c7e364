"""Where a random kernel's result reaches a pooling over all positions, found from shapes.

Nothing is computed: the layers between the two carry the covariance of channels' means; all other
layers are those of the diagonal pass. Where a layer on the way has no rule, the covariance is lost,
and the site is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import WholeLayer
from jaxeff.moment_propagation.shared_kernels._gathered_rows import gathered_layout
from jaxeff.moment_propagation.shared_kernels._losses import FEW_SUMS, DeepStream, LossSearch, Lost
from jaxeff.moment_propagation.shared_kernels._mixing import PositionMap, keeps_positions
from jaxeff.moment_propagation.shared_kernels._tokens import layouts_of_tokens
from jaxeff.moment_propagation.shared_kernels.layouts import (
    BATCH,
    CHANNEL,
    ChannelGroups,
    PositionContraction,
    chosen_channels,
    convolved_layout,
    depends,
    follow,
    only_moves,
    pooled,
    positions,
    shared_parameters,
    split,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Value
from jaxeff.program.ir import primitives as prim

CONTRACTION, POINTWISE, POOLING, JOIN = "contraction", "pointwise", "pooling", "join"
MIXING, NORMALIZATION, GATHERED = "mixing", "normalization", "gathered"
GROUP_NORMALIZATION, CHOSEN = "group normalization", "chosen"


@dataclass
class SharingPlan:
    """The layers that carry what positions share.

    Attributes:
        rules: The kind of rule by layer.
        sources: The inputs of a layer whose covariance it reads.
        layouts: The layouts of the values that carry a covariance.
        last_read: The number of the last layer with a rule that reads a value.
        read_by_several: The values that several layers with a rule read.
        numbers: The order of the layers.
        lost: Layers without a rule on the way to a pooling over positions, and streams too deep.
    """

    rules: dict[Layer, str] = field(default_factory=dict)
    sources: dict[Layer, tuple[Value, ...]] = field(default_factory=dict)
    layouts: dict[Value, Axes] = field(default_factory=dict)
    last_read: dict[Value, int] = field(default_factory=dict)
    read_by_several: Collection[Value] = ()
    numbers: dict[Layer, int] = field(default_factory=dict)
    lost: list[Lost | DeepStream] = field(default_factory=list)


def plan_of(
    program: Program, random: Collection[Value], own_rules: Mapping[Any, Any]
) -> SharingPlan:
    """Finds the layers that carry what positions share, from a kernel to a pooling.

    Args:
        program: A program, prepared.
        random: Inputs of the program that are random.
        own_rules: The user's rules by primitive; a layer with one has none here.

    Returns:
        The plan; without rules where no random kernel reaches a pooling over all positions.
    """
    search = _KernelSearch(set(random), own_rules, layouts_of_tokens(program, random))
    for layer in program.layers:
        search.visit(layer)
    return search.needed(program)


@dataclass
class _KernelSearch:
    random: set[Value]
    own_rules: Mapping[Any, Any]
    of_tokens: Mapping[Value, Axes]
    plan: SharingPlan = field(default_factory=SharingPlan)
    losses: LossSearch = field(default_factory=LossSearch)
    anchors: set[Layer] = field(default_factory=set)

    def visit(self, layer: Layer) -> None:
        """Finds the rule of a layer and the layout of its result."""
        if not any(v in self.random for v in layer.inputs):
            return
        self.random.update(layer.outputs)
        layouts = self.plan.layouts
        if not layer.nodes:
            return
        found = self._rule(layer)
        if found is not None:
            layouts[layer.outputs[0]] = found[1]
        self.losses.visit(layer, layouts, self.random)
        if found is None:
            return
        kind, layout = found
        self.plan.rules[layer] = kind
        several = any(positions(v.aval.shape, layouts[v]) > 1 for v in self.plan.sources[layer])
        pools = kind is POOLING and self._all_positions(layer, layout)
        if several and (pools or (kind is MIXING and self._combines(layer))):
            self.anchors.add(layer)

    def _combines(self, layer: Layer) -> bool:
        (value,) = self.plan.sources[layer]
        found = PositionMap.of(layer, value, self.plan.layouts[value])
        return found is not None and bool(found.combined)

    def _rule(self, layer: Layer) -> tuple[str, Axes] | None:
        """Returns the kind of rule, and the layout of the result; None if there is no rule."""
        known = any(node.primitive in self.own_rules for node in layer.nodes)
        if known or layer.mark or len(layer.outputs) != 1 or layer.kind == "control flow":
            return None
        if layer.kind == "quantize" or isinstance(layer, WholeLayer):
            return None
        if not layer.outputs[0].aval.size:
            return None  # an empty batch has nothing to share
        if layer.kind == "linear" and (layout := self._contraction(layer)) is not None:
            return CONTRACTION, layout
        start = self._start(layer)
        if start and (joined := _joined(layer, start)) is not None:
            self.plan.sources[layer] = tuple(start)
            return JOIN, joined
        if not start:
            return None
        found = self._of_entries(layer, start)
        if found is None and len(start) == 1:
            self.plan.sources[layer] = tuple(start)
            value, layout = next(iter(start.items()))
            found = _of_one(layer, value, layout) if self._alone(layer) else None
            if found is None and self._has_parameters(layer, value, layout):
                found = normalized(layer, value, layout)
        return found

    def _has_parameters(self, layer: Layer, value: Value, layout: Axes) -> bool:
        """Returns whether all other random values that a layer reads are the same everywhere."""
        others = [v for v in layer.inputs if v in self.random and v is not value]
        same = layer.outputs[0].aval.shape == value.aval.shape
        return same and len(shared_parameters(layer, others, layout)) == len(others)

    def _alone(self, layer: Layer) -> bool:
        """Returns whether a layer reads one random value."""
        return sum(v in self.random for v in layer.inputs) == 1

    def _of_entries(self, layer: Layer, start: Mapping[Value, Axes]) -> tuple[str, Axes] | None:
        """Returns the rule of a function of entries or a pooling, and the layout of its result."""
        if any(node.primitive in prim.LINEAR for node in layer.nodes):
            return None
        made = follow(layer.nodes, start)
        if made is None:
            # What has no positions any more (a gate) is a factor of each channel, as a parameter.
            start = {v: x for v, x in start.items() if positions(v.aval.shape, x) != 1}
            made = follow(layer.nodes, start)
        if made is None or layer.outputs[0] not in made:
            return None
        self.plan.sources[layer] = tuple(start)
        if pooled(layer.nodes, start) == 1:
            return POINTWISE, made[layer.outputs[0]]
        # One state, no other noise: what is pooled is followed as one.
        return (POOLING, made[layer.outputs[0]]) if self._alone(layer) else None

    def _start(self, layer: Layer) -> dict[Value, Axes]:
        return {v: self.plan.layouts[v] for v in layer.inputs if v in self.plan.layouts}

    def _contraction(self, layer: Layer) -> Axes | None:
        """Returns the layout of a linear layer's result, if it has a rule."""
        before, op, after = split(layer)
        read = None if op is None else PositionContraction.of(op)
        if op is None or read is None:
            return None
        image, kernel = op.inputs
        start = self._start(layer)
        self.plan.sources[layer] = tuple(start)
        moved = follow(before, start) if only_moves(before, start) else None
        if moved is None or kernel in moved or (start and image not in moved):
            return None
        # A product of a value with itself: here a kernel is independent of what it is applied to.
        if any(depends(before, {v}, image) and depends(before, {v}, kernel) for v in layer.inputs):
            return None
        # Positions share a bias as they do a kernel; noise of the image isn't meant.
        given = self.random.difference(layer.outputs)
        own = depends(before, given, kernel) or depends([*before, *after], given, layer.outputs[0])
        if not start and not own:
            return None
        if read.layouts is None:
            layout = moved[image] if start else self.of_tokens.get(op.outputs[0])
            if layout is None or layout[-1] != CHANNEL:
                return None
        elif start and not _agree(moved[image], read.layouts[0]):
            return None
        else:
            layout = read.layouts[1]
        made = follow(after, {op.outputs[0]: layout}) or {}
        return made.get(layer.outputs[0]) if pooled(after, {op.outputs[0]: layout}) == 1 else None

    @staticmethod
    def _all_positions(layer: Layer, layout: Axes) -> bool:
        return positions(layer.outputs[0].aval.shape, layout) == 1

    def needed(self, program: Program) -> SharingPlan:
        """Keeps the rules of layers between a kernel and a pooling, and of dense layers after."""
        plan, wanted, kept = self.plan, set[Value](), set[Layer]()
        after = self._after_pooling(program)
        for layer in reversed(program.layers):
            if layer not in plan.rules:
                continue
            dense = plan.rules[layer] is CONTRACTION and after.intersection(layer.inputs)
            if layer in self.anchors or dense or wanted.intersection(layer.outputs):
                kept.add(layer)
                wanted.update(plan.sources[layer])
        rules = {layer: kind for layer, kind in plan.rules.items() if layer in kept}
        numbers = {layer: i for i, layer in enumerate(program.layers)}
        last = {v: numbers[layer] for layer in rules for v in plan.sources[layer]}
        readers = Counter(v for layer in rules for v in set(plan.sources[layer]))
        several = {v for v, n in readers.items() if n > 1}
        made = wanted.union(*(layer.outputs for layer in rules))
        layouts = {v: layout for v, layout in plan.layouts.items() if v in made}
        if (deep := self._deep_stream(rules)) is not None:
            self.losses.found.append(deep)
        return SharingPlan(rules, plan.sources, layouts, last, several, numbers, self.losses.found)

    def _deep_stream(self, rules: Mapping[Layer, str]) -> DeepStream | None:
        """Returns the last of many sums of convolutions' branches; None if there are few."""
        convolves = any(v.op is not None and convolved_layout(v.op) for v in rules)
        sums = [
            layer
            for layer, kind in rules.items()
            if kind is POINTWISE and self._adds_branches(layer)
        ]
        return DeepStream(sums[-1].site, len(sums)) if convolves and len(sums) > FEW_SUMS else None

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
        found: set[Value] = set()
        for layer in program.layers:
            kind = self.plan.rules.get(layer)
            carried = kind is not None and found.intersection(layer.inputs)
            if (layer in self.anchors and kind in (POOLING, MIXING)) or carried:
                found.update(layer.outputs)
        return found


def _of_one(layer: Layer, value: Value, layout: Axes) -> tuple[str, Axes] | None:
    """Returns the rule of a layer that combines positions or channels of one value."""
    if (rows := gathered_layout(layer, value, layout)) is not None:
        return GATHERED, rows
    if (mixing := PositionMap.of(layer, value, layout)) is not None:
        return MIXING, mixing.layout
    if chosen_channels(layer, value, layout) is not None:
        return CHOSEN, layout
    return None


def normalized(layer: Layer, value: Value, layout: Axes) -> tuple[str, Axes] | None:
    """Returns the rule of a normalization of channels; None for another layer."""
    if layer.kind != "normalization":
        return None
    if keeps_positions(layer, value, layout):
        return NORMALIZATION, layout
    groups, sizes = ChannelGroups.of(layer, value, layout), value.aval.shape
    places = {a for a, n in zip(layout, sizes, strict=True) if a not in (BATCH, CHANNEL) and n != 1}
    return (GROUP_NORMALIZATION, layout) if groups and groups.places == places else None


def _joined(layer: Layer, start: Mapping[Value, Axes]) -> Axes | None:
    """Returns the layout of arrays whose channels a layer puts side by side; else None."""
    (node, *others), layouts = layer.nodes, set(start.values())
    if others or node.primitive is not p.concatenate_p or len(layouts) != 1:
        return None
    if len(set(node.values)) < len(node.values):
        return None  # one array twice
    layout = layouts.pop()
    return layout if layout[node.params["dimension"]] == CHANNEL else None


def _agree(one: Axes, other: Axes) -> bool:
    """Returns whether two layouts have examples, channels and positions along the same axes."""

    def role(axis: int | None) -> int | None:
        return axis if axis in (BATCH, CHANNEL) else None

    # An axis of size one may have lost its role: it is the one that is missing.
    pairs = [(role(a), role(b)) for a, b in zip(one, other, strict=True)]
    return all(a == b or (a is None and b not in one) for a, b in pairs)


__all__ = [
    "CHOSEN",
    "CONTRACTION",
    "GATHERED",
    "GROUP_NORMALIZATION",
    "JOIN",
    "MIXING",
    "NORMALIZATION",
    "POINTWISE",
    "POOLING",
    "SharingPlan",
    "plan_of",
]
