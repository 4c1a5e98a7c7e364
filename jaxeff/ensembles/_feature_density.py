"""`feature_density`: how likely a network's features are, by one Gaussian for each class (DDU).

```python
import jaxeff
from jaxeff.ensembles import feature_density
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of

f, params, (x, y) = small_classifier(1000)
features = inputs_of(f, "fc2")                              # what the last layer reads
density = feature_density(features(params, x), y, 10, shrinkage=0.1)
density.log_density(features(params, x))                    # epistemic: low where nothing was seen
```

The density of features is `sum_c p(c) N(h; mean_c, cov_c)`, fitted in closed form after training;
its negative logarithm is the epistemic uncertainty, the entropy of the softmax the aleatoric one.

Sharp edges:
    The features have to keep distances: train with `spectral` and residual connections.
    Units that never fire make a covariance singular. That is an error here, not a jitter that
    grows until a factorisation succeeds: say how much `shrinkage` there is to be.
    Fitting looks at values, so it can't be traced; the density can.

References:
    Mukhoti et al., "Deep Deterministic Uncertainty: A New Simple Baseline", arXiv:2102.11582,
    algorithm 1. The released code weighs classes equally; here they have their priors.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from jaxeff.core import (
    check_count,
    check_labels,
    check_number,
    probability,
    real_array,
    static_integer,
    validate,
    widened,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FeatureDensity:
    """Class Gaussians over features.

    Attributes:
        means: `[classes, features]`.
        whitening: Matrix that makes a class's features uncorrelated, the inverse of the lower
            Cholesky factor of its covariance, `[classes, features, features]`.
        offsets: The logarithms of prior and normalisation, `[classes]`.
    """

    means: Float[Array, "classes features"]
    whitening: Float[Array, "classes features features"]
    offsets: Float[Array, " classes"]

    def log_joint(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes the log-density of features and class, in nats."""

        def of_class(mean: Array, whitening: Array, offset: Array) -> Array:
            # Mahalanobis distance as a plain norm of whitened features.
            white = (widened(features) - mean[None]) @ whitening.T
            return offset - 0.5 * (white**2).sum(1)

        return jax.vmap(of_class, out_axes=1)(self.means, self.whitening, self.offsets)

    def log_density(self, features: Float[Array, "batch features"]) -> Float[Array, " batch"]:
        """Computes the log-density of features, in nats; its negative is epistemic uncertainty."""
        return logsumexp(self.log_joint(features), axis=1)

    def log_probs(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes log-probabilities of classes given features, as discriminant analysis does."""
        joint = self.log_joint(features)
        return joint - logsumexp(joint, axis=1, keepdims=True)


@validate(features=real_array(), classes=static_integer(), shrinkage=probability)
def feature_density(
    features: Float[Array, "examples features"],
    labels: Int[Array, " examples"],
    classes: int,
    *,
    shrinkage: float = 0.0,
) -> FeatureDensity:
    """Fits the class Gaussians by maximum likelihood: means, covariances and shares of classes.

    Args:
        features: Features of the training examples.
        labels: Their classes.
        classes: Number of classes.
        shrinkage: Share of each covariance that is replaced by its mean variance, equal in all
            directions, 0 to 1.

    Returns:
        The density.

    Raises:
        TypeError: Labels are no integers, or features no matrix.
        ValueError: A class has no examples, or a singular covariance; it is named.
    """
    check_count("feature_density: classes", classes)
    check_number("feature_density: shrinkage", shrinkage, 0, 1)
    if np.ndim(features) != 2:
        raise TypeError(
            f"feature_density: features must be [examples, features], not {np.shape(features)}; "
            "flatten them, or average over positions"
        )
    check_labels("feature_density: labels", labels, classes, np.shape(features)[:1])
    dtype = jnp.promote_types(jnp.result_type(features), jnp.float32)
    points, targets = np.asarray(features, np.float64), np.asarray(labels)
    size = points.shape[1]
    means, whitening, offsets = [], [], []
    for c in range(classes):
        own = points[targets == c]
        if len(own) < 2:
            raise ValueError(
                f"feature_density: class {c} has {len(own) or 'no'} example{'s' * (len(own) != 1)} "
                f"among {len(points)}; a Gaussian needs two or more: give examples of every class, "
                "or fewer classes"
            )
        root = _whitening(np.cov(own.T, bias=True).reshape(size, size), c, len(own), shrinkage)
        means.append(own.mean(0))
        whitening.append(root)
        # log det of the inverse Cholesky factor is -1/2 log det of the covariance.
        log_det = np.log(np.diag(root)).sum()
        offsets.append(np.log(len(own) / len(points)) + log_det - size / 2 * np.log(2 * np.pi))
    stacked = (np.stack(means), np.stack(whitening), np.array(offsets))
    return FeatureDensity(*(jnp.asarray(part.astype(dtype)) for part in stacked))


def _whitening(covariance: np.ndarray, c: int, examples: int, shrinkage: float) -> np.ndarray:
    size = len(covariance)
    # Shrinkage keeps the trace: only the shape of the covariance is pulled to a sphere.
    level = np.trace(covariance) / size
    covariance = (1 - shrinkage) * covariance + shrinkage * level * np.eye(size)
    values = np.linalg.eigvalsh(covariance)
    # Features come in float32: directions below its rounding are none.
    least = values[-1] * size * np.finfo(np.float32).eps
    if values[0] <= least or not np.isfinite(values).all():
        rank = int((values > least).sum())
        raise ValueError(
            f"feature_density: the covariance of class {c} is singular, of rank {rank} in {size} "
            f"features from {examples} examples; give shrinkage=0.01 or more, more examples, or "
            "fewer features"
        )
    # With cov = L L^T, |L^-1 (h - mean)|^2 is the squared Mahalanobis distance.
    return np.linalg.solve(np.linalg.cholesky(covariance), np.eye(size))
