"""The degree of functions (pointwise, affine, polynomial), and their expansion to second order.

Moments of several dependent entries at once are taken by derivatives of the function that combines
them. For y = g(x) with independent Gaussian x of variances v, expanded to second order at the
means,

    E y = g + 1/2 sum_p v_p g_pp        Var y = sum_p v_p g_p^2 + 1/2 sum_pq v_p v_q g_pq^2,

which is exact where g is a polynomial of degree two: sums of squares, distances, products of a
tensor with a rearrangement of itself, a mean taken off, a variance.

Entries of x that meet no other (a batch) are differentiated together, so that the cost grows with
the entries that are mixed (n: n + 1 evaluations of g for an affine one, n^2 for others) and not
with the batch.

Sharp edges
- Anything but a polynomial of degree two is approximated; the caller notes it.
- Above `MOST_ENTRIES` intermediate entries there is no result: the caller assumes independence,
  which is cheaper, and notes it. Normalizations of normalizations (a post-norm transformer) would
  have 1.2 times the variance at each of 16 channels: they are expanded entry by entry before.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation._values import Gaussian
from jaxeff.moment_propagation.dependence import _lineage
from jaxeff.program import Layer
from jaxeff.program.ir import FACTS, Facts, Node, Value, entering, extent, facts, inside, walk_nodes
from jaxeff.program.ir import primitives as prim

MOST_ENTRIES = 2**22
"""Intermediate entries, at most, of all derivatives of an expansion."""

# Affine in one operand while the others are deterministic.
AFFINE = {
    q for q in prim.ELEMENTWISE | prim.IN_PLACE
    if FACTS.get(q, Facts()).form in {"sum", "affine"} and q is not p.select_n_p
}  # fmt: skip
_CONSTANT_MOVES = prim.MOVES | {p.iota_p}


def is_pointwise(eqn: Any) -> bool:
    """Returns whether an equation is a function of single entries that quadrature can integrate."""
    return all(map(_is_pointwise, inside(eqn)))


def _is_pointwise(eqn: Any) -> bool:
    if eqn.primitive in _CONSTANT_MOVES:
        return all(getattr(a.aval, "shape", ()) == () for a in eqn.invars)
    known = eqn.primitive in prim.ELEMENTWISE or eqn.primitive is p.name_p
    return known and facts(eqn).form != "staircase"


def is_limited(nodes: Sequence[Node]) -> bool:
    """Returns whether pointwise equations may be undefined for some real operands.

    Logarithms and roots of what is never negative (a softplus) don't count.
    """
    limited: list[Any] = []

    def rule(eqn: Any, signs: Sequence[bool]) -> list[bool]:
        # A function that may be undefined costs a second evaluation at all nodes: hence the effort
        # to derive that an operand is never negative.
        domain = facts(eqn).domain
        if domain != "all" and not (signs[0] and domain == "positive"):
            limited.append(eqn)
        return [_is_never_negative(eqn, signs)] * len(eqn.outvars)

    # Nothing is known of what the nodes are given: it may be negative.
    walk_nodes(nodes, defaultdict(bool), (), entering(rule, _is_nonnegative), _is_nonnegative)
    return bool(limited)


def _is_nonnegative(atom: Any, value: Any) -> bool:
    """Returns whether a constant is a literal that isn't negative."""
    # Other constants aren't looked at: they may be traced.
    return isinstance(atom, Literal) and jnp.ndim(value) == 0 and bool(value >= 0)


def _is_never_negative(eqn: Any, signs: Sequence[bool]) -> bool:
    """Returns whether an equation's results are never negative, given which operands are."""
    even = eqn.primitive is p.integer_pow_p and eqn.params["y"] % 2 == 0
    sign = facts(eqn).sign
    kept = sign == "kept" and all(signs)
    raised = eqn.primitive is p.max_p and any(signs)
    chosen = eqn.primitive is p.select_n_p and all(signs[1:])
    return even or kept or raised or chosen or sign == "never"


def are_smooth(nodes: Sequence[Node], variables: Sequence[Value], results: Sequence[Value]) -> bool:
    """Returns whether results are twice differentiable functions of variables, inside their domain.

    Values that enter through `stop_gradient` only, as softmax's maximum, don't count.
    """
    dependent = set(variables)
    for node in nodes:
        if not dependent.isdisjoint(node.values):
            dependent.update(node.outputs)
    # Backwards from the results, so that a kink whose value nobody uses doesn't count.
    needed = set(results)
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs) or dependent.isdisjoint(node.outputs):
            continue
        if not all(map(_is_smooth, inside(node.eqn))):
            return False
        if node.primitive is not p.stop_gradient_p:
            needed.update(node.values)
    return True


def _is_smooth(eqn: Any) -> bool:
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars)
    return floats and facts(eqn).form not in {"kinked", "staircase"}


def degrees(nodes: Sequence[Node], variables: Sequence[Value]) -> dict[Value, float]:
    """Returns the degree of each value as a polynomial of variables; infinite if it is none."""

    def rule(eqn: Any, operands: Sequence[float]) -> list[float]:
        return [_degree(eqn, operands) if any(operands) else 0.0] * len(eqn.outvars)

    def constant(*_: Any) -> float:
        return 0.0

    # Whatever else the nodes read is a constant to the variables: of degree zero.
    degree_of = defaultdict(float, dict.fromkeys(variables, 1.0))
    walk_nodes(nodes, degree_of, (), entering(rule, constant), constant)
    return degree_of


def _degree(eqn: Any, operands: Sequence[float]) -> float:
    # Chosen by a random mask, the result is no polynomial, whatever the cases are.
    if eqn.primitive is p.select_n_p and operands[0]:
        return math.inf
    power = eqn.params.get("y", 2)  # of a square there is no parameter
    match facts(eqn).degree:
        case "largest":
            return max(operands)
        case "added":
            return sum(operands)
        case "quotient":
            return math.inf if operands[1] else operands[0]
        case "power" if power > 0:
            return power * operands[0]
    return math.inf


def has_rule(layer: Layer, random: Sequence[Value]) -> bool:
    """Returns whether a layer with products is exact by expansion, at an acceptable cost."""
    return degree(layer, random) <= 2 and (is_gram(layer.nodes) or is_affordable(layer, random))


def degree(layer: Layer, random: Sequence[Value]) -> float:
    """Returns the degree of a layer's results in its random inputs; infinite if no polynomials."""
    degree_of = degrees(layer.nodes, random)
    return max(degree_of.get(v, 0.0) for v in layer.outputs)


def is_gram(nodes: Sequence[Node]) -> bool:
    """Returns whether equations only move entries of an array and then contract two such views."""
    *moves, last = nodes
    return last.primitive in prim.LINEAR and all(n.primitive in prim.SHAPE for n in moves)


def is_affordable(layer: Layer, random: Sequence[Value], power: int | None = None) -> bool:
    """Returns whether the derivatives fit into `MOST_ENTRIES`.

    Those by single entries for `power` 1, by pairs for 2; without it, what the degree asks for.
    """
    sizes = [v.aval.size for v in (*layer.inputs, *(v for n in layer.nodes for v in n.outputs))]
    if not all(isinstance(size, int) for size in sizes):
        return False  # symbolic
    # An affine function is differentiated once by each mixed entry, any other one twice; each
    # derivative holds as many entries as the largest intermediate.
    largest = max(sizes)
    power = power or (1 if degree(layer, random) <= 1 else 2)
    return all(
        sum(extent(v.aval.shape, _mixed_axes(v, labels)) for v, labels in lineage) ** power
        * largest
        <= MOST_ENTRIES
        for lineage in _lineages(layer, random)
    )


def second_order(
    layer: Layer, random: Sequence[Value], values: dict[Value, Any]
) -> list[Gaussian] | None:
    """Computes the moments of a layer's results by expansion to second order at the means.

    Where all second derivatives of a normalization are too expensive, those by single entries are
    taken: the mean is still of second order, the variance lacks what pairs add to the first.
    Random inputs are independent of each other, entries and all. Returns None where a function has
    kinks or is too expensive.
    """
    pairs = is_affordable(layer, random)
    affordable = pairs or (layer.kind == "normalization" and is_affordable(layer, random, 1))
    if not affordable or not are_smooth(layer.nodes, random, layer.outputs):
        return None
    fixed = {v: a for v, a in values.items() if v not in random}
    curved = degree(layer, random) > 1
    results = []
    for index, lineage in enumerate(_lineages(layer, random)):

        def result(*variables: Array, index: int = index) -> Array:
            operands = {**fixed, **dict(zip(random, variables, strict=True))}
            return layer.fn(*(operands[v] for v in layer.inputs))[index]

        results.append(_expanded(result, lineage, values, curved, pairs))
    return results


_ResultLineage = list[tuple[Value, _lineage.Labels]]
"""Of one result: each random input, and the labels of its axes."""


def _lineages(layer: Layer, random: Sequence[Value]) -> list[_ResultLineage]:
    """Returns the lineage of each result."""
    lineages = _lineage.follow_lineages(layer.nodes, _lineage.independent_lineages(random))[0]
    return [
        [(v, lineages[out].get(v, (_lineage.SHARED,) * len(out.aval.shape))) for v in random]
        for out in layer.outputs
    ]


def _mixed_axes(value: Value, labels: _lineage.Labels) -> list[int]:
    """Lists the axes of an input along which its entries meet in a result."""
    return [a for a in range(len(value.aval.shape)) if a not in labels]


def _expanded(
    fn: Callable[..., Array],
    lineage: _ResultLineage,
    values: dict[Value, Any],
    curved: bool,
    pairs: bool,
) -> Gaussian:
    """Expands one result, a function of the random inputs, to second order.

    `curved` if it has second derivatives, `pairs` if those by pairs of entries are taken.
    """
    means = [values[v].mean for v, _ in lineage]
    # Entries that meet no other share a tangent, as columns of a sparse Jacobian share a colour
    # (Curtis, Powell and Reid 1974): a batch costs no more than one example.
    tangents = _side_by_side([_basis(v, labels, values[v].mean.dtype) for v, labels in lineage])
    spreads = [_spread(values[v].var, labels) for v, labels in lineage]
    shape = np.broadcast_shapes(*(s.shape[1:] for s in spreads))
    spread = jnp.concatenate([jnp.broadcast_to(s, (len(s), *shape)) for s in spreads])

    def slope(point: Sequence[Array], tangent: Sequence[Array]) -> Array:
        return jax.jvp(fn, point, tangent)[1]

    def with_entry(total: tuple[Array, Array], entry: Any) -> Any:
        mean, var = total
        index, tangent, v = entry

        def curvature(second_tangent: Sequence[Array]) -> Any:
            return jax.jvp(lambda *x: slope([*x], tangent), means, second_tangent)

        # Affine: the mean is exact at the centre, and there are no second derivatives to take.
        if not curved:
            return (mean, var + v * slope(means, tangent) ** 2), None
        if not pairs:
            g_p, g_pp = curvature(tangent)
            return (mean + 0.5 * v * g_pp, var + v * g_p**2 + 0.5 * (v * g_pp) ** 2), None
        # Row p of the Hessian: forward over forward, all q at once. The slope is the same for each
        # q.
        g_p, g_pq = jax.vmap(curvature, out_axes=(None, 0))(tangents)
        mean = mean + 0.5 * v * g_pq[index]
        var = var + v * g_p**2 + 0.5 * v * jnp.sum(spread * g_pq * g_pq, 0)
        return (mean, var), None

    centre = fn(*means)
    entries = (jnp.arange(len(spread)), tangents, spread)
    # One p after the other, so that memory holds a row of the Hessian, not all of it.
    total, _ = jax.lax.scan(with_entry, (centre, jnp.zeros_like(centre)), entries)
    return Gaussian(*total)


def _side_by_side(bases: Sequence[Array]) -> list[Array]:
    """Extends the tangents of each input by zeros where an entry of another input moves."""
    counts = [len(basis) for basis in bases]
    before = [sum(counts[:k]) for k in range(len(counts))]
    after = [sum(counts[k + 1 :]) for k in range(len(counts))]
    return [
        jnp.pad(basis, [padding] + [(0, 0)] * (basis.ndim - 1))
        for basis, padding in zip(bases, zip(before, after, strict=True), strict=True)
    ]


def _basis(value: Value, labels: _lineage.Labels, dtype: Any) -> Array:
    """Makes tangents `[mixed entries, *shape]`, each of one entry at all places of other axes."""
    shape = tuple(value.aval.shape)
    mixed = _mixed_axes(value, labels)
    count = extent(shape, mixed)
    mixed_shape = [n if a in mixed else 1 for a, n in enumerate(shape)]
    unit_vectors = jnp.eye(count, dtype=dtype).reshape(count, *mixed_shape)
    return jnp.broadcast_to(unit_vectors, (count, *shape))


def _spread(var: Array, labels: _lineage.Labels) -> Array:
    """Arranges variances as `[mixed entries, *axes of the result]`, size 1 for its new axes."""
    mixed = [a for a in range(var.ndim) if a not in labels]
    kept = [a for a in labels if isinstance(a, int)]
    # Axes that the result follows stay beside each other: there each place has its own variance.
    moved = jnp.transpose(var, [*mixed, *kept])
    sizes = iter(moved.shape[len(mixed) :])
    shape = [next(sizes) if isinstance(label, int) else 1 for label in labels]
    return moved.reshape(-1, *shape)
