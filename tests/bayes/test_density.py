import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxeff.bayes import prior_scales
from jaxeff.bayes.posteriors import check_likelihood, draw_prior, log_joint, random_part

PARAMS = {"kernel": jnp.array([[0.3, -0.2], [1.0, 0.5]]), "bias": jnp.array([0.1, -0.4])}
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
LABELS = np.array([0, 1, 1, 0, 1, 0])


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


@pytest.mark.slow
def test_categorical_against_scipy():
    scales = prior_scales({"kernel": 0.5, "bias": None}, PARAMS)
    random = random_part(PARAMS, scales)
    assert set(random) == {"kernel"}
    logits = np.asarray(affine(PARAMS, X), np.float64)
    log_likelihood = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[range(6), LABELS].sum()
    log_prior = stats.norm(0, 0.5).logpdf(np.asarray(PARAMS["kernel"], np.float64)).sum()
    density = log_joint(affine, PARAMS, scales, "categorical")
    assert float(density(random, (X, LABELS))) == pytest.approx(log_prior + log_likelihood)
    assert float(density(random, (X, LABELS), 3.0)) == pytest.approx(log_prior + 3 * log_likelihood)


def test_gaussian_against_scipy():
    targets = np.linspace(-1, 2, 6, dtype=np.float32)
    scales = prior_scales(1.0, PARAMS)
    out = np.asarray(affine(PARAMS, X), np.float64)
    expected = stats.norm(out[:, 0], np.exp(out[:, 1] / 2)).logpdf(targets).sum()
    expected += sum(stats.norm.logpdf(np.asarray(p, np.float64)).sum() for p in PARAMS.values())
    density = log_joint(affine, PARAMS, scales, "gaussian")
    assert float(density(random_part(PARAMS, scales), (X, targets))) == pytest.approx(expected)


def test_draws_of_the_prior():
    params = {"kernel": jnp.zeros((200, 50))}
    drawn = draw_prior(jax.random.key(0), params, prior_scales("fan_in", params))["kernel"]
    assert abs(float(drawn.std()) / 0.1 - 1) < 5 / np.sqrt(2 * drawn.size)


def test_targets_that_would_be_broadcast():
    with pytest.raises(ValueError, match=r"targets \[6\], but \[6, 1\] came"):
        check_likelihood(affine, PARAMS, (X, np.zeros((6, 1), np.float32)), "gaussian", 6)
    with pytest.raises(ValueError, match="needs a mean and a log-variance for each target"):
        check_likelihood(lambda p, x: x[:, :1], PARAMS, (X, X[:, 0]), "gaussian", 6)
