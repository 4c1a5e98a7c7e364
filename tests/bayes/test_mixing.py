"""R-hat and effective sample size, held to processes whose autocorrelation is known."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import Draws, MCMCResult, Mixing, mixing, parameter_mixing, prediction_mixing

RNG = np.random.default_rng(0)
CHAINS, DRAWS = 4, 2000


def autoregressive(rho, size):
    """Chains with autocorrelation ``rho**lag`` and variance 1."""
    x = RNG.normal(size=(DRAWS, CHAINS, size))
    for i in range(1, DRAWS):
        x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * x[i]
    return x.swapaxes(0, 1).astype(np.float32)


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.6, 0.9])
def test_the_effective_sample_size_of_an_autoregressive_process(rho):
    diagnostics = mixing(autoregressive(rho, 50))
    expected = CHAINS * DRAWS * (1 - rho) / (1 + rho)
    error = diagnostics.ess.std() / np.sqrt(diagnostics.ess.size)
    # Geyer's truncation leaves a bias of a few percent.
    assert abs(diagnostics.ess.mean() - expected) < 4 * error + 0.05 * expected
    assert diagnostics.max_rhat < 1.04


@pytest.mark.slow
def test_chains_that_disagree_and_what_never_changes():
    x = autoregressive(0.0, 600)
    x[0, :, 1] += 1.0
    x[1, :, 2] *= 3.0
    x[:, :, 3] = 5.0
    x[0, 9, 4] = np.nan
    diagnostics = mixing(x)
    assert diagnostics.rhat.shape == diagnostics.ess.shape == (600,)
    assert diagnostics.rhat[1] > 1.05
    assert diagnostics.rhat[2] > 1.05
    assert np.isnan(diagnostics.rhat[3])
    assert diagnostics.max_rhat == np.inf
    np.testing.assert_array_equal(diagnostics.rhat[599], mixing(x[:, :, 599]).rhat)
    assert (np.delete(diagnostics.rhat, [1, 2, 3, 4]) < 1.02).all()
    assert diagnostics.ess[1] < 100
    assert Mixing(np.full(2, np.nan), np.zeros(2)).max_rhat == 1
    with pytest.raises(ValueError, match="at least 4 draws"):
        mixing(x[:, :3])


def test_mixing_of_parameters_and_of_predictions():
    """Two units that one chain holds the other way round: equal predictions."""
    units = autoregressive(0.0, 2) + np.float32([1, -1])
    units[0] = units[0, :, ::-1]
    posterior = Draws({"w": jnp.asarray(units)}, {"w": jnp.zeros(2)})
    assert parameter_mixing(posterior)["w"].max_rhat > 1.05
    x = jnp.array([1.0, -2.0, 0.0])

    def logits(params, x):
        both = jnp.exp(x[:, None] * params["w"]).sum(-1)
        return jnp.stack([both, jnp.zeros_like(both), jnp.full_like(both, -100.0)], -1)

    diagnostics = prediction_mixing(logits, posterior, x, likelihood="categorical")
    assert diagnostics.rhat.shape == (3, 3)
    assert diagnostics.max_rhat < 1.02
    # At 0 the prediction is fixed, and the third class is never predicted.
    assert np.isnan(diagnostics.rhat[2]).all()
    assert np.isnan(diagnostics.rhat[:, 2]).all()
    means = prediction_mixing(
        lambda p, x: jnp.stack([p["w"].sum() * x, x], -1), posterior, x, likelihood="gaussian"
    )
    assert means.rhat.shape == (3,)


def result(rhat=1.0, divergent=0, acceptance=0.8, w=None):
    stats = {
        "step_size": np.ones((2, 100)),
        "acceptance": np.array([[0.8], [acceptance]]) * np.ones((2, 100)),
        "divergent": np.arange(100) < np.array([[0], [divergent]]),
    }
    predictions = Mixing(np.array([1.0, rhat, np.nan]), np.ones(3))
    w = jnp.zeros((2, 100, 2)) if w is None else jnp.asarray(w)
    posterior = Draws({"w": w}, {"w": jnp.zeros(2)})
    return MCMCResult(posterior, stats, {}, predictions, (1.0, 1.0))


def test_what_is_said_of_chains_that_have_not_converged():
    assert result().converged
    assert result(rhat=1.04, divergent=1, acceptance=0.1).converged
    (disagree,) = result(rhat=1.2).problems
    assert disagree.startswith("R-hat of the predictions is 1.20 at worst, and above 1.05 for 1 of")
    (slow,) = result(w=np.cumsum(autoregressive(0.0, 2)[:2, :100], 1)).problems
    assert re.match(r"2 of 2 numbers of the parameters mix too slowly; w\[[01]\] has \d+", slow)
    units = autoregressive(0.0, 2)[:2] + np.float32([3, -3])
    units[0] = units[0, :, ::-1]  # exchanged between the chains, and well mixed in each
    assert result(w=units).converged
    (diverged,) = result(divergent=30).problems
    assert diverged.startswith("30 of 200 iterations diverged, 30 of them in chain 1")
    (stuck,) = result(acceptance=0.0).problems
    assert stuck.startswith("chain 1 is stuck: it accepts 0.0 % of its moves")
