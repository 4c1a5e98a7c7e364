"""Decisions as bundles: sets, intervals and abstention come out of compiled code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.nn import MLP

X = jax.random.normal(jax.random.key(1), (40, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 5), rngs=nnx.Rngs(0)))
POSTERIOR = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.02 * w**2), PARAMS)
MOMENTS = jaxeff.moments(F)
Y = jax.random.categorical(jax.random.key(2), 4 * F(PARAMS, X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [u.LAC(), u.APS(), u.RAPS(0.05, 1)], ids=lambda m: type(m).__name__
)
def test_sets_come_out_of_a_bundle(method, tmp_path):
    temperature = u.temperature_scale(MOMENTS(POSTERIOR, X), Y)
    g = u.tempered(MOMENTS, temperature)
    calibration = u.conformalize(g(POSTERIOR, X), Y, method, 0.7)
    sets = u.conformal(g, calibration)
    fresh = jax.random.normal(jax.random.key(3), (40, 6))
    bundle = deploy(sets, (POSTERIOR, fresh), path=tmp_path / "bundle")
    output, expected = np.asarray(bundle.run(fresh)), np.asarray(jax.jit(sets)(POSTERIOR, fresh))
    assert output.dtype == bool
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(output, expected)


@pytest.mark.slow
def test_intervals_and_abstention_come_out_of_bundles(tmp_path):
    f, params = jaxeff.functional(MLP((6, 12, 1), rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.02 * w**2), params)
    moments = jaxeff.moments(f)
    targets = jax.random.normal(jax.random.key(4), (40,))
    calibration = u.conformalize(moments(posterior, X), targets, u.NormalizedResidual())
    g = u.conformal(moments, calibration)
    bundle = deploy(g, (posterior, X), path=tmp_path / "intervals")
    jax.tree.map(
        lambda ours, xla: np.testing.assert_allclose(ours, xla, rtol=1e-4, atol=1e-5),
        bundle.run(X),
        g(posterior, X),
    )
    threshold = u.coverage_threshold(u.raw_variance(MOMENTS(POSTERIOR, X)), 0.5) * 1.001
    chosen = u.selective(MOMENTS, u.raw_variance, threshold)
    bundle = deploy(chosen, (POSTERIOR, X), path=tmp_path / "selective")
    np.testing.assert_array_equal(bundle.run(X)[1], chosen(POSTERIOR, X)[1])
    assert jnp.mean(bundle.run(X)[1]) == 0.5
