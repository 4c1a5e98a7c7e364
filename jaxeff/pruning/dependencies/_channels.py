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

Sharp edges:
    Inputs and results of the function keep all their entries. So does whatever is read by an
    equation whose meaning would change, such as a cut between the channels of a head; the table
    says which, and where.
    A statistic over channels (a layer norm, a mean over them) is that of the channels left, so the
    smaller function isn't the masked one there unless asked: the table marks such groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxeff.core import NEW_STATE_TAG, STATE_TAG, Table, validate
from jaxeff.program import Program, trace
from jaxeff.program.ir import Value
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies._crossing import Crossing, every
from jaxeff.pruning.dependencies._dimensions import Dimension, fresh, hold
from jaxeff.pruning.dependencies._errors import INPUT, RESULT, PlanError
from jaxeff.pruning.dependencies._groups import Group, Member, grouped
from jaxeff.pruning.dependencies._labels import Axes, Labels, read_program
from jaxeff.pruning.dependencies._rules import RULES


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


__all__ = ["Channels", "Group", "Member", "channels", "leaf_path", "read_channels"]
