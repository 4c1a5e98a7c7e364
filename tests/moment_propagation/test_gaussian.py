import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.moment_propagation import Calibrated, Gaussian, check_gaussian, is_gaussian


def test_is_a_pytree_that_jits_vmaps_and_differentiates():
    g = Gaussian(jnp.arange(3.0), jnp.ones(3))
    doubled = jax.jit(lambda g: jax.tree.map(lambda a: 2 * a, g))(g)
    assert is_gaussian(doubled)
    np.testing.assert_array_equal(doubled.mean, 2 * g.mean)
    np.testing.assert_array_equal(jax.vmap(lambda g: g.second_moment)(g), g.mean**2 + 1)
    grads = jax.grad(lambda g: g.second_moment.sum())(g)
    np.testing.assert_array_equal(grads.mean, 2 * g.mean)
    assert [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(g)] == [
        ".mean",
        ".var",
    ]


def test_samples_have_its_moments_within_five_standard_errors():
    g = Gaussian(jnp.array([1.0, -2.0]), jnp.array([4.0, 0.25]))
    n = 100_000
    x = np.asarray(g.sample(jax.random.key(0), (n,)), np.float64)
    assert x.shape == (n, 2)
    assert (np.abs(x.mean(0) - g.mean) <= 5 * np.sqrt(g.var / n)).all()
    assert (np.abs(x.var(0) - g.var) <= 5 * g.var * np.sqrt(2 / n)).all()


def test_sampling_at_zero_variance_is_the_mean_with_finite_gradient():
    def draw(var):
        return Gaussian(jnp.ones(3), var).sample(jax.random.key(0)).sum()

    assert draw(jnp.zeros(3)) == 3
    np.testing.assert_array_equal(jax.grad(draw)(jnp.zeros(3)), 0)


@pytest.mark.parametrize(
    ("mean", "var", "error", "message"),
    [
        (jnp.ones(2), jnp.ones(3), ValueError, r"weight.*shape \(2,\).*\(3,\)"),
        (jnp.ones(2, int), jnp.ones(2, int), TypeError, "weight.*floating-point"),
        (jnp.array([1, jnp.nan]), jnp.ones(2), ValueError, "weight: 1 of 2 entries of the mean"),
        (jnp.ones(2), jnp.array([-1.0, 1]), ValueError, "weight: 1 of 2 variances are negative"),
        (jnp.ones(2), jnp.ones(2, jnp.bfloat16), ValueError, "weight.*float32.*bfloat16"),
    ],
)
def test_bad_values_are_one_clear_error(mean, var, error, message):
    with pytest.raises(error, match=message):
        check_gaussian(Gaussian(mean, var), "weight")


def test_draws_of_many_arrays_compile_one_generator():
    def program(count):
        posterior = [Gaussian(jnp.zeros((3, 4)), jnp.full((3, 4), i + 1.0)) for i in range(count)]
        entries, at = Calibrated(posterior, {}).draws(jax.random.key(0), 1)
        numbers = jax.random.normal(entries[0], (count, 3, 4))
        drawn = np.asarray(at(entries[0]))
        scale = np.sqrt(np.arange(1, count + 1, dtype=np.float32))[:, None, None]
        np.testing.assert_allclose(drawn, scale * numbers, rtol=1e-6)

        def sums(key, posterior):
            _, at = Calibrated(posterior, {}).draws(jax.random.key(0), 1)
            return [jnp.cumsum(x) for x in at(key)]

        return jax.jit(sums).lower(entries[0], posterior).compile().as_text()

    few, many = (program(count).count(" xor(") for count in (2, 12))
    assert 0 < few == many
