"""What light adds to layers, for one pass of moments: against draws of the same light."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.photonics import ChaoticLight, PhotonicWeights, photonic, read_out

KEY, DRAWS = jax.random.key(0), 4000
PARAMS = {
    "w": jax.random.normal(jax.random.key(1), (16, 6)),
    "fc": jax.random.normal(jax.random.key(2), (4, 3)),
}
X = jax.random.normal(jax.random.key(3), (2, 16, 6))
LIGHT = ChaoticLight(noise=0.6, slots=3, photons=40.0, electronic=0.02, bits=5)


def pooled(params, x):
    maps = jax.nn.relu(x * params["w"][None]).reshape(2, 4, 4, 6)
    return nnx.avg_pool(maps, (2, 2), (2, 2))


def dense(params, x):
    return jax.nn.relu(x[:, 0, :4]) @ params["fc"]


@pytest.mark.slow
@pytest.mark.promotes("dtype")
@pytest.mark.parametrize(
    ("f", "spec"),
    [
        (pooled, {"avg_pool": LIGHT}),
        (pooled, {"avg_pool": ChaoticLight(noise=0.6, slots=3, pattern="before")}),
        (pooled, {"avg_pool": ChaoticLight(noise=0.2, slots=3, correlation=0.5, channel=0.7)}),
        (dense, {"*:linear": PhotonicWeights(LIGHT)}),
        (dense, {"*:linear": PhotonicWeights(LIGHT, rails="one")}),
    ],
)
def test_moments_are_those_of_draws(f, spec):
    gaussian = jaxeff.moments(f, noise=read_out(f, PARAMS, X, spec), method="diagonal")(PARAMS, X)
    keys = jax.random.split(KEY, DRAWS)
    draws = np.asarray(jax.jit(jax.vmap(lambda k: photonic(f, spec)(k, PARAMS, X)))(keys), float)
    error = draws.std(0) / DRAWS**0.5
    assert (np.abs(draws.mean(0) - np.asarray(gaussian.mean)) < 5 * error + 1e-6).all()
    centred = (draws - draws.mean(0)) ** 2
    off = np.abs(centred.mean(0) - np.asarray(gaussian.var))
    assert (off < 5 * centred.std(0) / DRAWS**0.5 + 1e-9).all()


@pytest.mark.promotes("dtype")
def test_an_element_without_variances_is_named():
    class Mirror:
        def refuses(self, layer):
            return ""

        def carry(self, key, layer, values):
            return layer.fn(*values)

    with pytest.raises(ValueError, match="Mirror at 'avg_pool' doesn't know its variance"):
        read_out(pooled, PARAMS, X, {"avg_pool": Mirror()})
    looped = lambda params, x: jax.lax.map(lambda row: pooled(params, row), x[None])  # noqa: E731
    with pytest.raises(ValueError, match="inside a loop or branch"):
        read_out(looped, PARAMS, X, {"*avg_pool*": LIGHT})
    assert jnp.shape(read_out(pooled, PARAMS, X, {"avg_pool": LIGHT})["avg_pool"].var) == (
        2, 2, 2, 6,
    )  # fmt: skip
