import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import KernelDensity

from jaxeff import uncertainty as u

NORMAL = jax.random.normal(jax.random.key(0), (400, 1))


@pytest.mark.slow
def test_the_density_is_a_kernel_estimate_of_scotts_bandwidth():
    x = jnp.linspace(-6, 6, 50)[:, None]
    bandwidth = float(len(NORMAL) ** (-1 / 5) * np.std(NORMAL, ddof=1))
    reference = KernelDensity(bandwidth=bandwidth).fit(np.asarray(NORMAL))
    expected = -reference.score_samples(np.asarray(x))
    np.testing.assert_allclose(u.negative_log_density(x, NORMAL), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.slow
def test_the_threshold_is_a_quantile_of_the_training_points():
    points = jax.random.normal(jax.random.key(1), (1000, 2))
    labels = u.out_of_domain(points, points, 0.1)
    assert int(labels.sum()) == 100
    radius = jnp.linalg.norm(points, axis=1)
    assert radius[labels].mean() > radius[~labels].max() / 2
    assert u.out_of_domain(jnp.array([[5.0, 5.0], [0.0, 0.0]]), points).tolist() == [True, False]


@pytest.mark.slow
def test_euc_is_pearsons_correlation():
    sparsity = u.negative_log_density(NORMAL[:50], NORMAL)
    other = jax.random.normal(jax.random.key(2), (50,))
    assert float(u.euc(3 * sparsity + 1, sparsity)) == pytest.approx(1, abs=1e-5)
    assert float(u.euc(-sparsity, sparsity)) == pytest.approx(-1, abs=1e-5)
    expected = np.corrcoef(other, sparsity)[0, 1]
    assert float(jax.jit(u.euc)(other, sparsity)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros(5), "features"),
        (np.zeros((2, 2)), "more than 2 points, found 2"),
        (np.full((1000, 1), 0.1, np.float32), "one point, line or plane"),
        (np.asarray(NORMAL) * [1.0, 3.0], "one point, line or plane"),
        (np.array([[0.0], [np.nan], [1.0]]), "NaN or infinite"),
    ],
)
def test_points_without_a_density_are_named(points, message):
    with pytest.raises(ValueError, match=message):
        u.negative_log_density(jnp.zeros((1, 2)), points)


def test_a_quantile_lies_between_zero_and_one():
    with pytest.raises(ValueError, match="between 0 and 1, but is 5"):
        u.out_of_domain(NORMAL, NORMAL, 5)
