"""Layers whose channels are a product: heads times channels of a head, blocks of a group norm.

A reshape splits what a layer makes into factors, which are groups of channels of their own. A share
of the layer's channels is not that share of every factor: half of both would be three quarters of
the layer. So a share is taken along one factor, the one by which what is left comes nearest to what
was asked; of equals one that no statistic crosses, then the larger. A factor that is chosen for one
layer is chosen for all that make it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from jaxeff.pruning.dependencies import Axis, AxisProduct, Channels, Dimension, dimensions, resolve


class Made(NamedTuple):
    """Channels that a layer makes.

    Attributes:
        size: Number of channels.
        groups: The groups that are factors of them; one, where nothing is split.
    """

    size: int
    groups: tuple[str, ...]


def made_channels(channels: Channels) -> list[Made]:
    """Returns what the layers make, in order of execution; parts of a concatenation one by one."""
    names = {d: g.name for g, d in zip(channels, channels.dimensions, strict=True)}
    labels = channels.labels
    found: dict[Made, None] = {}
    for layer in channels.program.sites:
        if layer.kind != "linear" or not layer.weights:
            continue
        weight = {
            d for i in layer.weights for a in labels.of(layer.inputs[i]) for d in dimensions(a)
        }
        axes = [a for a in labels.of(layer.outputs[0]) if weight.intersection(dimensions(a))]
        for factors in _products(axes):
            own = [d for d in dict.fromkeys(factors) if d in weight]
            groups = tuple(names[d] for d in own if d in names)
            found[Made(math.prod(d.size for d in own), groups)] = None
    return list(found)


def chosen_factors(
    made: Sequence[Made], allowed: Collection[str], missed: Callable[[str, Made], tuple[float, ...]]
) -> set[str]:
    """Returns the groups that lose channels, one factor of what a layer makes.

    Args:
        made: Channels that the layers make.
        allowed: Groups that may.
        missed: For a group and what it is a factor of, what to minimise: how far from what was
            asked it ends, and what decides between equals.
    """
    wanted = [(m, names) for m in made if (names := [name for name in m.groups if name in allowed])]
    # Where there is no choice it is made first: it may settle the choice of other layers.
    chosen = {names[0] for _, names in wanted if len(names) == 1}
    spared: set[str] = set()
    for m, names in wanted:
        if chosen.isdisjoint(names):
            # A factor that another layer keeps whole would take twice from that one.
            free = [name for name in names if name not in spared]
            if free:
                chosen.add(min(free, key=lambda name: missed(name, m)))
        spared.update(name for name in names if name not in chosen)
    return chosen


def _products(axes: Sequence[Axis]) -> list[list[Dimension]]:
    """Returns the factors of axes together; of a concatenation, those of every part."""
    ways: list[list[list[Dimension]]] = []
    for axis in map(resolve, axes):
        if isinstance(axis, Dimension):
            ways.append([[axis]])
        elif isinstance(axis, AxisProduct):
            ways.append(_products(axis.parts))
        else:
            ways.append([way for part in axis.parts for way in _products([part])])
    return [list(itertools.chain(*way)) for way in itertools.product(*ways)]


__all__ = ["Made", "chosen_factors", "made_channels"]
