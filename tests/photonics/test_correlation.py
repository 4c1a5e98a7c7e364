"""Light that remembers: marginals, correlations, and the effective samples they leave."""

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
    chaotic_intensity,
    effective_samples,
    excess_share,
    gaussian_noise,
    noise_sigma,
    photon_counts,
    physical_sample,
    slot_pattern,
)

KEY = jax.random.key(0)
N = 20_000


@partial(jax.jit, static_argnums=1)
def intensity(key, shape, modes, time, channel):
    return chaotic_intensity(key, shape, modes, time=time, channel=channel)


@pytest.fixture(scope="module")
def light():
    return np.asarray(intensity(KEY, (5, 3, N), MODES, 0.6, 0.3), np.float64)


@pytest.mark.slow
def test_every_reading_is_gamma_distributed(light):
    law = scipy.stats.gamma(MODES, scale=1 / MODES)
    for reading in light.reshape(15, N)[::7]:
        assert scipy.stats.kstest(reading, law.cdf).pvalue > 0.01 / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0), (1, 0), 0.6),
        ((1, 1), (4, 1), 0.6**3),
        ((2, 0), (2, 2), 0.3),
        ((0, 0), (1, 1), 0.18),
    ],
)
def test_correlations_are_those_asked_for(light, a, b, expected):
    correlation = np.corrcoef(light[a], light[b])[0, 1]
    # Products of skewed numbers spread more than normal ones: twice the normal standard error.
    assert abs(correlation - expected) < 5 * 2 * (1 - expected**2) / np.sqrt(N)


@pytest.mark.slow
def test_without_correlation_readings_are_independent():
    free = np.asarray(intensity(KEY, (2, 2, N), MODES, 0.0, 0.0), np.float64).reshape(4, N)
    apart = np.corrcoef(free)[np.triu_indices(4, 1)]
    assert np.abs(apart).max() < 5 / np.sqrt(N)
    np.testing.assert_allclose(free.var(1), 1 / MODES, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("time", "channel"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.3), (0.8, 0.1)])
def test_effective_samples_are_those_of_the_mean(time, channel):
    light = np.asarray(intensity(KEY, (5, 3, N), MODES, time, channel), np.float64)
    found = light.var() / light.mean((0, 1)).var()
    expected = effective_samples(5, 3, time=time, channel=channel)
    assert abs(found / expected - 1) < 0.05  # five standard errors of a variance of 20,000 draws


@pytest.mark.slow
def test_shot_noise_is_never_correlated():
    mean, electronic = 20.0, 3.0
    share = excess_share(mean, MODES, electronic)
    keys = jax.random.split(KEY, 3)
    light = intensity(keys[0], (6, 1, N), MODES, 0.7, 0.0)
    counts = jax.random.poisson(keys[1], mean * light).astype(jnp.float32)
    readings = np.asarray(counts + electronic * jax.random.normal(keys[2], counts.shape))
    found = readings.var() / readings.mean((0, 1)).var()
    assert abs(found / effective_samples(6, time=0.7, excess=share) - 1) < 0.05
    assert effective_samples(6, time=0.7, excess=0.0) == 6


@pytest.mark.slow
def test_correlated_slots_have_the_promised_deviation():
    light = ChaoticLight(noise=0.3, slots=4, correlation=0.7, photons=60.0, electronic=0.05)
    at = jnp.array([0.3, 1.7, 4.0])
    run = jax.jit(jax.vmap(lambda key: physical_sample(key, at, light)))
    samples = np.asarray(run(jax.random.split(KEY, N)), np.float64)
    expected = np.asarray(noise_sigma(at, light), np.float64) ** 2
    centred = (samples - samples.mean(0)) ** 2
    assert (np.abs(centred.mean(0) - expected) < 5 * centred.std(0) / np.sqrt(N)).all()
    assert (noise_sigma(at, light) > noise_sigma(at, ChaoticLight(noise=0.3, slots=4))).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "time"), [("gaussian", 0.0), ("gaussian", 0.6), ("physical", 0.6)]
)
def test_wavelength_channels_share_what_they_are_told(model, time):
    light = ChaoticLight(
        noise=0.4, slots=3, photons=60.0, correlation=time, channel=0.5, model=model
    )
    at = jnp.array([[0.4, 1.3, 2.6]])  # one place, three wavelengths
    draw = physical_sample if model == "physical" else gaussian_noise
    samples = np.asarray(
        jax.jit(jax.vmap(lambda key: draw(key, at, light)))(jax.random.split(KEY, 4000)), np.float64
    )[:, 0]
    pulses = np.asarray(slot_pattern(at, light), np.float64)[:, 0]
    slots = np.arange(3)
    alike = time ** np.abs(slots[:, None] - slots)
    shared = 0.5 * pulses.T @ alike @ pulses / MODES
    expected = (
        shared - np.diag(np.diag(shared)) + np.diag(np.asarray(noise_sigma(at, light)[0]) ** 2)
    )
    centred = samples - samples.mean(0)
    products = centred[:, :, None] * centred[:, None]
    assert (np.abs(products.mean(0) - expected) < 5 * products.std(0) / np.sqrt(4000)).all()


@pytest.mark.slow
def test_an_array_of_correlations_is_the_same_computation():
    at = jnp.array([[0.4, 1.3, 2.6]])
    light = ChaoticLight(slots=3, channel=0.5)
    traced = replace(light, channel=jnp.float32(0.5))
    draws = [jax.jit(gaussian_noise)(KEY, at, one) for one in (light, traced)]
    np.testing.assert_allclose(*draws, rtol=2e-5)
    assert gaussian_noise(KEY, at[0, 0], light).shape == ()  # nothing to share with


@pytest.mark.slow
def test_a_fast_key_counts_too():
    fast = jax.random.key(0, impl="rbg")
    counts = photon_counts(fast, jnp.full(2000, 5.0), MODES, (2000,))
    assert abs(float(counts.mean()) - 5) < 5 * np.sqrt((5 + 25 / MODES) / 2000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: chaotic_intensity(KEY, (2, 2), time=1.0), "time must be at least 0 and below 1"),
        (lambda: chaotic_intensity(KEY, (2, 2), channel=-0.1), "channel must be .* but is -0.1"),
        (lambda: chaotic_intensity(KEY, (2, 2), 0.0), "modes must be positive, but is 0"),
        (lambda: chaotic_intensity(KEY, (2,)), "readings and channels"),
        (lambda: effective_samples(3, channel=1.5), "channel must be .* but is 1.5"),
        (lambda: effective_samples(0), "times must be at least 1"),
        (lambda: excess_share(float("nan")), "mean must be .* but is nan"),
        (lambda: ChaoticLight(correlation=1.0), "ChaoticLight.correlation must be .* below 1"),
        (lambda: ChaoticLight(channel=-0.1), "ChaoticLight.channel must be .* but is -0.1"),
        (lambda: ChaoticLight(channel=float("nan")), "ChaoticLight.channel must be"),
        (lambda: ChaoticLight(channel=0.1, model="free"), "no pulses whose channels"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
