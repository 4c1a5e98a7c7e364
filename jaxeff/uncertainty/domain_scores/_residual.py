"""ViM: what of the features the training data have no variance for, as a logit of its own.

```python
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of
from jaxeff.uncertainty import dense_head, scored, vim

f, params, (x, y) = small_classifier()
features, head = inputs_of(f, "fc2")(params, x), dense_head(f, "fc2", params, x)
logits, scores = scored(f, "fc2", vim(features, head))(params, x)
```

Sharp edge: fitting looks at values, so it can't be traced; the score can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from jaxeff.core import instance_of, real_array, static_integer, validate, widened
from jaxeff.uncertainty.domain_scores._head import DenseHead


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ViM:
    """The norm of features outside the training data's principal space; `vim` makes it.

    Attributes:
        origin: The features whose logits are as near zero as can be, `[features]`.
        residual: Directions outside the principal space, `[features, rest]`, orthonormal.
        scale: What makes the norm as large as the largest logit on training data.
    """

    origin: Float[Array, " features"]
    residual: Float[Array, "features rest"]
    scale: Float[Array, ""]

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Float[Array, "batch classes"]
    ) -> Float[Array, " batch"]:
        """Computes the virtual logit less the logarithm of the sum of the others' exponentials."""
        outside = (widened(features) - self.origin[None]) @ self.residual
        return self.scale * jnp.sqrt((outside**2).sum(-1)) - logsumexp(widened(outputs), axis=-1)


@validate(features=real_array(2), head=instance_of(DenseHead), dimensions=static_integer())
def vim(
    features: Float[Array, "examples features"], head: DenseHead, dimensions: int | None = None
) -> ViM:
    """Finds the principal space of training features, and the scale of what lies outside.

    Wang et al., "ViM: Out-Of-Distribution with Virtual-logit Matching", CVPR 2022,
    arXiv 2203.10807, section 4.

    Args:
        features: Features of training examples.
        head: The layer that reads them.
        dimensions: Dimensions of the principal space, fewer than features; half of them if None.

    Raises:
        ValueError: No dimension is left, or the features don't fit the layer.
    """
    points = np.asarray(features, np.float64)
    size = points.shape[1]
    kernel, bias = (np.asarray(part, np.float64) for part in head)
    if len(kernel) != size:
        raise ValueError(f"vim: features must be those the head reads, {len(kernel)}, not {size}")
    dimensions = max(1, size // 2) if dimensions is None else dimensions
    if dimensions >= size:
        raise ValueError(f"vim: dimensions must be fewer than the {size} features")
    origin = -np.linalg.pinv(kernel.T) @ bias
    centred = points - origin
    vectors = np.linalg.eigh(centred.T @ centred / len(centred))[1]
    residual = vectors[:, : size - dimensions]  # eigenvalues rise: the last ones are the principal
    norms = np.linalg.norm(centred @ residual, axis=1)
    largest = (points @ kernel + bias).max(1)
    if not norms.mean() > 0:
        raise ValueError(f"vim: features lie in {dimensions} dimensions; take fewer dimensions")
    parts: tuple[Any, ...] = (origin, residual, largest.mean() / norms.mean())
    dtype = jnp.promote_types(jnp.result_type(features), jnp.float32)
    return ViM(*(jnp.asarray(part, dtype) for part in parts))
