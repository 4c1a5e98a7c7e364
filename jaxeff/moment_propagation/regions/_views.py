"""Moments of products and differences of several views of one array.

A *view* holds entries of an array, moved: a transpose, a slice, a roll, a broadcast. Which entry is
where is known while tracing. So `x * jnp.roll(x, 1)` is a product of independent entries,
`x[:, None] - x[None]` a difference of independent ones but on the diagonal, and the entries of
`x @ x.T` are sums of products of independent entries, on the diagonal of squares.

For a pointwise polynomial g of degree two in views u with covariances C_ab (the variance where two
views hold the same entry, zero elsewhere), J and H its derivatives at the means,

    E g = g + 1/2 tr(H C)        Var g = J C J + 1/2 tr(H C H C),

exact.

Sharp edges
- Indices that are only known at run time make no view.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import degrees, independent_lineages, is_pointwise, walk
from jaxeff.moment_propagation.rules import DATA_MOVEMENT, bilinear, data_movement
from jaxeff.moment_propagation.values import Gaussian, is_random
from jaxeff.program import Layer
from jaxeff.program.ir import Contraction, Node, Value, run_nodes

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

    Args:
        layer: The layer, whose equations are read.
        random: The random inputs, independent of each other, entries and all.
        values: The value of each input.
        independent: Evaluates a pointwise layer whose inputs are independent.

    Returns:
        Its results, or None where it isn't of this form.
    """
    sizes = [v.aval.size for n in layer.nodes for v in n.outputs]
    if not all(isinstance(size, int) and size <= _MOST_ENTRIES for size in sizes):
        return None
    # Which entry is where is computed on arrays of numbers while tracing: that costs memory and
    # time for each entry, hence the limit.
    index, moments, known = _views(layer.nodes, random, values)
    dependent = walk(layer.nodes, independent_lineages(random))[0]
    rest = [n for n in layer.nodes if any(v in dependent and v not in index for v in n.outputs)]
    if not rest:
        return None
    if len(rest) == 1 and rest[0].primitive is p.dot_general_p:
        if any(v not in index for v in rest[0].values):
            return None  # of one view and a constant: a linear function
        return _gram(rest[0], index, moments) if rest[0].outputs == layer.outputs else None
    if not all(is_pointwise(n.eqn) for n in rest):
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
            operands = [_read(a, known) for a in node.inputs]
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
            moments[a] if is_view else _read(a, known)
            for a, is_view in zip(node.inputs, views, strict=True)
        ]
        moments.update(zip(node.outputs, data_movement(node, *operands), strict=True))
    return index, moments, known


def _read(atom: Any, known: Mapping[Value, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known.get(atom)


def _moved_index(
    node: Node, index: Mapping[Value, Index], known: Mapping[Value, Any]
) -> list[Index] | None:
    operands = []
    for atom in node.inputs:
        if isinstance(atom, Value) and atom in index:
            operands.append(index[atom])
            continue
        value = _read(atom, known)
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
    made = {v for n in rest for v in n.outputs}
    others = dict.fromkeys(v for n in rest for v in n.values if v not in made and v not in index)
    if any(v not in known for v in others):
        return None
    overlaps = {(a, b): index[a] == index[b] for a, b in itertools.combinations(views, 2)}
    fixed = {v: known[v] for v in others}
    # No entry stands at the same place of two views: place by place they are independent, and a
    # function of them is as exact as one of independent inputs.
    if not any(overlap.any() for overlap in overlaps.values()):
        inputs = (*read, *others)
        whole = Layer("elementwise", tuple(rest), inputs, layer.outputs, layer.site)
        if len(views) < len(read):
            return None
        return independent(whole, {**{v: moments[v] for v in read}, **fixed})
    # Overlapping views are correlated where they overlap, and of such a function only a polynomial
    # of degree two has exact moments from means and covariances.
    found = degrees(rest, list(read))
    if len(views) > _MOST_VIEWS or max(found.get(v, 0.0) for v in layer.outputs) > 2:
        return None

    def result(number: int, *variables: Array) -> Array:
        by_view = dict(zip(views, variables, strict=True))
        arguments = [by_view[same[v]] for v in read]
        everything = [*arguments, *fixed.values()]
        return run_nodes(rest, [*read, *fixed], everything, layer.outputs)[number]

    gaussians = [moments[v] for v in views]
    covariances = _covariances(views, gaussians, overlaps)
    return [
        _quadratic(lambda *u, n=n: result(n, *u), gaussians, covariances)
        for n in range(len(layer.outputs))
    ]


def _covariances(
    views: Sequence[Value], gaussians: Sequence[Gaussian], overlaps: Mapping[Any, np.ndarray]
) -> list[list[Array]]:
    count = range(len(views))

    def covariance(a: int, b: int) -> Array:
        if a == b:
            return gaussians[a].var
        # Two views hold either the same entry at a place, with its variance as covariance, or
        # independent ones.
        overlap = overlaps[views[min(a, b)], views[max(a, b)]]
        return jnp.where(overlap, gaussians[a].var, 0)

    return [[covariance(a, b) for b in count] for a in count]


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
