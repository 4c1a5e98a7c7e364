"""`Laplace`: a Gaussian posterior around trained weights, and what follows from it for outputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.curvature._precision import Curvature, LaplaceWarning
from jaxeff.bayes.curvature._weights import Weights
from jaxeff.bayes.posteriors import Likelihood
from jaxeff.core import check_choice, check_count, widened
from jaxeff.moment_propagation import Gaussian, JointGaussian
from jaxeff.uncertainty import probit_logits

LINKS = ("probit", "samples")
MANY = 100_000
"""Eigenvalues beyond which a histogram of them finds the basin of the evidence."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Laplace:
    """A Gaussian posterior of some weights; the other parameters are not random.

    Attributes:
        params: All parameters, the random ones at the mean.
        precision: The curvature of the likelihood by the random weights.
        prior_precision: Precision of the zero-mean normal prior of every weight.
        log_likelihood: Log-likelihood of the data at the mean, in nats.
        f: The function.
        weights: The weights that are random.
        likelihood: Meaning of the outputs.
    """

    params: Any
    precision: Curvature
    prior_precision: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    f: Callable[..., Any] = dataclasses.field(metadata={"static": True})
    weights: Weights = dataclasses.field(metadata={"static": True})
    likelihood: Likelihood = dataclasses.field(metadata={"static": True})

    def logits(self, x: Any, *, params: Any = None) -> JointGaussian:
        """Computes the joint distribution of outputs, to first order in the weights.

        Outputs are linear in the weights of a last layer, so that there it is exact.

        Args:
            x: Inputs of the function.
            params: Parameters to take in the place of the posterior's means, as those of the other
                layers.

        Returns:
            Means `[batch, ..., outputs]` and the covariances along the last axis.
        """
        mean, cov = self._at(x, params, self.weights.covariance)
        return JointGaussian(mean, cov)

    def marginals(self, x: Any, *, params: Any = None) -> Gaussian:
        """Computes outputs as if independent: covariances of a thousand classes don't fit."""
        mean, var = self._at(x, params, self.weights.variance)
        return Gaussian(mean, var)

    def probs(
        self, x: Any, *, link: str = "probit", key: PRNGKeyArray | None = None, samples: int = 100
    ) -> Float[Array, "*batch classes"]:
        """Computes class probabilities.

        Args:
            x: Inputs of the function.
            link: "probit", the closed form of `jaxeff.uncertainty.probit_logits`, or "samples" of
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
        if link == "probit":
            return jax.nn.softmax(probit_logits(self.marginals(x)))
        if key is None:
            raise ValueError('probs: link="samples" draws, so it needs a key')
        check_count("samples", samples)
        return jax.nn.softmax(self.logits(x).sample(key, (samples,))).mean(0)

    def linear_draws(
        self, key: PRNGKeyArray, x: Any, samples: int = 30, *, params: Any = None
    ) -> Float[Array, "samples *batch outputs"]:
        """Draws outputs that are linear in drawn weights: those of `logits`, all together.

        A draw costs a derivative forward, however many outputs there are.

        Args:
            key: Random key.
            x: Inputs of the function.
            samples: Number of draws.
            params: Parameters to take in the place of the posterior's means.
        """
        check_count("linear_draws: samples", samples)
        params = self.params if params is None else params
        mean, along = jax.linearize(
            lambda packed: self.f(self.weights.unpack(params, packed), x), self.weights.pack(params)
        )
        moved: Array = jax.lax.map(along, self.precision.sample(key, samples, self.prior_precision))
        return mean[None] + moved

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
        packed = jax.tree.map(widened, self.weights.pack(self.params))
        square = optax.tree.norm(packed, squared=True)
        return self.log_likelihood - 0.5 * (ratio + prior * square)

    def tuned(self) -> Laplace:
        """Chooses the prior precision of the highest evidence.

        Raises:
            ValueError: Curvature or weights are NaN or infinite.

        Warns:
            LaplaceWarning: The evidence is highest at an end of the range that is searched.
        """
        from scipy.optimize import minimize_scalar

        # On the host in float64: a function of one number and the eigenvalues, no pass over data.
        values = np.asarray(self.precision.values, np.float64)
        packed = jax.tree.leaves(self.weights.pack(self.params))
        square = sum(float((np.asarray(part, np.float64) ** 2).sum()) for part in packed)

        if not np.isfinite(values).all() or not np.isfinite(square):
            raise ValueError(
                "laplace: tuned() has no evidence to compare: curvature or weights are NaN or "
                "infinite; see that the network was trained, and that no input is NaN"
            )

        def negative(log_prior: float, values: Any, counts: Any = 1.0) -> float:
            prior = np.exp(log_prior)
            return 0.5 * ((counts * np.log1p(values / prior)).sum() + prior * square)

        # The evidence may have several optima: a grid finds the basin, Brent's method its bottom.
        # A head of fifty thousand words has millions of eigenvalues: for the basin a histogram
        # of their logarithms says enough.
        few = _binned(values) if values.size > MANY else (values,)
        grid = np.linspace(-18.0, 18.0, 145)
        best = grid[int(np.argmin([negative(p, *few) for p in grid]))]
        if best in (grid[0], grid[-1]):
            warnings.warn(
                f"laplace: tuned() stopped at a prior precision of {np.exp(best):.3g}, an end of "
                "the range that it searches: weights or curvature are zero, or nearly. Take a "
                "precision of your own: laplace(..., prior_precision=1.0).",
                LaplaceWarning,
                stacklevel=2,
            )
        found = minimize_scalar(negative, bounds=(best - 0.5, best + 0.5), method="bounded",
                                args=(values,), options={"xatol": 1e-8})  # fmt: skip
        dtype = self.prior_precision.dtype
        return dataclasses.replace(self, prior_precision=jnp.asarray(np.exp(found.x), dtype))

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws, as `jaxeff.bayes.Posterior.draws`."""
        noise = self.precision.sample(key, n, self.prior_precision)
        # Only the random weights are drawn; `unpack` puts them among the fixed others.
        drawn = jax.tree.map(lambda mean, w: mean[None] + w, self.weights.pack(self.params), noise)
        return drawn, lambda one: self.weights.unpack(self.params, one)

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Returns mean and variance of the random weights; the others as they are.

        Args:
            diagonal: Whether the correlations of the weights may be left out.

        Raises:
            ValueError: The weights are correlated, and that isn't said. What the data say little
                of are directions of many weights, which features hardly have; the variances alone
                spread these over all features, so that outputs are far too unsure: on networks of
                digits their variances were 4 to 11 times too large.
        """
        if not diagonal and not self.precision.is_diagonal:
            raise ValueError(
                "to_gaussians: the weights of this posterior are correlated, and their variances "
                "alone make outputs far too unsure. Take posterior.logits(x), the exact joint "
                'moments of the outputs, or posterior.marginals(x), or laplace(..., "diag"), whose '
                "weights are independent; posterior.to_gaussians(diagonal=True) gives the "
                "variances all the same"
            )
        var = self.precision.weights_variance(self.prior_precision)
        means, structure = jax.tree.flatten(self.params)
        variances = jax.tree.leaves(self.weights.unpack(self.params, var))
        own = self.weights.leaves
        found = [Gaussian(leaf, variances[i]) if i in own else leaf for i, leaf in enumerate(means)]
        return jax.tree.unflatten(structure, found)

    def _at(self, x: Any, params: Any, spread_of: Callable[..., Array]) -> tuple[Array, Array]:
        params = self.params if params is None else params
        spread = spread_of(self.f, params, x, self.precision, self.prior_precision)
        return self.f(params, x), spread


def _binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of 2,048 bins of the logarithms, and how many values each holds."""
    # What data say nothing of has a value of zero, and adds nothing to the evidence.
    counts, edges = np.histogram(np.log(values[values > 0]), 2048)
    return np.exp((edges[1:] + edges[:-1]) / 2), counts
