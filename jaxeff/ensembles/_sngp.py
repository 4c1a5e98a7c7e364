"""`sngp`: a Gaussian process in the place of a last layer, by random features.

```python
import jax
import optax

from jaxeff.bayes import laplace
from jaxeff.ensembles import Spectral, sngp, spectral
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key = jax.random.key(0)
f, params, data = small_classifier()
bounded = spectral(f, {"conv*": Spectral(3.0), "fc1": Spectral(3.0)})
g, start = sngp(key, bounded, params, "fc2", data[0], features=128)
trained = fit(key, cross_entropy(g), start, data, optimizer=optax.adam(1e-2), epochs=1,
              batch_size=64).params
posterior = laplace(g, trained, data, "head", "outputs", prior_precision=1.0)
posterior.probs(data[0])                            # mean field
```

Features h become `sqrt(2 / n) cos(h W + b)` with fixed random W and b, whose products approach the
kernel `exp(-|h - h'|^2 / (2 length_scale^2))`; a linear layer of them with normal weights is a
Gaussian process. Its posterior is the Laplace approximation of that layer, with one covariance for
each output, `prior I + sum_n p (1 - p) phi phi^T`: `laplace(..., "head", "outputs")`, whose
probit link is SNGP's mean field.

Sharp edges:
    The released code keeps the covariance up by a moving average and leaves out p (1 - p); here it
    is the paper's, of one pass over the data.
    The random frequencies belong to the function, not to the parameters: make it with the same key
    where parameters are loaded.
    The replaced layer's own parameters stay in the pytree, unread.

References:
    Liu et al., "Simple and Principled Uncertainty Estimation with Deterministic Deep Learning via
    Distance Awareness", arXiv:2006.10108, section 3.1. Rahimi and Recht, "Random Features for
    Large-Scale Kernel Machines", NeurIPS 2007.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    check_count,
    check_function,
    check_key,
    check_number,
    check_params,
    input_batch,
    positive,
    static_integer,
    string,
    validate,
)
from jaxeff.program.costs import inputs_of, last_layer


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """A network that ends in random features and a linear layer, `head`.

    Called as `g(params, x)`, with parameters `{"network": ..., "head": {"kernel": ...}}`.

    Attributes:
        f: The network.
        site: The layer that is replaced.
        frequencies: `[inputs, features]`, in units of one over features' distance.
        phases: `[features]`, in radians.
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


@validate(site=string, x=input_batch, features=static_integer(), length_scale=positive)
def sngp(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    site: str,
    x: Any,
    *,
    features: int = 1024,
    length_scale: Any = None,
) -> tuple[RandomFeatures, Any]:
    """Replaces a last layer by a Gaussian process.

    Args:
        key: Random key of the features.
        f: `f(params, x) -> outputs`, best with bounded layers (`spectral`).
        params: The parameters of `f`.
        site: The last layer, a dense one.
        x: Inputs.
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
    check_key("sngp: key", key)
    check_function("sngp: f", f)
    check_params("sngp: params", params)
    check_count("features", features)
    # Frequencies and phases are drawn once and stay: only the head is trained.
    layer = last_layer(f, site, params, x)
    kernel = jax.tree.leaves(params)[layer.kernel]
    if length_scale is None:
        length_scale = _median_distance(inputs_of(f, site)(params, x[:500]))
    check_number("sngp: length_scale", length_scale, above=0)
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
    found = float(np.median(distances[np.triu_indices(len(points), 1)])) if len(points) > 1 else 0.0
    if found <= 0:
        raise ValueError(
            "sngp: inputs have the same features in front of the last layer, so that there is no "
            "length scale; give length_scale, or more inputs"
        )
    return found
