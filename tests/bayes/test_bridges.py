import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import Draws, MCMCResult, around_best_draw


def result(thin):
    """Two chains of five draws; chain 1 is densest in draw 3, and denser between two draws."""
    random = {"kernel": jax.random.normal(jax.random.key(0), (2, 5, 3))}
    params = {"kernel": jnp.zeros(3), "fixed": jnp.ones(2)}
    log_density = np.full((2, 5 * thin), -9.0)
    log_density[1, 4 * thin - 1] = -1.0
    if thin > 1:
        log_density[0, 0] = 0.0
    stats = {"log_density": log_density, "step_size": np.ones((2, 5 * thin))}
    return MCMCResult(Draws(random, params), stats, {}, None, (1.0, 1.0))


@pytest.mark.parametrize("thin", [1, 2])
def test_around_best_draw(thin):
    sampled = result(thin)
    start = around_best_draw(sampled, spread=0.5)
    kernel = sampled.posterior.random["kernel"]
    np.testing.assert_array_equal(start["kernel"].mean, kernel[1, 3])
    np.testing.assert_allclose(start["kernel"].std, 0.5 * kernel[1].std(0), rtol=1e-5)
    np.testing.assert_array_equal(start["fixed"], np.ones(2))


def test_bad_input():
    with pytest.raises(ValueError, match="spread must be positive"):
        around_best_draw(result(1), spread=0.0)
    sampled = result(1)
    del sampled.stats["log_density"]
    with pytest.raises(ValueError, match="don't know the density of their draws"):
        around_best_draw(sampled)
