"""Gaussian posteriors of a matrix of weights, precision = curvature + prior, by eigenvalues.

`Full`, `Outputs`, `Kron`, `Diag` and `Leading` keep a curvature `[features, outputs]` by its
eigenvalues: a prior precision is added to each, and the evidence, its best prior precision and
every variance are sums over them.

A last layer's features tell the covariance of its outputs (`Precision`). Weights further inside
meet outputs by a Jacobian `[..., features, outputs]` (`SiteCurvature`): times a root of the
covariance of the weights it is a root of that of the outputs, and covariances by independent blocks
add up (`Blocks`). A vector of weights is a matrix with one output.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Full:
    """A full matrix over all weights: eigenvalues `[n]`, eigenvectors `[features, outputs, n]`."""

    is_diagonal: ClassVar[bool] = False
    values: Float[Array, " n"]
    vectors: Float[Array, "features outputs n"]

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`."""
        # In the eigenbasis the prior only shifts eigenvalues: any prior precision reuses
        # one decomposition.
        turned = jnp.tensordot(features, self.vectors, 1) / jnp.sqrt(self.values + prior)
        return turned @ turned.swapaxes(1, 2)

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""
        turned = jnp.tensordot(features, self.vectors, 1)
        return (turned**2 / (self.values + prior)).sum(-1)

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, outputs]` by a root of the covariance."""
        return _narrowed(jnp.tensordot(jacobian, self.vectors, 2), self.values, prior)

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return (self.vectors**2 / (self.values + prior)).sum(-1)

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features outputs"]:
        """Draws weights around zero."""
        # Independent along eigenvectors: covariance V diag(1 / (values + prior)) V^T.
        noise = jax.random.normal(key, (n, len(self.values)), self.values.dtype)
        return jnp.einsum("dcm,nm->ndc", self.vectors, noise / jnp.sqrt(self.values + prior))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Outputs:
    """A matrix for the weights of each output, which are independent of the others'."""

    is_diagonal: ClassVar[bool] = False
    values: Float[Array, "outputs n"]
    vectors: Float[Array, "outputs features n"]

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`: outputs are independent."""
        return _independent(self.variance(features, prior))

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

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features outputs"]:
        """Draws weights around zero."""
        noise = jax.random.normal(key, (n, *self.values.shape), self.values.dtype)
        return jnp.einsum("cdm,ncm->ndc", self.vectors, noise / jnp.sqrt(self.values + prior))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Kron:
    """A product of one matrix of features and one of outputs, each by its eigenvalues."""

    is_diagonal: ClassVar[bool] = False
    left: Float[Array, " features"]
    left_vectors: Float[Array, "features features"]
    right: Float[Array, " outputs"]
    right_vectors: Float[Array, "outputs outputs"]

    @property
    def values(self) -> Float[Array, "features outputs"]:
        """The eigenvalues of the product."""
        return self.left[:, None] * self.right[None]

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, outputs]` by a root of the covariance."""
        turned = jnp.einsum("de,...dc,co->...eo", self.left_vectors, jacobian, self.right_vectors)
        return _narrowed(turned.reshape(*turned.shape[:-2], -1), self.values.ravel(), prior)

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

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features outputs"]:
        """Draws weights around zero."""
        noise = jax.random.normal(key, (n, *self.values.shape), self.left.dtype)
        # Scaled in the eigenbasis and turned back by both factors: no matrix of all weights.
        noise = noise / jnp.sqrt(self.values + prior)
        return jnp.einsum("de,neo,co->ndc", self.left_vectors, noise, self.right_vectors)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Diag:
    """A diagonal: one curvature for each weight."""

    is_diagonal: ClassVar[bool] = True
    values: Float[Array, "features outputs"]

    def covariance(self, features: Array, prior: Any) -> Float[Array, "batch outputs outputs"]:
        """Computes the covariance of `features @ W`: outputs are independent."""
        return _independent(self.variance(features, prior))

    def variance(self, features: Array, prior: Any) -> Float[Array, "batch outputs"]:
        """Computes the diagonal of the covariance."""
        return features**2 @ (1 / (self.values + prior))

    def root(self, jacobian: Array, prior: Any) -> Float[Array, "*batch n"]:
        """Multiplies a Jacobian `[..., features, outputs]` by a root of the covariance."""
        flat = jacobian.reshape(*jacobian.shape[:-2], -1)
        return _narrowed(flat, self.values.ravel(), prior)

    def weights_variance(self, prior: Any) -> Float[Array, "features outputs"]:
        """Computes the variance of each weight."""
        return 1 / (self.values + prior)

    def sample(self, key: PRNGKeyArray, n: int, prior: Any) -> Float[Array, "n features outputs"]:
        """Draws weights around zero."""
        noise = jax.random.normal(key, (n, *self.values.shape), self.values.dtype)
        return noise / jnp.sqrt(self.values + prior)


def precision(structure: str, parts: Sequence[Array], examples: int, shape: Any) -> Precision:
    """Decomposes a summed curvature into eigenvalues and eigenvectors.

    Args:
        structure: "full", "outputs", "kron" or "diag".
        parts: Sums over the data, by `batch_curvature`.
        examples: Number of examples in the sums.
        shape: Shape of the weights, `(features, outputs)`.
    """
    if structure == "diag":
        return diagonal(parts[0])
    if structure == "kron":
        (left, turn), (right, other) = (decompose(part) for part in parts)
        # Both factors are sums over n examples; the product of the sums would count n
        # twice.
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


def _narrowed(rows: Array, values: Array, prior: Any) -> Array:
    """Scales rows along eigenvectors by the posterior's deviation there."""
    scale = 1 / jnp.sqrt(values + prior)
    return rows * scale.reshape(*[1] * (rows.ndim - 1), -1)


def _independent(variance: Array) -> Array:
    """Makes covariances of outputs that are independent, `[batch, outputs, outputs]`."""
    return variance[:, :, None] * jnp.eye(variance.shape[1], dtype=variance.dtype)
