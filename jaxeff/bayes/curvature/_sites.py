"""The curvature of a likelihood by the weights of any sites: generalized Gauss-Newton.

With the Jacobian `J` of an example's outputs by the weights, and the curvature `L` of its negative
log-likelihood by all of its outputs, positions included, summed over the examples as

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
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.curvature._blocks import Blocks, Leading
from jaxeff.bayes.curvature._last_layer import gaussian_information
from jaxeff.bayes.curvature._precision import (
    Diag,
    Full,
    Kron,
    decompose,
    diagonal,
    warn_of_negative,
)
from jaxeff.bayes.curvature._weights import SiteWeights, WeightBlock, products, single
from jaxeff.bayes.posteriors import Likelihood, resolve_likelihood
from jaxeff.core import bind
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.program.ir import Contraction, Node, run_nodes
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
    """Computes the curvature by all outputs of one example, `[outputs, outputs]`."""
    if likelihood == "gaussian":
        return jnp.diag(gaussian_information(outputs).ravel())

    def nll(flat: Array) -> Array:
        return negative_log_likelihood(likelihood, flat.reshape(outputs.shape), target)

    return jax.hessian(nll)(outputs.ravel())


class DrawnLabels(NamedTuple):
    """Labels drawn from a model's own predictions.

    Attributes:
        key: Random key.
        draws: Draws for each example.
    """

    key: PRNGKeyArray
    draws: int


class SiteProblem(NamedTuple):
    """What a curvature is computed from.

    Attributes:
        f: `f(params, x) -> outputs [batch, ..., outputs]`.
        params: The parameters.
        data: `(x, targets)`.
        weights: The random ones.
        likelihood: Meaning of the outputs.
        size: Examples at a time, at most.
        labels: Draws of labels that curvature is taken at; None for the exact one.
    """

    f: Callable[..., Any]
    params: Any
    data: tuple[Any, ...]
    weights: SiteWeights
    likelihood: Likelihood
    size: int
    labels: DrawnLabels | None = None


def site_precision(structure: str, rank: int, problem: SiteProblem) -> Blocks:
    """Computes the curvature of sites.

    Args:
        structure: "full", "kron", "diag" or "lowrank".
        rank: Number of eigenvalues of a low-rank curvature.
        problem: The function, its weights and the data.
    """
    if structure == "lowrank":
        return _low_rank(problem, rank)
    f, params, (x, targets), weights, likelihood, size, labels = problem
    outputs = jax.eval_shape(f, params, jax.tree.map(lambda leaf: leaf[:1], x)).size
    keys = None if labels is None else jax.random.split(labels.key, len(jax.tree.leaves(x)[0]))

    @jax.jit
    def part(params: Any, x: Any, targets: Any, keys: Any) -> Any:
        def one(example: Any, target: Any, key: Any) -> Any:
            out = single(f, params, example)
            if labels is None:
                rows = jnp.eye(outputs, dtype=out.dtype)
                inside = example_curvature(likelihood, out, target)
            else:
                rows = sampled_slopes(likelihood, out, key, labels.draws)
                inside = jnp.eye(labels.draws, dtype=out.dtype) / labels.draws
            if structure == "kron":
                return _factors(f, params, example, weights, rows, inside)
            made = lambda packed: single(f, weights.unpack(params, packed), example)  # noqa: E731
            ((jacobian,),), _ = _pulled(made, (weights.pack(params),), rows)
            return jacobian[..., 0], inside

        found = jax.vmap(one)(x, targets, keys)
        if structure == "kron":
            return jax.tree.map(lambda each: each.sum(0), found)
        jacobian, inside = found
        bent = jnp.einsum("bkl,blp->bkp", inside, jacobian)
        if structure == "diag":
            return (jacobian * bent).sum((0, 1))
        return jnp.einsum("bkp,bkq->pq", jacobian, bent)

    size = min(size, weights.examples(outputs if labels is None else labels.draws))
    total = summed(part, params, batches((x, targets, keys), size))
    if structure == "kron":
        return Blocks(tuple(map(_of_factors, total)))
    if structure == "diag":
        return Blocks((diagonal(total[:, None]),))
    values, vectors = decompose(total)
    return Blocks((Full(values, vectors[:, None, :]),))


def sampled_slopes(
    likelihood: Likelihood, outputs: Array, key: PRNGKeyArray, draws: int
) -> Float[Array, "draws outputs"]:
    """Computes slopes of the negative log-likelihood of targets drawn from the outputs themselves.

    Their mean square is the Fisher information, which is the second derivative where outputs are
    natural parameters, as logits are (Martens 2020, arXiv:1412.1193, section 9).
    """
    drawn = resolve_likelihood(likelihood)(outputs[None]).sample(key, (draws,))

    def slope(target: Any) -> Array:
        return jax.grad(lambda out: negative_log_likelihood(likelihood, out, target[0]))(outputs)

    return jax.vmap(slope)(drawn).reshape(draws, -1)


def _pulled(made: Callable[..., Any], args: Any, rows: Array, aux: bool = False) -> tuple[Any, Any]:
    """Multiplies rows `[rows, outputs]` by the Jacobian of a function's first result."""
    if not aux:
        whole = made
        made = lambda *args: (whole(*args), None)  # noqa: E731
    out, pull, more = jax.vjp(made, *args, has_aux=True)
    return jax.vmap(pull)(rows.reshape(-1, *out.shape)), more


def _of_factors(factors: tuple[Array, ...]) -> Kron | Diag:
    if len(factors) == 1:
        return diagonal(factors[0][:, None])
    rows, *products = factors
    (left, turn), (right, other) = map(decompose, products)
    # Both are sums over the rows: their product would count each twice.
    return Kron(left, turn, right / rows.astype(right.dtype), other)


def _factors(
    f: Callable[..., Any], params: Any, x: Any, weights: SiteWeights, rows: Array, inside: Array
) -> tuple[tuple[Array, ...], ...]:
    """Computes one example's part of each block: rows and two factors, or a diagonal."""
    program = trace(f, params, _first(x))
    found = products(program)
    blocks = {found[block.leaves[0]]: block for block in weights.blocks if block.order is not None}
    rest = SiteWeights(tuple(block for block in weights.blocks if block.order is None))

    def run(added: Mapping[int, Array], vector: tuple[Array, ...]) -> tuple[Array, Any]:
        read: dict[int, Array] = {}

        def rule(each: Layer, key: Any, *values: Any) -> Any:
            if blocks.keys().isdisjoint(each.nodes):
                return plain_rule(each, key, *values)
            # Nodes of two calls of one function share their equations: it is their order that
            # tells them apart.
            nodes = iter(each.nodes)

            def bound(eqn: Any, *operands: Any) -> list[Any]:
                made: list[Any] = bind(eqn, *operands)
                node = next(nodes)
                if node not in blocks:
                    return made
                leaf = blocks[node].leaves[0]
                read[leaf], more = _product(node, blocks[node], operands, added[leaf])
                return [made[0] + more]

            return run_nodes(each.nodes, each.inputs, values, each.outputs, bound)

        leaves = argument_leaves((rest.unpack(params, vector), _first(x)), {})
        return evaluate(program, rule, None, leaves)[0][0], read

    added = {
        block.leaves[0]: jnp.zeros(_made(node), node.outputs[0].aval.dtype)
        for node, block in blocks.items()
    }
    (by_row, by_vector), read = _pulled(run, (added, rest.pack(params)), rows, aux=True)
    sums: list[tuple[Array, ...]] = []
    for block in weights.blocks:
        if block.order is None:
            (jacobian,) = by_vector
            sums.append((jnp.einsum("kpo,kl,lpo->p", jacobian, inside, jacobian),))
            continue
        a, g = read[block.leaves[0]], by_row[block.leaves[0]]
        right = jnp.einsum("ksc,kl,lsd->cd", g, inside, g)
        sums.append((jnp.asarray(len(a)), a.T @ a, right))
    return tuple(sums)


def _first(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], x)


def _made(node: Node) -> tuple[int, int]:
    """Returns the shape of a product's result as a matrix."""
    outputs = Contraction.of(node).matrix_shape[2]
    return node.outputs[0].aval.size // outputs, outputs


def _product(node: Node, block: WeightBlock, operands: Any, added: Array) -> tuple[Array, Array]:
    """Returns the rows that a kernel multiplies, and what is added to its result, in its shape."""
    product = Contraction.of(node)
    rows = product.rows(operands[1 - product.side])[0]
    if len(block.leaves) > 1:
        # The bias is a weight whose input is one.
        rows = jnp.concatenate([rows, jnp.ones((len(rows), 1), rows.dtype)], axis=1)
    return rows, product.restore(added[None])


def _low_rank(problem: SiteProblem, rank: int) -> Blocks:
    """Finds the largest eigenvalues by Lanczos' method, a pass over the data for each product."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    f, params, data, weights, likelihood, size, _ = problem

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
        if likelihood == "gaussian":
            bent = gaussian_information(out) * along
        else:
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
    warn_of_negative(values)
    return Blocks((
        Leading(
            jnp.asarray(np.maximum(values, 0), start.dtype), jnp.asarray(vectors, start.dtype)
        ),
    ))  # fmt: skip
