"""Scores of logits against their formulas in NumPy, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from jaxeff import uncertainty as u
from jaxeff.moment_propagation import Gaussian, JointGaussian

LOGITS = 3 * jax.random.normal(jax.random.key(0), (40, 6))
WIDE = np.asarray(LOGITS, np.float64)
PROBS = softmax(WIDE, -1)
TOP = -np.sort(-PROBS, -1)[:, :3]
EXPECTED = {
    "msp": (u.msp, np.log((1 - PROBS.max(-1)) / PROBS.max(-1))),
    "max logit": (u.max_logit, -WIDE.max(-1)),
    "energy": (lambda z: u.energy(z, 2.0), -2 * logsumexp(WIDE / 2, -1)),
    "GEN": (u.generalized_entropy, (PROBS**0.1 * (1 - PROBS) ** 0.1).sum(-1)),
    "top GEN": (
        lambda z: u.generalized_entropy(z, 0.5, 3),
        np.sqrt(TOP * (1 - TOP)).sum(-1),
    ),
}


@pytest.mark.parametrize("name", ["msp", "max logit", "energy"])
def test_scores_are_their_formulas(name):
    score, expected = EXPECTED[name]
    np.testing.assert_allclose(jax.jit(score)(LOGITS), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["GEN", "top GEN"])
def test_entropies_are_their_formula(name):
    score, expected = EXPECTED[name]
    np.testing.assert_allclose(jax.jit(score)(LOGITS), expected, rtol=1e-4)


def test_certain_logits_are_inside():
    inside, outside = 8 * jnp.eye(6), 0.5 * jnp.eye(6)
    for score in (u.msp, u.max_logit, u.energy, u.generalized_entropy):
        assert u.auroc(score(inside), score(outside)) == 1


SURE = 30 * jax.random.normal(jax.random.key(1), (200, 6)) + 60 * jnp.eye(6)[jnp.arange(200) % 6]
"""Logits whose largest probability is 1 in float32, nearly always."""


def reference():
    """Log-probabilities of `SURE` in float64, and what is left beside each class."""
    logs = np.asarray(SURE, np.float64) - logsumexp(np.asarray(SURE, np.float64), -1)[:, None]
    left = np.stack([np.exp(np.delete(logs, c, -1)).sum(-1) for c in range(6)], -1)
    return logs, left


def test_scores_of_sure_networks_keep_their_digits():
    """Against float64, summed over the other classes: one minus a probability of 1 is 0."""
    logs, left = reference()
    rows, top = np.arange(200), logs.argmax(-1)
    assert (np.float32(np.exp(logs.max(-1))) == 1).mean() > 0.5
    odds = np.log(left[rows, top]) - logs[rows, top]
    np.testing.assert_allclose(jax.jit(u.msp)(SURE), odds, rtol=1e-5, atol=1e-5)
    expected = np.exp(0.1 * (logs + np.log(left))).sum(-1)
    np.testing.assert_allclose(jax.jit(u.generalized_entropy)(SURE), expected, rtol=1e-4)
    var = np.asarray(jax.random.uniform(jax.random.key(2), (200, 6)) + 0.5, np.float64)
    information = (np.exp(logs) * left * var).sum(-1) / 2
    slope = np.where(np.arange(6) == top[:, None], left, -np.exp(logs))
    spread = np.exp(logs.max(-1)) ** 2 * (slope**2 * var).sum(-1)
    above = information > 1e-35  # normal numbers of float32
    for outputs in (
        Gaussian(SURE, jnp.asarray(var, jnp.float32)),
        JointGaussian(SURE, jnp.asarray(var[:, :, None] * np.eye(6), jnp.float32)),
    ):
        scores = jax.jit(u.moment_information)(outputs)
        np.testing.assert_allclose(scores[above], information[above], rtol=1e-4)
        seen = jax.jit(u.token_uncertainty)(outputs).variance
        large = spread > 1e-35
        np.testing.assert_allclose(seen[large], spread[large], rtol=1e-4)


def test_information_of_sure_members_keeps_its_digits():
    """Total less aleatoric entropy, as the mean divergence from the mean, in float64."""
    logits = jnp.stack([0.3 * SURE, 0.3 * SURE + jax.random.normal(jax.random.key(3), (200, 6))])
    wide = np.asarray(logits, np.float64)
    logs = wide - logsumexp(wide, -1)[..., None]
    mean = logsumexp(logs, 0) - np.log(2)
    left = np.exp(logs).sum(-1) - np.exp(logs).max(-1)
    entropy = -(np.exp(logs) * logs).sum(-1).mean(0)
    uncertainty = jax.jit(u.decompose_logits)(logits)
    known = left.max(0) > 1e-12  # where float64 itself tells a logarithm from zero
    np.testing.assert_allclose(uncertainty.aleatoric[known], entropy[known], rtol=1e-3)
    np.testing.assert_allclose(
        uncertainty.total[known], -(np.exp(mean) * mean).sum(-1)[known], rtol=1e-3
    )


def test_a_masked_token_adds_nothing():
    outputs = Gaussian(jnp.array([[1.0, 0.0, -jnp.inf]]), jnp.array([[0.1, 0.1, 0.1]]))
    without = Gaussian(outputs.mean[:, :2], outputs.var[:, :2])
    masked, plain = map(jax.jit(u.token_uncertainty), (outputs, without))
    np.testing.assert_allclose(jnp.stack(masked), jnp.stack(plain), rtol=1e-6)
