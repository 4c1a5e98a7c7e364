"""Repetition: the mean of several executions, around any model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.noise import Additive, Multiplicative, Repeated, noisy

KEY = jax.random.key(0)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("model", [Additive(0.3), Multiplicative(0.3)])
def test_the_variance_falls_by_the_number_of_executions(model, times):
    n = 20_000
    run = jax.vmap(Repeated(model, times).perturb, (0, None))
    samples = np.asarray(run(jax.random.split(KEY, n), jnp.ones(3)), np.float64)
    var = 0.09 / times
    assert np.abs(samples.mean(0) - 1).max() < 5 * np.sqrt(var / n)
    assert np.abs(samples.var(0) - var).max() < 5 * var * np.sqrt(2 / n)


def test_a_users_own_model_is_repeated_where_it_acts():
    @dataclass(frozen=True)
    class Flip:
        at: str = "weights"

        def perturb(self, key, x):
            return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, -x)

    g = noisy(lambda p, x: x @ p["w"], {"w": Repeated(Flip(), 16)})
    out = g(KEY, {"w": jnp.ones((3, 99))}, jnp.eye(3))
    assert Repeated(Flip(), 16).at == "weights"
    assert len(np.unique(out)) > 5
    np.testing.assert_array_equal(out * 8, np.round(out * 8))  # means of 16 signs


def test_levels_of_a_repeated_model_are_swept_and_differentiated():
    levels = Repeated(Additive(jnp.array([0.0, 0.1])), 3)
    swept = jax.jit(jax.vmap(lambda m: m.perturb(KEY, jnp.ones(4))))(levels)
    np.testing.assert_array_equal(swept[0], 1)
    np.testing.assert_allclose(
        swept[1], Repeated(Additive(0.1), 3).perturb(KEY, jnp.ones(4)), rtol=1e-6
    )
    slope = jax.grad(lambda s: Repeated(Additive(s), 3).perturb(KEY, jnp.zeros(4)).sum())(0.5)
    np.testing.assert_allclose(slope, 10 * (swept[1] - 1).sum(), rtol=1e-4)


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"Repeated\.model must have a method perturb"):
        Repeated(0.3, 2)
    with pytest.raises(TypeError, match=r"Repeated\.times must be an integer, not 2\.0"):
        Repeated(Additive(0.1), 2.0)
    with pytest.raises(ValueError, match=r"Repeated\.times must be at least 1, but is 0"):
        Repeated(Additive(0.1), 0)
