import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import uncertainty as u


def test_the_parts_are_those_of_the_law_of_total_variance():
    """Against 400,000 draws from the mixture that the samples define."""
    key, noise = jax.random.split(jax.random.key(0))
    outputs = jax.random.normal(key, (5, 3, 2))
    parts = u.decompose_regression(outputs)
    means, log_variances = np.split(np.asarray(outputs), 2, -1)
    draws = 80_000
    unit = jax.random.normal(noise, (draws, *means.shape))
    y = (means + np.exp(log_variances / 2) * np.asarray(unit)).reshape(-1, 3, 1)
    # Standard error of a variance: sqrt((fourth moment - variance^2) / n).
    variance = y.var(0)
    fourth = ((y - y.mean(0)) ** 4).mean(0)
    error = np.sqrt((fourth - variance**2) / len(y))
    assert (np.abs(parts.total - variance) < 5 * error).all()
    assert (np.abs(parts.mean - y.mean(0)) < 5 * np.sqrt(variance / len(y))).all()
    np.testing.assert_allclose(parts.epistemic, means.var(0), rtol=1e-5)


def test_samples_that_agree_have_no_epistemic_part():
    outputs = jnp.tile(jnp.array([1.0, 2.0, 0.0, -1.0]), (4, 7, 1))
    parts = u.decompose_regression(outputs)
    assert parts.mean.shape == (7, 2)
    np.testing.assert_allclose(parts.epistemic, 0)
    np.testing.assert_allclose(parts.aleatoric, np.tile(np.exp([0.0, -1.0]), (7, 1)), rtol=1e-6)


def test_an_odd_number_of_outputs_is_refused():
    with pytest.raises(ValueError, match="even number of outputs, not 3"):
        u.decompose_regression(jnp.zeros((2, 4, 3)))


def test_errors_count_only_where_data_are():
    inside = jnp.array([True, True, False])
    mean, target = jnp.array([1.0, 3.0, 100.0]), jnp.array([1.0, 1.0, 0.0])
    assert float(u.prediction_mse(mean, target, inside)) == 2.0
    std, true = jnp.array([0.5, 0.25, 9.0]), jnp.array([0.25, 0.25, jnp.nan])
    value, gradient = jax.value_and_grad(u.aleatoric_mse)(std, true, inside)
    assert float(value) == pytest.approx(0.0625 / 2)
    np.testing.assert_allclose(gradient, [0.25, 0, 0])
