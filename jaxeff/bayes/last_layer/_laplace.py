"""`laplace`: a Gaussian posterior of a trained network's last layer, from its curvature.

```python
import jax
import optax

from jaxeff.bayes import laplace, predict
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key = jax.random.key(0)
f, params, data = small_classifier()
trained = fit(key, cross_entropy(f), params, data, optimizer=optax.adam(1e-2), epochs=2,
              batch_size=64).params
posterior = laplace(f, trained, data, {"fc2": "kron"})
posterior.probs(data[0])                            # [batch, classes], probit
posterior.logits(data[0])                           # a JointGaussian, exact for a last layer
predict(key, f, posterior, data[0], samples=10)     # or weights drawn, as of any posterior
```

The precision is the generalized Gauss-Newton curvature of the likelihood at the trained weights
("full", "outputs", "kron" or "diag", see `jaxeff.bayes.last_layer`) plus that of the prior, which
is chosen by the evidence unless given. The outputs are linear in a last layer's weights, so the
linearised predictive is the exact one of that Gaussian.

Sharp edges:
    It is as good as the optimum: train to the end, with a weight decay that fits the prior.
    The bias counts as a weight whose feature is one, also in the Kronecker product; laplace-torch
    gives biases a block of their own.
    Evidence and curvature are those of the data given, without augmentation.

References:
    Daxberger et al., "Laplace Redux: Effortless Bayesian Deep Learning", arXiv:2106.14806. MacKay,
    "The Evidence Framework Applied to Classification Networks", Neural Computation 4 (1992), also
    for the probit approximation. Ritter et al., "A Scalable Laplace Approximation for Neural
    Networks", ICLR 2018.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.last_layer._curvature import STRUCTURES, batch_curvature, check_size
from jaxeff.bayes.last_layer._precision import Precision, precision
from jaxeff.bayes.posteriors import Likelihood, check_targets, resolve_likelihood
from jaxeff.core import (
    check_choice,
    check_count,
    check_examples,
    check_function,
    check_number,
    check_params,
    string_mapping,
    supervised_data,
    validate,
)
from jaxeff.moment_propagation import Gaussian, JointGaussian
from jaxeff.program import resolve, trace
from jaxeff.program.costs import LastLayer, flat, inputs_of, last_layer, with_constant, with_flat

LINKS = ("probit", "samples")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Laplace:
    """A Gaussian posterior of a last layer; the other parameters are not random.

    Attributes:
        params: All parameters, the last layer's at the mean.
        precision: The curvature of the likelihood by the last layer's weights.
        prior_precision: Precision of the zero-mean normal prior of every weight.
        log_likelihood: Log-likelihood of the data at the mean, in nats.
        f: The function.
        layer: The last layer.
        likelihood: Meaning of its outputs.
    """

    params: Any
    precision: Precision
    prior_precision: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    f: Callable[..., Any] = dataclasses.field(metadata={"static": True})
    layer: LastLayer = dataclasses.field(metadata={"static": True})
    likelihood: Likelihood = dataclasses.field(metadata={"static": True})

    def logits(self, x: Any, *, params: Any = None) -> JointGaussian:
        """Computes the joint distribution of each example's outputs.

        Args:
            x: Inputs of the function.
            params: Parameters of the other layers; the posterior's if None.

        Returns:
            Means `[batch, outputs]` and covariances `[batch, outputs, outputs]`.
        """
        mean, features = self._at(x, params)
        return JointGaussian(mean, self.precision.covariance(features, self.prior_precision))

    def marginals(self, x: Any, *, params: Any = None) -> Gaussian:
        """Computes outputs as if independent: covariances of a thousand classes don't fit."""
        mean, features = self._at(x, params)
        return Gaussian(mean, self.precision.variance(features, self.prior_precision))

    def probs(
        self, x: Any, *, link: str = "probit", key: PRNGKeyArray | None = None, samples: int = 100
    ) -> Float[Array, "batch classes"]:
        """Computes class probabilities.

        Args:
            x: Inputs of the function.
            link: "probit", the closed form `softmax(mean / sqrt(1 + pi / 8 var))`, or "samples" of
                the joint logits.
            key: Random key of the samples.
            samples: Number of samples.

        Raises:
            ValueError: The link is unknown, samples have no key, or the likelihood is none of
                classes.
        """
        check_choice("probs: link", link, LINKS)
        if self.likelihood != "categorical":
            raise ValueError("probs: the outputs are no logits of classes; see logits(x)")
        # MacKay's approximation, with pi / 8 from matching slopes of sigmoid and probit.
        if link == "probit":
            logits = self.marginals(x)
            return jax.nn.softmax(logits.mean / jnp.sqrt(1 + np.pi / 8 * logits.var))
        if key is None:
            raise ValueError('probs: link="samples" draws, so it needs a key')
        check_count("samples", samples)
        return jax.nn.softmax(self.logits(x).sample(key, (samples,))).mean(0)

    def evidence(self, prior_precision: Any = None) -> Float[Array, ""]:
        """Computes the logarithm of the marginal likelihood of the data, in nats.

        ```text
        log p(y | W) - 1/2 (sum log(1 + value / prior) + prior |W|^2)
        ```

        Args:
            prior_precision: The posterior's own if None; may be traced.
        """
        prior = self.prior_precision if prior_precision is None else jnp.asarray(prior_precision)
        # log det(H + prior I) - log det(prior I), from the eigenvalues; log1p where the
        # data say little.
        ratio = jnp.log1p(self.precision.values / prior).sum()
        square = (flat(self.params, self.layer) ** 2).sum()
        return self.log_likelihood - 0.5 * (ratio + prior * square)

    def tuned(self) -> Laplace:
        """Chooses the prior precision of the highest evidence."""
        from scipy.optimize import minimize_scalar

        # On the host in float64: a function of one number and the eigenvalues, no pass over data.
        values = np.asarray(self.precision.values, np.float64)
        square = float((np.asarray(flat(self.params, self.layer), np.float64) ** 2).sum())

        def negative(log_prior: float) -> float:
            prior = np.exp(log_prior)
            return 0.5 * (np.log1p(values / prior).sum() + prior * square)

        # The evidence may have several optima: a grid finds the basin, Brent's method its bottom.
        grid = np.linspace(-18.0, 18.0, 145)
        best = grid[int(np.argmin([negative(p) for p in grid]))]
        found = minimize_scalar(negative, bounds=(best - 0.5, best + 0.5), method="bounded",
                                options={"xatol": 1e-8})  # fmt: skip
        dtype = self.prior_precision.dtype
        return dataclasses.replace(self, prior_precision=jnp.asarray(np.exp(found.x), dtype))

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws, as `jaxeff.bayes.Posterior.draws`."""
        weights = flat(self.params, self.layer)
        # Only the last layer's weights are drawn; `with_flat` puts them among the fixed others.
        drawn = weights[None] + self.precision.sample(key, n, self.prior_precision)
        return drawn, lambda matrix: with_flat(self.params, self.layer, matrix)

    def to_gaussians(self) -> Any:
        """Returns mean and variance of the last layer's weights; the others as they are."""
        mean = flat(self.params, self.layer)
        var = self.precision.weights_variance(self.prior_precision)
        leaves = jax.tree.leaves(self.params)
        variances = jax.tree.leaves(with_flat(self.params, self.layer, var))
        means = jax.tree.leaves(with_flat(self.params, self.layer, mean))
        own = {self.layer.kernel, self.layer.bias}
        found = [
            Gaussian(means[i], variances[i]) if i in own else leaf for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(jax.tree.structure(self.params), found)

    def _at(self, x: Any, params: Any) -> tuple[Array, Array]:
        params = self.params if params is None else params
        # Outputs are linear in the last layer's weights: its inputs are their Jacobian.
        features = inputs_of(self.f, self.layer.site)(params, x)
        return self.f(params, x), with_constant(features, self.layer)


@validate(data=supervised_data, spec=string_mapping)
def laplace(
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    spec: Mapping[str, str],
    *,
    likelihood: Likelihood = "categorical",
    prior_precision: Any = None,
    batch_size: int = 1000,
) -> Laplace:
    """Fits a Laplace approximation to the last layer of a trained network.

    Args:
        f: `f(params, x) -> outputs [batch, outputs]`; its result is that of a dense layer.
        params: Trained parameters.
        data: `(x, targets)` that they were trained on.
        spec: The last layer's site and the structure of its curvature: "full", "outputs", "kron"
            or "diag".
        likelihood: Meaning of the outputs, as `jaxeff.bayes.svi` takes it.
        prior_precision: Precision of the normal prior of every weight; if None, the one of the
            highest evidence.
        batch_size: Examples at a time.

    Returns:
        The posterior, for `jaxeff.bayes.predict` and `jaxeff.moments` too.

    Raises:
        ValueError: The spec names no site or several, the layer isn't a dense last one, a full
            curvature doesn't fit, labels are out of range, or the prior precision isn't positive.
        TypeError: An argument is of another kind.
    """
    check_function("laplace: f", f)
    check_params("laplace: params", params)
    check_examples("laplace: data", data)
    check_count("batch_size", batch_size)
    if len(data) != 2:
        raise ValueError("laplace: data must be (x, targets), of a function with one input")
    x, targets = data
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[:batch_size]), x)
    site, structure = _chosen(f, params, first, spec)
    layer = last_layer(f, site, params, first)
    check_targets(f, params, (first, targets[:batch_size]), likelihood)
    shape = jnp.shape(flat(params, layer))
    check_size(structure, *shape)
    if prior_precision is not None:
        check_number("laplace: prior_precision", prior_precision, above=0)

    @jax.jit
    def part(params: Any, x: Any, targets: Any) -> tuple[Any, Any]:
        outputs = f(params, x)
        features = with_constant(inputs_of(f, site)(params, x), layer)
        log_likelihood = resolve_likelihood(likelihood)(outputs).log_prob(targets).sum()
        return batch_curvature(structure, features, outputs, targets, likelihood), log_likelihood

    # One pass over the data in batches: only sums are kept.
    total: Any = None
    examples = len(jax.tree.leaves(x)[0])
    for start in range(0, examples, batch_size):
        rows = slice(start, start + batch_size)
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), (x, targets))  # noqa: B023
        found = part(params, *batch)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    summed, log_likelihood = total
    posterior = Laplace(
        jax.tree.map(jnp.asarray, params),
        precision(structure, summed, examples, shape),
        jnp.asarray(1.0 if prior_precision is None else prior_precision, log_likelihood.dtype),
        log_likelihood, f, layer, likelihood,
    )  # fmt: skip
    return posterior.tuned() if prior_precision is None else posterior


def _chosen(f: Callable[..., Any], params: Any, x: Any, spec: Mapping[str, str]) -> tuple[str, str]:
    """Resolves a spec to its one site and its structure."""
    if not isinstance(spec, Mapping):
        raise TypeError(f'laplace: the spec must be such as {{"fc3": "kron"}}, not {spec!r}')
    for pattern, structure in spec.items():
        check_choice(f"laplace: the structure of {pattern!r}", structure, STRUCTURES)
    sites = resolve(spec, trace(f, params, x))
    if len(sites) != 1:
        raise ValueError(
            f"laplace: the spec chooses {', '.join(sites) or 'no site'}; it takes one, the last "
            'layer, such as {"fc3": "kron"}'
        )
    return next(iter(sites.items()))


__all__ = ["Laplace", "laplace"]
