"""The Laplace approximation of laplace-torch 0.3 at equal features, where it is installed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import laplace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", exc_type=ImportError)
    oracle = pytest.importorskip("laplace", exc_type=ImportError)


def problem():
    rng = np.random.default_rng(0)
    h = rng.normal(size=(200, 12)).astype(np.float32)
    kernel = (0.5 * rng.normal(size=(12, 5))).astype(np.float32)
    bias = (0.1 * rng.normal(size=5)).astype(np.float32)
    labels = np.asarray(jax.random.categorical(jax.random.key(0), jnp.asarray(h @ kernel + bias)))
    return h, kernel, bias, labels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_it_is_that_of_laplace_torch(structure):
    h, kernel, bias, labels = problem()
    has_bias = structure != "kron"  # whose bias is a block of its own there
    layer = torch.nn.Linear(12, 5, bias=has_bias)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(kernel.T))
        if has_bias:
            layer.bias.copy_(torch.tensor(bias))
    theirs = oracle.Laplace(
        torch.nn.Sequential(layer), "classification", subset_of_weights="all",
        hessian_structure=structure, prior_precision=0.8,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.tensor(h), torch.tensor(labels).long())
    theirs.fit(torch.utils.data.DataLoader(data, batch_size=200))

    params = {"fc": {"kernel": kernel} | ({"bias": bias} if has_bias else {})}

    def f(params, x):
        out = x @ params["fc"]["kernel"]
        return out + params["fc"]["bias"] if has_bias else out

    ours = laplace(jax.random.key(0), f, params, (h, labels), "fc", structure, prior_precision=0.8)
    cov = theirs._glm_predictive_distribution(torch.tensor(h))[1].detach().numpy()
    np.testing.assert_allclose(ours.logits(h).cov, cov, atol=1e-4)
    probit = theirs(torch.tensor(h), pred_type="glm", link_approx="probit").detach().numpy()
    # Theirs divides each logit by its own variance; ours, with covariances, is nearer to draws.
    mean, var = ours.marginals(h).mean, ours.marginals(h).var
    alone = jax.nn.softmax(mean / jnp.sqrt(1 + np.pi / 8 * var))
    np.testing.assert_allclose(alone, probit, atol=1e-4)
    drawn = ours.probs(h, link="samples", key=jax.random.key(1), samples=10_000)
    assert abs(ours.probs(h) - drawn).max() < abs(probit - drawn).max() / 2
    evidence = float(theirs.log_marginal_likelihood())
    np.testing.assert_allclose(ours.evidence(), evidence, rtol=0, atol=1e-4)
    theirs.optimize_prior_precision(method="marglik", n_steps=2000, lr=0.05)
    tuned = laplace(jax.random.key(0), f, params, (h, labels), "fc", structure).prior_precision
    np.testing.assert_allclose(tuned, float(theirs.prior_precision), rtol=1e-4)
