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
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes import _precision as precision
from jaxeff.bayes._precision import (
    NUMBERS,
    Diag,
    Full,
    Kron,
    SiteCurvature,
    SiteWeights,
    WeightBlock,
    matched_variance,
    warn_of_negative,
)
from jaxeff.bayes.posteriors import Likelihood, resolve_likelihood
from jaxeff.core import bind, kept_program
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.program.ir import Contraction, Node, run_nodes
from jaxeff.program.reading import argument_leaves
from jaxeff.training import Batches, prefetched

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
    """Refuses a full curvature that doesn't fit."""
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
    return jax.lax.map(
        lambda curvatures: (features * curvatures[:, None]).T @ features, curvature.T
    )


def _full_categorical(features: Array, probs: Array) -> Array:
    # diag(p) - p p^T splits the sum: a block-diagonal part per class and one matrix product
    # of [n, d c] rows, instead of n matrices of [c, c].
    (_, d), (n, c) = features.shape, probs.shape
    joint = (features[:, :, None] * probs[:, None, :]).reshape(n, d * c)
    second_moments = jnp.einsum("nd,ne,nc->cde", features, features, probs)
    blocks = jnp.einsum("cde,ck->dcek", second_moments, jnp.eye(c, dtype=probs.dtype))
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

    def weights_curvature(self) -> Float[Array, "features 1"]:
        """Computes the curvature by each weight alone."""
        return (self.vectors**2 @ self.values)[:, None]

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

    def matched_variance(self, prior: Any) -> tuple[Array, ...]:
        """Computes variances of independent weights, by block."""
        return tuple(matched_variance(part, prior) for part in self.parts)

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> tuple[Array, ...]:
        """Draws weights around zero, by block."""
        pairs = zip(self.parts, jax.random.split(key, len(self.parts)), strict=True)
        return tuple(part.sample(k, n, prior) for part, k in pairs)


def batches(data: Any, size: int) -> Iterator[tuple[Any, ...]]:
    """Splits examples into batches, or gives those of an iterable."""
    if isinstance(data, Batches):
        yield from prefetched(data.epoch(0, rest=True))
        return
    for start in range(0, len(jax.tree.leaves(data)[0]), size):
        rows = slice(start, start + size)
        yield jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), data)  # noqa: B023


def _equal_batches(data: tuple[Any, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Splits examples into batches of one size, so that one program serves all.

    Yields:
        How many examples of the batch count, and the batch; the last example fills up the last one.
    """
    examples = len(jax.tree.leaves(data)[0])
    for start in range(0, examples, size):
        count = min(size, examples - start)
        rows: Any = slice(start, start + size)
        if count < size:
            rows = np.minimum(np.arange(start, start + size), examples - 1)
        yield count, *jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], data)  # noqa: B023


def _keyed_batches(data: Any, labels: "DrawnLabels | None", size: int) -> Iterator[tuple[Any, ...]]:
    """Gives each example a key for the labels that are drawn, and splits them as `_equal_batches`.

    Batches of an iterable are split one by one.
    """
    batched = isinstance(data, Batches)
    for number, batch in enumerate(data.epoch(0, rest=True) if batched else [data]):
        examples = len(jax.tree.leaves(batch)[0])
        keys = None
        if labels is not None:
            key = jax.random.fold_in(labels.key, number) if batched else labels.key
            keys = jax.random.split(key, examples)
        yield from _equal_batches((*batch, keys), size if batched else min(size, examples))


def summed(part: Callable[..., Any], params: Any, parts: Iterator[tuple[Any, ...]]) -> Any:
    """Adds up what a function computes of each batch."""
    each = (part(params, *batch) for batch in parts)
    return reduce(lambda total, more: jax.tree.map(jnp.add, total, more), each)


def negative_log_likelihood(likelihood: Likelihood, outputs: Array, target: Any) -> Array:
    """Computes that of one example."""
    distribution = resolve_likelihood(likelihood)(outputs[None])
    return -distribution.log_prob(jax.tree.map(lambda leaf: leaf[None], target)).sum()


def _slopes(
    likelihood: Likelihood, outputs: Array, target: Any
) -> tuple[Float[Array, "slopes outputs"], Float[Array, " slopes"]]:
    """Computes the curvature by all outputs of one example, positions included.

    Returns slopes `s_k` and weights `w_k`: the curvature is `sum_k w_k s_k s_k^T`, so that no
    matrix of the outputs meets a Jacobian, and slopes go backward one by one.
    """
    size, dtype = outputs.size, outputs.dtype
    if likelihood == "gaussian":
        return jnp.eye(size, dtype=dtype), gaussian_information(outputs).ravel()
    if likelihood == "categorical":
        # diag(p) - p p^T is the mean of (e_k - p) (e_k - p)^T over labels k, at each position.
        probs = jax.nn.softmax(outputs).reshape(-1, outputs.shape[-1])
        places = jnp.eye(len(probs), dtype=dtype)
        labels = jnp.eye(probs.shape[1], dtype=dtype) - probs[:, None]
        return jnp.einsum("ts,tkc->tksc", places, labels).reshape(size, size), probs.ravel()

    def nll(flat: Array) -> Array:
        return negative_log_likelihood(likelihood, flat.reshape(outputs.shape), target)

    # It may have negative values, so that it has no root.
    values, vectors = jnp.linalg.eigh(jax.hessian(nll)(outputs.ravel()))
    return vectors.T, values


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
        data: `(x, targets)`, or batches of these.
        weights: The random ones.
        likelihood: Meaning of the outputs.
        size: Examples at a time, at most.
        labels: Draws of labels that curvature is taken at; None for the exact one.
    """

    f: Callable[..., Any]
    params: Any
    data: Any
    weights: SiteWeights
    likelihood: Likelihood
    size: int
    labels: DrawnLabels | None = None


def site_precision(structure: str, rank: int, problem: SiteProblem) -> tuple[Blocks, Array]:
    """Computes the curvature of sites, and the log-likelihood of the data.

    `structure` is "full", "kron", "diag" or "lowrank", whose number of eigenvalues is `rank`.

    For the weights of any sites, with the Jacobian `J` of an example's outputs by the weights, and
    the curvature `L` of its negative log-likelihood by all of its outputs, positions included,
    summed over the examples as

    ```text
    full      sum_n J^T L J, of all weights together
    diag      its diagonal
    lowrank   its largest eigenvalues, without the matrix
    kron      for each kernel  A (x) B / rows,  A = sum a a^T,  B = sum g^T L g
    ```

    A kernel multiplies rows `a` (an example's patches, its tokens), and `g` is how outputs depend
    on the result of one of them; all rows count as if they were examples (the expanded form of
    Eschenhagen et al. 2023, arXiv:2311.00636). What is no kernel of one product has the diagonal. A
    curvature of low rank keeps the directions that the data say most of; in all others the
    posterior is the prior.
    """
    f, params, data, weights, likelihood, size, labels = problem
    if structure == "lowrank":
        log_likelihood = kept_program(partial(_log_likelihood, f=f, likelihood=likelihood))
        return _low_rank(problem, rank), summed(log_likelihood, params, batches(data, size))
    # A slope has a gradient of each example by the weights that are one vector; kernels' factors
    # are of all examples together.
    dimensions = sum(block.shape[0] for block in weights.blocks if block.order is None)
    size = min(size, max(1, NUMBERS // max(1, dimensions)))
    draws = 0 if labels is None else labels.draws
    rule = FactorRule(f, weights, likelihood, structure, draws)
    part = partial(_batch_factors, rule=rule)
    total, log_likelihood = summed(kept_program(part), params, _keyed_batches(data, labels, size))
    # Small matrices of many shapes: on the host none is compiled for.
    factors: Any = jax.tree.map(np.asarray, total)
    if structure == "full":
        values, vectors = precision.decompose(factors[0][0])
        return Blocks((Full(values, vectors[:, None, :]),)), log_likelihood
    return Blocks(tuple(map(_of_factors, factors))), log_likelihood


def _log_likelihood(
    params: Any, x: Any, targets: Any, *, f: Callable[..., Any], likelihood: Likelihood
) -> Array:
    log_prob: Array = resolve_likelihood(likelihood)(f(params, x)).log_prob(targets)
    return log_prob.sum()


class FactorRule(NamedTuple):
    """What a batch's factors are computed by: a program is compiled for it.

    Attributes:
        f: `f(params, x) -> outputs [batch, ..., outputs]`.
        weights: The random weights.
        likelihood: Meaning of the outputs.
        structure: "full", "kron" or "diag".
        draws: Labels drawn for each example; 0 for the exact curvature.
    """

    f: Callable[..., Any]
    weights: SiteWeights
    likelihood: Likelihood
    structure: str
    draws: int

    def slopes(self, out: Array, target: Any, key: Any) -> tuple[Array, Array]:
        """Computes slopes of one example's outputs, and their weights."""
        if not self.draws:
            return _slopes(self.likelihood, out, target)
        drawn = sampled_slopes(self.likelihood, out, key, self.draws)
        return drawn, jnp.full(self.draws, 1 / self.draws, out.dtype)

    def outer(self, gradient: Array, weight: Array) -> Array:
        """Sums up the products of gradients by a block, of as much as is kept."""
        if gradient.ndim == 3:  # of a kernel's results: rows of every example
            return jnp.einsum("bsc,b,bsd->cd", gradient, weight, gradient)
        if self.structure == "full":
            return jnp.einsum("bp,b,bq->pq", gradient, weight, gradient)
        return weight @ gradient**2


def _batch_factors(
    params: Any, count: Any, x: Any, targets: Any, keys: Any, *, rule: FactorRule
) -> tuple[list[tuple[Array, ...]], Array]:
    """Sums up a batch's part of each block, and its log-likelihood.

    Of a kernel that is the number of rows and two factors, of a vector its diagonal, or all of it.
    """
    weights, likelihood = rule.weights, rule.likelihood
    run, start = _recorded(rule.f, params, jax.tree.map(lambda leaf: leaf[0], x), weights)
    size = len(jax.tree.leaves(x)[0])
    present = (jnp.arange(size) < count).astype(jax.tree.leaves(start)[0].dtype)
    # Every example has a start of its own, by which its outputs alone are differentiated.
    starts = jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), start)
    out, pull, read = jax.vjp(lambda starts: jax.vmap(run)(starts, x), starts, has_aux=True)

    log_prob = jax.vmap(lambda out, target: -negative_log_likelihood(likelihood, out, target))
    rows, weight = jax.vmap(rule.slopes)(out, targets, keys)
    weight = weight * present.astype(weight.dtype)[:, None]

    def add(sums: list[Array], slope: tuple[Array, Array]) -> tuple[list[Array], None]:
        row, weight = slope
        (gradients,) = pull(row.reshape(out.shape))
        return [s + rule.outer(g, weight) for s, g in zip(sums, gradients, strict=True)], None

    # One slope after the other: memory is that of a single pass backward.
    none = [jax.eval_shape(rule.outer, each, weight[:, 0]) for each in starts]
    zeros = [jnp.zeros(each.shape, each.dtype) for each in none]
    sums, _ = jax.lax.scan(add, zeros, (rows.swapaxes(0, 1), weight.T))
    parts: list[tuple[Array, ...]] = []
    for block, of_slopes in zip(weights.blocks, sums, strict=True):
        if block.order is None:
            parts.append((of_slopes,))
            continue
        a = read[block.leaves[0]]
        left = jnp.einsum("bsd,b,bse->de", a, present.astype(a.dtype), a)
        parts.append((count * a.shape[1], left, of_slopes))
    return parts, (present * log_prob(out, targets)).sum()


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


def _of_factors(factors: tuple[Any, ...]) -> Kron | Diag:
    if len(factors) == 1:
        return precision.diagonal(factors[0][:, None])
    rows, *products = factors
    (left, turn), (right, other) = map(precision.decompose, products)
    # Both are sums over the rows: their product would count each twice.
    return Kron(left, turn, right / rows, other)


def _recorded(
    f: Callable[..., Any], params: Any, x: Any, weights: SiteWeights
) -> tuple[Callable[..., tuple[Array, Any]], list[Array]]:
    """Makes a function that outputs follow by what each block changes.

    `x` is one example; `weights` are the random ones, in blocks. Returns ``run(starts, x) ->
    outputs, rows``, with the rows that each kernel multiplies, by its leaf; and the starts of the
    blocks: zeros for what is added to a kernel's result, or the vector itself.
    """
    program = trace(f, params, _first(x))
    by_leaf = precision.products(program)
    kernels = {by_leaf[b.leaves[0]]: b for b in weights.blocks if b.order is not None}
    rest = SiteWeights(tuple(block for block in weights.blocks if block.order is None))

    def run(starts: Sequence[Array], x: Any) -> tuple[Array, Any]:
        added = {b.leaves[0]: start for b, start in zip(weights.blocks, starts, strict=True)}
        vectors = tuple(added[block.leaves[0]][:, None] for block in rest.blocks)
        read: dict[int, Array] = {}

        def rule(each: Layer, key: Any, *values: Any) -> Any:
            if kernels.keys().isdisjoint(each.nodes):
                return plain_rule(each, key, *values)
            # Nodes of two calls of one function share their equations: it is their order that
            # tells them apart.
            nodes = iter(each.nodes)

            def bound(eqn: Any, *operands: Any) -> list[Any]:
                results: list[Any] = bind(eqn, *operands)
                node = next(nodes)
                if node not in kernels:
                    return results
                leaf = kernels[node].leaves[0]
                read[leaf], change = _product(node, kernels[node], operands, added[leaf])
                return [results[0] + change]

            return run_nodes(each.nodes, each.inputs, values, each.outputs, bound)

        leaves = argument_leaves((rest.unpack(params, vectors), _first(x)), {})
        return evaluate(program, rule, None, leaves)[0][0], read

    starts = [
        packed[:, 0] if block.order is None else _no_change(by_leaf[block.leaves[0]])
        for block, packed in zip(weights.blocks, weights.pack(params), strict=True)
    ]
    return run, starts


def _first(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], x)


def _no_change(node: Node) -> Array:
    """Makes zeros of the shape of a product's result as a matrix."""
    outputs, result = Contraction.of(node).matrix_shape[2], node.outputs[0].aval
    return jnp.zeros((result.size // outputs, outputs), result.dtype)


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

    def part(at: Any, x: Any, targets: Any) -> Array:
        params, vector = at

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

    program = kept_program(part)
    (start,) = weights.pack(params)
    dimensions = len(start)

    def times(vector: np.ndarray) -> np.ndarray:
        column = (jnp.asarray(vector.reshape(-1, 1), start.dtype),)
        return np.asarray(summed(program, (params, column), batches(data, size)), np.float64)

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
