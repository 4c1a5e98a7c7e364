"""The cells of a table of kernels' times: what of a layer decides how long its kernels take.

A cell is a layer with the channels that it reads and makes and its bits. With `nodes` cells are
those at the nodes alone: channels between two nodes, and bits whose planes are counted, are shares
of two cells each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxeff.pruning.dimensions import dimensions
from jaxeff.search import FLOAT, Policy, Space
from jaxeff_export.targets.target import resolve_target


class Cell(NamedTuple):
    """What of a layer decides its time.

    Attributes:
        layer: Its number.
        channels: Of its groups.
        weights: Bits of the weights.
        activations: Bits of what it reads.
        mixed: Whether there are layers in float and layers of bits around it.
    """

    layer: int
    channels: tuple[int, ...]
    weights: int
    activations: int
    mixed: bool


class Share(NamedTuple):
    """A part of a layer's time.

    Attributes:
        cell: Where it is found.
        weight: Of it.
    """

    cell: Cell
    weight: float


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a space's policies on a target.

    Attributes:
        space: What can be chosen.
        groups: Numbers of the groups of channels that each layer reads or makes.
        nodes: Numbers of channels that have cells; None: all have.
        worth: The largest product of widths that the target has kernels by planes for.
    """

    space: Space
    groups: tuple[tuple[int, ...], ...]
    nodes: tuple[int, ...] | None
    worth: int

    @classmethod
    def of(
        cls, space: Space, nodes: Sequence[int] | None, target: str | Mapping[str, Any]
    ) -> Cells:
        """The cells of a space.

        Args:
            space: What can be chosen.
            nodes: Numbers of channels that have cells; None for all.
            target: Whom kernels are for, as for `deploy`.
        """
        number = {name: i for i, name in enumerate(space.groups)}
        found = zip(space.channels.dimensions, space.channels.groups, strict=True)
        numbers = {dimension: number[g.name] for dimension, g in found if g.name in number}
        groups = []
        for site in space.sites:
            both = (*dimensions(site.read), *dimensions(site.made))
            groups.append(tuple(sorted({numbers[d] for d in both if d in numbers})))
        chosen = None if nodes is None else tuple(sorted(nodes))
        return cls(space, tuple(groups), chosen, worth_of_planes(target))

    def shares(self, policy: Policy) -> list[list[Share]]:
        """The cells of every layer of a policy, and how much of each."""
        weights, activations = np.asarray(policy.weights), np.asarray(policy.activations)
        whole = (weights == FLOAT) | (activations == FLOAT)
        mixed = self.nodes is None and bool(whole.any() and not whole.all())
        found = []
        for i, groups in enumerate(self.groups):
            kept = [(int(policy.kept[g]), int(self.space.sizes[g])) for g in groups]
            channels = [self._between(count, size) for count, size in kept]
            bits = self._bits(int(weights[i]), int(activations[i]))
            own = []
            for nodes, (of, share) in itertools.product(itertools.product(*channels), bits):
                weight = share * float(np.prod([w for _, w in nodes]))
                own.append(Share(Cell(i, tuple(n for n, _ in nodes), *of, mixed), weight))
            found.append(own)
        return found

    def design(self, policy: Policy, missing: Iterable[Cell]) -> tuple[Policy, list[Cell]]:
        """A policy that holds as many of the missing cells as one can, and all the cells it holds.

        Args:
            policy: Whose cells are missing.
            missing: Those that aren't known.
        """
        if self.nodes is None:
            return policy, [own[0].cell for own in self.shares(policy)]
        kept: dict[int, int] = {}
        bits: dict[int, tuple[int, int]] = {}
        for cell in missing:
            channels = dict(zip(self.groups[cell.layer], cell.channels, strict=True))
            floats = {FLOAT in own for own in bits.values()}
            fits = all(kept.get(g, n) == n for g, n in channels.items())
            if fits and cell.layer not in bits and floats <= {cell.weights == FLOAT}:
                kept |= channels
                bits[cell.layer] = cell.weights, cell.activations
        rest = (FLOAT, FLOAT) if any(FLOAT in own for own in bits.values()) else (8, 8)
        chosen = [bits.get(i, rest) for i in range(len(self.groups))]
        sizes = np.array([kept.get(g, size) for g, size in enumerate(self.space.sizes)], np.int32)
        weights, activations = (np.array(one, np.int32) for one in zip(*chosen, strict=True))
        made = Policy(sizes, self.space.whole.datatypes, weights, activations)
        cells = [
            Cell(i, tuple(int(sizes[g]) for g in groups), *chosen[i], mixed=False)
            for i, groups in enumerate(self.groups)
        ]
        return made, cells

    def _between(self, count: int, size: int) -> list[tuple[int, float]]:
        """The nodes around a number of channels."""
        if self.nodes is None:
            return [(count, 1.0)]
        nodes = [n for n in self.nodes if n < size] + [size]
        if count <= nodes[0]:
            return [(nodes[0], 1.0)]
        i = int(np.searchsorted(nodes, count))
        if nodes[i] == count:
            return [(count, 1.0)]
        low, high = nodes[i - 1], nodes[i]
        share = (count - low) / (high - low)
        return [(low, 1 - share), (high, share)]

    def _bits(self, weights: int, activations: int) -> list[tuple[tuple[int, int], float]]:
        """The kernel that a layer has: float, bytes, or planes."""
        if FLOAT in (weights, activations):
            return [((FLOAT, FLOAT), 1.0)]
        product = weights * activations
        if product > self.worth:
            return [((8, 8), 1.0)]
        if self.nodes is None:
            return [((weights, activations), 1.0)]
        if product in (1, self.worth):
            return [((1, product), 1.0)]
        share = (product - 1) / (self.worth - 1)
        return [((1, 1), 1 - share), ((1, self.worth), share)]


def worth_of_planes(target: str | Mapping[str, Any]) -> int:
    """The largest product of widths that a target has kernels by planes for."""
    from tvm.target import Target

    from jaxeff_export.operators.integer.dots import dot_of
    from jaxeff_export.operators.integer.planes import planes_of

    where = Target(resolve_target(target))
    planes = planes_of(where, dot_of(where))
    return planes.worth if planes else 0
