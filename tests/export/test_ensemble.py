"""Ensembles as bundles: ten heads over one network, ten networks, and their moments."""

import jax
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

import jaxeff
from jaxeff.ensembles import Members
from jaxeff.nn import MLP

X = jax.random.normal(jax.random.key(1), (4, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 3), rngs=nnx.Rngs(0)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [{"fc2": Members(3)}, {"*": Members(3)}], ids=["heads", "whole"])
def test_an_ensemble_is_deployed(spec, tmp_path):
    g, params = jaxeff.ensemble(jax.random.key(0), F, PARAMS, spec)
    bundle = deploy(g, (params, X), path=tmp_path / "bundle")
    np.testing.assert_allclose(bundle.run(X), g(params, X), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_moments_of_an_ensemble_are_deployed(tmp_path):
    g, params = jaxeff.ensemble(jax.random.key(0), F, PARAMS, {"fc2": Members(3)})
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
    moments = jaxeff.moments(g, method="diagonal")
    bundle = deploy(moments, (posterior, X), path=tmp_path / "bundle")
    ours, theirs = bundle.run(X), moments(posterior, X)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-4, atol=1e-6)
