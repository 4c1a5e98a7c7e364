"""Levels per activation, and the divergence that they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx

import jaxeff
from jaxeff.photonics import (
    ChaoticLight,
    divergence,
    level_logits,
    levels_per_activation,
    light_divergence,
    noise_sigma,
    replace_levels,
    sigma_bounds,
)

pytestmark = pytest.mark.promotes("dtype")  # Flax's average pooling does
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 4, 4, 2))
PARAMS = {"w": jnp.float32(1.5)}
LIGHT = {"avg_pool": ChaoticLight(bits=4, slots=4)}


def pooled(params, x):
    return nnx.avg_pool(params["w"] * x, (2, 2), (2, 2))


def test_every_activation_has_a_level():
    spec = levels_per_activation(pooled, PARAMS, X, {"avg*": LIGHT["avg_pool"]}, level=0.25)
    assert spec["avg_pool"].noise.shape == (2, 2, 2)
    raw = level_logits(spec)
    again = replace_levels(spec, raw)
    np.testing.assert_allclose(again["avg_pool"].noise, 0.25, rtol=1e-6)
    free = {"avg_pool": ChaoticLight(noise=jnp.array([0.5, 3.0]), model="free")}
    np.testing.assert_allclose(
        replace_levels(free, level_logits(free))["avg_pool"].noise, [0.5, 3], rtol=1e-6
    )


@pytest.mark.promotes("dtype", "rank")  # NumPyro does
@pytest.mark.parametrize("model", ["gaussian", "free"])
def test_the_divergence_is_that_of_two_normals(model):
    light = ChaoticLight(noise=0.3, slots=4, model=model)
    at = jnp.array([0.0, 0.3, 1.7, 4.0])
    guide = dist.Normal(at, noise_sigma(at, light))
    prior = dist.Normal(at, sigma_bounds(at, light)[1])
    expected = dist.kl_divergence(guide, prior)
    np.testing.assert_allclose(light_divergence(at, light), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_outputs_are_those_of_the_transform_and_nats_are_counted():
    spec = levels_per_activation(pooled, PARAMS, X, LIGHT)
    outputs, nats = jax.jit(divergence(pooled, spec))(KEY, PARAMS, X)
    np.testing.assert_allclose(
        outputs, jax.jit(jaxeff.photonic(pooled, spec))(KEY, PARAMS, X), rtol=1e-6, atol=1e-6
    )
    assert nats.shape == (3,)
    assert (nats > 0).all()
    loudest = replace_levels(spec, {"avg_pool": jnp.full((2, 2, 2), 20.0)})
    assert float(divergence(pooled, loudest)(KEY, PARAMS, X)[1].max()) < 1e-4
    without = divergence(pooled, {})(KEY, PARAMS, X)
    np.testing.assert_array_equal(without[0], pooled(PARAMS, X))


def test_its_gradient_turns_quiet_light_up():
    spec = levels_per_activation(pooled, PARAMS, X, LIGHT)

    def loss(raw):
        return divergence(pooled, replace_levels(spec, raw))(KEY, PARAMS, X)[1].mean()

    gradient = jax.jit(jax.grad(loss))(level_logits(spec))["avg_pool"]
    assert (gradient <= 0).all()
    assert gradient.min() < -0.001


def test_a_divergence_is_bounded_by_that_of_the_quietest_light():
    at = jnp.linspace(0.1, 4, 20)
    quietest = light_divergence(at, ChaoticLight(noise=0.0, slots=4))
    ratio = np.divide(*sigma_bounds(at, ChaoticLight(slots=4)))
    np.testing.assert_allclose(quietest, (ratio**2 - 1) / 2 - np.log(ratio), rtol=1e-3, atol=1e-5)
    free = light_divergence(at, ChaoticLight(noise=1e-4, slots=4, model="free"))
    assert (free > quietest).all()


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"such as ChaoticLight\(0\.5\), or None"):
        divergence(pooled, {"avg_pool": 8})
    with pytest.raises(ValueError, match="level must be between 0 and 1, but is 2"):
        levels_per_activation(pooled, PARAMS, X, LIGHT, level=2)
    with pytest.raises(
        ValueError, match=r"levels are those of \['b'\], settings of \['avg_pool'\]"
    ):
        replace_levels(LIGHT, {"b": jnp.zeros(3)})
    with pytest.raises(ValueError, match="is that of patterns after"):
        divergence(pooled, {"avg_pool": ChaoticLight(pattern="before")})(KEY, PARAMS, X)
    with pytest.raises(ValueError, match="'free' has no pulses"):
        ChaoticLight(model="free", pattern="before")
    with pytest.raises(ValueError, match="noise must be between 0 and 1, but is 2"):
        ChaoticLight(noise=2.0)

    def loop(params, x):
        return jax.lax.scan(lambda c, row: (c, pooled(params, row[None])[0]), 0.0, x)[1]

    with pytest.raises(ValueError, match="avg_pool is in a loop or branch"):
        divergence(loop, LIGHT)(KEY, PARAMS, X)
