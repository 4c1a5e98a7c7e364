"""Deviations that are asked for, and what is read off measurements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxeff.photonics import (
    MODES,
    ChaoticLight,
    fit_light,
    gaussian_noise,
    noise_for,
    noise_sigma,
    photon_counts,
    physical_sample,
    sigma_bounds,
    slot_pattern,
)
from jaxeff.photonics._detector import count_table, tabled_counts

INTENSITY = jnp.array([0.5, 1.7, 4.0])


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_level_gives_the_deviation(correlation):
    light = ChaoticLight(slots=6, correlation=correlation)
    low, high = sigma_bounds(INTENSITY, light)
    wanted = 0.3 * low + 0.7 * high
    level = noise_for(wanted, INTENSITY, light)
    given = ChaoticLight(noise=level, slots=6, correlation=correlation)
    np.testing.assert_allclose(noise_sigma(INTENSITY, given), wanted, rtol=1e-5)
    np.testing.assert_allclose(noise_for(low, INTENSITY, light), 0, atol=1e-4)
    np.testing.assert_allclose(noise_for(high, INTENSITY, light), 1, atol=1e-4)


@pytest.mark.slow
def test_counts_are_negative_binomial_at_twenty_intensities():
    means = np.geomspace(0.5, 300, 20).astype(np.float32)
    draw = jax.jit(lambda key: photon_counts(key, jnp.asarray(means)[None], MODES, (20_000, 20)))
    counts = np.asarray(draw(jax.random.key(3)))
    for mean, column in zip(means, counts.T, strict=True):
        law = scipy.stats.nbinom(MODES, MODES / (MODES + mean))
        edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))  # the upper ends of bins
        occupancy = np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
        expected = np.diff([0, *law.cdf(edges), 1]) * len(column)
        assert scipy.stats.chisquare(occupancy, expected).pvalue > 0.01 / 20


def test_three_numbers_are_fitted_from_variances():
    mean = np.linspace(0, 50, 20)
    found = fit_light(mean, mean**2 / MODES + mean / 7 + 0.3**2)
    np.testing.assert_allclose(found, (MODES, 7, 0.3), rtol=1e-6)
    poisson = fit_light(mean, mean / 7 + 0.3**2)
    assert poisson.modes > 1e6
    np.testing.assert_allclose(poisson.photons, 7, rtol=1e-4)


LIGHT = ChaoticLight(slots=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noise_for(0.9, INTENSITY, LIGHT), r"sigma 0.9 at intensity 0.5, where 4 slots of"),
        (lambda: noise_for(0.01, INTENSITY, LIGHT), r"3 of 3 deviations .* can have 0.\d+ to 0."),
        (lambda: noise_for(float("nan"), INTENSITY, LIGHT), "outside the hardware's range"),
        (lambda: noise_for(0.3, jnp.array([5.0]), LIGHT), "intensity must be between 0 and 4"),
        (lambda: noise_for(0.3, jnp.array([-1.0]), LIGHT), "intensity must be between 0 and 4"),
        (lambda: sigma_bounds(jnp.array([-0.1]), LIGHT), "intensity must be at least 0, but is -0"),
        (lambda: slot_pattern(jnp.array([jnp.nan]), LIGHT), "intensity must be .* but is nan"),
        (
            lambda: gaussian_noise(jax.random.key(0), jnp.array([-1.0]), LIGHT),
            "intensity must be at least 0, but is -1",
        ),
        (
            lambda: photon_counts(jax.random.key(0), jnp.array([-1.0]), MODES, (1,)),
            "mean must be at least 0, but is -1",
        ),
        (
            lambda: photon_counts(jax.random.key(0), jnp.array([1.0]), 0.0, (1,)),
            "modes must be positive, but is 0",
        ),
        (lambda: fit_light(np.arange(3.0), np.zeros(3)), "positive variances"),
        (lambda: fit_light(np.arange(2.0), np.ones(2)), "at least three"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_tables_hold_the_same_distributions():
    means = np.array([0.0, 3.0, 200.0])
    table = count_table(means, MODES)
    which = jnp.tile(jnp.arange(3), (20_000, 1))
    counts = np.asarray(tabled_counts(jax.random.key(0), which, table))
    assert (counts[:, 0] == 0).all()
    for mean, column in zip(means[1:], counts.T[1:], strict=True):
        law = scipy.stats.nbinom(MODES, MODES / (MODES + mean))
        edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
        occupancy = np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
        expected = np.diff([0, *law.cdf(edges), 1]) * len(column)
        assert scipy.stats.chisquare(occupancy, expected).pvalue > 0.01 / 2
    width = table.share.shape[1]
    own = table.share[2] / 2.0**32
    mass = own + np.bincount(table.other[2], 1 - own, width)
    exact = scipy.stats.nbinom(MODES, MODES / (MODES + means[2])).pmf(np.arange(width))
    np.testing.assert_allclose(mass / width, exact, atol=1e-10)


def test_levels_that_are_looked_up_keep_mean_and_variance():
    # An even split of two slots at amplitudes that exist, so that nothing is rounded.
    at = jnp.array([0.0, 1.0, 2.0])
    light = ChaoticLight(noise=0.0, slots=2, levels=5, photons=60.0, model="physical")
    draw = jax.jit(jax.vmap(lambda key: physical_sample(key, at, light)))
    samples = np.asarray(draw(jax.random.split(jax.random.key(0), 20_000)), np.float64)
    variance = np.asarray(noise_sigma(at, light), np.float64) ** 2
    centred = (samples - samples.mean(0)) ** 2
    assert (np.abs(samples.mean(0) - np.asarray(at)) < 5 * samples.std(0) / np.sqrt(20_000)).all()
    assert (np.abs(centred.mean(0) - variance) < 5 * centred.std(0) / np.sqrt(20_000)).all()
