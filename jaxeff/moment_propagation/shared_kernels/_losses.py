"""Where what positions share is lost on its way to a pooling over them, and at which layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from jaxeff.moment_propagation.shared_kernels._mixing import is_unruled
from jaxeff.moment_propagation.shared_kernels.layouts import (
    convolved_layout,
    depends,
    follow,
    positions,
)
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value
from jaxeff.program.ir import primitives as prim

# Trained, at noise of 10 %: three sums kept .77 of the true variance, eight of them .21.
FEW_SUMS = 3


@dataclass(frozen=True)
class DeepStream:
    """A residual stream of convolutions, each sum of which loses some of what branches share.

    Attributes:
        site: The last sum.
        sums: How many there are.
    """

    site: str
    sums: int

    def __str__(self) -> str:
        """Returns what is lost where, and the ways out."""
        return (
            f"moments: {self.site!r} is the last of {self.sums} sums of branches that convolutions "
            "with random weights make. What the branches share at single positions isn't followed "
            "from sum to sum: variances may be several times too small. Take method='linear' for "
            "small noise, calibrate_moments, or moments(f, shared=False) to leave it so."
        )


@dataclass(frozen=True)
class Lost:
    """A layer without a rule, and the pooling that its result reaches.

    Attributes:
        site: The layer.
        pooling: The pooling over positions; empty for a layer that combines positions itself.
    """

    site: str
    pooling: str = ""

    def __str__(self) -> str:
        """Returns what is lost where, and the ways out."""
        what = (
            f"which {self.pooling!r} doesn't average away, and {self.site!r} has no rule that "
            "keeps what they share"
            if self.pooling
            else f"and {self.site!r} combines them with other channels or values, for which no "
            "rule keeps what they share"
        )
        return (
            f"moments: positions share the noise of a kernel, {what}: variances may be several "
            "times too small. Take method='linear' or correlations=True, or "
            "moments(f, shared=False) to leave it so."
        )


@dataclass
class LossSearch:
    """What has been lost so far.

    Attributes:
        places: The layout of a value that lacks what positions share, and where that was lost.
        found: The losses that reach a pooling over all positions.
    """

    places: dict[Value, tuple[Axes, Lost]] = field(default_factory=dict)
    found: list[Lost | DeepStream] = field(default_factory=list)

    def visit(self, layer: Layer, layouts: Mapping[Value, Axes], random: Collection[Value]) -> None:
        """Follows what was lost before a layer, or is lost at it.

        Args:
            layer: The layer.
            layouts: The layouts of values that are followed, the layer's result among them if it
                has a rule.
            random: Random values, those that the layer reads among them.
        """
        name = layer.site or layer.kind
        followed = layer.outputs[0] in layouts
        for value in layer.inputs:
            if value in self.places:
                layout, lost = self.places[value]
            elif value in layouts and not followed:
                layout, lost = layouts[value], Lost(name)
            else:
                continue
            if positions(value.aval.shape, layout) == 1:
                continue
            if value not in self.places and is_unruled(layer, value, layout):
                self.found.append(lost)
                break
            for made in layer.outputs:
                after = layouts.get(made) or _after(layer, value, layout, made)
                if after is None:
                    continue
                if positions(made.aval.shape, after) > 1:
                    self.places.setdefault(made, (after, lost))
                elif (lost.site != name or layer.mark) and _pools(layer):
                    self.found.append(replace(lost, pooling=name))
        for made, layout in _made_inside(layer, random).items():
            self.places.setdefault(made, (layout, Lost(name)))


def _made_inside(layer: Layer, random: Collection[Value]) -> dict[Value, Axes]:
    """Returns the layout of what random parameters make in a convolution that a transform acted on.

    Its inside is a program of its own, which the diagonal pass evaluates.
    """
    op, made = layer.op if layer.mark else None, layer.outputs[0]
    layout = None if op is None else convolved_layout(op)
    if op is None or layout is None or len(layout) != len(made.aval.shape):
        return {}
    # All that doesn't make the image acts alike at all positions, an adapter's factors too.
    image = op.inputs[0]
    shared = [v for v in layer.inputs if v in random and not depends(layer.nodes, {v}, image)]
    return {made: layout} if shared else {}


def _after(layer: Layer, value: Value, layout: Axes, made: Value) -> Axes | None:
    """Returns the layout of what a layer makes of a value, as far as its shape tells."""
    if made.aval.shape == value.aval.shape:
        return layout
    if layer.kind == "linear" and layer.op is not None:
        same = len(made.aval.shape) == len(layout)
        return convolved_layout(layer.op) or (layout if same else None)
    followed = (follow(layer.nodes, {value: layout}) or {}).get(made)
    if followed is not None:
        return followed
    # Slices, what is put side by side and sums of segments keep the axes.
    beside = all(node.primitive in prim.SHAPE for node in layer.nodes)
    return layout if beside and len(made.aval.shape) == len(layout) else None


def _pools(layer: Layer) -> bool:
    """Returns whether a layer pools positions."""
    return any(node.primitive in {*prim.REDUCTION, *prim.WINDOW} for node in layer.nodes)
