"""The curvature of a likelihood by weights, of a last layer or of any sites: Gauss-Newton.

Generalized Gauss-Newton curvatures leave out the second derivatives of the network itself.

For a last layer with features `h` (1 for the bias appended) and logits `h @ W`, the negative
log-likelihood's second derivative by W is `h h^T` times that by the logits, `L`, without
approximation; summed over the examples as one of

```text
full      sum_n h h^T (x) L
outputs   sum_n h h^T L_cc, one matrix for each output
kron      A (x) B / N     A = sum_n h h^T, B = sum_n L
diag      sum_n h_d^2 L_cc
```

For the weights of any sites, with the Jacobian `J` of an example's outputs by the weights, and the
curvature `L` of its negative log-likelihood by all of its outputs, positions included, summed over
the examples as

```text
full      sum_n J^T L J, of all weights together
diag      its diagonal
lowrank   its largest eigenvalues, without the matrix
kron      for each kernel  A (x) B / rows,  A = sum a a^T,  B = sum g^T L g
```

A kernel multiplies rows `a` (an example's patches, its tokens), and `g` is how outputs depend on
the result of one of them; all rows count as if they were examples (the expanded form of Eschenhagen
et al. 2023, arXiv:2311.00636). What is no kernel of one product has the diagonal. A curvature of
low rank keeps the directions that the data say most of; in all others the posterior is the prior.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes._precision import (
    Diag,
    Full,
    Kron,
    SiteCurvature,
    SiteWeights,
    WeightBlock,
    decompose,
    diagonal,
    products,
    single,
    warn_of_negative,
)
from jaxeff.bayes.posteriors import Likelihood, resolve_likelihood
from jaxeff.core import bind
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.program.ir import Contraction, Node, run_nodes
from jaxeff.program.reading import argument_leaves

MOST = 16_384
"""Weights of a full curvature at most: a gibibyte of float32."""


def gaussian_information(outputs: Float[Array, "*batch two_k"]) -> Float[Array, "*batch two_k"]:
    """Computes the Fisher information of means and log-variances, which is diagonal: 1 / v, 1 / 2.

    The second derivative by a log-variance, half the squared residual over the variance, has this
    mean, but together with that by the mean it is indefinite at targets near or far.
    """
    _, log_var = jnp.split(outputs, 2, axis=-1)
    return jnp.concatenate([jnp.exp(-log_var), jnp.full_like(log_var, 0.5)], axis=-1)


def outputs_curvature(
    likelihood: Likelihood, outputs: Float[Array, "batch outputs"], targets: Any
) -> Float[Array, "batch outputs outputs"]:
    """Computes the curvature of the negative log-likelihood by an example's outputs.

    Of logits and Gaussians it is the Fisher information, of other likelihoods the second derivative
    at the targets.
    """
    eye = jnp.eye(outputs.shape[-1], dtype=outputs.dtype)
    if likelihood == "gaussian":
        return gaussian_information(outputs)[:, :, None] * eye[None]
    if likelihood == "categorical":
        probs = jax.nn.softmax(outputs)
        # For a softmax the outputs' Hessian is diag(p) - p p^T, without labels.
        return probs[:, :, None] * eye[None] - probs[:, :, None] * probs[:, None, :]
    distribution: Callable[[Any], Any] = resolve_likelihood(likelihood)

    def nll(out: Array, target: Any) -> Array:
        return -distribution(out[None]).log_prob(target[None]).sum()

    # No closed form for other likelihoods; outputs are few, so their Hessian is cheap.
    return jax.vmap(jax.hessian(nll))(outputs, targets)


def check_size(structure: str, features: int, outputs: int) -> None:
    """Refuses a full curvature that doesn't fit.

    Raises:
        ValueError: It has more than `MOST` weights.
    """
    size = features * outputs
    if structure == "full" and size > MOST:
        raise ValueError(
            f"laplace: a full curvature of {features} x {outputs} weights takes "
            f"{4 * size**2 / 2**30:.0f} GiB; choose 'kron', 'diag' or 'lowrank'"
        )


def batch_curvature(
    structure: str, features: Array, outputs: Array, targets: Any, likelihood: Likelihood
) -> tuple[Array, ...]:
    """Computes one batch's part of a curvature: what is summed over batches."""
    # Of the layer's inputs and outputs one matrix each; their Kronecker product stands for
    # the sum of products, which it equals only if the two are independent.
    if structure == "kron":
        return features.T @ features, _summed(likelihood, outputs, targets)
    if likelihood == "categorical":
        probs = jax.nn.softmax(outputs)
        # The diagonal of diag(p) - p p^T is p (1 - p): no example needs a matrix.
        if structure == "diag":
            return ((features**2).T @ (probs * (1 - probs)),)
        if structure == "outputs":
            return (_of_outputs(features, probs * (1 - probs)),)
        return (_full_categorical(features, probs),)
    each = outputs_curvature(likelihood, outputs, targets)
    if structure == "diag":
        return ((features**2).T @ jnp.diagonal(each, axis1=1, axis2=2),)
    if structure == "outputs":
        return (_of_outputs(features, jnp.diagonal(each, axis1=1, axis2=2)),)
    n = features.shape[1] * outputs.shape[1]
    # sum_n h h^T (x) L, in the order of the flattened weights: feature, then output.
    return (jnp.einsum("nd,ne,nck->dcek", features, features, each).reshape(n, n),)


def _summed(likelihood: Likelihood, outputs: Array, targets: Any) -> Array:
    if likelihood != "categorical":
        return outputs_curvature(likelihood, outputs, targets).sum(0)
    probs = jax.nn.softmax(outputs)  # never a matrix for each example: a thousand classes fit
    return jnp.diag(probs.sum(0)) - probs.T @ probs


def _of_outputs(features: Array, curvature: Array) -> Array:
    """Computes a matrix for each output, one after the other to save memory."""
    return jax.lax.map(lambda own: (features * own[:, None]).T @ features, curvature.T)


def _full_categorical(features: Array, probs: Array) -> Array:
    # diag(p) - p p^T splits the sum: a block-diagonal part per class and one matrix product
    # of [n, d c] rows, instead of n matrices of [c, c].
    (_, d), (n, c) = features.shape, probs.shape
    joint = (features[:, :, None] * probs[:, None, :]).reshape(n, d * c)
    own = jnp.einsum("nd,ne,nc->cde", features, features, probs)
    blocks = jnp.einsum("cde,ck->dcek", own, jnp.eye(c, dtype=probs.dtype))
    return blocks.reshape(d * c, d * c) - joint.T @ joint


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Leading:
    """The largest eigenvalues `[rank]` of a vector of weights, and their eigenvectors."""

    is_diagonal: ClassVar[bool] = False
    values: Float[Array, " rank"]
    vectors: Float[Array, "features rank"]

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, 1]` by a root of the covariance."""
        return self._scaled(jacobian[..., 0], prior)

    def _scaled(self, rows: Array, prior: Any) -> Array:
        """Multiplies by the symmetric root: shrunk along the eigenvectors."""
        turned = rows @ self.vectors
        # 1 - sqrt(prior / (value + prior)): how much narrower than the prior.
        narrower = 1 - jnp.sqrt(prior / (self.values + prior))
        shrunk = turned * narrower.reshape(*[1] * (turned.ndim - 1), -1)
        return (rows - shrunk @ self.vectors.T) / jnp.sqrt(prior)

    def weights_variance(self, prior: Any) -> Float[Array, "features 1"]:
        """Computes the variance of each weight."""
        known = self.values / (self.values + prior)
        return ((1 - self.vectors**2 @ known) / prior)[:, None]

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features 1"]:
        """Draws weights around zero."""
        noise = jax.random.normal(key, (n, len(self.vectors)), self.vectors.dtype)
        return self._scaled(noise, prior)[..., None]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of weights that are independent of each other."""

    parts: tuple[SiteCurvature, ...]

    @property
    def is_diagonal(self) -> bool:
        """Whether the weights of each block are independent of each other."""
        return all(part.is_diagonal for part in self.parts)

    @property
    def values(self) -> Array:
        """The eigenvalues of all blocks."""
        return jnp.concatenate([part.values.ravel() for part in self.parts])

    def covariance(
        self, jacobian: Sequence[Array], prior: Any
    ) -> Float[Array, "*batch outputs outputs"]:
        """Computes the covariance of outputs, of their Jacobian by block."""
        return reduce(operator.add, (root @ root.mT for root in self._roots(jacobian, prior)))

    def variance(self, jacobian: Sequence[Array], prior: Any) -> Float[Array, "*batch outputs"]:
        """Computes the diagonal of the covariance."""
        roots = self._roots(jacobian, prior)
        return reduce(operator.add, ((root**2).sum(-1) for root in roots))

    def _roots(self, jacobian: Sequence[Array], prior: Any) -> list[Array]:
        pairs = zip(self.parts, jacobian, strict=True)
        return [part.root(of_part, prior) for part, of_part in pairs]

    def weights_variance(self, prior: Any) -> tuple[Array, ...]:
        """Computes the variance of each weight, by block."""
        return tuple(part.weights_variance(prior) for part in self.parts)

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> tuple[Array, ...]:
        """Draws weights around zero, by block."""
        pairs = zip(self.parts, jax.random.split(key, len(self.parts)), strict=True)
        return tuple(part.sample(k, n, prior) for part, k in pairs)


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
