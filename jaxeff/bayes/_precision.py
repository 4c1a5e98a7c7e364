"""Random weights of a Laplace approximation: their precision, and how outputs depend on them.

A posterior of a matrix of weights is Gaussian, its precision the curvature plus the prior's.

`Full`, `Outputs`, `Kron`, `Diag` and `Leading` keep a curvature `[features, outputs]` by its
eigenvalues: a prior precision is added to each, and the evidence, its best prior precision and
every variance are sums over them.

A last layer's features tell the covariance of its outputs (`Precision`). Weights further inside
meet outputs by a Jacobian `[..., features, outputs]` (`SiteCurvature`): times a root of the
covariance of the weights it is a root of that of the outputs, and covariances by independent blocks
add up (`Blocks`). A vector of weights is a matrix with one output.

`LastWeights` are one matrix, of which outputs are linear in the features. `SiteWeights` are blocks
of leaves: a kernel with its bias as the matrix `[inputs, outputs]` that a dense layer or a
convolution multiplies by, any other leaves as one vector `[n, 1]`. Outputs depend on them by their
Jacobian.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.program import Layer, Program, resolve
from jaxeff.program.costs import LastLayer, flat, inputs_of, is_plain_bias, with_constant, with_flat
from jaxeff.program.ir import Contraction, Node
from jaxeff.program.ir import primitives as prim

MATERIAL = 1e-3
"""Negative part of a curvature, of the largest, that is no rounding."""


class LaplaceWarning(UserWarning):
    """A Laplace approximation isn't what was asked for: the message says why, and the way out."""


class WeightCurvature(Protocol):
    """A curvature of weights, and what follows for them from it and the precision of a prior."""

    @property
    def values(self) -> Array:
        """Its eigenvalues."""

    @property
    def is_diagonal(self) -> bool:
        """Whether the weights are independent of each other."""

    def weights_variance(self, prior: Any) -> Any:
        """Computes the variance of each weight."""

    def weights_curvature(self) -> Any:
        """Computes the curvature by each weight alone, its diagonal."""

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Any:
        """Draws weights around zero."""


class Curvature(WeightCurvature, Protocol):
    """A curvature that the covariance of outputs follows from, too."""

    def covariance(self, features: Any, prior: Any) -> Float[Array, "*batch outputs outputs"]:
        """Computes the covariance of outputs, of what outputs are linear in the weights by."""

    def variance(self, features: Any, prior: Any) -> Float[Array, "*batch outputs"]:
        """Computes the diagonal of the covariance alone."""


class Precision(Curvature, Protocol):
    """A curvature of weights `[features, outputs]` of a last layer."""

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`."""

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance alone."""


class SiteCurvature(WeightCurvature, Protocol):
    """A curvature of weights `[features, outputs]` anywhere in a network."""

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, outputs]` by a root of the covariance."""


class _Rotated:
    """A curvature that is diagonal in coordinates of its own, where a prior only adds to it.

    Any prior precision reuses one decomposition; weights are independent in these coordinates.
    """

    is_diagonal: ClassVar[bool] = False
    values: Array

    def _into(self, weights: Array) -> Array:
        """Turns `[..., features, outputs]` into the coordinates `[..., *values.shape]`."""
        raise NotImplementedError

    def _back(self, coordinates: Array) -> Array:
        """Turns `[n, *values.shape]` back."""
        raise NotImplementedError

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance of `features @ W`."""
        raise NotImplementedError

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`; here of outputs that are independent."""
        variance = self.variance(features, prior)
        return variance[:, :, None] * jnp.eye(variance.shape[1], dtype=variance.dtype)

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, outputs]` by a root of the covariance."""
        turned = self._into(jacobian) / jnp.sqrt(self.values + prior)
        return turned.reshape(*jacobian.shape[:-2], -1)

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features outputs"]:
        """Draws weights around zero."""
        noise = jax.random.normal(key, (n, *self.values.shape), self.values.dtype)
        return self._back(noise / jnp.sqrt(self.values + prior))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Full(_Rotated):
    """A full matrix over all weights: eigenvalues `[n]`, eigenvectors `[features, outputs, n]`."""

    values: Float[Array, " n"]
    vectors: Float[Array, "features outputs n"]

    def _into(self, weights: Array) -> Array:
        return jnp.tensordot(weights, self.vectors, 2)

    def _back(self, coordinates: Array) -> Array:
        return jnp.einsum("dcm,nm->ndc", self.vectors, coordinates)

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`."""
        turned = jnp.tensordot(features, self.vectors, 1) / jnp.sqrt(self.values + prior)
        return turned @ turned.swapaxes(1, 2)

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""
        turned = jnp.tensordot(features, self.vectors, 1)
        return (turned**2 / (self.values + prior)).sum(-1)

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return (self.vectors**2 / (self.values + prior)).sum(-1)

    def weights_curvature(self) -> Float[Array, "features outputs"]:
        """Computes the curvature by each weight alone."""
        return self.vectors**2 @ self.values


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Outputs(_Rotated):
    """A matrix for the weights of each output, which are independent of the others'."""

    values: Float[Array, "outputs n"]
    vectors: Float[Array, "outputs features n"]

    def _into(self, weights: Array) -> Array:
        return jnp.einsum("...dc,cdm->...cm", weights, self.vectors)

    def _back(self, coordinates: Array) -> Array:
        return jnp.einsum("cdm,ncm->ndc", self.vectors, coordinates)

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""

        def one(of_output: tuple[Array, Array]) -> Array:
            values, vectors = of_output
            return (features @ vectors) ** 2 @ (1 / (values + prior))

        # One output after the other: together they are features times batch times outputs numbers.
        return jax.lax.map(one, (self.values, self.vectors)).T

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return jnp.einsum("cdn,cn->dc", self.vectors**2, 1 / (self.values + prior))

    def weights_curvature(self) -> Float[Array, "features outputs"]:
        """Computes the curvature by each weight alone."""
        return jnp.einsum("cdn,cn->dc", self.vectors**2, self.values)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Kron(_Rotated):
    """A product of one matrix of features and one of outputs, each by its eigenvalues."""

    left: Float[Array, " features"]
    left_vectors: Float[Array, "features features"]
    right: Float[Array, " outputs"]
    right_vectors: Float[Array, "outputs outputs"]

    @property
    def values(self) -> Float[Array, "features outputs"]:  # type: ignore[override]
        """The eigenvalues of the product."""
        return self.left[:, None] * self.right[None]

    def _into(self, weights: Array) -> Array:
        # Turned by both factors: no matrix of all weights.
        return jnp.einsum("de,...dc,co->...eo", self.left_vectors, weights, self.right_vectors)

    def _back(self, coordinates: Array) -> Array:
        return jnp.einsum("de,neo,co->ndc", self.left_vectors, coordinates, self.right_vectors)

    def _spread(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes variances along the eigenvectors of the outputs."""
        # h^T U diag(1 / (l r_o + prior)) U^T h for each eigenvalue r_o of the outputs.
        return (features @ self.left_vectors) ** 2 @ (1 / (self.values + prior))

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`."""
        spread, turn = self._spread(features, prior), self.right_vectors
        return jnp.einsum("co,no,ko->nck", turn, spread, turn)

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""
        return self._spread(features, prior) @ (self.right_vectors**2).T

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return self.left_vectors**2 @ (1 / (self.values + prior)) @ (self.right_vectors**2).T

    def weights_curvature(self) -> Float[Array, "features outputs"]:
        """Computes the curvature by each weight alone."""
        return self.left_vectors**2 @ self.values @ (self.right_vectors**2).T


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Diag(_Rotated):
    """A diagonal: one curvature for each weight."""

    is_diagonal: ClassVar[bool] = True
    values: Float[Array, "features outputs"]

    def _into(self, weights: Array) -> Array:
        return weights

    def _back(self, coordinates: Array) -> Array:
        return coordinates

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""
        return features**2 @ (1 / (self.values + prior))

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return 1 / (self.values + prior)

    def weights_curvature(self) -> Float[Array, "features outputs"]:
        """Computes the curvature by each weight alone."""
        return self.values


def matched_variance(curvature: WeightCurvature, prior: Any) -> Array:
    """Computes variances of independent weights that raise the loss by as much as correlated ones.

    To second order a Gaussian of weights raises the expected loss of the data by half the trace of
    curvature times covariance, which is half the number of weights that the data determine. The
    closest independent weights (of the least divergence from the posterior) have the precisions of
    its diagonal, and raise it by more. One factor of all of them brings them to the same. What the
    data say nothing of, such as a shift that all logits have in common, plays no part in it.
    """
    alone = curvature.weights_curvature()
    closest, determined = 1 / (alone + prior), curvature.values / (curvature.values + prior)
    raised = (alone * closest).sum()
    # Without any curvature the posterior is the prior.
    known = raised > 0
    return closest * jnp.where(known, determined.sum() / jnp.where(known, raised, 1), 1)


def precision(structure: str, parts: Sequence[Array], examples: int, shape: Any) -> Precision:
    """Decomposes a summed curvature into eigenvalues and eigenvectors.

    `structure` is "full", "outputs", "kron" or "diag"; `parts` are sums over the data by
    `batch_curvature`; `shape` is that of the weights, `(features, outputs)`.
    """
    if structure == "diag":
        return diagonal(parts[0])
    if structure == "kron":
        (left, turn), (right, other) = (decompose(part) for part in parts)
        # Both factors are sums over n examples; the product of the sums would count n twice.
        return Kron(left, turn, right / jnp.asarray(examples, right.dtype), other)
    values, vectors = decompose(parts[0])
    if structure == "outputs":
        return Outputs(values, vectors)
    return Full(values, vectors.reshape(*shape, -1))


def decompose(matrix: Array) -> tuple[Array, Array]:
    """Computes eigenvalues, none below zero, and eigenvectors, in double precision."""
    values, vectors = np.linalg.eigh(np.asarray(matrix, np.float64))
    # Curvatures are positive semi-definite; rounding makes small eigenvalues negative.
    warn_of_negative(values)
    return (
        jnp.asarray(np.maximum(values, 0).astype(matrix.dtype)),
        jnp.asarray(vectors.astype(matrix.dtype)),
    )


def diagonal(values: Float[Array, "features outputs"]) -> Diag:
    """Keeps a diagonal, none of it below zero."""
    warn_of_negative(values)
    return Diag(jnp.maximum(values, 0))


def warn_of_negative(values: Any) -> None:
    """Warns of negative curvature, which a likelihood that isn't concave has at its targets."""
    lowest, highest = float(np.min(values)), float(np.max(np.abs(values)))
    if lowest < -MATERIAL * highest:
        warnings.warn(
            f"laplace: the likelihood has negative curvature at these targets, {lowest:.3g} where "
            f"the largest is {np.max(values):.3g}; it is set to zero, so that variances are too "
            "large. Curvature of several sites is taken at drawn targets where you give a key.",
            LaplaceWarning,
            stacklevel=2,
        )


_RESHAPING = {prim.p.reshape_p, prim.p.squeeze_p}

NUMBERS = 1 << 24
"""Entries of Jacobians at once: 64 MiB of float32."""


class _Weights(Protocol):
    """Weights whose Jacobians tell how far outputs spread, to first order."""

    def covariance(self, f: Any, params: Any, x: Any, curvature: Curvature, prior: Any) -> Array:
        """Computes the covariance of each example's outputs."""
        return self._each(f, params, x, lambda jacobian: curvature.covariance(jacobian, prior))

    def variance(self, f: Any, params: Any, x: Any, curvature: Curvature, prior: Any) -> Array:
        """Computes the variance of each output."""
        return self._each(f, params, x, lambda jacobian: curvature.variance(jacobian, prior))

    def _each(self, f: Any, params: Any, x: Any, of: Callable[[Any], Array]) -> Array: ...


@dataclass(frozen=True)
class LastWeights(_Weights):
    """The weights of a last dense layer.

    Attributes:
        layer: The layer.
    """

    layer: LastLayer

    @property
    def leaves(self) -> frozenset[int]:
        """The indices of its leaves."""
        return frozenset(i for i in (self.layer.kernel, self.layer.bias) if i is not None)

    def pack(self, params: Any) -> Array:
        """Joins its parameters to `[features, outputs]`."""
        return flat(params, self.layer)

    def unpack(self, params: Any, weights: Array) -> Any:
        """Replaces its parameters; leading axes become theirs."""
        return with_flat(params, self.layer, weights)

    def features(self, f: Callable[..., Any], params: Any, x: Any) -> Array:
        """Computes what the layer reads: `[batch, ..., features]`."""
        return with_constant(inputs_of(f, self.layer.site)(params, x), self.layer)

    def _each(self, f: Any, params: Any, x: Any, of: Callable[[Any], Array]) -> Array:
        # Outputs are linear in the last layer's weights: its inputs are their Jacobian.
        features = self.features(f, params, x)
        spread = of(features.reshape(-1, features.shape[-1]))
        return spread.reshape(*features.shape[:-1], *spread.shape[1:])


@dataclass(frozen=True)
class WeightBlock:
    """Leaves that make one matrix.

    Attributes:
        leaves: Their indices among those of the parameters: a kernel and, if any, its bias; or any.
        shapes: Their shapes.
        order: Axes of the kernel, its inputs first; None if the leaves are one vector.
        inputs: How many axes are inputs.
        read: The kernel's shape as the product reads it.
    """

    leaves: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    order: tuple[int, ...] | None = None
    inputs: int = 0
    read: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        if self.order is None:
            return sum(math.prod(shape) for shape in self.shapes), 1
        sizes = [self.read[axis] for axis in self.order]
        rows = math.prod(sizes[: self.inputs]) + len(self.leaves) - 1
        return rows, math.prod(sizes[self.inputs :])

    def pack(self, leaves: list[Any]) -> Array:
        """Makes the matrix of the leaves of the parameters."""
        first, *others = (jnp.asarray(leaves[i]) for i in self.leaves)
        if self.order is None:
            return jnp.concatenate([leaf.ravel() for leaf in (first, *others)])[:, None]
        kernel = first.reshape(self.read).transpose(self.order).reshape(-1, self.shape[1])
        return jnp.concatenate([kernel, *(bias.reshape(1, -1) for bias in others)])

    def unpack(self, matrix: Array) -> list[Array]:
        """Takes the matrix apart; leading axes become those of the leaves."""
        lead = matrix.shape[:-2]
        if self.order is None:
            ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
            parts = jnp.split(matrix[..., 0], ends, axis=-1)
            pairs = zip(parts, self.shapes, strict=True)
            return [part.reshape(*lead, *shape) for part, shape in pairs]
        rows = self.shape[0] - len(self.leaves) + 1
        sizes = [self.read[axis] for axis in self.order]
        back = [len(lead) + self.order.index(axis) for axis in range(len(sizes))]
        kernel = matrix[..., :rows, :].reshape(*lead, *sizes)
        kernel = kernel.transpose(*range(len(lead)), *back)
        kernel = kernel.reshape(*lead, *self.shapes[0])
        return [kernel, *(matrix[..., rows, :].reshape(*lead, *s) for s in self.shapes[1:])]


@dataclass(frozen=True)
class SiteWeights(_Weights):
    """The weights of any sites, in blocks."""

    blocks: tuple[WeightBlock, ...]

    @property
    def leaves(self) -> frozenset[int]:
        """The indices of all leaves."""
        return frozenset(i for block in self.blocks for i in block.leaves)

    def pack(self, params: Any) -> tuple[Array, ...]:
        """Makes a matrix of each block."""
        leaves = jax.tree.leaves(params)
        return tuple(block.pack(leaves) for block in self.blocks)

    def unpack(self, params: Any, weights: tuple[Array, ...]) -> Any:
        """Replaces the parameters; leading axes of the matrices become theirs."""
        leaves, structure = jax.tree.flatten(params)
        for block, matrix in zip(self.blocks, weights, strict=True):
            for i, leaf in zip(block.leaves, block.unpack(matrix), strict=True):
                leaves[i] = leaf
        return jax.tree.unflatten(structure, leaves)

    def jacobian(self, f: Callable[..., Any], params: Any, x: Any) -> tuple[Array, ...]:
        """Computes how one example's outputs depend on each block, `[*outputs, rows, columns]`."""

        def outputs(weights: tuple[Array, ...]) -> Array:
            return single(f, self.unpack(params, weights), x)

        jacobian: tuple[Array, ...] = jax.jacrev(outputs)(self.pack(params))
        return jacobian

    def _each(self, f: Any, params: Any, x: Any, of: Callable[[Any], Array]) -> Array:
        def one(example: Any) -> Array:
            return of(self.jacobian(f, params, example))

        size = self.examples(jax.eval_shape(f, params, x).size // len(jax.tree.leaves(x)[0]))
        # In parts: an example's Jacobian has as many rows as outputs, of all weights each.
        spreads: Array = jax.lax.map(one, x, batch_size=size)
        return spreads

    def examples(self, outputs: int) -> int:
        """Returns how many examples' Jacobians fit at once."""
        weights = sum(math.prod(block.shape) for block in self.blocks)
        return max(1, NUMBERS // (outputs * weights))


Weights = LastWeights | SiteWeights


def single(f: Callable[..., Any], params: Any, x: Any) -> Array:
    """Computes the outputs of one example."""
    outputs: Array = f(params, jax.tree.map(lambda leaf: leaf[None], x))[0]
    return outputs


def site_weights(
    program: Program, params: Any, sites: Mapping[str, Any], kron: bool, only: str = "*"
) -> SiteWeights:
    """Finds the leaves that sites read.

    With `kron` kernels are blocks of their own; else all leaves are one vector. Parameters whose
    path `only` doesn't match aren't random.
    """
    leaves = jax.tree.leaves(params)
    index = {v.path: i for i, v in enumerate(program.inputs[: len(leaves)])}
    read = {
        path for layer in program.sites if layer.site in sites and layer.kind != "control flow"
        for v in layer.inputs if v.is_weight for path in v.leaves
    }  # fmt: skip
    random = sorted(index[path] for path in read if path in index)
    random = [i for i in random if jnp.issubdtype(jnp.result_type(leaves[i]), jnp.floating)]
    if not random:
        raise ValueError(f"laplace: {', '.join(sites)} have no parameters; choose others")
    paths = [jax.tree_util.keystr(path, simple=True, separator="/")
             for path, _ in jax.tree_util.tree_leaves_with_path(params)]  # fmt: skip
    there = [paths[i] for i in random]
    random = [i for i in random if fnmatchcase(paths[i], only)]
    if not random:
        raise ValueError(
            f"laplace: only={only!r} matches none of the sites' parameters: {', '.join(there)}"
        )
    blocks: list[WeightBlock] = []
    by_leaf = products(program) if kron else {}
    for layer in program.layers if kron else ():
        if layer.site in sites:
            # An adapted layer multiplies by its frozen kernel, too.
            kernels = _kernels(program, layer, leaves, by_leaf)
            blocks += [block for block in kernels if set(block.leaves) <= set(random)]
    taken = {i for block in blocks for i in block.leaves}
    rest = tuple(i for i in random if i not in taken)
    if rest:
        blocks.append(WeightBlock(rest, tuple(jnp.shape(leaves[i]) for i in rest)))
    return SiteWeights(tuple(blocks))


def products(program: Program) -> dict[int, Node]:
    """Finds the products that multiply data by a parameter, which nothing else reads.

    Returns them by the index of the parameter among the program's inputs; none inside loops, and
    none whose parameter is more than reshaped.
    """
    index = {v: i for i, v in enumerate(program.inputs)}
    nodes = [node for layer in program.layers for node in layer.nodes]
    maker = {v: node for node in nodes for v in node.outputs}
    readers = Counter(v for node in nodes for v in set(node.values))
    multiplied = {}
    for node in nodes:
        if node.primitive not in prim.LINEAR or not any(v.is_data for v in node.values):
            continue
        kernel = node.inputs[Contraction.of(node).side]
        # Read twice, a kernel changes outputs in two ways that a single product doesn't hold.
        while readers[kernel] == 1 and kernel in maker and maker[kernel].primitive in _RESHAPING:
            (kernel,) = maker[kernel].values
        if readers[kernel] == 1 and kernel in index:
            multiplied[index[kernel]] = node
    return multiplied


def _kernels(
    program: Program, layer: Layer, leaves: list[Any], by_leaf: Mapping[int, Node]
) -> list[WeightBlock]:
    """Reads a layer's products, each with one matrix of its own; an adapted layer has several."""
    paths = {v.path for v in layer.inputs if v.is_weight}
    read = {
        i: node for i, node in by_leaf.items()
        if i < len(leaves) and program.inputs[i].path in paths and node in layer.nodes
    }  # fmt: skip
    if layer.kind != "linear" or any(_elsewhere(program, i) for i in read):
        return []
    blocks = []
    for i, node in read.items():
        product = Contraction.of(node)
        if product.groups != 1:
            continue
        side, shape = product.side, jnp.shape(leaves[i])
        inside = product.batch(side) + product.summed(side) + product.window(side)
        order = inside + product.free(side)
        block = WeightBlock((i,), (shape,), order, len(inside), product.weight_shape)
        added = [layer.inputs[at].path for at in layer.biases] if len(read) == 1 else []
        biases = [j for j, v in enumerate(program.inputs[: len(leaves)]) if v.path in added]
        plain = len(added) == len(biases) == 1 and is_plain_bias(program, biases[0])
        if plain and not _elsewhere(program, biases[0]):
            taken, shapes = (i, biases[0]), (shape, jnp.shape(leaves[biases[0]]))
            per_output = math.prod(shapes[1]) == block.shape[1]
            block = replace(block, leaves=taken, shapes=shapes) if per_output else block
        blocks.append(block)
    return blocks


def _elsewhere(program: Program, index: int) -> bool:
    """Tells whether several layers read a parameter."""
    path = program.inputs[index].path
    return sum(path in v.leaves for layer in program.sites for v in layer.inputs) != 1


def chosen_sites(program: Program, sites: Any) -> Mapping[str, Any]:
    """Resolves one pattern of sites, or several."""
    patterns = (sites,) if isinstance(sites, str) else tuple(sites)
    return resolve(dict.fromkeys(patterns, True), program)
