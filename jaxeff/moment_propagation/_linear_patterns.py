"""Layers of several equations taken as one: with a bias, average pooling, views of one array.

The reader of programs gives a linear layer its bias as it is added, broadcast to the shape of the
result. `with_bias_vectors` gives it the vector instead, so that the layer is one function of the
arrays an operator takes; `linear_patterns` evaluates such a layer.

Sharp edges
- Only dot products `x (..., K) . w (K, N)` and 2-d convolutions NHWC, HWIO are recognised, with a
  bias over the last axis or none. Anything else is left to `propagate`.
- An average pooling divides by the window's size; one that counts its entries isn't recognised.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation import dependence
from jaxeff.moment_propagation._propagation import Environment, propagate
from jaxeff.moment_propagation._values import Gaussian, Pooled, RawMoments, is_random, to_variance
from jaxeff.moment_propagation.rules import (
    DATA_MOVEMENT,
    Attribute,
    Rule,
    bilinear,
    composite,
    data_movement,
    is_pooled,
    read_window,
    window_mean,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Contraction, Node, Value, run_nodes
from jaxeff.program.reading import UNNAMED


def with_bias_vectors(program: Program, outside: Mapping[Value, Layer] = {}) -> list[Value]:
    """Lets linear layers read the vectors that their biases are broadcast from, in place.

    `outside` has the layers around the program that prepare operands. Returns the vectors that have
    to come from there.
    """
    prepared = {v: layer for layer in program.layers if not layer.site for v in layer.outputs}
    known = {v for layer in program.layers for v in layer.outputs} | set(program.inputs)
    needed: list[Value] = []
    absorbed: set[Layer] = set()
    for layer in program.layers:
        for inside in layer.programs:
            vectors = with_bias_vectors(inside, {**outside, **prepared} if layer.mark else {})
            if layer.mark:  # its inside shares its values
                layer.inputs = tuple(dict.fromkeys([*layer.inputs, *vectors]))
                inside.inputs = layer.inputs
            needed += vectors
        add = _bias_sum(layer)
        for value in add.values if add else ():
            steps = _broadcast_of_vector(value, {**outside, **prepared})
            # The broadcasts become equations of the layer, which then reads the vector itself.
            if value in layer.inputs and steps:
                nodes = [step.nodes[0] for step in steps]
                vector = nodes[0].values[0]
                layer.inputs = tuple(vector if v is value else v for v in layer.inputs)
                layer.nodes = (*nodes, *layer.nodes)
                absorbed.update(steps)
                needed.append(vector)
    _drop_unread(program, absorbed)
    return [v for v in needed if v not in known]


def _bias_sum(layer: Layer) -> Node | None:
    """Returns the sum of a linear layer with its bias, or None."""
    if layer.kind != "linear" or layer.mark:
        return None
    return next((n for n in layer.nodes if n.primitive is p.add_p), None)


def _broadcast_of_vector(value: Value, made_by: Mapping[Value, Layer]) -> list[Layer]:
    """Returns the layers that broadcast a vector over the last axis of `value`, or none."""
    steps: list[Layer] = []
    while (layer := made_by.get(value)) and value.aval.ndim > 1 and _is_broadcast(layer.nodes):
        steps.insert(0, layer)
        (value,) = layer.inputs
    return steps if value.aval.ndim == 1 else []


def _is_broadcast(nodes: Sequence[Node]) -> bool:
    """Returns whether one equation only adds axes before the last one, or repeats along them."""
    if len(nodes) != 1 or len(nodes[0].values) != 1:
        return False
    (node,) = nodes
    before, after = node.values[0].aval.shape, node.outputs[0].aval.shape
    if not before or not after or before[-1] != after[-1] or not node.signature.repeated:
        return False
    return after[-1] == 1 or node.signature.source(len(after) - 1) == len(before) - 1


def _drop_unread(program: Program, candidates: set[Layer]) -> None:
    """Drops those of the candidates whose results nobody reads any more."""
    read = {v for v in program.outputs if isinstance(v, Value)}
    kept: list[Layer] = []
    for layer in reversed(program.layers):
        if layer not in candidates or not read.isdisjoint(layer.outputs):
            kept.insert(0, layer)
            read.update(layer.inputs)
    program.layers = tuple(kept)


def linear_patterns(
    layer: Layer, values: Sequence[Any], rules: Mapping[Any, Rule]
) -> list[Any] | None:
    """Computes the moments of a layer of several equations as one composite.

    The layer has a random input, and comes after `with_bias_vectors`; `RawMoments` are handed on as
    such. Returns None where it isn't of a form that operators are made for.
    """
    if any(node.primitive in rules for node in layer.nodes):
        return None
    if layer.kind == "pooling":
        return _average(layer, values)
    return _linear(layer, values) if layer.kind == "linear" else None


def _average(layer: Layer, values: Sequence[Any]) -> list[Any] | None:
    if len(layer.nodes) != 2 or len(layer.outputs) != 1:
        return None
    total, quotient = layer.nodes
    if total.primitive is not p.reduce_window_sum_p or quotient.primitive is not p.div_p:
        return None
    window, count = read_window(total), quotient.inputs[1]
    # A divisor computed from the padding (its entries counted) is no constant.
    if not isinstance(count, Literal) or count.val != math.prod(window.size):
        return None
    return [window_mean(to_variance(values[0]), window)]


def _linear(layer: Layer, values: Sequence[Any]) -> list[Any] | None:
    form = _form(layer)
    if form is None:
        return None
    operand_of = dict(zip(layer.inputs, values, strict=True))
    # What a random array was computed from is dropped; its form is kept.
    operands = [
        to_variance(x) if isinstance(x, Gaussian) else x
        for x in (operand_of[v] for v in form.operands)
    ]
    x, w, *bias = operands
    # Random through its bias alone: an addition, which needs no operator.
    if not (is_random(x) or is_random(w)):
        return None
    # Cheaper by itself than by an operator, which takes a variance for each weight.
    weight = operand_of[form.operands[1]]
    if layer.op is not None and isinstance(weight, Pooled) and is_pooled(layer.op, weight):
        return None
    arrays, structure = jax.tree.flatten(operands)

    def rule(*arrays: Any) -> Gaussian:
        parts = jax.tree.unflatten(structure, arrays)
        rebuilt = dict(zip(form.operands, parts, strict=True))
        env = Environment.of(layer, [rebuilt[v] for v in layer.inputs], {})
        with jax.named_scope(UNNAMED):  # as without `with_bias_vectors`, it is no part of the layer
            propagate(form.broadcast, env)
        propagate(form.sum, env)
        return env.read(layer.outputs[0])

    attributes = {
        "input": "raw" if isinstance(x, RawMoments) else _kind(x),
        "weight": _kind(w),
        "bias": _kind(bias[0]) if bias else "none",
    }
    return [composite(form.operator, rule, *arrays, **attributes, **form.attributes)]


def _kind(value: Any) -> str:
    return "variance" if is_random(value) else "deterministic"


@dataclass(frozen=True)
class _Form:
    """The parts of a linear layer.

    Attributes:
        operator: Name in an operator library.
        attributes: Attributes of the operator beside its operands.
        operands: Input, weight, and the bias vector if there is one.
        broadcast: The equations that broadcast the bias vector.
        sum: The operation and the addition of the bias.
    """

    operator: str
    attributes: Mapping[str, Attribute]
    operands: tuple[Value, ...]
    broadcast: tuple[Node, ...]
    sum: tuple[Node, ...]


def _form(layer: Layer) -> _Form | None:
    """Returns a linear layer's parts, or None where it has others than an operator covers."""
    op = layer.op
    known = None if op is None else _operator(op)
    if op is None or known is None or len(layer.outputs) != 1:
        return None
    if layer.nodes == (op,):
        return _Form(*known, tuple(op.values), (), (op,))
    # Operators take exactly a product and a bias: with anything between them or after them the
    # layer is left to the rules of its equations.
    *broadcast, product, add = layer.nodes
    if product is not op or add.primitive is not p.add_p or add.outputs != layer.outputs:
        return None
    (value,) = [v for v in add.values if v is not op.outputs[0]]
    for node in reversed(broadcast):
        if value not in node.outputs or not _is_broadcast([node]):
            return None
        (value,) = node.values
    if value not in layer.inputs or value.aval.shape != add.outputs[0].aval.shape[-1:]:
        return None
    return _Form(*known, (*op.values, value), tuple(broadcast), (op, add))


def _operator(op: Node) -> tuple[str, dict[str, Attribute]] | None:
    """Returns the operator of a product of data and weights, with its attributes, or None."""
    if len(op.values) != 2 or not op.values[0].is_data:
        return None
    if op.outputs[0].aval.dtype != op.values[0].aval.dtype:
        return None
    contraction, q = Contraction.of(op), op.params
    if not contraction.is_channels_last:
        return None
    if not contraction.is_convolution:
        return "pfp_dense", {}
    plain = len(contraction.window(0)) == 2 and q["batch_group_count"] == 1
    padding = tuple(edge for edges in q["padding"] for edge in edges)
    if not plain or any(d != 1 for d in q["lhs_dilation"]) or any(edge < 0 for edge in padding):
        return None
    return "pfp_conv2d", {
        "strides": tuple(q["window_strides"]),
        "padding": padding,
        "dilation": tuple(q["rhs_dilation"]),
        "groups": contraction.groups,
    }


_MOST_ENTRIES = 2**22
_MOST_VIEWS = 4
_SUMS = {p.reduce_sum_p, p.cumsum_p, p.reduce_window_sum_p, p.scatter_add_p, p.add_jaxvals_p}
_MOVES = DATA_MOVEMENT - _SUMS

Index = np.ndarray


def by_views(
    layer: Layer,
    random: Sequence[Value],
    values: Mapping[Value, Any],
    independent: Callable[[Layer, dict[Value, Any]], list[Any] | None],
) -> list[Any] | None:
    """Computes the moments of a layer that is a pointwise function, or one product, of views.

    Random inputs are independent of each other, entries and all; `independent` evaluates a
    pointwise layer of such inputs. Returns None where it isn't of this form.

    Products and differences of several views of one array are such layers, too. A *view* holds
    entries of an array, moved: a transpose, a slice, a roll, a broadcast. Which entry is where is
    known while tracing. So `x * jnp.roll(x, 1)` is a product of independent entries, `x[:, None] -
    x[None]` a difference of independent ones but on the diagonal, and the entries of `x @ x.T` are
    sums of products of independent entries, on the diagonal of squares.

    For a pointwise polynomial g of degree two in views u with covariances C_ab (the variance where
    two views hold the same entry, zero elsewhere), J and H its derivatives at the means,

        E g = g + 1/2 tr(H C)        Var g = J C J + 1/2 tr(H C H C),

    exact.

    Sharp edges
    - Indices that are only known at run time make no view.
    """
    sizes = [v.aval.size for n in layer.nodes for v in n.outputs]
    if not all(isinstance(size, int) and size <= _MOST_ENTRIES for size in sizes):
        return None
    # Which entry is where is computed on arrays of numbers while tracing: that costs memory and
    # time for each entry, hence the limit.
    index, moments, known = _views(layer.nodes, random, values)
    dependent = dependence.follow_lineages(layer.nodes, dependence.independent_lineages(random))[0]
    rest = [n for n in layer.nodes if any(v in dependent and v not in index for v in n.outputs)]
    if not rest:
        return None
    if len(rest) == 1 and rest[0].primitive is p.dot_general_p:
        if any(v not in index for v in rest[0].values):
            return None  # of one view and a constant: a linear function
        return _gram(rest[0], index, moments) if rest[0].outputs == layer.outputs else None
    if not all(dependence.is_pointwise(n.eqn) for n in rest):
        return None
    return _pointwise(layer, rest, index, moments, known, independent)


def _views(
    nodes: Sequence[Node], random: Sequence[Value], values: Mapping[Value, Any]
) -> tuple[dict[Value, Index], dict[Value, Gaussian], dict[Value, Any]]:
    """Returns which entries views hold, numbered over all inputs; their moments; certain values."""
    index: dict[Value, Index] = {}
    moments: dict[Value, Gaussian] = {}
    start = 0
    for value in random:
        shape = tuple(value.aval.shape)
        index[value] = start + np.arange(value.aval.size, dtype=np.int32).reshape(shape)
        moments[value] = values[value]
        start += value.aval.size
    known = {v: a for v, a in values.items() if v not in index}
    for node in nodes:
        views = [isinstance(a, Value) and a in index for a in node.inputs]
        if not any(views):
            operands = [_known_value(a, known) for a in node.inputs]
            if all(o is not None for o in operands):
                known.update(zip(node.outputs, _compat.bind(node.eqn, *operands), strict=True))
            continue
        if node.primitive not in _MOVES:
            continue
        # The same operation moves the numbers of entries and their moments. Sums are left out of
        # the moves: a sum holds more than one entry.
        moved = _moved_index(node, index, known)
        if moved is None:
            continue
        index.update(zip(node.outputs, moved, strict=True))
        operands = [
            moments[a] if is_view else _known_value(a, known)
            for a, is_view in zip(node.inputs, views, strict=True)
        ]
        moments.update(zip(node.outputs, data_movement(node, *operands), strict=True))
    return index, moments, known


def _known_value(atom: Any, known: Mapping[Value, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known.get(atom)


def _moved_index(
    node: Node, index: Mapping[Value, Index], known: Mapping[Value, Any]
) -> list[Index] | None:
    operands = []
    for atom in node.inputs:
        if isinstance(atom, Value) and atom in index:
            operands.append(index[atom])
            continue
        value = _known_value(atom, known)
        if value is None or isinstance(value, jax.core.Tracer):
            if value is None or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
                return None
            # Constants beside moved entries may be traced, for only their places count, which get
            # -1. Indices and masks must be known.
            value = np.zeros(value.shape)
        floating = jnp.issubdtype(jnp.result_type(value), jnp.floating)
        operands.append(np.full(np.shape(value), -1, np.int32) if floating else np.asarray(value))
    # Under jit too the numbers are computed now, not traced.
    with jax.ensure_compile_time_eval():
        return [np.asarray(v) for v in _compat.bind(node.eqn, *operands)]


def _pointwise(
    layer: Layer,
    rest: Sequence[Node],
    index: Mapping[Value, Index],
    moments: Mapping[Value, Gaussian],
    known: Mapping[Value, Any],
    independent: Callable[[Layer, dict[Value, Any]], list[Any] | None],
) -> list[Any] | None:
    read = dict.fromkeys(v for n in rest for v in n.values if v in index)
    first: dict[bytes, Value] = {}
    # Views of the same entries in the same order are one variable: x and x, however they came.
    same = {v: first.setdefault(index[v].tobytes(), v) for v in read}
    views = list(dict.fromkeys(same.values()))
    shape = rest[-1].outputs[0].aval.shape
    if any(v.aval.shape != shape for v in views) or any(v in index for v in layer.outputs):
        return None
    results = {v for n in rest for v in n.outputs}
    others = dict.fromkeys(v for n in rest for v in n.values if v not in results and v not in index)
    if any(v not in known for v in others):
        return None
    overlaps = {(a, b): index[a] == index[b] for a, b in itertools.combinations(views, 2)}
    fixed = {v: known[v] for v in others}
    # No entry stands at the same place of two views: place by place they are independent, and a
    # function of them is as exact as one of independent inputs.
    if not any(overlap.any() for overlap in overlaps.values()):
        inputs = (*read, *others)
        combined = Layer("elementwise", tuple(rest), inputs, layer.outputs, layer.site)
        if len(views) < len(read):
            return None
        return independent(combined, {**{v: moments[v] for v in read}, **fixed})
    # Overlapping views are correlated where they overlap, and of such a function only a polynomial
    # of degree two has exact moments from means and covariances.
    degree_of = dependence.degrees(rest, list(read))
    if len(views) > _MOST_VIEWS or max(degree_of.get(v, 0.0) for v in layer.outputs) > 2:
        return None

    def result(number: int, *variables: Array) -> Array:
        by_view = dict(zip(views, variables, strict=True))
        arguments = [by_view[same[v]] for v in read]
        everything = [*arguments, *fixed.values()]
        return run_nodes(rest, [*read, *fixed], everything, layer.outputs)[number]

    gaussians = [moments[v] for v in views]
    covariances = [[g.var for _ in views] for g in gaussians]
    for (a, one), (b, other) in itertools.combinations(enumerate(views), 2):
        # Two views hold either the same entry at a place, with its variance as covariance, or
        # independent ones.
        overlap = overlaps[one, other]
        covariances[a][b] = jnp.where(overlap, gaussians[a].var, 0)
        covariances[b][a] = jnp.where(overlap, gaussians[b].var, 0)
    return [
        _quadratic(lambda *u, n=n: result(n, *u), gaussians, covariances)
        for n in range(len(layer.outputs))
    ]


def _quadratic(
    fn: Callable[..., Array], x: Sequence[Gaussian], c: Sequence[Sequence[Array]]
) -> Gaussian:
    """Computes the exact moments of a pointwise quadratic function of correlated arrays."""
    at = [g.mean for g in x]
    count = range(len(at))

    def slope(a: int, *u: Array) -> Array:
        return jax.jvp(lambda v: fn(*u[:a], v, *u[a + 1 :]), (u[a],), (jnp.ones_like(u[a]),))[1]

    def curvature(a: int, b: int) -> Array:
        one = jnp.ones_like(at[b])
        return jax.jvp(lambda v: slope(a, *at[:b], v, *at[b + 1 :]), (at[b],), (one,))[1]

    slopes = [slope(a, *at) for a in count]
    # Pointwise, so a Hessian is a few numbers per entry: nested jvp along ones, views squared of
    # them, instead of differentiating by entries.
    hc = [[sum(curvature(a, b) * c[b][d] for b in count) for d in count] for a in count]
    mean = fn(*at) + 0.5 * sum(hc[a][a] for a in count)
    linear = sum(slopes[a] * c[a][b] * slopes[b] for a in count for b in count)
    square = sum(hc[a][b] * hc[b][a] for a in count for b in count)
    return Gaussian(mean, jnp.maximum(linear + 0.5 * square, 0))


def _gram(
    node: Node, index: Mapping[Value, Index], moments: Mapping[Value, Gaussian]
) -> list[Any] | None:
    """Contracts two views whose terms share nothing with one another; None for others."""
    contraction = Contraction.of(node)
    left, right = (contraction.rows(index[v], side) for side, v in enumerate(node.values))
    if max(left.size * right.shape[1], right.size * left.shape[1]) > _MOST_ENTRIES:
        return None
    # A sum of products is exact if each of its terms is a product of independent entries or a
    # square, all terms alike, and no entry is in two different terms.
    pairs = left[:, :, None, :] == right[:, None, :, :]
    overlap = pairs[..., 0]
    if (pairs != overlap[..., None]).any() or _mixes(left, right):
        return None
    overlap = overlap.reshape(node.outputs[0].aval.shape)
    x, y = (moments[v] for v in node.values)

    def contract(a: Array, b: Array) -> Array:
        return _compat.bind(node.eqn, a, b)[0]

    one = jnp.ones_like(y.mean)
    apart = bilinear(contract, x, y)
    assert is_random(apart)
    power = x.mean * x.mean
    # Squares on the overlap: E x^2 = m^2 + v and Var x^2 = 2 v^2 + 4 m^2 v.
    mean = apart.mean + jnp.where(overlap, contract(x.var, one), 0)
    same = contract(2 * x.var * x.var + 4 * power * x.var, one)
    return [Gaussian(mean, jnp.where(overlap, same, apart.var))]


def _mixes(left: Index, right: Index) -> bool:
    """Returns whether different terms of one sum hold the same entry."""
    both = np.concatenate([left.reshape(-1, left.shape[-1]), right.reshape(-1, right.shape[-1])])
    place = np.broadcast_to(np.arange(both.shape[-1]), both.shape)
    held = both >= 0
    # Each entry gets the number of a term it is in: where another is found later, two terms share
    # it. Constants (-1) are in no term.
    term = np.empty(both.max() + 1, int)
    term[both[held]] = place[held]
    return bool((term[both[held]] != place[held]).any())
