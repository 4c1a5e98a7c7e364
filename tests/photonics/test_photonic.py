"""`photonic` as a transform: which layers it takes, learning the noise, composition."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import LeNet5
from jaxeff.photonics import ChaoticLight, gaussian_noise, photonic, quant_relu
from jaxeff.program import site_key, trace

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 28, 28, 1))


@pytest.fixture(scope="module")
def lenet():
    return functional(LeNet5(pool="avg", rngs=nnx.Rngs(0)))


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_it_is_what_is_written_by_hand():
    def f(params, x):
        y = nnx.avg_pool(jax.nn.relu(x @ params["w"]).reshape(2, 4, 4, 1), (2, 2), (2, 2))
        return y.reshape(2, 4)

    params = {"w": jax.random.normal(KEY, (3, 16))}
    x = jax.random.normal(jax.random.key(2), (2, 3))
    light = ChaoticLight(noise=0.7, bits=4, slots=4)
    ours = photonic(f, {"avg_pool": light})(KEY, params, x)
    layer = next(s for s in trace(f, params, x).sites if s.site == "avg_pool")
    a = quant_relu((x @ params["w"]).reshape(2, 4, 4, 1), 4, 4.0)
    pooled = nnx.avg_pool(a, (2, 2), (2, 2))
    by_hand = gaussian_noise(site_key(KEY, layer), pooled, light).reshape(2, 4)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gaussian", "physical"])
def test_lenet_runs_jitted_and_differs_by_key(lenet, model):
    f, params = lenet
    # The simulation compiles slowly, so it is put at one site only.
    g = photonic(
        f, {"avg_pool_1" if model == "physical" else "*:pooling": ChaoticLight(model=model)}
    )
    run = jax.jit(g)
    a, again, b = run(KEY, params, X), run(KEY, params, X), run(jax.random.key(9), params, X)
    np.testing.assert_array_equal(a, again)
    assert np.isfinite(a).all()
    assert (a != b).any()


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_one_site_does_not_change_anothers_noise():
    def features(params, x):
        return nnx.avg_pool(params["a"] * x, (2, 2)), nnx.avg_pool(params["b"] * x, (2, 2))

    params = {"a": jnp.float32(1), "b": jnp.float32(2)}
    light = ChaoticLight()
    both = photonic(features, {"avg_pool*": light})(KEY, params, X)
    second = photonic(features, {"avg_pool_1": light})(KEY, params, X)
    np.testing.assert_array_equal(both[1], second[1])
    assert (both[0] != second[0]).any()


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_noise_is_learned_through_the_transform(lenet):
    f, params = lenet

    def spread(rho):
        light = ChaoticLight(noise=jax.nn.sigmoid(rho), electronic=0.0)
        g = photonic(f, {"avg_pool_1": light})
        samples = jax.vmap(lambda k: g(k, params, X))(jax.random.split(KEY, 16))
        return samples.var(0).mean()

    rho, step = jnp.zeros((5, 5, 16)), optax.adam(0.3)
    state = step.init(rho)
    spreads = []
    descend = jax.jit(jax.value_and_grad(spread))
    for _ in range(6):
        value, gradient = descend(rho)
        updates, state = step.update(gradient, state)
        rho = optax.apply_updates(rho, updates)
        spreads.append(value)
    assert spreads[-1] < 0.9 * spreads[0]
    assert rho.mean() < 0


def test_global_average_pooling_counts():
    def f(params, x):
        return (params["w"] * x).mean((1, 2))

    g = photonic(f, {"mean": ChaoticLight(noise=0.0, photons=1e9, electronic=0.0, modes=1e9)})
    params = {"w": jnp.float32(1)}
    clipped = jnp.clip(X, 0, 8).mean((1, 2))
    np.testing.assert_allclose(g(KEY, params, X), clipped, rtol=1e-3, atol=1e-3)


def test_mistakes_are_named(lenet):
    f, params = lenet
    with pytest.raises(TypeError, match=r"'avg_pool' must be a ChaoticLight.* not 3"):
        photonic(f, {"avg_pool": 3})
    with pytest.raises(ValueError, match="'conv1' is linear"):
        photonic(f, {"conv1": ChaoticLight()})(KEY, params, X)
    with pytest.raises(ValueError, match="'nothing' matches no site"):
        photonic(f, {"nothing": ChaoticLight()})(KEY, params, X)
    g, params = functional(LeNet5(pool="max", rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="'max_pool' is pooling"):
        photonic(g, {"max_pool": ChaoticLight()})(KEY, params, X)
