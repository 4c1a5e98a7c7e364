"""One network that knows what it has seen: features that keep distances, and densities of them.

`spectral` bounds how much layers stretch distances; of features that keep them, `feature_density`
fits one Gaussian for each class (DDU), and `sngp` puts a Gaussian process in the place of the last
layer, by random features.

```python
import jax
from jaxeff.ensembles import Spectral, feature_density, sngp, spectral
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of

f, params, (x, y) = small_classifier(1000)
bounded = spectral(f, {"conv*": Spectral(3.0), "fc1": Spectral(3.0)})
features = inputs_of(bounded, "fc2")(params, x)             # what the last layer reads
density = feature_density(features, y, 10, shrinkage=0.1)
density.log_density(features)                               # epistemic: low where nothing was seen
g, start = sngp(jax.random.key(0), bounded, params, x, "fc2", features=128)
outputs = g(start, x)                                       # to be trained: `RandomFeatures`
```
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.core import jax_internals as _compat
from jaxeff.program import Layer, Program, check_settings, interpret, plain_rule, resolve
from jaxeff.program.costs import inputs_of, last_layer
from jaxeff.program.ir import Contraction, run_nodes
from jaxeff.program.ir import primitives as prim


@core.register_setting
class Spectral(core.Setting):
    """A bound on a layer's spectral norm.

    A feature extractor that maps far inputs onto the features of near ones (feature collapse) can't
    tell that it doesn't know them. A bound on every layer's spectral norm, with residual
    connections, keeps distances; DDU, SNGP and last-layer ensembles build on it. Weights are
    divided by what their layer's norm exceeds the bound by, in every call, so the bound holds in
    training and after it alike.

    The norm is that of the layer as it runs: of a dense layer its matrix's, of a convolution that
    of the whole map from image to image, with its padding and strides (Gouk et al. 2018), rather
    than that of the reshaped kernel. It is found by power iteration from a fixed start, without
    state.

    Attributes:
        bound: The largest norm allowed; DDU takes 3.
        iterations: Number of power iterations.

    Raises:
        ValueError: The bound isn't positive, or there are no iterations.

    References:
        Miyato et al., "Spectral Normalization for Generative Adversarial Networks",
        arXiv:1802.05957. Gouk et al., "Regularisation of Neural Networks by Enforcing Lipschitz
        Continuity", arXiv:1804.04368.
    """

    bound: core.Positive = 3.0
    iterations: Annotated[int, core.Count()] = core.static(8)


@core.validate()
def spectral(f: Callable[..., Any], spec: Mapping[str, Spectral | None]) -> Callable[..., Any]:
    """Bounds the spectral norms of dense and convolution layers.

    Sharp edges:
        Power iteration approaches the norm from below: with few iterations the bound is exceeded by
        some per cent. Each costs two passes of the layer for one example.
        Batch norm may undo the bound; its scale isn't looked at.
        Of members, bound the network first and give it members then, not the other way round.

    Args:
        f: A pure function `f(params, *args)`.
        spec: Maps patterns of sites to bounds; None leaves a layer alone.

    Returns:
        A pure function of the arguments of `f`.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: When called: a pattern matches or decides no site, two are equally specific at
            one, or none of its layers has weights.
    """
    check_settings(spec, Spectral, "a bound such as Spectral(3.0)")

    def g(*args: Any, **kwargs: Any) -> Any:
        def make_rule(program: Program) -> Any:
            bounds = resolve(spec, program, lambda layer, _: bool(_weights(layer)), "a norm")

            def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
                bound = bounds.get(layer.site)
                if bound is None or not _weights(layer):
                    return plain_rule(layer, key, *values)
                norm = layer_norm(layer, values, bound.iterations)
                limit = jnp.asarray(bound.bound, norm.dtype)
                # A bound, not a normalization: smaller norms stay (Gouk et al.).
                scale = jnp.where(norm > limit, limit / jnp.where(norm > 0, norm, 1), 1)
                (at,) = layer.weights
                inputs = [x * scale.astype(x.dtype) if i == at else x for i, x in enumerate(values)]
                return plain_rule(layer, key, *inputs)

            return rule if bounds else None

        return interpret(f, make_rule, None, args, kwargs)

    return g


def _weights(layer: Layer) -> tuple[int, ...]:
    """Returns the one weight of a layer that has a norm."""
    known = layer.op is not None and layer.op.primitive in prim.LINEAR
    usable = layer.kind == "linear" and known and len(layer.weights) == 1
    return layer.weights if usable else ()


def layer_norm(layer: Layer, values: Sequence[Any], iterations: int) -> Float[Array, ""]:
    """Computes the spectral norm of a layer's linear map, with a gradient to its weights."""
    op = layer.op
    assert op is not None
    side = next(i for i, v in enumerate(op.inputs) if v in op.values and v.is_weight)
    operand = op.inputs[side]
    before = layer.nodes[: layer.nodes.index(op)]
    (weight,) = run_nodes(before, layer.inputs, values, [operand])
    contraction = Contraction.of(op)
    if not contraction.is_convolution:
        summed = contraction.summed(side)
        rows = math.prod(weight.shape[axis] for axis in summed)
        # Batch axes count as outputs: the norm is that of all their matrices beside each other.
        matrix = jnp.moveaxis(weight, summed, range(len(summed))).reshape(rows, -1)

        def apply(u: Array, w: Array) -> Array:
            return u @ w

        return _norm(apply, matrix, (rows,), iterations)
    shape = list(op.inputs[1 - side].aval.shape)
    # The norm of the convolution as a map of images, with its padding and strides:
    # reshaping the kernel to a matrix would only bound it.
    (examples,) = contraction.free(0)
    shape[examples] = 1

    def convolve(u: Array, w: Array) -> Array:
        return _compat.bind(op.eqn, u, w)[0]

    return _norm(convolve, weight, tuple(shape), iterations)


def _norm(
    apply: Callable[[Array, Array], Array], weight: Array, shape: tuple[int, ...], iterations: int
) -> Float[Array, ""]:
    # A norm is linear in the weight: of the largest entry's size nothing overflows in 16 bits.
    size = jax.lax.stop_gradient(jnp.abs(weight).max())
    size = jnp.where(size > 0, size, 1)
    weight = weight / size
    held = jax.lax.stop_gradient(weight)
    # Always the same start: no state between calls, and compiled functions stay pure.
    start = jax.random.normal(jax.random.key(0), shape, weight.dtype)
    like = jax.ShapeDtypeStruct(shape, weight.dtype)
    # Power iteration on A^T A; the transpose comes from JAX, for any dimension numbers.
    transpose = jax.linear_transpose(lambda u: apply(u, held), like)

    def unit(x: Array) -> Array:
        length = jnp.sqrt((core.widened(x) ** 2).sum())
        return (core.widened(x) / jnp.where(length > 0, length, 1)).astype(x.dtype)

    def iterate(_: int, u: Array) -> Array:
        return unit(transpose(apply(u, held))[0])

    u = jax.lax.fori_loop(0, iterations, iterate, unit(start))
    v = unit(apply(u, held))
    # v^T A u with u and v held is the norm, and its gradient v u^T is the exact one at
    # convergence: no derivative through the iteration.
    return (v * apply(u, weight)).sum() * size


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class FeatureDensity:
    """Class Gaussians over features.

    The density is `sum_c p(c) N(h; mean_c, cov_c)`, fitted in closed form after training; its
    negative logarithm is the epistemic uncertainty, the entropy of the softmax the aleatoric one.

    Sharp edges:
        The features have to keep distances: train with `spectral` and residual connections.
        Units that never fire make a covariance singular. That is an error here, not a jitter that
        grows until a factorisation succeeds: say how much `shrinkage` there is to be.
        Fitting looks at values, so it can't be traced; the density can.
        The released code weighs classes equally; here they have their priors.

    Attributes:
        means: `[classes, features]`.
        whitening: Matrix that makes a class's features uncorrelated, the inverse of the lower
            Cholesky factor of its covariance, `[classes, features, features]`.
        offsets: The logarithms of prior and normalisation, `[classes]`.

    References:
        Mukhoti et al., "Deep Deterministic Uncertainty: A New Simple Baseline", arXiv:2102.11582,
        algorithm 1.
    """

    means: Float[Array, "classes features"]
    whitening: Float[Array, "classes features features"]
    offsets: Float[Array, " classes"]

    def log_joint(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes the log-density of features and class, in nats."""

        def of_class(mean: Array, whitening: Array, offset: Array) -> Array:
            # Mahalanobis distance as a plain norm of whitened features.
            white = (core.widened(features) - mean[None]) @ whitening.T
            return offset - 0.5 * (white**2).sum(1)

        return jax.vmap(of_class, out_axes=1)(self.means, self.whitening, self.offsets)

    def log_density(self, features: Float[Array, "batch features"]) -> Float[Array, " batch"]:
        """Computes the log-density of features, in nats; its negative is epistemic uncertainty."""
        return logsumexp(self.log_joint(features), axis=1)

    def log_probs(self, features: Float[Array, "batch features"]) -> Float[Array, "batch classes"]:
        """Computes log-probabilities of classes given features, as discriminant analysis does."""
        joint = self.log_joint(features)
        return joint - logsumexp(joint, axis=1, keepdims=True)


@core.validate(
    features=core.real_array(), classes=core.static_integer(), shrinkage=core.probability
)
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
    if np.ndim(features) != 2:
        raise TypeError(
            f"feature_density: features must be [examples, features], not {np.shape(features)}; "
            "flatten them, or average over positions"
        )
    core.check_labels("feature_density: labels", labels, classes, np.shape(features)[:1])
    dtype = jnp.promote_types(jnp.result_type(features), jnp.float32)
    points, targets = np.asarray(features, np.float64), np.asarray(labels)
    size = points.shape[1]
    means, whitening, offsets = [], [], []
    for c in range(classes):
        of_class = points[targets == c]
        if len(of_class) < 2:
            raise ValueError(
                f"feature_density: class {c} has {len(of_class) or 'no'} "
                f"example{'s' * (len(of_class) != 1)} among {len(points)}; a Gaussian needs two or "
                "more: give examples of every class, or fewer classes"
            )
        root = _whitening(
            np.cov(of_class.T, bias=True).reshape(size, size), c, len(of_class), shrinkage
        )
        means.append(of_class.mean(0))
        whitening.append(root)
        # log det of the inverse Cholesky factor is -1/2 log det of the covariance.
        log_det = np.log(np.diag(root)).sum()
        offsets.append(np.log(len(of_class) / len(points)) + log_det - size / 2 * np.log(2 * np.pi))
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


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """A network that ends in random features and a linear layer, `head`.

    Called as `g(params, x)`, with parameters `{"network": ..., "head": {"kernel": ...}}`.

    `sngp` makes it. Features h become `sqrt(2 / n) cos(h W + b)` with fixed random W and b, whose
    products approach the kernel `exp(-|h - h'|^2 / (2 length_scale^2))`; a linear layer of them
    with normal weights is a Gaussian process. Its posterior is the Laplace approximation of that
    layer, with one covariance for each output, `prior I + sum_n p (1 - p) phi phi^T`: `laplace(...,
    "head", "outputs")`, whose probit link is SNGP's mean field.

    ```python
    import jax
    import optax
    from jaxeff.bayes import laplace
    from jaxeff.ensembles import Spectral, sngp, spectral
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy, fit

    key, (f, params, data) = jax.random.key(0), small_classifier()
    bounded = spectral(f, {"conv*": Spectral(3.0), "fc1": Spectral(3.0)})
    g, start = sngp(key, bounded, params, data[0], "fc2", features=128)
    trained = fit(key, cross_entropy(g), start, data, optimizer=optax.adam(1e-2), epochs=1,
                  batch_size=64).params
    posterior = laplace(key, g, trained, data, "head", "outputs", prior_precision=1.0)
    posterior.probs(data[0])                            # mean field
    ```

    Sharp edges:
        The released code keeps the covariance up by a moving average and leaves out p (1 - p); here
        it is the paper's, of one pass over the data.
        The random frequencies belong to the function, not to the parameters: make it with the same
        key where parameters are loaded.
        The replaced layer's own parameters stay in the pytree, unread.

    Attributes:
        f: The network.
        site: The layer that is replaced.
        frequencies: `[inputs, features]`, in units of one over features' distance.
        phases: `[features]`, in radians.

    References:
        Liu et al., "Simple and Principled Uncertainty Estimation with Deterministic Deep Learning
        via Distance Awareness", arXiv:2006.10108, section 3.1. Rahimi and Recht, "Random Features
        for Large-Scale Kernel Machines", NeurIPS 2007.
    """

    f: Callable[..., Any]
    site: str
    frequencies: Float[Array, "inputs features"]
    phases: Float[Array, " features"]

    def __call__(self, params: Any, *args: Any) -> Float[Array, "batch outputs"]:
        """Computes the mean of the process."""
        return self.features(params, *args) @ params["head"]["kernel"]

    def features(self, params: Any, *args: Any) -> Float[Array, "batch features"]:
        """Computes the random features."""
        hidden = inputs_of(self.f, self.site)(params["network"], *args)
        count = jnp.asarray(len(self.phases), hidden.dtype)
        # Random Fourier features: phi(x)^T phi(y) -> exp(-|x - y|^2 / (2 l^2)) for
        # frequencies from N(0, 1/l^2) and uniform phases (Rahimi and Recht).
        return jnp.sqrt(2 / count) * jnp.cos(hidden @ self.frequencies + self.phases[None])


@core.validate(
    site=core.string, x=core.input_batch, features=core.static_integer(), length_scale=core.positive
)
def sngp(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    site: str,
    *,
    features: int = 1024,
    length_scale: Any = None,
) -> tuple[RandomFeatures, Any]:
    """Replaces a last layer by a Gaussian process.

    Args:
        key: Random key of the features.
        f: `f(params, x) -> outputs`, best with bounded layers (`spectral`).
        params: The parameters of `f`.
        x: Inputs.
        site: The last layer, a dense one.
        features: Number of random features.
        length_scale: Length scale of the kernel, in units of the distance between the layer's
            inputs; the median distance between those of `x` if None.

    Returns:
        The function, and its parameters with a head of zeros.

    Raises:
        TypeError: An argument is of another kind.
        ValueError: The site is no linear last layer, a number is out of range, or all inputs have
            the same features.
    """
    # Frequencies and phases are drawn once and stay: only the head is trained.
    layer = last_layer(f, params, x, site)
    kernel = jax.tree.leaves(params)[layer.kernel]
    if length_scale is None:
        length_scale = _median_distance(inputs_of(f, site)(params, x[:500]))
    core.check_number("sngp: length_scale", length_scale, above=0)
    inputs, outputs = jnp.shape(kernel)
    dtype = jnp.result_type(kernel)
    of_w, of_b = jax.random.split(key)
    scale = jnp.asarray(length_scale, dtype)
    g = RandomFeatures(
        f, site,
        jax.random.normal(of_w, (inputs, features), dtype) / scale,
        jax.random.uniform(of_b, (features,), dtype, 0.0, 2 * np.pi),
    )  # fmt: skip
    # A head of zeros: every class is as likely before training.
    return g, {"network": params, "head": {"kernel": jnp.zeros((features, outputs), dtype)}}


def _median_distance(hidden: Array) -> float:
    points = np.asarray(hidden, np.float64)
    squares = (points**2).sum(1)
    # |x|^2 + |y|^2 - 2 x y may be slightly negative for equal points.
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))
    median = (
        float(np.median(distances[np.triu_indices(len(points), 1)])) if len(points) > 1 else 0.0
    )
    if median <= 0:
        raise ValueError(
            "sngp: inputs have the same features in front of the last layer, so that there is no "
            "length scale; give length_scale, or more inputs"
        )
    return median
