"""The curvature of a likelihood by the weights of any sites: generalized Gauss-Newton.

With the Jacobian `J` of an example's outputs by the weights, and the second derivative `L` of its
negative log-likelihood by all of its outputs, positions included, summed over the examples as

```text
full      sum_n J^T L J, of all weights together
diag      its diagonal
lowrank   its largest eigenvalues, without the matrix
kron      for each kernel  A (x) B / rows,  A = sum a a^T,  B = sum g^T L g
```

A kernel multiplies rows `a` (an example's patches, its tokens), and `g` is how outputs depend on
the result of one of them; all rows count as if they were examples (the expanded form of Eschenhagen
et al. 2023, arXiv:2311.00636). What is no kernel of one product has the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.bayes.curvature._blocks import Blocks, Leading
from jaxeff.bayes.curvature._precision import Diag, Full, Kron, decompose
from jaxeff.bayes.curvature._weights import SiteWeights, WeightBlock, single
from jaxeff.bayes.posteriors import Likelihood, resolve_likelihood
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.program.ir import Contraction
from jaxeff.program.reading import argument_leaves


def batches(data: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Splits examples into batches."""
    for start in range(0, len(jax.tree.leaves(data)[0]), size):
        rows = slice(start, start + size)
        yield jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), data)  # noqa: B023


def summed(part: Callable[..., Any], params: Any, parts: Iterator[tuple[Any, ...]]) -> Any:
    """Adds up what a function computes of each batch."""
    total: Any = None
    for batch in parts:
        found = part(params, *batch)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return total


def negative_log_likelihood(likelihood: Likelihood, outputs: Array, target: Any) -> Array:
    """Computes that of one example."""
    distribution = resolve_likelihood(likelihood)(outputs[None])
    return -distribution.log_prob(jax.tree.map(lambda leaf: leaf[None], target)).sum()


def example_curvature(likelihood: Likelihood, outputs: Array, target: Any) -> Array:
    """Computes the second derivative by all outputs of one example, `[outputs, outputs]`."""

    def nll(flat: Array) -> Array:
        return negative_log_likelihood(likelihood, flat.reshape(outputs.shape), target)

    return jax.hessian(nll)(outputs.ravel())


class SiteProblem(NamedTuple):
    """What a curvature is computed from.

    Attributes:
        f: `f(params, x) -> outputs [batch, ..., outputs]`.
        params: The parameters.
        data: `(x, targets)`.
        weights: The random ones.
        likelihood: Meaning of the outputs.
        size: Examples at a time, at most.
    """

    f: Callable[..., Any]
    params: Any
    data: tuple[Any, ...]
    weights: SiteWeights
    likelihood: Likelihood
    size: int


def site_precision(structure: str, rank: int, problem: SiteProblem) -> Blocks:
    """Computes the curvature of sites.

    Args:
        structure: "full", "kron", "diag" or "lowrank".
        rank: Number of eigenvalues of a low-rank curvature.
        problem: The function, its weights and the data.
    """
    if structure == "lowrank":
        return _low_rank(problem, rank)
    f, params, (x, targets), weights, likelihood, size = problem
    outputs = jax.eval_shape(f, params, jax.tree.map(lambda leaf: leaf[:1], x)).size

    @jax.jit
    def part(params: Any, x: Any, targets: Any) -> Any:
        def one(example: Any, target: Any) -> Any:
            inside = example_curvature(likelihood, single(f, params, example), target)
            if structure == "kron":
                return _factors(f, params, example, weights, inside)
            (jacobian,) = _rows(weights.jacobian(f, params, example), outputs)
            return jacobian[..., 0], inside

        found = jax.vmap(one)(x, targets)
        if structure == "kron":
            return jax.tree.map(lambda each: each.sum(0), found)
        jacobian, inside = found
        bent = jnp.einsum("bkl,blp->bkp", inside, jacobian)
        if structure == "diag":
            return (jacobian * bent).sum((0, 1))
        return jnp.einsum("bkp,bkq->pq", jacobian, bent)

    total = summed(part, params, batches((x, targets), min(size, weights.examples(outputs))))
    if structure == "kron":
        return Blocks(tuple(map(_of_factors, total)))
    if structure == "diag":
        return Blocks((_diagonal(total),))
    values, vectors = decompose(total)
    return Blocks((Full(values, vectors[:, None, :]),))


def _rows(jacobian: tuple[Array, ...], outputs: int) -> list[Array]:
    """Joins the axes of an example's outputs."""
    return [part.reshape(outputs, *part.shape[-2:]) for part in jacobian]


def _diagonal(values: Array) -> Diag:
    # A likelihood that isn't concave in its outputs may make some negative.
    return Diag(jnp.maximum(values, 0)[:, None])


def _of_factors(factors: tuple[Array, ...]) -> Kron | Diag:
    if len(factors) == 1:
        return _diagonal(factors[0])
    rows, *products = factors
    (left, turn), (right, other) = map(decompose, products)
    # Both are sums over the rows: their product would count each twice.
    return Kron(left, turn, right / rows.astype(right.dtype), other)


def _factors(
    f: Callable[..., Any], params: Any, x: Any, weights: SiteWeights, inside: Array
) -> tuple[tuple[Array, ...], ...]:
    """Computes one example's part of each block: rows and two factors, or a diagonal."""
    program = trace(f, params, jax.tree.map(lambda leaf: leaf[None], x))
    layers = {layer.site: layer for layer in program.layers if layer.site}
    blocks = {block.site: block for block in weights.blocks if block.site}
    rest = SiteWeights(tuple(block for block in weights.blocks if not block.site))

    def run(added: Mapping[str, Array], vector: tuple[Array, ...]) -> tuple[Array, Any]:
        read: dict[str, Array] = {}

        def rule(each: Layer, key: Any, *values: Any) -> Any:
            result = plain_rule(each, key, *values)
            if each.site not in blocks:
                return result
            rows, restored = _product(each, blocks[each.site], values, added[each.site])
            read[each.site] = rows
            return [result[0] + restored]

        leaves = argument_leaves((rest.unpack(params, vector), _first(x)), {})
        return evaluate(program, rule, None, leaves)[0][0], read

    added = {site: jnp.zeros(_made(layers[site])) for site in blocks}
    (by_row, by_vector), read = jax.jacrev(run, (0, 1), has_aux=True)(added, rest.pack(params))
    outputs = len(inside)
    found: list[tuple[Array, ...]] = []
    for block in weights.blocks:
        if not block.site:
            (jacobian,) = _rows(by_vector, outputs)
            found.append((jnp.einsum("kpo,kl,lpo->p", jacobian, inside, jacobian),))
            continue
        a, g = read[block.site], by_row[block.site]
        g = g.reshape(outputs, *g.shape[-2:])
        right = jnp.einsum("ksc,kl,lsd->cd", g, inside, g)
        found.append((jnp.asarray(len(a)), a.T @ a, right))
    return tuple(found)


def _first(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], x)


def _made(layer: Layer) -> tuple[int, int]:
    """Returns the shape of a layer's result as a matrix."""
    product = Contraction.of(layer.op)
    outputs = product.matrix_shape[2]
    return layer.outputs[0].aval.size // outputs, outputs


def _product(layer: Layer, block: WeightBlock, values: Any, added: Array) -> tuple[Array, Array]:
    """Returns the rows that a kernel multiplies, and what is added to its result, in its shape."""
    assert layer.op is not None
    product = Contraction.of(layer.op)
    operand = layer.op.inputs[1 - product.side]
    rows = product.rows(values[layer.inputs.index(operand)])[0]
    if len(block.leaves) > 1:
        # The bias is a weight whose input is one.
        rows = jnp.concatenate([rows, jnp.ones((len(rows), 1), rows.dtype)], axis=1)
    return rows, product.restore(added[None])


def _low_rank(problem: SiteProblem, rank: int) -> Blocks:
    """Finds the largest eigenvalues by Lanczos' method, a pass over the data for each product."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    f, params, data, weights, likelihood, size = problem

    @jax.jit
    def part(given: Any, x: Any, targets: Any) -> Array:
        params, vector = given

        def outputs(packed: tuple[Array, ...]) -> Array:
            return f(weights.unpack(params, packed), x)

        def nll(out: Array) -> Array:
            one = lambda out, target: negative_log_likelihood(likelihood, out, target)  # noqa: E731
            return jax.vmap(one)(out, targets).sum()

        packed = weights.pack(params)
        out, along = jax.jvp(outputs, (packed,), (vector,))
        _, bent = jax.jvp(jax.grad(nll), (out,), (along,))
        ((back,),) = jax.vjp(outputs, packed)[1](bent)
        return back[:, 0]

    (start,) = weights.pack(params)
    dimensions = len(start)

    def times(vector: np.ndarray) -> np.ndarray:
        column = (jnp.asarray(vector.reshape(-1, 1), start.dtype),)
        return np.asarray(summed(part, (params, column), batches(data, size)), np.float64)

    operator = LinearOperator((dimensions, dimensions), matvec=times, dtype=np.float64)
    # A start of its own, so that the same data give the same result.
    first = np.random.default_rng(0).normal(size=dimensions)
    values, vectors = eigsh(operator, k=min(rank, dimensions - 1), v0=first, tol=1e-4)
    return Blocks((
        Leading(
            jnp.asarray(np.maximum(values, 0), start.dtype), jnp.asarray(vectors, start.dtype)
        ),
    ))  # fmt: skip
