"""Propagates moments through the equations of a layer, and tracks dependence in it.

`propagate` runs equations one after the other under the rules of `rules`, which take operands
as independent. The layer's random inputs are independent of each other, entries and all
(`fuse_dependent` has joined layers until they are, or noted that it is assumed). Where dependent
entries meet inside the layer a rule would be wrong: that is an error, unless the environment allows
to assume independence, which is then noted. Sums of rows of a table (`sum_of_rows`) and differences
of two entries of one running sum (`difference`) are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import _values, dependence
from jaxeff.moment_propagation.rules import TABLE, Kind, Rule
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Node, Relation, Value, axes, row_axes
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import known_number

_MOST_PLACES = 4096


def sum_of_rows(
    node: Node,
    nodes: Sequence[Node],
    tables: Collection[Value],
    is_number: Callable[[Any], bool],
    read: Callable[[Any], Any],
) -> _values.Gaussian | None:
    """Computes the moments of a sum over rows that were looked up, and then mapped one by one.

    Rows of a table, such as embeddings, may be looked up by indices known at run time. A row that
    is looked up n times is the same random value n times. With n_k the number of times that the row
    of place k is looked up in all, the sum of g(w[i_k]) over k has

        Var = sum over rows of n_r^2 Var g(w_r) = sum over k of n_k Var g(w[i_k]).

    `nodes` are the equations of its layer, `tables` random values whose entries are independent;
    `is_number` says whether an operand is one number everywhere, `read` returns its value. Returns
    None for anything else.
    """
    look_up = _look_up(node, nodes, is_number)
    if look_up is None or look_up.inputs[0] not in tables or look_up.inputs[1] in tables:
        return None
    numbers, axes = look_up.params["dimension_numbers"], node.params["axes"]
    table, shape = look_up.inputs[0].aval.shape, look_up.outputs[0].aval.shape
    rows = row_axes(look_up.eqn) == tuple(numbers.collapsed_slice_dims) == (0,)
    places = [a for a in range(len(shape)) if a not in numbers.offset_dims]
    summed = [places.index(a) for a in axes if a in places]
    if not rows or len(summed) < len(axes):
        return None
    if math.prod(shape[a] for a in axes) > _MOST_PLACES:
        return None
    # Beyond the table it is its first or last row, or undefined.
    indices = jnp.clip(read(look_up.inputs[1])[..., 0], 0, table[0] - 1)
    times = jnp.expand_dims(_times(indices, summed), tuple(numbers.offset_dims))
    x = _values.to_variance(read(node.inputs[0]))
    return _values.Gaussian(x.mean.sum(axes), (times.astype(x.dtype) * x.var).sum(axes))


def _look_up(node: Node, nodes: Sequence[Node], is_number: Callable[[Any], bool]) -> Node | None:
    """Returns the gather that a sum's terms are functions of, the same at all places."""
    if node.primitive is not p.reduce_sum_p:
        return None
    made_by = {v: n for n in nodes for v in n.outputs}
    maker = made_by.get(node.inputs[0])
    while maker is not None and row_axes(maker.eqn) is None:
        varying = [a for a in maker.inputs if not is_number(a)]
        if len(varying) != 1 or not dependence.is_pointwise(maker.eqn):
            return None
        maker = made_by.get(varying[0])
    return maker


def _times(indices: Array, axes: Sequence[int]) -> Array:
    """Counts how often each index is there, along some axes."""
    kept = [a for a in range(indices.ndim) if a not in axes]
    order = [*kept, *axes]
    moved = jnp.transpose(indices, order)
    flat = moved.reshape(*moved.shape[: len(kept)], -1)
    count = (flat[..., :, None] == flat[..., None, :]).sum(-1)
    return jnp.transpose(count.reshape(moved.shape), [order.index(a) for a in range(len(order))])


_VIEWS = prim.VIEWS | {p.dynamic_slice_p}


def difference(
    node: Node, nodes: Sequence[Node], dependent: Container[Node], operands: Sequence[Any]
) -> _values.Gaussian | None:
    """Computes the moments of a difference of two entries of one running sum.

    Such as a state's decay between two steps: for c_t = a_1 + ... + a_t of independent a, c_i - c_j
    is the sum of what lies between the two, so that

        Var[c_i - c_j] = |Var[c_i] - Var[c_j]|,

    where operands taken as independent would have the sum of the two: in exp(c_i - c_j), which
    weighs inputs in selective state spaces, that is wrong by orders of magnitude. `dependent` are
    equations of its layer that combine dependent entries. Returns None for anything else.
    """
    if node.primitive is not p.sub_p or not all(_values.is_random(v) for v in operands):
        return None
    made_by = {v: n for n in nodes for v in n.outputs}
    one, other = (_view(a, made_by) for a in node.inputs)
    if one is None or other is None or one[0] is not other[0] or one[0] in dependent:
        return None
    # At each place both must be entries of the same row of the sum.
    (total, first), (_, second) = one, other
    rows = [
        a for a, n in enumerate(total.outputs[0].aval.shape) if a != total.params["axis"] and n != 1
    ]
    if any(_where(a, first) is None or _where(a, first) != _where(a, second) for a in rows):
        return None
    x, y = (_values.to_variance(v) for v in operands)
    return _values.Gaussian(x.mean - y.mean, jnp.abs(x.var - y.var))


def _where(axis: int, view: Axes) -> int | None:
    return view.index(axis) if view.count(axis) == 1 else None


def _view(atom: Any, made_by: dict[Value, Node]) -> tuple[Node, Axes] | None:
    """Returns the running sum that an operand holds entries of, and its axes in that sum."""
    moves: list[Node] = []
    while isinstance(atom, Value):
        node = made_by.get(atom)
        if node is None:
            return None
        if node.primitive is p.cumsum_p:
            break
        moves.append(node)
        atom = node.inputs[0]
    else:
        return None
    labels: Axes = tuple(range(len(atom.aval.shape)))
    for move in reversed(moves):
        after = _moved(move, labels, node.params["axis"])
        if after is None:
            return None
        labels = after
    return node, labels


def _moved(move: Node, labels: Axes, along: int) -> Axes | None:
    """Returns the axes after a move that leaves rows of the sum in their places, else None."""
    if move.primitive not in _VIEWS:
        return None
    # Along the sum any entry may be taken.
    lies = move.signature.operands[0].along[0] or ()
    taken = {labels[a] for one in lies if one.relation is Relation.PLACED for a in one.axes}
    if not taken:
        return axes.followed(move.signature, labels)
    return labels if taken <= {along} else None


@dataclass
class Environment:
    """The values of a layer while it is evaluated.

    Attributes:
        layer: The layer.
        rules: Rules of the user's own, by primitive; they come before the built-in ones.
        assume: Function that notes an assumption of independence; None where none may be made.
        values: Arrays and random arrays by traced value.
        lineages: Dependence of values on the layer's random inputs.
        meetings: The equations that combine dependent entries.
        numbers: Deterministic values that are one known number everywhere.
        approximated: Places where a rule is known to be inexact.
    """

    layer: Layer
    rules: Mapping[Any, Rule]
    assume: dependence.Note | None = None
    values: dict[Any, Any] = field(default_factory=dict)
    lineages: dict[Any, dependence.Lineage] = field(default_factory=dict)
    meetings: dict[Node, list[dependence.DependentCombination]] = field(default_factory=dict)
    numbers: dict[Any, float] = field(default_factory=dict)
    approximated: list[dependence.Assumption] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        layer: Layer,
        values: Sequence[Any],
        rules: Mapping[Any, Rule],
        assume: dependence.Note | None = None,
    ) -> Environment:
        """Makes the environment of a layer from its inputs."""
        env = cls(layer, rules, assume, dict(zip(layer.inputs, values, strict=True)))
        random = [v for v in layer.inputs if _values.is_random(env.values[v])]
        # The lineages of all equations at once, before any is evaluated: they depend on shapes
        # alone.
        env.lineages, env.meetings = dependence.follow_lineages(
            layer.nodes, dependence.independent_lineages(random)
        )
        return env

    def read(self, atom: Any) -> Any:
        """Returns the value of an equation's operand."""
        return atom.val if isinstance(atom, Literal) else self.values[atom]

    def number(self, atom: Any) -> float | None:
        """Returns the number an operand is everywhere, or None where that isn't known."""
        if isinstance(atom, Literal):
            return float(atom.val) if np.ndim(atom.val) == 0 else None
        return self.numbers.get(atom)

    def sources(self, atom: Any) -> frozenset:
        """Returns the layer's random inputs that a value depends on."""
        return frozenset(self.lineages.get(atom, ())) if isinstance(atom, Value) else frozenset()

    def write(self, outputs: Sequence[Value], results: Sequence[Any]) -> None:
        """Records an equation's results."""
        self.values.update(zip(outputs, results, strict=True))


def propagate(nodes: Sequence[Node], env: Environment) -> None:
    """Evaluates equations in order, writing their results into `env`."""
    for node in nodes:
        step(node, env)


def step(node: Node, env: Environment) -> None:
    """Evaluates one equation."""
    operands = [env.read(a) for a in node.inputs]
    if any(isinstance(o, _values.AtMean) for o in operands):
        raise _values.no_rule(node, env.layer.site, _values.OF_DISCRETE)
    if not any(_values.is_random(o) for o in operands):
        env.write(node.outputs, _compat.bind(node.eqn, *operands))
        # An epsilon or a floor may have been computed: statistics and kinks need it as a number.
        number = known_number(node.eqn, [env.number(a) for a in node.inputs])
        if number is not None:
            env.numbers[node.outputs[0]] = number
        return
    env.write(node.outputs, _apply(node, operands, env))


def _apply(node: Node, operands: Sequence[Any], env: Environment) -> Sequence[Any]:
    if node.primitive in env.rules:
        return env.rules[node.primitive](node, *operands)
    row = TABLE.get(node.primitive)
    if row is not None and row.kind is Kind.DISCRETE:
        # Discrete results have no variance: they are those of the means, and marked as such.
        means = [o.mean if _values.is_random(o) else o for o in operands]
        return [_values.AtMean(v) for v in _compat.bind(node.eqn, *means)]
    if node in env.meetings:
        twice = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        if row is not None and row.twice is not None and twice:
            return [row.twice(operands[0])]
        between = difference(node, env.layer.nodes, env.meetings, operands)
        if between is None:
            tables = [v for v in env.layer.inputs if env.lineages.get(v)]
            between = sum_of_rows(
                node, env.layer.nodes, tables, lambda a: env.number(a) is not None, env.read
            )
        if between is not None:
            return [between]
        if env.assume is None:
            reason = "combines values that depend on the same random input"
            raise _values.no_rule(node, env.layer.site, reason, _values.DependenceError)
        # The last resort of `region`: earlier attempts had no `assume` and failed here.
        for meeting in env.meetings[node]:
            env.assume(dependence.Assumption.of(env.layer, meeting))
    if row is None or row.moments is None:
        raise _values.no_rule(node, env.layer.site)
    try:
        return row.moments(node, *operands)
    except TypeError as error:
        if isinstance(error, _values.MomentsError):
            raise
        raise _values.no_rule(node, env.layer.site, f"can't be propagated here: {error}") from error
