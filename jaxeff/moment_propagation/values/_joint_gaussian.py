"""`JointGaussian`: normal variables with the covariance that the entries of the last axis have.

```python
import jax.numpy as jnp

from jaxeff.moment_propagation import JointGaussian, is_joint_gaussian

logits = JointGaussian(jnp.zeros(2), jnp.array([[1.0, 0.9], [0.9, 1.0]]))
assert is_joint_gaussian(logits) and not is_joint_gaussian(logits.independent())
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.moment_propagation.values._gaussian import Gaussian, RandomArray


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class JointGaussian(RandomArray):
    """Vectors of normal variables: the logits of each example, with what they share.

    Attributes:
        mean: Means, the last axis the vector.
        cov: Covariances (squared units of `mean`), symmetric and positive semidefinite.
    """

    mean: Float[Array, "*batch n"]
    cov: Float[Array, "*batch n n"]

    @property
    def var(self) -> Float[Array, "*batch n"]:
        """The variances."""
        return jnp.diagonal(self.cov, axis1=-2, axis2=-1)

    def independent(self) -> Gaussian:
        """Drops the covariances and keeps means and variances."""
        return Gaussian(self.mean, self.var)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "*all n"]:
        """Draws vectors.

        Args:
            key: Random key.
            shape: Axes of draws, in front of those of the mean.

        Returns:
            Draws of shape `(*shape, *batch, n)`. The covariance may be singular.
        """
        # A Cholesky factor would be cheaper, but needs full rank: with fewer sources of noise than
        # entries the covariance is singular, and rounding makes its smallest eigenvalues negative.
        values, vectors = jnp.linalg.eigh(self.cov)
        roots = vectors * jnp.sqrt(jnp.maximum(values, 0))[..., None, :]
        normal = jax.random.normal(key, (math.prod(shape), *self.shape), self.dtype)
        draws = jax.vmap(lambda z: self.mean + jnp.einsum("...ij,...j->...i", roots, z))(normal)
        return draws.reshape(*shape, *self.shape)


def is_joint_gaussian(value: Any) -> bool:
    """Returns whether a value is a `JointGaussian`."""
    return isinstance(value, JointGaussian)
