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
posterior = laplace(f, trained, data, "fc2")        # of all sites: "*"
posterior.probs(data[0])                            # [batch, classes], probit
posterior.logits(data[0])                           # a JointGaussian, linear in the weights
predict(key, f, posterior, data[0], samples=10)     # or weights drawn, as of any posterior
```

The precision is the generalized Gauss-Newton curvature of the likelihood at the trained weights
plus that of the prior, which is chosen by the evidence unless given. Curvatures of several sites
are those of `jaxeff.bayes.curvature`; of a last dense layer alone they are taken from its features
without any Jacobian, so that a thousand classes fit, and the linear predictive is exact.

Sharp edges:
    It is as good as the optimum: train to the end, with a weight decay that fits the prior.
    Draws of the weights of inner layers fit worse than the linear predictive, since curvature says
    nothing of how far from the mean it holds (Immer et al. 2021, arXiv:2008.08400).
    A bias counts as a weight whose input is one, also in the Kronecker product; laplace-torch
    gives biases a block of their own.
    An example's outputs are taken one by one by their Jacobians, and a decoder's are tokens times
    words: give a key, and curvature costs as many passes backward as labels are drawn;
    `posterior.linear_draws` predicts without Jacobians. Its last layer needs neither.
    Evidence and curvature are those of the data given, without augmentation.

References:
    Daxberger et al., "Laplace Redux: Effortless Bayesian Deep Learning", arXiv:2106.14806. MacKay,
    "The Evidence Framework Applied to Classification Networks", Neural Computation 4 (1992), also
    for the probit approximation. Ritter et al., "A Scalable Laplace Approximation for Neural
    Networks", ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.curvature._laplace import Laplace
from jaxeff.bayes.curvature._last_layer import batch_curvature, check_size
from jaxeff.bayes.curvature._precision import Precision, precision
from jaxeff.bayes.curvature._sites import (
    DrawnLabels,
    SiteProblem,
    batches,
    site_precision,
    summed,
)
from jaxeff.bayes.curvature._weights import (
    LastWeights,
    Weights,
    chosen_sites,
    site_weights,
)
from jaxeff.bayes.posteriors import Likelihood, check_targets, resolve_likelihood
from jaxeff.core import (
    any_of,
    check_choice,
    check_count,
    check_examples,
    check_function,
    check_number,
    check_params,
    static_integer,
    string,
    string_sequence,
    supervised_data,
    validate,
)
from jaxeff.program import Program, trace
from jaxeff.program.costs import last_layer

STRUCTURES = ("full", "kron", "diag", "lowrank", "outputs", "last_layer")


@validate(
    data=supervised_data,
    sites=any_of(string, string_sequence),
    rank=static_integer(),
    draws=static_integer(),
    only=string,
)
def laplace(
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    sites: str | Sequence[str] = "*",
    structure: str = "kron",
    *,
    likelihood: Likelihood = "categorical",
    prior_precision: Any = None,
    batch_size: int = 1000,
    rank: int = 20,
    key: PRNGKeyArray | None = None,
    draws: int = 1,
    only: str = "*",
) -> Laplace:
    """Fits a Laplace approximation to trained weights.

    Args:
        f: `f(params, x) -> outputs [batch, ..., outputs]`.
        params: Trained parameters.
        data: `(x, targets)` that they were trained on.
        sites: The sites whose weights are random: a pattern, or several.
        structure: What is kept of the curvature. "full" is all of it, "kron" a Kronecker product
            for each kernel, "diag" the diagonal, "lowrank" the largest eigenvalues; "outputs", of a
            last dense layer, a matrix for each output. "last_layer" is "full" of the layer whose
            result `f` returns, whatever `sites` say.
        likelihood: Meaning of the outputs, as `jaxeff.bayes.svi` takes it. Curvature by logits, and
            by means and log-variances, is the Fisher information in closed form; by the outputs of
            other likelihoods the second derivative at the targets.
        prior_precision: Precision of the normal prior of every weight; if None, the one of the
            highest evidence.
        batch_size: Examples at a time, or fewer where their Jacobians don't fit.
        rank: Number of eigenvalues of "lowrank".
        key: Random key; if given, Jacobians are taken along labels drawn from the outputs, an
            estimate without bias of the Fisher information.
        draws: Labels drawn for each example.
        only: A glob of paths of parameters, parts joined by slashes: what else the sites read isn't
            random. "adapters/*" leaves out the frozen weights of adapted layers.

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
    check_function("laplace: f", f)
    check_params("laplace: params", params)
    check_examples("laplace: data", data)
    check_count("batch_size", batch_size)
    check_choice("laplace: structure", structure, STRUCTURES)
    if len(data) != 2:
        raise ValueError("laplace: data must be (x, targets), of a function with one input")
    if prior_precision is not None:
        check_number("laplace: prior_precision", prior_precision, above=0)
    first = jax.tree.map(lambda leaf: jnp.asarray(leaf[:batch_size]), data)
    weights = _weights(f, params, first[0], sites, structure, likelihood, only)
    check_targets(f, params, first, likelihood)
    structure = "full" if structure == "last_layer" else structure

    @jax.jit
    def log_likelihood(params: Any, x: Any, targets: Any) -> Any:
        return resolve_likelihood(likelihood)(f(params, x)).log_prob(targets).sum()

    found = summed(log_likelihood, params, batches(data, batch_size))
    if isinstance(weights, LastWeights):
        curvature: Any = _last_precision(
            structure, f, params, data, weights, likelihood, batch_size
        )
    else:
        labels = None if key is None else DrawnLabels(key, draws)
        problem = SiteProblem(f, params, data, weights, likelihood, batch_size, labels)
        curvature = site_precision(structure, rank, problem)
    posterior = Laplace(
        jax.tree.map(jnp.asarray, params), curvature,
        jnp.asarray(1.0 if prior_precision is None else prior_precision, found.dtype),
        found, f, weights, likelihood,
    )  # fmt: skip
    return posterior.tuned() if prior_precision is None else posterior


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
        last = LastWeights(last_layer(f, chosen[0], params, x, positions=positions))
    except ValueError:
        if structure in ("outputs", "last_layer"):
            raise
        return _site_weights(program, params, chosen, structure, only)
    check_size("full" if structure == "last_layer" else structure, *last.pack(params).shape)
    return last


def _site_weights(
    program: Program, params: Any, chosen: Sequence[str], structure: str, only: str
) -> Weights:
    sites = dict.fromkeys(chosen, True)
    weights = site_weights(program, params, sites, structure == "kron", only)
    check_size(structure, *weights.blocks[0].shape)
    return weights


def _last_precision(
    structure: str,
    f: Callable[..., Any],
    params: Any,
    data: tuple[Any, ...],
    weights: LastWeights,
    likelihood: Likelihood,
    size: int,
) -> Precision:
    """Computes the curvature of a last layer from its features."""

    @jax.jit
    def part(params: Any, x: Any, targets: Any) -> Any:
        features = weights.features(f, params, x)
        # Positions have one layer, and count as examples.
        lead = features.ndim - 1
        rows, outputs, each = (
            jax.tree.map(lambda a: a.reshape(-1, *a.shape[lead:]), value)
            for value in (features, f(params, x), targets)
        )
        return jnp.asarray(len(rows)), batch_curvature(structure, rows, outputs, each, likelihood)

    examples, sums = summed(part, params, batches(data, size))
    return precision(structure, sums, examples, weights.pack(params).shape)
