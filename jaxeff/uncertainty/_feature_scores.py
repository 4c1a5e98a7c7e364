"""Out-of-domain scores of features: distances, residuals, and what is left of cut features.

Each is fitted to training data once and becomes a frozen pytree, a function `score(features,
outputs)` that `scored` puts beside a function's outputs; higher is further out.

```python
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of
from jaxeff.uncertainty import ash, dense_head, dice, knn, react, scored, vim

f, params, (x, y) = small_classifier()
features = inputs_of(f, "fc2")(params, x)            # what the last layer reads, [batch, 32]
head = dense_head(f, params, x, "fc2")               # its kernel and bias
fitted = [knn(features, k=5), vim(features, head), react(features, head), dice(features, head)]
for score in (*fitted, ash(head, percentile=65)):
    logits, scores = scored(f, "fc2", score)(params, x)
```

Sharp edges:
    Fitting a Gaussian or ViM looks at values, so it can't be traced; the scores can.
    Directions without any variance in the training data, as of units that never fire, are left out:
    what moves along them alone isn't noticed. `shrinkage` counts them, too.
    Those that cut are made for features behind a ReLU, which are never negative.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.program.costs import inputs_of, last_layer
from jaxeff.uncertainty._logit_scores import energy

Score = Callable[[Any, Any], Float[Array, " batch"]]
"""From features and outputs to a score of each input, higher out of domain."""


class DenseHead(NamedTuple):
    """A last layer of features.

    ReAct, DICE and ASH cut features or weights before the last layer: each is the energy of the
    logits that a `DenseHead` makes of what is left.

    Attributes:
        kernel: Weights, `[features, classes]`.
        bias: Biases, `[classes]`.
    """

    kernel: Float[Array, "features classes"]
    bias: Float[Array, " classes"]

    def __call__(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes the logits of features."""
        return features @ self.kernel + self.bias[None]


@core.validate(
    f=core.function_of_form("f(params, *args)"), batch=core.parameter_tree, site=core.string
)
def dense_head(f: Callable[..., Any], params: Any, batch: Any, site: str) -> DenseHead:
    """Returns a function's last layer.

    Args:
        f: A pure function `f(params, *args)` that returns the result of a dense layer.
        params: The parameters.
        batch: Inputs, `args` as a tuple or the only one of them; shapes are enough.
        site: The layer's name.

    Raises:
        ValueError: The site is no last dense layer; the message says why.
    """
    layer = last_layer(f, params, batch, site)
    leaves = jax.tree.leaves(params)
    kernel = jnp.asarray(leaves[layer.kernel])
    bias = jnp.zeros(kernel.shape[1], kernel.dtype)
    # A bias may be stored with further axes of size one.
    return DenseHead(kernel, bias if layer.bias is None else leaves[layer.bias].reshape(-1))


@core.validate(
    f=core.function_of_form("f(*args)"),
    site=core.string,
    score=core.function_of_form("score(h, outputs)"),
)
def scored(f: Callable[..., Any], site: str, score: Score) -> Callable[..., tuple[Any, Array]]:
    """Makes a function return a score of each input beside its outputs.

    Args:
        f: A pure function such as `f(params, x)`.
        site: The layer whose input the score takes as features.
        score: What `knn`, `vim` and the others fitted, or any function of features and outputs.

    Returns:
        A function of the same arguments: outputs and scores. It jits, vmaps and deploys.
    """
    features = inputs_of(f, site)

    def g(*args: Any, **kwargs: Any) -> tuple[Any, Array]:
        # Both are read from one program: XLA computes what they share once.
        outputs = f(*args, **kwargs)
        return outputs, score(features(*args, **kwargs), outputs)

    return g


FEATURES = core.real_array(2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
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


@core.validate(features=FEATURES, k=core.static_integer())
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
    features = core.widened(features)
    # Of the largest's size first: no square overflows, and none of a small vector is zero.
    largest = jnp.abs(features).max(-1, keepdims=True)
    features = features / jnp.where(largest > 0, largest, 1)
    norm = jnp.sqrt((features**2).sum(-1, keepdims=True))
    return features / jnp.where(norm > 0, norm, 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
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
        features = core.widened(features)
        white = (features @ self.whitening)[:, None] - (self.means @ self.whitening)[None]
        nearest = (white**2).sum(-1).min(-1)
        if self.background is not None:
            mean, whitening = self.background
            nearest -= (((features - mean[None]) @ whitening) ** 2).sum(-1)
        return nearest / 2


@core.validate(features=FEATURES, classes=core.static_integer(), shrinkage=core.probability)
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

    The distance says how far features lie from those of the training data:

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program.costs import inputs_of
    from jaxeff.uncertainty import mahalanobis

    f, params, (x, y) = small_classifier()
    features = inputs_of(f, "fc2")(params, x)            # what the last layer reads
    distances = mahalanobis(features, y, 10)(features)
    ```

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


@core.validate(features=FEATURES, classes=core.static_integer(), shrinkage=core.probability)
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

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.program.costs import inputs_of
    from jaxeff.uncertainty import relative_mahalanobis

    f, params, (x, y) = small_classifier()
    features = inputs_of(f, "fc2")(params, x)            # what the last layer reads
    distances = relative_mahalanobis(features, y, 10)(features)
    ```

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
    points = np.asarray(features, np.float64)
    background = points.mean(0), _whitening(where, points - points.mean(0), shrinkage)
    return _gaussian(features, means, _whitening(where, centred, shrinkage), background)


def _centred(where: str, features: Any, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes class means, and the features less the mean of their class."""
    core.check_labels(f"{where}: labels", labels, classes, np.shape(features)[:1])
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ViM:
    """The norm of features outside the training data's principal space; `vim` makes it.

    It takes what of features the training data have no variance for as a logit of its own.

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
        outside = (core.widened(features) - self.origin[None]) @ self.residual
        return self.scale * jnp.sqrt((outside**2).sum(-1)) - logsumexp(
            core.widened(outputs), axis=-1
        )


@core.validate(
    features=core.real_array(2), head=core.instance_of(DenseHead), dimensions=core.static_integer()
)
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


PERCENT = core.number(0, 100, below=100)
HEAD = core.instance_of(DenseHead)
ASH_KINDS = ("binary", "prune", "scale")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ReAct:
    """The energy of clipped features; `react` makes it.

    Attributes:
        threshold: What features are clipped at.
        head: The last layer.
    """

    threshold: Float[Array, ""]
    head: DenseHead

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        return energy(self.head(jnp.minimum(features, self.threshold)))


@core.validate(features=FEATURES, head=HEAD, percentile=PERCENT)
def react(
    features: Float[Array, "examples features"], head: DenseHead, percentile: float = 90.0
) -> ReAct:
    """Finds the value above which few activations of training data lie.

    Sun, Guo, Li, "ReAct: Out-of-distribution Detection With Rectified Activations", NeurIPS 2021,
    arXiv 2111.12797.

    Args:
        features: Features of training examples.
        head: The layer that reads them.
        percentile: Percent of all activations that lie below.
    """
    return ReAct(jnp.percentile(jnp.asarray(features, float), percentile), head)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class DICE:
    """The energy of a last layer of few weights; `dice` makes it.

    Attributes:
        head: The last layer, most of whose weights are zero.
    """

    head: DenseHead

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        return energy(self.head(features))


@core.validate(features=FEATURES, head=HEAD, percentile=PERCENT)
def dice(
    features: Float[Array, "examples features"], head: DenseHead, percentile: float = 90.0
) -> DICE:
    """Keeps the weights that contribute most to logits on training data.

    Sun and Li, "DICE: Leveraging Sparsification for Out-of-Distribution Detection", ECCV 2022,
    arXiv 2111.09805, eq. 4.

    Args:
        features: Features of training examples.
        head: The layer that reads them.
        percentile: Percent of the weights that are left out.
    """
    contributions = jnp.asarray(features, float).mean(0)[:, None] * head.kernel
    kept = contributions > jnp.percentile(contributions, percentile)
    return DICE(DenseHead(head.kernel * kept.astype(head.kernel.dtype), head.bias))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ASH:
    """The energy of the largest activations of each input; `ash` makes it.

    Attributes:
        head: The last layer.
        percentile: Percent of an input's activations that are set to zero.
        kind: What the others become: see `ash`.
    """

    head: DenseHead
    percentile: float = dataclasses.field(metadata={"static": True})
    kind: str = dataclasses.field(metadata={"static": True})

    def __call__(
        self, features: Float[Array, "batch features"], outputs: Any = None
    ) -> Float[Array, " batch"]:
        """Computes the energy of what is left."""
        size = features.shape[1]
        kept = size - round(size * self.percentile / 100)
        values, places = jax.lax.top_k(features, kept)
        sums = features.sum(-1, keepdims=True)
        if self.kind == "binary":
            values = jnp.broadcast_to(sums / kept, values.shape)
        elif self.kind == "scale":
            values = values * jnp.exp(sums / values.sum(-1, keepdims=True))
        rows = jnp.arange(len(features))[:, None]
        shaped = jnp.zeros_like(features).at[rows, places].set(values)
        return energy(self.head(shaped))


@core.validate(head=HEAD, percentile=PERCENT, kind=core.one_of(*ASH_KINDS))
def ash(head: DenseHead, percentile: float = 90.0, kind: str = "scale") -> ASH:
    """Sets the smaller activations of each input to zero; needs no training data.

    Djurisic et al., "Extremely Simple Activation Shaping for Out-of-Distribution Detection",
    ICLR 2023, arXiv 2209.09858, algorithms 1 to 3.

    Args:
        head: The layer that reads features.
        percentile: Percent of the activations that are set to zero.
        kind: "prune" keeps the others, "binary" gives each their mean with the removed part
            added, "scale" multiplies them by the exponential of the sum before over that after.
    """
    return ASH(head, float(percentile), kind)
