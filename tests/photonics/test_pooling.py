"""Probabilistic pooling: training model against simulation by Monte Carlo, and its parts."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxeff.photonics import (
    MODES,
    ChaoticLight,
    gaussian_noise,
    noise_sigma,
    physical_sample,
    probabilistic_pooling,
    quant_relu,
    slot_pattern,
)

INTENSITY = jnp.array([0.0, 0.3, 1.7, 4.0])
N = 20_000


@partial(jax.jit, static_argnums=0)
def _draw(model, light, keys):
    return jax.vmap(lambda k: model(k, INTENSITY, light))(keys)


def draw(model, light):
    """N samples; lights that differ in numbers only share one compiled program."""
    light = jax.tree.map(jnp.float32, light)
    return np.asarray(_draw(model, light, jax.random.split(jax.random.key(0), N)), np.float64)


def check_moments(samples, mean, var):
    """Mean and variance within 5 standard errors."""
    n = len(samples)
    centred = (samples - samples.mean(0)) ** 2
    np.testing.assert_array_less(
        np.abs(samples.mean(0) - mean), 5 * np.sqrt(centred.mean(0) / n) + 1e-6
    )
    np.testing.assert_array_less(
        np.abs(centred.mean(0) - var), 5 * centred.std(0) / np.sqrt(n) + 1e-7
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("model", [gaussian_noise, physical_sample])
def test_both_models_have_the_promised_moments(model, noise):
    light = ChaoticLight(noise=noise, slots=4, cap=1.2, photons=60.0, electronic=0.05)
    sigma = np.asarray(noise_sigma(INTENSITY, light), np.float64)
    check_moments(draw(model, light), np.asarray(INTENSITY), sigma**2)


@pytest.mark.slow
def test_the_simulation_is_skewed_and_the_training_model_is_not():
    # One full slot, many photons, no electronics: the exact distribution itself.
    light = ChaoticLight(noise=1.0, slots=4, cap=5.0, photons=1e5, electronic=0.0)
    for model, expected in ((physical_sample, 2 / np.sqrt(MODES)), (gaussian_noise, 0.0)):
        samples = draw(model, light)[:, -1]
        blocks = scipy.stats.skew(samples.reshape(20, -1), axis=1)
        se = blocks.std(ddof=1) / np.sqrt(20)
        assert abs(scipy.stats.skew(samples) - expected) < 5 * se
        assert 5 * se < 0.2  # tight enough to tell the two apart


@pytest.mark.slow
def test_stochastic_rounding_adds_the_variance_it_should():
    light = ChaoticLight(noise=0.0, slots=4, cap=1.2, photons=60.0, electronic=0.05, levels=4)
    step = 1.2 / 3
    part = np.asarray(INTENSITY, np.float64) / 4 / step % 1
    rounding = 4 * step**2 * part * (1 - part)
    sigma = np.asarray(noise_sigma(INTENSITY, light), np.float64)
    check_moments(
        draw(physical_sample, light), np.asarray(INTENSITY), sigma**2 + rounding * (1 + 1 / MODES)
    )


@pytest.mark.slow
def test_saturation_bounds_the_reading():
    light = ChaoticLight(noise=1.0, slots=4, cap=1.2, electronic=0.0, saturation=1.3)
    samples = draw(physical_sample, light)
    assert samples.max() <= 4 * 1.3 + 1e-5
    unbounded = draw(physical_sample, ChaoticLight(noise=1.0, slots=4, cap=1.2))
    assert unbounded.max() > 4 * 1.3
    assert samples[:, -1].std() < unbounded[:, -1].std()


@pytest.mark.slow
def test_gradients():
    light = ChaoticLight(noise=0.3)
    key = jax.random.key(3)

    def total(light, x, model):
        return model(key, x, light).sum()

    grads, dx = jax.grad(total, (0, 1))(light, INTENSITY[1:], gaussian_noise)
    eps = 1e-2
    up, down = (total(ChaoticLight(noise=0.3 + s * eps), INTENSITY[1:], gaussian_noise)
                for s in (1, -1))  # fmt: skip
    np.testing.assert_allclose(grads.noise, (up - down) / (2 * eps), rtol=1e-2)
    assert grads.noise != 0
    assert (dx != 1).all()
    simulated = jax.jit(jax.grad(total, (0, 1)), static_argnums=2)
    grads, dx = simulated(light, INTENSITY[1:], physical_sample)
    np.testing.assert_array_equal(dx, 1)
    assert grads.noise == 0


@pytest.mark.parametrize("bits", [None, 1, 2, 4])
def test_quant_relu(bits):
    x = jnp.linspace(-2, 6, 801)
    y = quant_relu(x, bits, 4.0)
    if bits is None:
        np.testing.assert_array_equal(y, jnp.clip(x, 0, 4))
    else:
        np.testing.assert_allclose(np.unique(y), np.linspace(0, 4, 2**bits), rtol=1e-6)
        bound = 2 / (2**bits - 1) * (1 + 1e-5)
        assert float(jnp.abs(y - jnp.clip(x, 0, 4)).max()) <= bound
    slope = jax.vmap(jax.grad(lambda v: quant_relu(v, bits, 4.0)))(x)
    inside = (x > 0) & (x < 4)
    np.testing.assert_array_equal(slope[inside], 1)
    np.testing.assert_array_equal(slope[(x < 0) | (x > 4)], 0)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gaussian", "physical"])
def test_pooling_end_to_end(model):
    def pool(x):
        return x.reshape(2, 2, 2, 2, 2, 3).mean((2, 4))

    x = jax.random.uniform(jax.random.key(0), (2, 4, 4, 3), minval=-1.0, maxval=4.0)
    light = ChaoticLight(noise=jnp.linspace(0, 1, 3), slots=4, bits=3, model=model)
    intensity = np.asarray(pool(quant_relu(x, 3, 4.0)), np.float64)
    keys = jax.random.split(jax.random.key(1), 2_000)
    run = jax.jit(jax.vmap(lambda k: probabilistic_pooling(k, x, light, pool)))
    samples = np.asarray(run(keys), np.float64)
    assert samples.shape == (2_000, 2, 2, 2, 3)
    sigma = np.asarray(noise_sigma(jnp.asarray(intensity, jnp.float32), light), np.float64)
    check_moments(samples, intensity, sigma**2)
    with pytest.raises(ValueError, match=r"ChaoticLight\.noise has shape \(5,\)"):
        probabilistic_pooling(keys[0], x, ChaoticLight(noise=jnp.zeros(5)), pool)


def pool4(x):
    return x.reshape(*x.shape[:-1], -1, 4).mean(-1)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_patterns_before_pooling_have_the_promised_moments(noise):
    x = jnp.array([0.2, 1.9, 3.1, 0.6, 4.0, 4.0, 4.0, 4.0])
    light = ChaoticLight(noise=noise, slots=4, photons=60.0, electronic=0.05, pattern="before")
    pulses = np.asarray(jax.vmap(pool4)(slot_pattern(x, light)), np.float64)
    variance = (pulses / 60 + pulses**2 / MODES + 0.05**2).sum(0)
    for model in ("gaussian", "physical"):
        own = replace(light, model=model)
        draw = jax.jit(jax.vmap(lambda key, own=own: probabilistic_pooling(key, x, own, pool4)))
        samples = np.asarray(draw(jax.random.split(jax.random.key(0), N)), np.float64)
        check_moments(samples, np.asarray(pool4(x)), variance)
    after = noise_sigma(pool4(x), light) ** 2
    # Alike inputs, or even splits, make no difference; full slots at different places are quieter.
    np.testing.assert_allclose(variance[1], after[1], rtol=1e-5)
    assert (variance[0] < 0.9 * after[0]) == (noise == 1)


def test_windows_hand_their_noise_to_what_is_in_them():
    x = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    light = ChaoticLight(noise=jnp.array([0.0, 1.0]), slots=4, electronic=0.0, pattern="before")
    draw = jax.jit(jax.vmap(lambda key: probabilistic_pooling(key, x, light, pool4)))
    spread = np.asarray(draw(jax.random.split(jax.random.key(0), 4000))).std(0)
    np.testing.assert_allclose(spread, noise_sigma(jnp.ones(2), light), rtol=0.06)


@pytest.mark.slow
def test_stochastic_rounding_before_pooling_keeps_the_mean():
    x = jnp.array([0.2, 1.9, 3.1, 0.6])
    light = ChaoticLight(noise=0.5, slots=4, levels=3, pattern="before", model="physical")
    draw = jax.jit(jax.vmap(lambda key: probabilistic_pooling(key, x, light, pool4)))
    samples = np.asarray(draw(jax.random.split(jax.random.key(1), N)), np.float64)[:, 0]
    assert abs(samples.mean() - 1.45) < 5 * samples.std() / np.sqrt(N)
