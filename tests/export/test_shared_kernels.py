"""Variances with the kernels' noise that positions share, in bundles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

import jaxeff


class Net(nnx.Module):
    """A residual sum, a depthwise convolution and a mean over positions."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(2, 4, (3, 3), rngs=rngs)
        self.inner = nnx.Conv(4, 4, (3, 3), feature_group_count=4, rngs=rngs)
        self.fc = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem(x))
        return self.fc(nnx.relu(x + self.inner(x)).mean((1, 2)))


@pytest.mark.slow
def test_a_bundle_gives_the_same_moments(tmp_path):
    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 1e-3)), params)
    x = jax.random.normal(jax.random.key(0), (2, 5, 5, 2))
    moments = jaxeff.moments(f)
    bundle = deploy(moments, (posterior, x), path=tmp_path / "bundle")
    ours, theirs = bundle.run(x), jax.jit(moments)(posterior, x)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-4, atol=1e-7)
    assert (theirs.var > 1.2 * jaxeff.moments(f, shared=False)(posterior, x).var).any()
