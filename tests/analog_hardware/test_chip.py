"""The synthetic chip: codes only, a fixed pattern, order, noise, drift."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import (
    PUBLISHED_PHYSICS,
    Chip,
    Design,
    compensate_drift,
    order_effect,
    reference,
)

SMALL = {"rows": 16, "columns": 8}
STATIC = dataclasses.replace(PUBLISHED_PHYSICS, ordered=False)
DESIGN = Design(**SMALL, active=(8,))


def codes(seed=0, vectors=40):
    keys = jax.random.split(jax.random.key(seed))
    weights = jax.random.randint(keys[0], (16, 8), -63, 64)
    return weights, jax.random.randint(keys[1], (vectors, 16), 0, 32)


def silent(**changes):
    return dataclasses.replace(PUBLISHED_PHYSICS, noise=0.0, row_noise=0.0, **changes)


def test_its_numbers_are_those_that_were_published():
    assert dataclasses.asdict(PUBLISHED_PHYSICS) == {
        "gain": 0.004, "synapse_mismatch": 0.1, "weight_curve": 0.1, "pulse_offset": 0.5,
        "column_mismatch": 0.08, "column_offset": 3.0, "limit": 110.0, "limit_mismatch": 0.05,
        "leak": 500.0, "memory": 0.95, "line": 40.0, "noise": 0.6, "row_noise": 0.015,
        "noise_mismatch": 0.2, "gain_drift": 0.05, "offset_drift": 3.0, "ordered": True,
        "curve_mismatch": 0.0,
    }  # fmt: skip


@pytest.mark.slow
def test_synapses_may_have_curves_of_their_own():
    """Charges over the weight then bend differently in each; halving the weight tells the bend."""
    physics = dataclasses.replace(PUBLISHED_PHYSICS, weight_curve=0.1, curve_mismatch=0.5)
    bends = []
    for one in (PUBLISHED_PHYSICS, physics):
        chip = Chip(3, rows=40, columns=30, physics=one)
        full, half = (np.asarray(chip._charge(jnp.full((40, 30), w))) for w in (60, 30))
        # full / half = 2 (1 - 60 c / 63) / (1 - 30 c / 63)
        share = full / half / 2
        bends.append((1 - share) / (60 / 63 - share * 30 / 63))
    np.testing.assert_allclose(bends[0], 0.1, rtol=1e-3)
    assert bends[1].mean() == pytest.approx(0.1, abs=3 * 0.05 / 1200**0.5)
    assert bends[1].std() == pytest.approx(0.05, rel=3 / 2400**0.5)
    plain, bent = (
        Chip(3, rows=4, columns=4, physics=one).pattern for one in (PUBLISHED_PHYSICS, physics)
    )
    np.testing.assert_array_equal(plain["synapse"], bent["synapse"])


@pytest.mark.slow
def test_a_device_is_its_number():
    weights, inputs = codes()
    chips = jax.vmap(lambda d: Chip(d, **SMALL).query(jax.random.key(0), weights, inputs))
    both = chips(jnp.array([0, 3]))
    assert both.dtype == jnp.int32
    one = Chip(3, **SMALL).query(jax.random.key(0), weights, inputs)
    # another order of float operations may move a count
    assert float(jnp.mean(both[1] != one)) < 0.01
    assert float(jnp.mean(both[0] != one)) > 0.5


@pytest.mark.slow
def test_without_imperfections_it_multiplies():
    ideal = silent(
        synapse_mismatch=0.0, weight_curve=0.0, pulse_offset=0.0, column_mismatch=0.0,
        column_offset=0.0, limit=1e6, limit_mismatch=0.0, ordered=False,
    )  # fmt: skip
    weights, inputs = codes()
    output = Chip(0, physics=ideal, **SMALL).query(jax.random.key(0), weights, inputs)
    exact = 0.004 * (np.asarray(inputs) @ np.asarray(weights))
    assert np.abs(np.asarray(output) + 0.5 - exact).max() <= 0.5 + 1e-2


@pytest.mark.slow
def test_order_matters_only_where_events_have_a_past():
    weights, inputs = codes()
    order = jnp.argsort(jax.random.uniform(jax.random.key(5), inputs.shape), 1)
    for physics, moved in ((silent(), True), (silent(ordered=False), False)):
        chip = Chip(0, physics=physics, **SMALL)
        key = jax.random.key(0)
        plain, shuffled = (chip.query(key, weights, inputs, o) for o in (None, order))
        assert bool(jnp.any(plain != shuffled)) is moved
        rows = jnp.arange(16)
        np.testing.assert_array_equal(chip.query(key, weights, inputs, rows), plain)


@pytest.mark.slow
def test_order_effect_and_its_control():
    live = order_effect(jax.random.key(0), Chip(1, **SMALL), DESIGN, vectors=8)
    dead = order_effect(jax.random.key(0), Chip(1, physics=STATIC, **SMALL), DESIGN, vectors=8)
    # a spread over 16 orders of 8 repeats has a standard error of noise / 8 / sqrt(2 * 8 * 8 * 15)
    assert live.rms > 3 * live.control
    assert live.rms > 0.3
    assert dead.rms < 0.2
    assert 0.5 < live.noise < 1.2


@pytest.mark.slow
def test_noise_grows_with_active_rows():
    weights, _ = codes()
    chip = Chip(0, physics=STATIC, **SMALL)
    n = 2000
    levels = []
    for active in (1, 16):
        inputs = jnp.zeros((n, 16), jnp.int32).at[:, :active].set(20)
        levels.append(chip.query(jax.random.key(1), weights, inputs).var(0))
    added = float(jnp.mean(levels[1] - levels[0]))
    spread = float(jnp.mean(1 + (0.2 * chip.pattern["column"]["noise"]) ** 2))
    assert added == pytest.approx(15 * 0.015 * spread, abs=4 * 0.6 * np.sqrt(2 / n))


@pytest.mark.slow
def test_recalibration_takes_drift_back():
    chip = Chip(2, **SMALL)
    before = reference(jax.random.key(0), chip, DESIGN)
    late = chip.after(24.0)
    correction = compensate_drift(jax.random.key(1), late, before, DESIGN)
    weights, inputs = codes(7, 500)
    key = jax.random.key(3)
    fresh, drifted = (c.query(key, weights, inputs).astype(jnp.float32) for c in (chip, late))
    off = float(jnp.mean((drifted - fresh) ** 2))
    mended = float(jnp.mean((correction.apply(drifted) - fresh) ** 2))
    assert off > 10
    assert mended < 0.1 * off


@pytest.mark.slow
def test_a_dead_column_is_refused():
    def dead(seed, weights, inputs):
        counts = inputs @ weights // 300
        counts[:, 3] = 5
        return counts

    def alive(seed, weights, inputs):
        return inputs @ weights // 300

    before = reference(jax.random.key(0), alive, DESIGN, vectors=16, repeats=2)
    with pytest.raises(ValueError, match=r"column 3 .* answers the same"):
        compensate_drift(jax.random.key(0), dead, before, DESIGN, repeats=2)


@pytest.mark.slow
def test_codes_are_held_to_their_form():
    weights, inputs = codes()
    chip, key = Chip(0, **SMALL), jax.random.key(0)
    with pytest.raises(TypeError, match="inputs must be integer codes, not float32"):
        chip.query(key, weights, inputs.astype(jnp.float32))
    with pytest.raises(
        ValueError, match="inputs hold codes from 0 to 40, out of the range 0 to 31"
    ):
        chip.query(key, weights, inputs.at[0, :2].set(jnp.array([0, 40])))
    with pytest.raises(ValueError, match=r"weights hold codes from -64"):
        chip.query(key, weights.at[0, 0].set(-64), inputs)
    with pytest.raises(ValueError, match="weights must be"):
        chip.query(key, weights, inputs[:, :3])
    with pytest.raises(ValueError, match="16 rows and 8 columns"):
        chip.query(key, jnp.zeros((16, 9), jnp.int32), inputs)
    with pytest.raises(ValueError, match="every row once"):
        chip.query(key, weights, inputs, jnp.zeros(16, jnp.int32))
    with pytest.raises(TypeError, match="integer"):
        Chip(0.5)
