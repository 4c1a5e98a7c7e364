"""Scores of logits against their formulas in NumPy, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from jaxeff import uncertainty as u

LOGITS = 3 * jax.random.normal(jax.random.key(0), (40, 6))
WIDE = np.asarray(LOGITS, np.float64)
PROBS = softmax(WIDE, -1)
TOP = -np.sort(-PROBS, -1)[:, :3]
EXPECTED = {
    "msp": (u.msp, -PROBS.max(-1)),
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
