"""Several outputs, each with a likelihood: an ELBO and chains over dictionaries."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from jaxeff import bayes
from jaxeff.bayes.posteriors import resolve_likelihood
from jaxeff.program import SpecError

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (60, 3))
TARGETS = {"kind": (X[:, 0] > 0).astype(jnp.int32), "size": X @ jnp.array([1.0, -1.0, 0.5])}
PARAMS = {"kind": jnp.zeros((3, 2)), "size": jnp.zeros(3)}
LIKELIHOOD = {"kind": "categorical", "size": lambda mean: dist.Normal(mean, 0.1)}


def f(params, x):
    return {"kind": x @ params["kind"], "size": x @ params["size"], "features": x}


def test_the_likelihood_is_the_sum_of_those_of_the_outputs():
    params = {"kind": 0.3 * jnp.ones((3, 2)).at[0, 1].set(1.0), "size": jnp.array([0.5, 0, 0])}
    outputs = f(params, X)
    each = resolve_likelihood(LIKELIHOOD)(outputs).log_prob(TARGETS)
    logits = np.asarray(outputs["kind"], float)
    of_kind = logits[np.arange(60), TARGETS["kind"]] - np.log(np.exp(logits).sum(1))
    error = np.asarray(TARGETS["size"] - outputs["size"], float) / 0.1
    of_size = -0.5 * error**2 - np.log(0.1 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(each, of_kind + of_size, rtol=1e-5)


def test_svi_learns_both():
    run = {"epochs": 60, "batch_size": 20, "optimizer": optax.adam(3e-2)}
    result = bayes.svi(KEY, f, PARAMS, (X, TARGETS), likelihood=LIKELIHOOD, **run)
    size = result.posterior["size"]
    np.testing.assert_allclose(size.mean, [1.0, -1.0, 0.5], atol=0.05)
    draws = bayes.predict(KEY, f, result.posterior, X, samples=20)
    right = (jax.nn.softmax(draws["kind"]).mean(0).argmax(-1) == TARGETS["kind"]).mean()
    assert right > 0.9


@pytest.mark.slow
def test_chains_agree_with_the_closed_form():
    """A normal likelihood of variance .01 and a normal prior: the posterior mean is known."""
    result = bayes.mcmc(
        KEY, f, PARAMS, (X, TARGETS), bayes.NUTS(), likelihood=LIKELIHOOD, chains=2,
        warmup=300, samples=300, prior=1.0,
    )  # fmt: skip
    precision = X.T @ X / 0.01 + jnp.eye(3)
    mean = jnp.linalg.solve(precision, X.T @ TARGETS["size"] / 0.01)
    error = jnp.sqrt(jnp.diag(jnp.linalg.inv(precision)) / 100)  # of about 100 effective draws
    posterior = result.posterior.random["size"].mean((0, 1))
    assert (jnp.abs(posterior - mean) < 5 * error).all()


@pytest.mark.parametrize(
    ("likelihood", "targets", "said"),
    [
        ({"kind": "categorical", "depth": "gaussian"}, TARGETS, "outputs kind, depth, but f has"),
        (LIKELIHOOD, {"kind": TARGETS["kind"]}, "likelihood of size has no targets"),
        (LIKELIHOOD, TARGETS | {"kind": TARGETS["kind"] + 1}, "kind: the targets of a categorical"),
        (LIKELIHOOD, TARGETS | {"size": TARGETS["size"][:, None]}, "size: the likelihood is one"),
        ({}, TARGETS, "no outputs"),
        ({"kind": "catgorical"}, TARGETS, "unknown likelihood 'catgorical'"),
    ],
)
def test_what_does_not_go_together_is_named(likelihood, targets, said):
    with pytest.raises(ValueError, match=said):
        bayes.svi(KEY, f, PARAMS, (X, targets), likelihood=likelihood, epochs=1, batch_size=20)


def test_what_needs_one_output_says_so():
    with pytest.raises(ValueError, match=r"laplace takes one output.*f\(params, x\)\['kind'\]"):
        bayes.laplace(KEY, f, PARAMS, (X, TARGETS), likelihood=LIKELIHOOD)


def test_a_structure_in_place_of_sites_is_named():
    one = lambda params, x: f(params, x)["kind"]  # noqa: E731
    data = X, TARGETS["kind"]
    with pytest.raises(SpecError, match="'last_layer' is a structure, not a site"):
        bayes.laplace(KEY, one, PARAMS, data, "last_layer")
    with pytest.raises(ValueError, match=r"sites come before the structure.*'kind', 'kron'"):
        bayes.laplace(KEY, one, PARAMS, data, "kron", "kind")
