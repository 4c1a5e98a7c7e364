"""Slots and noise bounds: closed forms against the pulses they stand for, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff.photonics import ChaoticLight, noise_sigma, sigma_bounds, slot_pattern

CHECKS = settings(deadline=None, max_examples=25)
LIGHTS = st.builds(
    ChaoticLight,
    noise=st.floats(0, 1),
    cap=st.floats(0.1, 10),
    modes=st.floats(1, 50),
    photons=st.floats(1, 1e4),
    electronic=st.floats(0, 0.1),
    slots=st.integers(1, 12),
)


def deviation(pulses, light):
    """The standard deviation of the sum of independent slots, from the variance law of each."""
    pulses = np.asarray(pulses, np.float64)
    variance = pulses / light.photons + pulses**2 / light.modes + light.electronic**2
    return np.sqrt(variance.sum(0))


@pytest.mark.slow
@CHECKS
@given(LIGHTS, st.floats(0, 1))
def test_pulses_carry_the_intensity_with_the_chosen_deviation(light, part):
    intensity = jnp.array([part * light.full_scale])
    pulses = slot_pattern(intensity, light)
    assert pulses.shape == (light.slots, 1)
    assert float(pulses.min()) >= -1e-6 * light.cap
    assert float(pulses.max()) <= light.cap * (1 + 1e-5)
    np.testing.assert_allclose(pulses.sum(0), intensity, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        deviation(pulses, light), noise_sigma(intensity, light), rtol=1e-3, atol=1e-6
    )


@pytest.mark.slow
@CHECKS
@given(LIGHTS, st.floats(0, 1), st.integers(0, 1_000))
def test_bounds_hold_for_any_pulse_train(light, part, seed):
    intensity = part * light.full_scale
    smallest, largest = sigma_bounds(jnp.array([intensity]), light)
    # Random pulses under the cap with the same total: start even, move light between two slots.
    rng = np.random.default_rng(seed)
    pulses = np.full((light.slots, 1), intensity / light.slots)
    for _ in range(4 * light.slots):
        i, j = rng.integers(light.slots, size=2)
        moved = rng.uniform() * min(pulses[i, 0], light.cap - pulses[j, 0])
        if i != j:
            pulses[i] -= moved
            pulses[j] += moved
    sigma = deviation(pulses, light)
    assert smallest * (1 - 1e-4) - 1e-6 <= sigma <= largest * (1 + 1e-4) + 1e-6


def test_the_source_rule_of_an_even_split():
    light = ChaoticLight(noise=0.0, slots=4, photons=50.0, modes=10.64, electronic=0.0, cap=5.0)
    smallest, _ = sigma_bounds(jnp.array(8.0), light)
    np.testing.assert_allclose(smallest**2, 8 / 50 + 64 / (4 * 10.64), rtol=1e-5)


def test_full_slots_are_the_noisiest():
    light = ChaoticLight(noise=1.0, slots=4, cap=1.0)
    np.testing.assert_allclose(
        slot_pattern(jnp.array([2.25, 4.0, 9.0]), light).T,
        [[1, 1, 0.25, 0], [1, 1, 1, 1], [1, 1, 1, 1]],
        atol=1e-5,
    )


@pytest.mark.slow
def test_nothing_is_finite_with_finite_gradients():
    light = ChaoticLight(electronic=0.0)
    intensity = jnp.zeros(2)

    def total(light, intensity):
        return noise_sigma(intensity, light).sum() + slot_pattern(intensity, light).sum()

    value, grads = jax.value_and_grad(total, (0, 1))(light, intensity)
    assert value == 0
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@pytest.mark.promotes("rank")
def test_noise_is_learnable_per_activation():
    intensity = jnp.array([0.5, 1.5, 3.0])
    smallest, largest = sigma_bounds(intensity, ChaoticLight())
    gradient = jax.grad(lambda L: noise_sigma(intensity, ChaoticLight(noise=L)).sum())(
        jnp.full(3, 0.3)
    )
    np.testing.assert_allclose(gradient, largest - smallest, rtol=1e-5)
    levels = ChaoticLight(noise=jnp.linspace(0, 1, 5))
    axes = jax.tree.map(lambda x: 0 if jnp.ndim(x) else None, levels)
    swept = jax.vmap(noise_sigma, (None, axes))(intensity, levels)
    expected = smallest + jnp.linspace(0, 1, 5)[:, None] * (largest - smallest)
    np.testing.assert_allclose(swept, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"noise": 1.5}, r"ChaoticLight\.noise must be between 0 and 1, but is 1\.5"),
        ({"noise": np.array([0.1, np.nan])}, r"ChaoticLight\.noise"),
        ({"cap": 0.0}, r"ChaoticLight\.cap must be at least"),
        ({"modes": -1.0}, r"ChaoticLight\.modes"),
        ({"photons": 0}, r"ChaoticLight\.photons"),
        ({"electronic": -0.1}, r"ChaoticLight\.electronic"),
        ({"saturation": 0.0}, r"ChaoticLight\.saturation"),
        ({"slots": 0}, r"ChaoticLight\.slots must be at least 1, but is 0"),
        ({"levels": 1}, r"ChaoticLight\.levels must be at least 2, but is 1"),
        ({"bits": 12}, r"ChaoticLight\.bits must be between 1 and 8"),
        ({"model": "exact"}, r"ChaoticLight\.model must be one of 'gaussian', 'physical'"),
    ],
)
def test_bad_settings_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ChaoticLight(**kwargs)


def test_whole_numbers_are_required():
    with pytest.raises(TypeError, match=r"ChaoticLight\.slots must be an integer, not 4\.0"):
        ChaoticLight(slots=4.0)
