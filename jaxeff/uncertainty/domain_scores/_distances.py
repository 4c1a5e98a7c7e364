"""How far features lie from those of the training data: nearest neighbours, Mahalanobis distance.

```python
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of
from jaxeff.uncertainty import knn, mahalanobis, relative_mahalanobis, scored

f, params, (x, y) = small_classifier()
features = inputs_of(f, "fc2")(params, x)
logits, scores = scored(f, "fc2", knn(features, k=5))(params, x)
mahalanobis(features, y, 10)(features), relative_mahalanobis(features, y, 10)(features)
```

Sharp edges:
    Fitting a Gaussian looks at values, so it can't be traced; the scores can.
    Directions without any variance in the training data, as of units that never fire, are left
    out: what moves along them alone isn't noticed. `shrinkage` counts them, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.core import check_labels, probability, real_array, static_integer, validate, widened

FEATURES = real_array(2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class KNN:
    """Distance to the k-th nearest training example; `knn` makes it.

    Attributes:
        bank: Features of the training examples, of norm one, `[examples, features]`.
        k: The number of the neighbour that counts, from 1.
    """

    bank: Float[Array, "examples features"]
    k: int = dataclasses.field(metadata={"static": True})

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the distance of normalized features to their k-th neighbour, 0 to 2."""
        points = _normalized(features)
        # Of vectors of norm one, |a - b|^2 = 2 - 2 a b: a product instead of all differences. But
        # for what is near that is a difference of equals, so it only tells which one it is.
        place = jax.lax.top_k(points @ self.bank.T, self.k)[1][:, -1]
        return jnp.sqrt(((points - self.bank[place]) ** 2).sum(-1))


@validate(features=FEATURES, k=static_integer())
def knn(features: Float[Array, "examples features"], k: int = 50) -> KNN:
    """Keeps training features to measure distances to.

    Sun et al., "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML 2022,
    arXiv 2204.06507.

    Args:
        features: Features of training examples; a random part of them often does.
        k: The number of the neighbour that counts, at most that of the examples.

    Raises:
        ValueError: There are fewer examples than `k`.
    """
    features = jnp.asarray(features)
    if len(features) < k:
        raise ValueError(f"knn: k={k} needs as many features at least, not {len(features)}")
    return KNN(_normalized(features), k)


def _normalized(features: Array) -> Array:
    features = widened(features)
    # Of the largest's size first: no square overflows, and none of a small vector is zero.
    largest = jnp.abs(features).max(-1, keepdims=True)
    features = features / jnp.where(largest > 0, largest, 1)
    norm = jnp.sqrt((features**2).sum(-1, keepdims=True))
    return features / jnp.where(norm > 0, norm, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Distance to the nearest class under a shared covariance; `mahalanobis` makes it.

    Attributes:
        means: Class means, `[classes, features]`.
        whitening: Makes features uncorrelated within classes, `[features, rank]`.
        background: Mean and whitening of all features without regard to classes, whose distance
            is subtracted; None if the distance isn't relative.
    """

    means: Float[Array, "classes features"]
    whitening: Float[Array, "features rank"]
    background: tuple[Array, Array] | None = None

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes half the squared distance to the nearest class mean."""
        features = widened(features)
        white = (features @ self.whitening)[:, None] - (self.means @ self.whitening)[None]
        nearest = (white**2).sum(-1).min(-1)
        if self.background is not None:
            mean, whitening = self.background
            nearest -= (((features - mean[None]) @ whitening) ** 2).sum(-1)
        return nearest / 2


@validate(features=FEATURES, classes=static_integer(), shrinkage=probability)
def mahalanobis(
    features: Float[Array, "examples features"],
    labels: Int[Array, " examples"],
    classes: int,
    *,
    shrinkage: float = 0.0,
) -> Mahalanobis:
    """Fits class means and one covariance of all classes.

    Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and
    Adversarial Attacks", NeurIPS 2018, arXiv 1807.03888, eq. 2, of one layer's features.

    Args:
        features: Features of training examples.
        labels: Their classes.
        classes: Number of classes.
        shrinkage: Share of the covariance that is replaced by its mean variance, equal in all
            directions.

    Raises:
        TypeError: Labels are no integers.
        ValueError: A class has no examples, or features don't vary.
    """
    means, centred = _centred("mahalanobis", features, labels, classes)
    return _gaussian(features, means, _whitening("mahalanobis", centred, shrinkage))


@validate(features=FEATURES, classes=static_integer(), shrinkage=probability)
def relative_mahalanobis(
    features: Float[Array, "examples features"],
    labels: Int[Array, " examples"],
    classes: int,
    *,
    shrinkage: float = 0.0,
) -> Mahalanobis:
    """Fits class means and a covariance, and a Gaussian of all features to compare with (RMD).

    Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection",
    arXiv 2106.09022, eq. 2: directions in which all data vary count less.

    Args:
        features: Features of training examples.
        labels: Their classes.
        classes: Number of classes.
        shrinkage: Share of both covariances that is replaced, as for `mahalanobis`.

    Raises:
        TypeError: Labels are no integers.
        ValueError: A class has no examples, or features don't vary.
    """
    where = "relative_mahalanobis"
    means, centred = _centred(where, features, labels, classes)
    whole = np.asarray(features, np.float64)
    background = whole.mean(0), _whitening(where, whole - whole.mean(0), shrinkage)
    return _gaussian(features, means, _whitening(where, centred, shrinkage), background)


def _centred(where: str, features: Any, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes class means, and the features less the mean of their class."""
    check_labels(f"{where}: labels", labels, classes, np.shape(features)[:1])
    points, targets = np.asarray(features, np.float64), np.asarray(labels)
    counts = np.bincount(targets, minlength=classes)
    if not counts.all():
        raise ValueError(f"{where}: class {counts.argmin()} has no examples; labels need each")
    means = np.stack([points[targets == c].mean(0) for c in range(classes)])
    return means, points - means[targets]


def _whitening(where: str, centred: np.ndarray, shrinkage: float) -> np.ndarray:
    """Computes W with W W^T the pseudo-inverse of the covariance."""
    size = centred.shape[1]
    covariance = centred.T @ centred / len(centred)
    level = np.trace(covariance) / size
    values, vectors = np.linalg.eigh(
        (1 - shrinkage) * covariance + shrinkage * level * np.eye(size)
    )
    # Features come in float32: directions below its rounding are none.
    kept = values > values[-1] * size * np.finfo(np.float32).eps
    if not (kept & (values > 0)).any():
        raise ValueError(f"{where}: features don't vary within classes: give more of them")
    whitening: np.ndarray = vectors[:, kept] / np.sqrt(values[kept])
    return whitening


def _gaussian(features: Any, means: Any, whitening: Any, background: Any = None) -> Mahalanobis:
    fitted = Mahalanobis(means, whitening, background)
    dtype = jnp.promote_types(jnp.result_type(features), jnp.float32)
    return jax.tree.map(lambda part: jnp.asarray(part, dtype), fitted)
