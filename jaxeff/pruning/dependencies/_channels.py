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

Some groups *cross*: a statistic is taken over their channels, for which a smaller model differs
from the masked one (`Group.crossed`). Masking zeroes the parameters of a channel. Values computed
of them alone are zero as well, through products with zero and functions that are zero at zero, up
to a layer that would read it. A sum over channels of which every removed one is zero is the sum of
those left. Any other crosses: a sum of what isn't zero (a softmax, features that are positive at
zero), a maximum, and a mean, whose count changes. There `pruned` computes what a narrower model
would, unless a plan lets removed channels count as zeros. For each value `Crossing` follows for
which dimensions its entries aren't known to be zero at removed indices.

A layer norm's mean is one over channels. Masked, a removed channel is a zero that counts; removed,
it doesn't count, as in a network that was built narrower. A plan chooses one of the two:

- `"left"`: the statistic of the channels left;
- `"zeros"`: that of all channels, the removed ones being zeros, so that `pruned` is `masked`.

`Prune(..., crossed="keep")` is the third way: such channels aren't removed.

A sum of zeros needs no place, only the count that it is divided by has to stay. So RMS norms can be
kept, and layer and group norms that compute a variance as `E[x^2] - E[x]^2`, as Flax's do. What
sums or compares something else than zeros (a softmax, a maximum, squared distances from a mean) is
refused.

Sharp edge: inputs and results of the function keep all their entries. So does whatever is read by
an equation whose meaning would change, such as a cut between the channels of a head; the table says
which, and where.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import jax
import numpy as np

from jaxeff.core import NEW_STATE_TAG, STATE_TAG, Choice, Literal, Table, split_p, validate
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Program, trace
from jaxeff.program.ir import Contraction, Node, Scan, Value, While, fixed_point, walk
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._dimensions import (
    INPUT,
    MEAN,
    PLACE,
    RESULT,
    Axis,
    Dimension,
    PlanError,
    dimensions,
    fresh,
    hold,
    membership,
    remedy,
    resolve_axis,
)
from jaxeff.pruning.dependencies._labels import Axes, ChannelReader, Labels, Numbers, read_program
from jaxeff.pruning.dependencies._rules import RULES

p = prim.p


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
            Member(leaves[v], i, resolve_axis(labels.of(v)[i]) is dimension) for v, i in places
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


Dimensions = frozenset[Dimension]
_FIRST = {p.gather_p, p.dynamic_slice_p, p.slice_p, split_p}
"""Of whose operands only the first is what comes out."""
_KEPT = (
    (prim.SHAPE | set(prim.WINDOW) | {p.copy_p, p.sort_p, p.top_k_p, p.bitcast_convert_type_p})
    | {p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p}
) - {p.pad_p}
"""Primitives whose results are zero where their operands are."""
_NEUTRAL = {p.reduce_sum_p}


def every(labels: Labels, atom: Any) -> Dimensions:
    """Returns all dimensions of a value."""
    return frozenset(d for axis in labels.of(atom) for d in dimensions(axis))


@dataclass
class Crossing:
    """Follows what is zero through a program whose axes are known.

    Attributes:
        labels: The axes of its values; what crosses is noted there.
        known: For each value, the dimensions at whose removed indices it may differ from zero.
        zeros: Whether a function is zero for some operands, found out before.
    """

    labels: Labels
    known: dict[Any, Dimensions] = field(default_factory=dict)
    zeros: dict[Any, bool] = field(default_factory=dict)

    def program(self, program: Program, given: Sequence[Dimensions]) -> list[Dimensions]:
        """Follows a program, given its inputs; gives its results."""
        # Constants aren't masked: they are taken to be nonzero everywhere.
        for value in program.constants:
            self.known[value] = every(self.labels, value)
        self.known.update(zip(program.inputs, given, strict=True))
        for layer in program.layers:
            if layer.kind == "control flow":
                (node,) = layer.nodes
                made = self._control(node, layer.programs)
                self.known.update(zip(node.outputs, made, strict=True))
                continue
            if not layer.nodes:
                for value, made_value in zip(layer.inputs, layer.outputs, strict=True):
                    self.known[made_value] = self._of(value)
            reader = ChannelReader(self.labels, layer.site, {})
            for node in layer.nodes:
                read = [self._of(a) for a in node.inputs]
                made = self._equation(node, read, reader)
                self.known.update(zip(node.outputs, made, strict=True))
        return [self._of(a) for a in program.outputs]

    def _of(self, atom: Any) -> Dimensions:
        return frozenset() if isinstance(atom, Literal) else self.known[atom]

    def _equation(
        self, node: Node, given: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        if node.primitive not in prim.CALLS | prim.CUSTOM:
            return self._made(node, given, reader)
        # Not `entering`: each call of a jaxpr has labels of its own.
        inner = ChannelReader(reader.labels.bodies[id(node.eqn)], reader.where, {})

        def rule(e: Any, read: Sequence[Dimensions]) -> list[Dimensions]:
            return self._equation(Node(e, e.invars, e.outvars), read, inner)

        def constant(atom: Any, value: Any) -> Dimensions:
            del value
            return frozenset() if isinstance(atom, Literal) else every(inner.labels, atom)

        return walk(_compat.sub_jaxprs(node.eqn)[0], given, rule, constant)

    def _made(
        self, node: Node, given: Sequence[Dimensions], reader: ChannelReader
    ) -> list[Dimensions]:
        """Follows one equation and notes what crosses in it."""
        labels, eqn, primitive = reader.labels, node.eqn, node.primitive
        inputs, outputs = node.inputs, node.outputs
        has = [every(labels, a) for a in inputs]
        made = [every(labels, v) for v in outputs]
        for axis in labels.numbers.averaged(eqn, inputs):
            reader.crosses(eqn, axis, MEAN)
        if primitive in prim.LINEAR:
            # A product is zero at a removed index if either factor is: x_c w_c with w_c
            # masked.
            zero = (has[0] - given[0]) | (has[1] - given[1])
            right = labels.of(inputs[1])
            for i in Contraction.of(eqn).summed(1):
                for dimension in dimensions(right[i]):
                    if dimension not in zero:
                        reader.crosses(eqn, dimension)
            return [made[0] - zero]
        if primitive in prim.REDUCTION:
            for i in eqn.params["axes"]:
                for dimension in dimensions(labels.of(inputs[0])[i]):
                    # Zero is neutral for a sum only: a maximum over negative entries would
                    # return the zero.
                    if primitive not in _NEUTRAL or dimension in given[0]:
                        reader.crosses(eqn, dimension)
            return [made[0] & given[0]]
        # Padding with anything but zero writes nonzero entries beside the removed ones.
        if primitive is p.pad_p:
            return made if labels.numbers.number(inputs[1]) != 0 else [made[0] & given[0]]
        if primitive in _KEPT:
            if primitive is p.broadcast_in_dim_p and labels.numbers.number(inputs[0]) == 0:
                return [frozenset()]
            count = 1 if primitive in _FIRST else len(inputs)
            zero = frozenset().union(*has[:count]) - frozenset().union(*given[:count])
            return [found - zero for found in made]
        if primitive in prim.ELEMENTWISE:
            return [
                frozenset(
                    d for d in made[0] if not self._zero(eqn, inputs, given, has, d, labels.numbers)
                )
            ]
        return made

    def _zero(
        self,
        eqn: Any,
        inputs: Sequence[Any],
        given: Sequence[Dimensions],
        has: Sequence[Dimensions],
        dimension: Dimension,
        numbers: Numbers,
    ) -> bool:
        """Returns whether a pointwise function is zero at the removed indices of a dimension."""
        values: list[Any] = []
        for atom, nonzero, there in zip(inputs, given, has, strict=True):
            # 0 where the operand is zero at removed indices, the number if it is a known
            # one, else None.
            zero = dimension in there and dimension not in nonzero
            values.append(0 if zero else numbers.number(atom))
        # 0 times an unknown operand is 0: the other one need not be known.
        if eqn.primitive in {p.mul_p, p.and_p} and any(v is not None and v == 0 for v in values):
            return True
        if eqn.primitive is p.div_p:
            return (
                values[0] is not None and values[0] == 0 and (values[1] is None or values[1] != 0)
            )
        if eqn.primitive is p.select_n_p:
            return all(v is not None and v == 0 for v in values[1:])
        if any(v is None for v in values):
            return False
        # Evaluated once per primitive and operands: f(0) decides for a whole region of
        # layers.
        key = (eqn.primitive, tuple(map(float, values)), str(eqn.params))
        if key not in self.zeros:
            operands = [np.asarray(v, a.aval.dtype) for v, a in zip(values, inputs, strict=True)]
            with jax.ensure_compile_time_eval():
                (found,) = _compat.bind(eqn, *operands)
            self.zeros[key] = bool(np.asarray(found) == 0)
        return self.zeros[key]

    def _control(self, node: Node, programs: Sequence[Program]) -> list[Dimensions]:
        """Follows loops and branches; a loop's carry until nothing more may differ."""
        given = [self._of(a) for a in node.inputs]
        if node.primitive is p.remat_p:
            return self.program(programs[0], given)
        if node.primitive is p.cond_p:
            branches = [self.program(branch, given[1:]) for branch in programs]
            return [frozenset().union(*found) for found in zip(*branches, strict=True)]
        loop = (Scan if node.primitive is p.scan_p else While).of(node, given)
        *test, body = programs
        # The sets only grow and are bounded by the carry's dimensions: this ends.
        carry, stacked = fixed_point(
            lambda carry: loop.split(self.program(body, loop.inputs(carry))),
            loop.carry,
            operator.or_,
        )
        # After the body: the test reads the carry of every iteration.
        if isinstance(loop, While):
            self.program(test[0], loop.test_inputs(carry))
        return [*carry, *stacked]


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
    dimensions: tuple[Dimension, ...]
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
            also = [f"{m.path}:{m.axis}{'' if m.whole else '*'}" for m in others]
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
        reason = () if free else (INPUT,)
        labels.axes[value] = tuple(fresh(n, *reason) for n in sizes)
    read_program(program, labels, RULES)
    # A removed channel's parameters are zero; everything else may be anything at its
    # indices.
    masked = {value for value in program.inputs if value.is_weight}
    given = [frozenset() if v in masked else every(labels, v) for v in program.inputs]
    Crossing(labels).program(program, given)
    # Results keep their size, except new state, which shrinks like the state it replaces.
    updated = _updated(program)
    results = [v for v in program.outputs if isinstance(v, Value) and v not in updated]
    for axis in (axis for result in results for axis in labels.of(result)):
        hold(axis, RESULT)
    leaves = {v: v.path for v in program.inputs if v.is_weight and v.path} | states
    groups = grouped(program, labels, leaves)
    axes = {path: labels.of(v) for v, path in leaves.items()}
    return Channels(tuple(groups.values()), program, labels, tuple(groups), axes)


def _check_sizes(program: Program) -> None:
    """Checks that sizes are numbers: channels are indices, which a symbol doesn't list."""
    for i, value in enumerate(program.inputs):
        if not all(isinstance(n, int | np.integer) for n in value.aval.shape):
            name = value.path or f"input {i}"
            raise PlanError(
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
    found = {}
    for layer in program.layers:
        for node in layer.nodes:
            tag = node.params.get("name") if node.primitive is prim.NAME else None
            if tag and tag.startswith(STATE_TAG) and isinstance(node.inputs[0], Value):
                found[node.inputs[0]] = tag.removeprefix(STATE_TAG)
    return found


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
    return all(f"({MEAN})" in note for note in group.crossed)


def check_crossed(groups: Mapping[str, Group], crossed: Mapping[str, str]) -> None:
    """Checks the choices of a plan for statistics.

    Raises:
        PlanError: It is no choice, about no group, or removed channels can't count as zeros.
    """
    for name, choice in crossed.items():
        if name not in groups:
            raise PlanError(f"the model has no group {name!r}; there are {list(groups)}")
        if choice not in (LEFT, ZEROS):
            raise PlanError(
                f"statistics over {name!r} are of the channels {LEFT!r} or count {ZEROS!r}, "
                f"not {choice!r}"
            )
        if choice == ZEROS and not counts_zeros(groups[name]):
            (note, *_) = [n for n in groups[name].crossed if f"({MEAN})" not in n]
            raise PlanError(
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
