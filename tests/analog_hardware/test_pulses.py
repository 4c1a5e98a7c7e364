"""Cells changed by pulses: each pulse, what asymmetry costs descent, and what Tiki-Taka gains."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from jaxeff.analog_hardware import (
    CAPACITOR,
    ECRAM,
    RERAM,
    RPU,
    PulsedDevice,
    pulsed,
    tiki_taka,
)
from jaxeff.analog_hardware._pulses import pulse, pulsed_cells
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

KEY = jax.random.key(0)
SOFT = PulsedDevice(step=0.01, high=1.0, low=-0.6, slope_up=1.0, slope_down=1.0)


@pytest.mark.parametrize("device", [RPU, RERAM, CAPACITOR, ECRAM])
def test_many_pulses_are_as_many_times_one(device):
    even = dataclasses.replace(device, pulse_spread=0.0)
    cells = pulsed_cells(KEY, even, (20,))
    w = jnp.clip(jax.random.uniform(KEY, (20,), minval=-1, maxval=1), cells.low, cells.high)
    for sign, step, bound, slope in (
        (1, cells.up, cells.high, even.slope_up),
        (-1, cells.down, cells.low, even.slope_down),
    ):
        expected = np.asarray(w, np.float64)
        for _ in range(12):
            expected = expected + sign * np.asarray(step) * (
                1 - slope * expected / np.asarray(bound)
            )
        expected = np.clip(expected, cells.low, cells.high)
        moved = pulse(KEY, even, cells, w, jnp.full(20, sign * 12 * even.step * (1 + 1e-6)))
        np.testing.assert_allclose(moved, expected, atol=2e-6)


def test_changes_below_a_pulse_are_right_on_average_and_long_trains_are_cut():
    device = PulsedDevice(step=0.01, pulse_spread=0.3, longest=10.0)
    cells = pulsed_cells(KEY, device, (20_000,))
    moved = pulse(KEY, device, cells, jnp.zeros(20_000), jnp.full(20_000, -0.0023))
    assert abs(float(moved.mean()) + 0.0023) < 4 * float(moved.std()) / np.sqrt(20_000)
    cut = pulse(KEY, device, cells, jnp.zeros(20_000), jnp.full(20_000, 1.0))
    assert abs(float(cut.mean()) - 0.1) < 4 * float(cut.std()) / np.sqrt(20_000)
    np.testing.assert_allclose(cut.std(), 0.3 * 0.01 * np.sqrt(10), rtol=0.03)


def test_up_and_down_are_as_large_at_the_symmetry_point():
    device = dataclasses.replace(ECRAM, pulse_spread=0.0, imbalance=0.2)
    cells = pulsed_cells(KEY, device, (50,))
    point = cells.symmetry(device)
    inside = (point > cells.low) & (point < cells.high)
    assert inside.sum() > 40
    up = cells.up * (1 - device.slope_up * point / cells.high)
    down = cells.down * (1 - device.slope_down * point / cells.low)
    np.testing.assert_allclose(up[inside], down[inside], rtol=1e-5)
    np.testing.assert_array_equal(pulsed_cells(KEY, RPU, (3,)).symmetry(RPU), 0)


def settled(optimizer, wanted, noise, steps=1000, count=1000):
    """Means of `count` weights whose loss is (w - wanted)^2 / 2, by gradients with noise."""

    def step(carry, key):
        w, state = carry
        gradient = w - wanted + noise * jax.random.normal(key, w.shape)
        updates, state = optimizer.update(gradient, state, w)
        return (w + updates, state), w

    start = jnp.zeros((1, count))
    _, visited = jax.lax.scan(step, (start, optimizer.init(start)), jax.random.split(KEY, steps))
    return np.asarray(visited[steps // 2 :].mean((0, 1)))


@pytest.mark.slow
def test_asymmetry_moves_descent_as_far_as_its_hidden_cost_says_and_tiki_taka_takes_that_back():
    wanted, noise, rate = 0.4, 0.5, 0.05

    def drift(w):
        """Mean change: parts of the gradient's law on each side, by how far pulses go there."""
        mean = w - wanted
        positive = mean * norm.cdf(mean / noise) + noise * norm.pdf(mean / noise)
        return (positive - mean) * (1 - w / SOFT.high) - positive * (1 - w / SOFT.low)

    stationary = brentq(drift, SOFT.low, SOFT.high)
    means = settled(pulsed(KEY, SOFT, rate), wanted, noise)
    # Weights spread around that point, where the drift isn't quite a straight line.
    assert abs(means.mean() - stationary) < 0.01
    assert wanted - stationary > 0.1
    means = settled(tiki_taka(KEY, SOFT, rate, 0.05), wanted, noise)
    assert abs(means.mean() - wanted) < (wanted - stationary) / 5


def test_rows_are_transferred_in_turn():
    optimizer = tiki_taka(KEY, PulsedDevice(step=1e-4), 1.0, 0.5, every=2, rows=2)
    w = jnp.zeros((5, 3))
    state, moved = optimizer.init(w), []
    for _ in range(6):
        updates, state = optimizer.update(-jnp.ones((5, 3)), state, w)
        moved.append(np.flatnonzero(np.abs(updates).sum(1)).tolist())
    assert moved == [[], [0, 1], [], [2, 3], [], [0, 4]]


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda key: pulsed(key, RPU, 0.1),
    lambda key: tiki_taka(key, RERAM, 0.1, 0.1, slow=RPU, rows=64),
])  # fmt: skip
def test_a_network_learns_by_pulses(make):
    f, params, data = small_classifier(300)
    learnt = fit(KEY, cross_entropy(f), params, data, optimizer=make(KEY), epochs=15,
                 batch_size=20, progress=False)  # fmt: skip
    x, labels = data
    before, after = (
        float(optax.softmax_cross_entropy_with_integer_labels(f(p, x), labels).mean())
        for p in (params, learnt.params)
    )
    assert after < 0.7 * before


def test_what_is_no_device_and_updates_without_parameters_are_refused():
    with pytest.raises(TypeError, match="PulsedDevice"):
        pulsed(KEY, 0.1, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows"):
        tiki_taka(KEY, RPU, 0.1, 0.1, rows=0)
    optimizer = pulsed(KEY, RPU, 0.1)
    with pytest.raises(ValueError, match="params"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
    with pytest.raises(ValueError, match="step"):
        PulsedDevice(step=-1.0)
