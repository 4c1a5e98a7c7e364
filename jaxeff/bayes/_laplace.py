"""`laplace`: a Gaussian posterior around trained weights, from the curvature of their likelihood.

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
posterior = laplace(jax.random.key(0), f, trained, data, "fc2")        # of all sites: "*"
posterior.probs(data[0])                            # [batch, classes], probit
posterior.logits(data[0])                           # a JointGaussian, linear in the weights
predict(key, f, posterior, data[0], samples=10)     # or weights drawn, as of any posterior
```

The precision is the generalized Gauss-Newton curvature of the likelihood at the trained weights
plus that of the prior, which is chosen by the evidence unless given. Curvatures of several sites
are of any structure (`structure=`); of a last dense layer alone they are taken from its features
without any Jacobian, so that a thousand classes fit, and the linear predictive is exact.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.bayes import _curvature
from jaxeff.bayes._precision import (
    NUMBERS,
    Curvature,
    LaplaceWarning,
    LastWeights,
    Precision,
    Weights,
    chosen_sites,
    matched_variance,
    precision,
    site_weights,
)
from jaxeff.bayes.posteriors import (
    Likelihood,
    check_targets,
    require_one_output,
    resolve_likelihood,
)
from jaxeff.moment_propagation import Gaussian, JointGaussian
from jaxeff.program import Program, SpecError, trace
from jaxeff.program.costs import last_layer
from jaxeff.training import Batches, or_batches
from jaxeff.uncertainty import in_batches, probit_logits

LINKS = ("probit", "samples")
MANY = 100_000
"""Eigenvalues beyond which a histogram of them finds the basin of the evidence."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Laplace:
    """A Gaussian posterior of some weights; the other parameters are not random.

    Sharp edges:
        It is as good as the optimum: train to the end, with a weight decay that fits the prior.
        Draws of the weights of inner layers fit worse than the linear predictive, since curvature
        says nothing of how far from the mean it holds (Immer et al. 2021, arXiv:2008.08400).
        A bias counts as a weight whose input is one, also in the Kronecker product; laplace-torch
        gives biases a block of their own.
        An example's outputs are taken one by one by their Jacobians, and a decoder's are tokens
        times words: give a key, and curvature costs as many passes backward as labels are drawn;
        `posterior.linear_draws` predicts without Jacobians. Its last layer needs neither.
        A second call with data of the same shapes compiles nothing where `f`, and a likelihood that
        is a function, are the same objects.
        Evidence and curvature are those of the data given, without augmentation.

    Attributes:
        params: All parameters, the random ones at the mean.
        precision: The curvature of the likelihood by the random weights.
        prior_precision: Precision of the zero-mean normal prior of every weight.
        log_likelihood: Log-likelihood of the data at the mean, in nats.
        f: The function.
        weights: The weights that are random.
        likelihood: Meaning of the outputs.

    References:
        Daxberger et al., "Laplace Redux: Effortless Bayesian Deep Learning", arXiv:2106.14806.
        MacKay, "The Evidence Framework Applied to Classification Networks", Neural Computation 4
        (1992), also for the probit approximation. Ritter et al., "A Scalable Laplace Approximation
        for Neural Networks", ICLR 2018.
    """

    params: Any
    precision: Curvature
    prior_precision: Float[Array, ""]
    log_likelihood: Float[Array, ""]
    f: Callable[..., Any] = dataclasses.field(metadata={"static": True})
    weights: Weights = dataclasses.field(metadata={"static": True})
    likelihood: Likelihood = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        def digits(value: Any) -> str:
            return str(value) if isinstance(value, jax.core.Tracer) else f"{float(value):.4g}"

        return (
            f"Laplace({type(self.precision).__name__}, prior precision "
            f"{digits(self.prior_precision)}, log-likelihood {digits(self.log_likelihood)} nats)"
        )

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
        return JointGaussian(*self._moments(x, params, joint=True))

    def marginals(self, x: Any, *, params: Any = None) -> Gaussian:
        """Computes outputs as if independent: covariances of a thousand classes don't fit."""
        return Gaussian(*self._moments(x, params, joint=False))

    def _moments(self, x: Any, params: Any, *, joint: bool) -> tuple[Array, Array]:
        return _linear_moments(self._around(params), x, joint=joint)

    def _around(self, params: Any) -> Laplace:
        """Returns the posterior with other parameters in the place of its own, unless None."""
        return self if params is None else dataclasses.replace(self, params=params)

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
        core.check_choice("probs: link", link, LINKS)
        if self.likelihood != "categorical":
            raise ValueError("probs: the outputs are no logits of classes; see logits(x)")
        if link == "probit":
            return jax.nn.softmax(self._probit(x))
        if key is None:
            raise ValueError('probs: link="samples" draws, so it needs a key')
        core.check_count("samples", samples)
        return jax.nn.softmax(self.logits(x).sample(key, (samples,))).mean(0)

    def _probit(self, x: Any) -> Array:
        """Computes probit logits a few examples at a time, where covariances of all don't fit."""
        classes = jax.eval_shape(self.f, self.params, x).shape[-1]
        size = max(NUMBERS // classes**2, 1)
        return in_batches(lambda rows: probit_logits(self.logits(rows)), x, size)

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
        core.check_count("linear_draws: samples", samples)
        return _linear_draws(key, self._around(params), x, samples=samples)

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
        packed = jax.tree.map(core.widened, self.weights.pack(self.params))
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
        optimum = minimize_scalar(negative, bounds=(best - 0.5, best + 0.5), method="bounded",
                                  args=(values,), options={"xatol": 1e-8})  # fmt: skip
        dtype = self.prior_precision.dtype
        return dataclasses.replace(self, prior_precision=jnp.asarray(np.exp(optimum.x), dtype))

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Callable[[Any], Any]]:
        """Prepares ``n`` draws, as `jaxeff.bayes.Posterior.draws`."""
        noise = self.precision.sample(key, n, self.prior_precision)
        # Only the random weights are drawn; `unpack` puts them among the fixed others.
        drawn = jax.tree.map(lambda mean, w: mean[None] + w, self.weights.pack(self.params), noise)
        return drawn, lambda one: self.weights.unpack(self.params, one)

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Returns mean and variance of the random weights; the others as they are.

        Variances of correlated weights alone would make outputs far too unsure: what the data say
        little of are directions of many weights, which features hardly have, and shifts that all
        logits have in common; the variances spread these over all features and classes. So weights
        are given those of independent ones that raise the expected loss of the data by as much as
        the correlated ones do (`matched_variance`). On digits the ECE of moments was .36 with the
        variances as they are, .09 with these, and .07 by draws of the weights.

        Args:
            diagonal: Whether to give the variances of the weights as they are.
        """
        prior = self.prior_precision
        if diagonal or self.precision.is_diagonal:
            var = self.precision.weights_variance(prior)
        elif isinstance(self.precision, _curvature.Blocks):
            var = self.precision.matched_variance(prior)
        else:
            var = matched_variance(self.precision, prior)
        means, structure = jax.tree.flatten(self.params)
        variances = jax.tree.leaves(self.weights.unpack(self.params, var))
        random = self.weights.leaves
        leaves = [
            Gaussian(mean, variances[i]) if i in random else mean for i, mean in enumerate(means)
        ]
        return jax.tree.unflatten(structure, leaves)


@partial(jax.jit, static_argnames=("joint",))
def _linear_moments(posterior: Laplace, x: Any, *, joint: bool) -> tuple[Array, Array]:
    """Computes outputs and their covariances, or variances: compiled once for inputs of a shape."""
    f, params, weights = posterior.f, posterior.params, posterior.weights
    spread_of = weights.covariance if joint else weights.variance
    return f(params, x), spread_of(f, params, x, posterior.precision, posterior.prior_precision)


@partial(jax.jit, static_argnames=("samples",))
def _linear_draws(key: PRNGKeyArray, posterior: Laplace, x: Any, *, samples: int) -> Array:
    f, params, weights = posterior.f, posterior.params, posterior.weights
    mean, along = jax.linearize(
        lambda packed: f(weights.unpack(params, packed), x), weights.pack(params)
    )
    noise = posterior.precision.sample(key, samples, posterior.prior_precision)
    moved: Array = jax.lax.map(along, noise)
    return mean[None] + moved


def _binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the middles of 2,048 bins of the logarithms, and how many values each holds."""
    # What data say nothing of has a value of zero, and adds nothing to the evidence.
    counts, edges = np.histogram(np.log(values[values > 0]), 2048)
    return np.exp((edges[1:] + edges[:-1]) / 2), counts


STRUCTURES = ("full", "kron", "diag", "lowrank", "outputs", "last_layer")


class LaplaceOptions(TypedDict, total=False):
    """How `laplace` goes; `LaplaceSettings` has the meaning and defaults of its options."""

    batch_size: int
    draws: int | None
    only: str
    prior_precision: Any
    rank: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplaceSettings:
    """How `laplace` takes curvature, of which parameters, and how wide the prior is.

    Attributes:
        batch_size: Examples at a time.
        draws: Labels drawn for each example; None for the curvature along every output.
        only: Glob of the paths of parameters that may be random.
        prior_precision: Precision of the prior; None for that of the highest evidence.
        rank: Number of eigenvalues of "lowrank".
    """

    batch_size: int = 1000
    draws: int | None = None
    only: str = "*"
    prior_precision: Any = None
    rank: int = 20


@core.validate(
    data=or_batches(core.supervised_data),
    sites=core.any_of(core.string, core.string_sequence),
    rank=core.static_integer(),
    draws=core.static_integer(),
    only=core.string,
)
@core.forwards(LaplaceSettings, LaplaceOptions)
def laplace(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    sites: str | Sequence[str] = "*",
    structure: str = "kron",
    *,
    likelihood: Likelihood = "categorical",
    **options: Unpack[LaplaceOptions],
) -> Laplace:
    """Fits a Laplace approximation to trained weights.

    Args:
        key: Random key of the labels that are drawn where `draws` says so.
        f: `f(params, x) -> outputs [batch, ..., outputs]`.
        params: Trained parameters.
        data: `(x, targets)` that they were trained on, or batches of these (a loader, an iterator,
            `jaxeff.training.Batches`): those of epoch 0, once, and many times for "lowrank".
        sites: The sites whose weights are random: a pattern, or several.
        structure: What is kept of the curvature. "full" is all of it, "kron" a Kronecker product
            for each kernel, "diag" the diagonal, "lowrank" the largest eigenvalues; "outputs", of a
            last dense layer, a matrix for each output. "last_layer" is "full" of the layer whose
            result `f` returns, whatever `sites` say.
        likelihood: Meaning of the outputs, as `jaxeff.bayes.svi` takes it. Curvature by logits, and
            by means and log-variances, is the Fisher information in closed form; by the outputs of
            other likelihoods the second derivative at the targets.
        **options: `prior_precision`, the precision of the normal prior of every weight; if None,
            the one of the highest evidence. `batch_size`, the examples at a time, 1000, or fewer
            where their Jacobians don't fit. `rank`, the number of eigenvalues of "lowrank", 20.
            `draws`, the labels drawn for each example from its outputs, along which Jacobians are
            taken: an estimate without bias of the Fisher information; if None, along every output.
            `only`, a glob of paths of parameters, parts joined by slashes: what else the sites read
            isn't random. "adapters/*" leaves out the frozen weights of adapted layers.

    Returns:
        The posterior, for `jaxeff.bayes.predict` and `jaxeff.moments` too.

    Warns:
        LaplaceWarning: The likelihood has negative curvature at the targets, or the evidence is
            highest at an end of the range that is searched.

    Raises:
        SpecError: A pattern matches no site.
        ValueError: The sites have no parameters of these paths, "outputs" or "last_layer" finds no
            dense last layer, a full curvature doesn't fit, labels are out of range, or the prior
            precision isn't positive.
        TypeError: An argument is of another kind.
    """
    settings = LaplaceSettings(**options)
    _check_structure(sites, structure)
    require_one_output("laplace", likelihood)
    source = Batches.of(data)
    sample = data if source is None else source.first
    if source is not None:
        core.supervised_data("laplace: data", sample)
        settings = dataclasses.replace(settings, batch_size=source.size)
    if len(sample) != 2:
        raise ValueError("laplace: data must be (x, targets), of a function with one input")
    prior = settings.prior_precision
    if prior is not None:
        core.check_number("laplace: prior_precision", prior, above=0)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[: settings.batch_size]), sample)
    weights = _weights(f, params, first[0], sites, structure, likelihood, settings.only)
    check_targets(f, params, first, likelihood)
    structure = "full" if structure == "last_layer" else structure

    data, size = source or data, settings.batch_size
    curvature: Any
    if isinstance(weights, LastWeights):
        curvature, log_likelihood = _last_precision(
            structure, f, params, data, weights, likelihood, size
        )
    else:
        labels = None if settings.draws is None else _curvature.DrawnLabels(key, settings.draws)
        problem = _curvature.SiteProblem(f, params, data, weights, likelihood, size, labels)
        curvature, log_likelihood = _curvature.site_precision(structure, settings.rank, problem)
    posterior = Laplace(
        jax.tree.map(jnp.asarray, params), curvature,
        jnp.asarray(1.0 if prior is None else prior, log_likelihood.dtype), log_likelihood,
        f, weights, likelihood,
    )  # fmt: skip
    return posterior.tuned() if prior is None else posterior


def _check_structure(sites: str | Sequence[str], structure: str) -> None:
    named = [sites] if isinstance(sites, str) else [*sites]
    if structure not in STRUCTURES and (structure == "*" or named[0] in STRUCTURES):
        raise ValueError(
            f"laplace: sites come before the structure: laplace(..., {structure!r}, {named[0]!r})"
        )
    core.check_choice("laplace: structure", structure, STRUCTURES)


def _weights(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: str | Sequence[str],
    structure: str,
    likelihood: Likelihood,
    only: str,
) -> Weights:
    """Finds the random weights, and checks that the curvature fits."""
    program = trace(f, params, x)
    if structure == "last_layer":
        chosen = [layer.site for layer in program.layers if layer.outputs[0] in program.outputs]
    else:
        names = {layer.site for layer in program.layers}
        named = [sites] if isinstance(sites, str) else [*sites]
        if mistaken := [each for each in named if each in STRUCTURES and each not in names]:
            raise SpecError(
                f"laplace: {mistaken[0]!r} is a structure, not a site: structure={mistaken[0]!r}"
            )
        chosen = list(chosen_sites(program, sites))
    several = len(chosen) != 1 or only != "*"
    if structure == "lowrank" or (several and structure not in ("outputs", "last_layer")):
        return _site_weights(program, params, chosen, structure, only)
    if only != "*":
        raise ValueError(
            f"laplace: the structure {structure!r} is of a whole layer: leave out only"
        )
    if len(chosen) != 1:
        raise ValueError(
            f"laplace: the structure {structure!r} is one of a single layer, but the sites are "
            f"{', '.join(chosen)}"
        )
    # Of a likelihood of one's own it is unknown whether positions are independent.
    positions = likelihood == "categorical"
    try:
        last = LastWeights(last_layer(f, params, x, chosen[0], positions=positions))
    except ValueError:
        if structure in ("outputs", "last_layer"):
            raise
        return _site_weights(program, params, chosen, structure, only)
    _curvature.check_size(
        "full" if structure == "last_layer" else structure, *last.pack(params).shape
    )
    return last


def _site_weights(
    program: Program, params: Any, chosen: Sequence[str], structure: str, only: str
) -> Weights:
    sites = dict.fromkeys(chosen, True)
    weights = site_weights(program, params, sites, structure == "kron", only)
    _curvature.check_size(structure, *weights.blocks[0].shape)
    return weights


def _last_precision(
    structure: str,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    weights: LastWeights,
    likelihood: Likelihood,
    size: int,
) -> tuple[Precision, Array]:
    """Computes the curvature of a last layer from its features, and the log-likelihood."""

    def part(params: Any, x: Any, targets: Any) -> Any:
        features, out = weights.features(f, params, x), f(params, x)
        log_prob = resolve_likelihood(likelihood)(out).log_prob(targets)
        # Positions have one layer, and count as examples.
        lead = features.ndim - 1
        rows, outputs, each = (
            jax.tree.map(lambda a: a.reshape(-1, *a.shape[lead:]), value)
            for value in (features, out, targets)
        )
        sums = _curvature.batch_curvature(structure, rows, outputs, each, likelihood)
        return jnp.asarray(len(rows)), sums, log_prob.sum()

    examples, sums, log_likelihood = _curvature.summed(
        core.kept_program(part), params, _curvature.batches(data, size)
    )
    return precision(structure, sums, examples, weights.pack(params).shape), log_likelihood
