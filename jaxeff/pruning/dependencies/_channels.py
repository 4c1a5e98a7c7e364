"""`channels`: which channels of a model can only be removed together.

```python
import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
print(jaxeff.channels(f, params, x))
```

No model class is known by name. Every axis of every value is an expression of *dimensions*
(`_dimensions.py`), equations relate them (`_rules.py`), and a group is what is left: a dimension
and all axes of parameters that it is a part of. An index of it is removed from all of them or none.

Sharp edge: inputs and results of the function keep all their entries. So does whatever is read by
an equation whose meaning would change, such as a cut between the channels of a head; the table says
which, and where.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np

from jaxeff.core import NEW_STATE_TAG, STATE_TAG, Choice, Table, validate
from jaxeff.program import Program, trace
from jaxeff.program.ir import Value
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import _dimensions
from jaxeff.pruning.dependencies._dimensions import dimensions
from jaxeff.pruning.dependencies._labels import Axes, Labels, read_program
from jaxeff.pruning.dependencies._rules import RULES, Crossing, every


@dataclass(frozen=True)
class Member:
    """An axis of a parameter that a group is a part of.

    Attributes:
        path: The parameter's leaf.
        axis: Number of the axis.
        alone: Whether the axis is the group's and nothing else's; otherwise it is a product or a
            concatenation that holds it.
    """

    path: str
    axis: int
    alone: bool


@dataclass(frozen=True)
class Group:
    """Channels that can be removed, each by itself but from all members at once.

    Some groups *cross*: a statistic is taken over their channels, for which a smaller model differs
    from the masked one (`Group.crossed`). Masking zeroes the parameters of a channel. Values
    computed of them alone are zero as well, through products with zero and functions that are zero
    at zero, up to a layer that would read it. A sum over channels of which every removed one is
    zero is the sum of those left. Any other crosses: a sum of what isn't zero (a softmax, features
    that are positive at zero), a maximum, and a mean, whose count changes. There `pruned` computes
    what a narrower model would, unless a plan lets removed channels count as zeros.

    A layer norm's mean is one over channels. Masked, a removed channel is a zero that counts;
    removed, it doesn't count, as in a network that was built narrower. A plan chooses one of the
    two:

    - `"left"`: the statistic of the channels left;
    - `"zeros"`: that of all channels, the removed ones being zeros, so that `pruned` is `masked`.

    `Prune(..., crossed="keep")` is the third way: such channels aren't removed.

    A sum of zeros needs no place, only the count that it is divided by has to stay. So RMS norms
    can be kept, and layer and group norms that compute a variance as `E[x^2] - E[x]^2`, as Flax's
    do. What sums or compares something else than zeros (a softmax, a maximum, squared distances
    from a mean) is refused.

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
        return (
            f"{self.name!r} can't lose channels: {self.held[0]}. {_dimensions.remedy(self.held[0])}"
        )


def grouped(
    program: Program, labels: Labels, leaves: Mapping[Value, str]
) -> dict[_dimensions.Dimension, Group]:
    """Returns the groups of a program whose axes are known.

    `labels` are the axes of its values, `leaves` paths of parameters and states. Returns, for each
    dimension of a parameter that has channels, its group; in order of execution.
    """
    parameters = list(leaves)
    places_of: dict[_dimensions.Dimension, list[tuple[Value, int]]] = {}
    for value in parameters:
        for number, axis in enumerate(labels.of(value)):
            for dimension in dict.fromkeys(dimensions(axis)):
                places_of.setdefault(dimension, []).append((value, number))
    sites = _sites(program, labels)
    groups: dict[_dimensions.Dimension, Group] = {}
    # Positions (kernel taps, pixels) are no channels: they are left out rather than listed as held.
    places_of = {
        d: places
        for d, places in places_of.items()
        if not any(r.endswith(_dimensions.PLACE) for r in d.held)
    }
    for dimension, places in places_of.items():
        members = tuple(
            Member(leaves[v], i, _dimensions.resolve_axis(labels.of(v)[i]) is dimension)
            for v, i in places
        )
        first = min(places, key=lambda place: _rank(place, sites.get(dimension, ())))
        name = f"{leaves[first[0]]}:{first[1]}"
        # One axis may hold several groups (the parts of a concatenation): they are numbered.
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
    is_layers = any(value.path.startswith(site) for site in sites)
    # First a last axis of the weights of layers that make the channels, then parameters of more
    # axes.
    return (not (is_layers and number == value.aval.ndim - 1), -value.aval.ndim)


def _sites(program: Program, labels: Labels) -> dict[_dimensions.Dimension, list[str]]:
    """Returns, for each dimension, the linear layers whose results have it."""
    sites_of: dict[_dimensions.Dimension, list[str]] = {}
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
                known = sites_of.setdefault(dimension, [])
                if dimension in weight and layer.site not in known:
                    known.append(layer.site)
    return sites_of


def _crossed(labels: Labels, dimension: _dimensions.Dimension) -> list[str]:
    notes: dict[str, None] = {}
    for crossed, reasons in labels.crossed.items():
        if any(d is dimension for d in dimensions(crossed)):
            notes.update(dict.fromkeys(reasons))
    return list(notes)


def _entries(
    places: Sequence[tuple[Value, int]], labels: Labels, dimension: _dimensions.Dimension
) -> int:
    """Counts the entries of parameters that hold one index of a dimension."""
    total = 0
    for value in {v for v, _ in places}:
        # One channel takes a slice along every axis that holds it: the product counts its entries.
        sizes = [_multiplicity(axis, dimension) for axis in labels.of(value)]
        total += math.prod(sizes)
    return total


def _multiplicity(axis: _dimensions.Axis, dimension: _dimensions.Dimension) -> int:
    """Counts the indices of an axis that hold one of a dimension; all if it isn't part of it."""
    # Every index of a dimension is held equally often, so the first one counts for all.
    index = _dimensions.membership(axis, dimension)
    return int((index == 0).sum()) or int(index.size)


@dataclass(frozen=True, repr=False, eq=False)
class Channels:
    """The groups of a model, in order of execution; a sequence that prints as a table.

    Attributes:
        groups: All of them, free and held.
        program: The program that was read.
        labels: The axes of its values.
        dimensions: Each group's dimension.
        leaves: Axes of every parameter leaf, by path.
    """

    groups: tuple[Group, ...]
    program: Program
    labels: Labels
    dimensions: tuple[_dimensions.Dimension, ...]
    leaves: dict[str, Axes]

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __getitem__(self, name: str | int) -> Group:
        """Returns a group by its number or name.

        Raises:
            KeyError: There is none of that name.
        """
        if isinstance(name, int):
            return self.groups[name]
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"No group is called {name!r}; there are {[g.name for g in self.groups]}.")

    def find(self, path: str) -> str | None:
        """Returns the parameter or statistic that a leaf's path ends in, or None."""
        parts = path.split("/")
        ends = ("/".join(parts[i:]) for i in range(len(parts)))
        return next((end for end in ends if end in self.leaves), None)

    @property
    def free(self) -> tuple[Group, ...]:
        """The groups that can lose channels."""
        return tuple(group for group in self.groups if group.free)

    @property
    def table(self) -> Table:
        """A row per group."""
        rows = []
        for group in self.groups:
            first = group.name.split("#")[0]
            others = [m for m in group.members if f"{m.path}:{m.axis}" != first]
            also = [f"{m.path}:{m.axis}{'' if m.alone else '*'}" for m in others]
            shown = ", ".join(also[:4]) + (f", {len(also) - 4} more" if len(also) > 4 else "")
            notes = group.held[:1] or tuple(f"crossed by {c}" for c in group.crossed[:1]) or ("",)
            rows.append((group.name, str(group.size), str(group.parameters), shown, notes[0]))
        columns = ("group", "channels>", "parameters>", "also", "why not, or what crosses it")
        return Table(columns, rows, caption="* a part of that axis")

    def __rich__(self) -> Any:
        return self.table.__rich__()

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


@validate()
def channels(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Channels:
    """Reads which channels of a model can only be removed together.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`; only shapes matter, here and below.
        *args: Further arguments, with a batch of any size.
        **kwargs: Keyword arguments of `f`.

    Returns:
        The groups, printable.
    """
    return read_channels(trace(f, params, *args, **kwargs))


def read_channels(program: Program) -> Channels:
    """Reads the channels of a program that has been traced already."""
    _check_sizes(program)
    labels = Labels()
    states = _states(program)
    for value in program.inputs:
        sizes = [int(n) for n in value.aval.shape]
        free = value.is_weight or value in states
        # Inputs are held by their callers: their sizes are given from outside.
        reason = () if free else (_dimensions.INPUT,)
        labels.axes[value] = tuple(_dimensions.fresh(n, *reason) for n in sizes)
    read_program(program, labels, RULES)
    # A removed channel's parameters are zero; everything else may be anything at its indices.
    masked = {value for value in program.inputs if value.is_weight}
    nonzero = [frozenset() if v in masked else every(labels, v) for v in program.inputs]
    Crossing(labels).program(program, nonzero)
    # Results keep their size, except new state, which shrinks like the state it replaces.
    updated = _updated(program)
    results = [v for v in program.outputs if isinstance(v, Value) and v not in updated]
    for axis in (axis for result in results for axis in labels.of(result)):
        _dimensions.hold(axis, _dimensions.RESULT)
    leaves = {v: v.path for v in program.inputs if v.is_weight and v.path} | states
    groups = grouped(program, labels, leaves)
    axes = {path: labels.of(v) for v, path in leaves.items()}
    return Channels(tuple(groups.values()), program, labels, tuple(groups), axes)


def _check_sizes(program: Program) -> None:
    """Checks that sizes are numbers: channels are indices, which a symbol doesn't list."""
    for i, value in enumerate(program.inputs):
        if not all(isinstance(n, int | np.integer) for n in value.aval.shape):
            name = value.path or f"input {i}"
            raise _dimensions.PlanError(
                f"{name} has the symbolic shape {tuple(map(str, value.aval.shape))}: channels are "
                "read at known sizes. Give arrays, or a jax.ShapeDtypeStruct of numbers."
            )


def leaf_path(keypath: Sequence[Any]) -> str:
    """Returns the path of a leaf, without the halves of a distribution."""
    last = keypath[-1] if keypath else None
    if isinstance(last, jax.tree_util.GetAttrKey) and last.name in ("mean", "var"):
        keypath = keypath[:-1]
    return "/".join(jax.tree_util.keystr((key,), simple=True) for key in keypath)


def _states(program: Program) -> dict[Value, str]:
    """Returns inputs and constants that are mutable state (running statistics), with paths."""
    tags = {}
    for layer in program.layers:
        for node in layer.nodes:
            tag = node.params.get("name") if node.primitive is prim.NAME else None
            if tag and tag.startswith(STATE_TAG) and isinstance(node.inputs[0], Value):
                tags[node.inputs[0]] = tag.removeprefix(STATE_TAG)
    return tags


def _updated(program: Program) -> set[Any]:
    """Returns the results that are new state."""
    return {
        value
        for layer in program.layers
        for node in layer.nodes
        if node.primitive is prim.NAME and node.params["name"].startswith(NEW_STATE_TAG)
        for value in node.outputs
    }


LEFT, ZEROS, KEEP = "left", "zeros", "keep"
Crossed = Annotated[str | None, Choice(LEFT, ZEROS, KEEP)]
_SHOWN = 8


class CrossedWarning(UserWarning):
    """A smaller model isn't the masked one: statistics are taken over fewer channels."""


def counts_zeros(group: Group) -> bool:
    """Returns whether all that crosses a group can count its removed channels as zeros."""
    # A mean of zeros needs its old count alone; no other crossing has a neutral zero.
    return all(f"({_dimensions.MEAN})" in note for note in group.crossed)


def check_crossed(groups: Mapping[str, Group], crossed: Mapping[str, str]) -> None:
    """Checks the choices of a plan for statistics.

    Raises:
        PlanError: It is no choice, about no group, or removed channels can't count as zeros.
    """
    for name, choice in crossed.items():
        if name not in groups:
            raise _dimensions.PlanError(
                f"the model has no group {name!r}; there are {list(groups)}"
            )
        if choice not in (LEFT, ZEROS):
            raise _dimensions.PlanError(
                f"statistics over {name!r} are of the channels {LEFT!r} or count {ZEROS!r}, "
                f"not {choice!r}"
            )
        if choice == ZEROS and not counts_zeros(groups[name]):
            (note, *_) = [n for n in groups[name].crossed if f"({_dimensions.MEAN})" not in n]
            raise _dimensions.PlanError(
                f"removed channels of {name!r} can't count as zeros: {note} reads something else "
                f'of them. Take crossed="{LEFT}", or leave them out with crossed="{KEEP}".'
            )


def warn_of_crossed(groups: Iterable[Group], stacklevel: int) -> None:
    """Warns of groups whose statistics a smaller model takes over fewer channels, if any.

    Args:
        groups: Groups that lose channels and that the plan says nothing of.
        stacklevel: Stack level of the caller, as `warnings.warn` counts.
    """
    places = [f"{group.name!r} by {_places(group)}" for group in groups if group.crossed]
    if places:
        warnings.warn(
            "the pruned model isn't the masked one, since statistics are taken over the channels "
            f'left of {"; ".join(places)}. Say what is meant: Prune(..., crossed="{LEFT}") takes '
            f'this, crossed="{ZEROS}" counts removed channels as zeros, as masked does, and '
            f'crossed="{KEEP}" leaves them out; a Plan has crossed={{group: choice}}.',
            CrossedWarning,
            stacklevel=stacklevel + 1,
        )


def _places(group: Group) -> str:
    """Lists primitives and sites that cross a group, without their lines."""
    places = list(dict.fromkeys(note.split(" [")[0] for note in group.crossed))
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
