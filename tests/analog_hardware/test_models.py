"""Models of a chip from its answers: the table, splines, noise, sequences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import (
    PUBLISHED,
    Chip,
    Crossbar,
    Design,
    Splines,
    analog,
    characterize,
    fidelity,
    fit_columnar,
    fit_linear,
    fit_sequence,
    fit_splines,
    fit_white_box,
    measure_events,
)

SMALL = {"rows": 24, "columns": 6}
DESIGN = Design(**SMALL, programs=48, drives=24, vectors=64, averages=2, active=(1, 8, 24))
STATIC = dataclasses.replace(PUBLISHED, ordered=False)


@pytest.fixture(scope="module")
def measured():
    return characterize(jax.random.key(0), Chip(4, physics=STATIC, **SMALL), DESIGN)


@pytest.fixture(scope="module")
def box(measured):
    return fit_white_box(measured)


def test_the_white_box_is_near_the_noise_and_ahead_of_simpler_models(measured, box):
    chip = Chip(4, physics=STATIC, **SMALL)
    errors = []
    for model in (fit_linear(measured), fit_columnar(measured), box):
        found = fidelity(jax.random.key(1), model, chip, DESIGN, active=(4, 24), repeats=16)
        errors.append(found.error)
    assert errors[0][1] > errors[1][1] > errors[2][1]
    assert max(e / n for e, n in zip(found.error, found.floor, strict=True)) <= 1.3
    assert "noise" in str(found)


def test_the_table_is_that_of_the_synapses(box):
    pattern = Chip(4, **SMALL).pattern
    wanted = (1 + 0.1 * pattern["synapse"]) * (1 + 0.08 * pattern["column"]["gain"])[None, None]
    found = np.corrcoef(np.ravel(wanted), np.ravel(box.strength))[0, 1]
    assert found > 0.9
    codes = np.arange(64)
    curve = codes * (1 - 0.1 * codes / 63)
    scale = float(box.curve @ curve / (curve @ curve))
    np.testing.assert_allclose(box.curve / scale, curve, atol=1.0)


def test_the_noise_is_that_of_repeats(box):
    column = Chip(4, **SMALL).pattern["column"]["noise"]
    rate = (1 + 0.2 * column) ** 2
    wanted = rate * (0.36 + 0.015 * 24) + 1 / 12
    inputs, weights = jnp.ones((1, 24)), jnp.zeros((24, 6))
    found = box.variance(inputs, weights)[0]
    # three counts of active rows, 8 vectors and 32 repeats: 744 degrees of freedom for each fit
    np.testing.assert_allclose(found, wanted, rtol=5 * np.sqrt(2 / 248))
    quiet = dataclasses.replace(box, noise=dataclasses.replace(box.noise, level=0.5))
    np.testing.assert_allclose(quiet.variance(inputs, weights)[0], found / 4, rtol=1e-5)


def test_the_white_box_has_the_gradient_of_its_neighbours(box):
    inputs = jax.random.randint(jax.random.key(0), (5, 24), 1, 31).astype(jnp.float32)
    weights = jax.random.randint(jax.random.key(1), (24, 6), -60, 61).astype(jnp.float32)

    @jax.jit
    def total(a, w):
        return box.counts(a, w, 1.0).sum()

    by_input, by_weight = jax.jit(jax.grad(total, (0, 1)))(inputs, weights)
    step = total(inputs.at[2, 3].add(1.0), weights) - total(inputs, weights)
    np.testing.assert_allclose(by_input[2, 3], step, atol=0.02)
    at = jnp.where(weights == 0, 5.0, weights)
    by_weight = jax.jit(jax.grad(total, 1))(inputs, at)
    step = total(inputs, at.at[4, 1].add(1.0)) - total(inputs, at)
    np.testing.assert_allclose(by_weight[4, 1], step, atol=0.05)
    at_zero = jax.jit(jax.grad(total, 1))(inputs, jnp.zeros_like(weights))
    assert (np.asarray(at_zero) > 0).all()


def test_a_crossbar_takes_it(box):
    def f(params, x):
        return x @ params["fc"]["kernel"]

    silent = dataclasses.replace(box, noise=dataclasses.replace(box.noise, level=0.0))
    array = Crossbar(rows=24, columns=6, gain=0.004, model=silent)
    params = {"fc": {"kernel": jax.random.normal(jax.random.key(0), (40, 9))}}
    x = jax.random.uniform(jax.random.key(1), (64, 40))
    y = jax.jit(analog(f, {"fc": array}))(jax.random.key(2), params, x)
    for ours, wanted in zip(y.T, f(params, x).T, strict=True):  # each column has its offset
        assert np.corrcoef(ours, wanted)[0, 1] > 0.9


def test_splines_follow_what_rises():
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (400, 3))
    scales = np.array([1.0, 5.0, 20.0])
    y = scales * np.tanh(x) + 2
    splines = fit_splines(x, y + 0.01 * rng.normal(size=x.shape))
    errors = np.abs(splines(jnp.asarray(x, jnp.float32)) - y).max(0)
    assert (errors < 0.02 * scales).all()  # eight intervals over six widths of a tanh
    far = splines(jnp.array([[10.0] * 3, [11.0] * 3]))
    assert (far[1] >= far[0]).all()
    step = splines.high + 1e-3, splines.high - 1e-3
    above, below = (splines(s[None]) for s in step)
    np.testing.assert_allclose(above, below, atol=0.05)


def test_bad_measurements_are_refused(measured):
    with pytest.raises(ValueError, match=r"column 1 .* fall by up to 3"):
        Splines(jnp.array([[0.0, 1.0, 2.0, 3.0], [0.0, 3.0, 0.0, 1.0]]), jnp.zeros(2), jnp.ones(2))
    with pytest.raises(ValueError, match="5 values per column for 11"):
        fit_splines(np.zeros((5, 2)), np.zeros((5, 2)))
    with pytest.raises(ValueError, match="repeats must be at least 8"):
        Design(repeats=4)
    with pytest.raises(ValueError, match="rows up to 128"):
        Design(active=(200,))
    bad = measured._replace(
        noise=measured.noise._replace(variance=measured.noise.variance * np.nan)
    )
    with pytest.raises(ValueError, match="variance is NaN"):
        fit_linear(bad)
    counts = measured.singles.counts.copy()
    counts[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="single rows holds NaN"):
        fit_white_box(measured._replace(singles=measured.singles._replace(counts=counts)))


@pytest.mark.promotes("dtype")
def test_sequences_are_learnt_per_column():
    chip = Chip(3, rows=16, columns=4)
    design = Design(rows=16, columns=4, active=(8,))
    events = measure_events(
        jax.random.key(0), chip, design, columns=2, active=6, programs=8, vectors=32
    )
    assert events.inputs.shape == (256, 6)
    assert events.weights.shape == (256, 6, 2)
    train, test = events.split()
    model = fit_sequence(jax.random.key(1), train, epochs=6, width=8, batch_size=16, progress=False)
    assert model.error(test).shape == (2,)
    assert (model.error(train) < train.counts.var(0)).all()
    timeless = dataclasses.replace(model, position="none")
    assert not np.allclose(timeless.predict(test), model.predict(test))
    with pytest.raises(ValueError, match="3 heads don't divide"):
        fit_sequence(jax.random.key(1), train, heads=3)
