"""Curvatures of several sites: independent blocks, and one of low rank.

A curvature of low rank keeps the directions that the data say most of; in all others the posterior
is the prior.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.curvature._precision import SiteCurvature


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
