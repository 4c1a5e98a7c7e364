"""Groups: a dimension with all axes of parameters that it is a part of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxeff.program import Program
from jaxeff.program.ir import Value
from jaxeff.pruning.dependencies._dimensions import Axis, Dimension, dimensions, membership, resolve
from jaxeff.pruning.dependencies._errors import PLACE, remedy
from jaxeff.pruning.dependencies._labels import Labels


@dataclass(frozen=True)
class Member:
    """An axis of a parameter that a group is a part of.

    Attributes:
        path: The parameter's leaf.
        axis: Number of the axis.
        whole: Whether the axis is the group's and nothing else's; otherwise it is a product or a
            concatenation that holds it.
    """

    path: str
    axis: int
    whole: bool


@dataclass(frozen=True)
class Group:
    """Channels that can be removed, each by itself but from all members at once.

    Attributes:
        name: The members' first: `conv1/kernel:3`.
        size: Number of channels.
        members: Axes of parameters.
        sites: Layers whose results lose the channels.
        held: Why none can be removed; free if there is no reason.
        crossed: Sites where a statistic is taken over the channels.
        parameters: Entries of parameters that one channel takes along, at the most.
    """

    name: str
    size: int
    members: tuple[Member, ...]
    sites: tuple[str, ...]
    held: tuple[str, ...]
    crossed: tuple[str, ...]
    parameters: int

    @property
    def free(self) -> bool:
        """Whether channels can be removed."""
        return not self.held

    @property
    def refusal(self) -> str:
        """The reason why no channel can be removed, and the way out; empty if there is none."""
        if not self.held:
            return ""
        return f"{self.name!r} can't lose channels: {self.held[0]}. {remedy(self.held[0])}"


def grouped(
    program: Program, labels: Labels, leaves: Mapping[Value, str]
) -> dict[Dimension, Group]:
    """Returns the groups of a program whose axes are known.

    Args:
        program: The program.
        labels: The axes of its values.
        leaves: Paths of parameters and states.

    Returns:
        For each dimension of a parameter that has channels, its group; in order of execution.
    """
    parameters = list(leaves)
    found: dict[Dimension, list[tuple[Value, int]]] = {}
    for value in parameters:
        for number, axis in enumerate(labels.of(value)):
            for dimension in dict.fromkeys(dimensions(axis)):
                found.setdefault(dimension, []).append((value, number))
    sites = _sites(program, labels)
    groups: dict[Dimension, Group] = {}
    # Positions (kernel taps, pixels) are no channels: they are left out rather than listed
    # as held.
    found = {d: places for d, places in found.items() if not any(r.endswith(PLACE) for r in d.held)}
    for dimension, places in found.items():
        members = tuple(
            Member(leaves[v], i, resolve(labels.of(v)[i]) is dimension) for v, i in places
        )
        first = min(places, key=lambda place: _rank(place, sites.get(dimension, ())))
        name = f"{leaves[first[0]]}:{first[1]}"
        # One axis may hold several groups (the parts of a concatenation): they are
        # numbered.
        known = sum(group.name.split("#")[0] == name for group in groups.values())
        groups[dimension] = Group(
            name=f"{name}#{known}" if known else name,
            size=dimension.size,
            members=members,
            sites=tuple(sites.get(dimension, ())),
            held=tuple(dimension.held),
            crossed=tuple(_crossed(labels, dimension)),
            parameters=_entries(places, labels, dimension),
        )
    return groups


def _rank(place: tuple[Value, int], sites: Sequence[str]) -> tuple[bool, int]:
    """Ranks a place: a group is named by the weight that makes its channels."""
    value, number = place
    made = any(value.path.startswith(site) for site in sites)
    # First a last axis of the weights of layers that make the channels, then parameters of more
    # axes.
    return (not (made and number == value.aval.ndim - 1), -value.aval.ndim)


def _sites(program: Program, labels: Labels) -> dict[Dimension, list[str]]:
    """Returns, for each dimension, the linear layers whose results have it."""
    found: dict[Dimension, list[str]] = {}
    for layer in program.sites:
        if layer.kind != "linear" or not layer.weights:
            continue
        # The product's result also has the data's axes (a batch): only those of the weight are its
        # channels.
        weight = {
            d for i in layer.weights for a in labels.of(layer.inputs[i]) for d in dimensions(a)
        }
        for axis in labels.of(layer.outputs[0]):
            for dimension in dimensions(axis):
                known = found.setdefault(dimension, [])
                if dimension in weight and layer.site not in known:
                    known.append(layer.site)
    return found


def _crossed(labels: Labels, dimension: Dimension) -> list[str]:
    notes: dict[str, None] = {}
    for crossed, reasons in labels.crossed.items():
        if any(d is dimension for d in dimensions(crossed)):
            notes.update(dict.fromkeys(reasons))
    return list(notes)


def _entries(places: Sequence[tuple[Value, int]], labels: Labels, dimension: Dimension) -> int:
    """Counts the entries of parameters that hold one index of a dimension."""
    total = 0
    for value in {v for v, _ in places}:
        # One channel takes a slice along every axis that holds it: the product counts its
        # entries.
        sizes = [_multiplicity(axis, dimension) for axis in labels.of(value)]
        total += math.prod(sizes)
    return total


def _multiplicity(axis: Axis, dimension: Dimension) -> int:
    """Counts the indices of an axis that hold one of a dimension; all if it isn't part of it."""
    # Every index of a dimension is held equally often, so the first one counts for all.
    index = membership(axis, dimension)
    return int((index == 0).sum()) or int(index.size)
