import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import jaxeff
from jaxeff import Gaussian
from jaxeff import uncertainty as u
from jaxeff.moment_propagation import JointGaussian


def labelled(n=2000, sharpness=0.4):
    logits = 3 * jax.random.normal(jax.random.key(0), (n, 4))
    return logits, jax.random.categorical(jax.random.key(1), sharpness * logits)


def test_it_is_scipys_optimum():
    logits, labels = labelled(300)
    wide = np.asarray(logits, np.float64)

    def nll(t):
        return -log_softmax(wide / t, -1)[np.arange(300), labels].mean()

    expected = minimize_scalar(nll, bounds=(0.1, 20), method="bounded", options={"xatol": 1e-9})
    found = jax.jit(u.temperature_scale)(logits, labels)
    np.testing.assert_allclose(found.value, expected.x, rtol=1e-3)


@pytest.mark.slow
def test_it_recovers_the_temperature_that_labels_were_drawn_at():
    """Within four standard errors, by the Fisher information of the inverse temperature."""
    logits, labels = labelled()
    probs = jax.nn.softmax(0.4 * logits)
    information = ((probs * logits**2).sum(-1) - (probs * logits).sum(-1) ** 2).sum()
    found = 1 / u.temperature_scale(logits, labels).value
    assert abs(found - 0.4) < 4 / information**0.5
    before, after = (u.ece(jax.nn.softmax(z), labels) for z in (logits, found * logits))
    assert after < before / 3


@pytest.mark.slow
def test_gaussian_logits_are_divided_with_their_variances():
    logits, labels = labelled(200)
    gaussian = Gaussian(logits, jnp.full_like(logits, 2.0))
    temperature = u.temperature_scale(gaussian, labels)
    found = u.tempered(lambda x: x, temperature)(gaussian)
    np.testing.assert_allclose(found.mean, logits / temperature.value, rtol=1e-6)
    np.testing.assert_allclose(found.var, 2 / temperature.value**2, rtol=1e-6)

    def nll(t):
        scaled = u.tempered(lambda x: x, u.Temperature(t))(gaussian)
        return u.nll(jax.nn.softmax(u.probit_logits(scaled)), labels)

    best = nll(temperature.value)
    assert best <= min(nll(temperature.value * 0.98), nll(temperature.value * 1.02))
    joint = JointGaussian(logits, 2 * jnp.broadcast_to(jnp.eye(4), (200, 4, 4)))
    np.testing.assert_allclose(
        u.tempered(lambda x: x, temperature)(joint).var, found.var, rtol=1e-6
    )


def test_the_probit_approximation_is_near_many_draws():
    """Within 0.06, its own error where each logit is moved by its own variance alone."""
    logits = Gaussian(jnp.array([[1.0, -0.5], [0.2, 0.0]]), jnp.array([[1.0, 0.5], [3.0, 0.0]]))
    drawn = jaxeff.uncertainty.predict_probs(jax.random.key(0), logits, 100_000)
    approximated = jax.nn.softmax(u.probit_logits(logits))
    assert abs(approximated - drawn).max() < 0.06


@pytest.mark.slow
def test_it_sweeps_and_stays_within_its_bounds():
    logits, labels = labelled(100)
    many = jax.vmap(u.temperature_scale, in_axes=(0, None))(jnp.stack([logits, 2 * logits]), labels)
    np.testing.assert_allclose(many.value[1], 2 * many.value[0], rtol=1e-3)
    sure = u.temperature_scale(10 * jnp.eye(4), jnp.arange(4))
    assert sure.value < 0.5
    wrong = u.temperature_scale(10 * jnp.eye(4), (jnp.arange(4) + 1) % 4)
    np.testing.assert_allclose(wrong.value, 1000, rtol=1e-2)
    with pytest.raises(ValueError, match="classes"):
        u.temperature_scale(logits, labels + 4)
