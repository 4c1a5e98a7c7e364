"""Models of a chip from its answers: the table, splines, noise, sequences."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.analog_hardware import (
    PUBLISHED_PHYSICS,
    Chip,
    Crossbar,
    Design,
    Events,
    ReadOutNoise,
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
STATIC = dataclasses.replace(PUBLISHED_PHYSICS, ordered=False)


@pytest.fixture(scope="module")
def measured():
    return characterize(jax.random.key(0), Chip(4, physics=STATIC, **SMALL), DESIGN)


@pytest.fixture(scope="module")
def box(measured):
    return fit_white_box(measured)


@pytest.mark.slow
def test_the_white_box_is_near_the_noise_and_ahead_of_simpler_models(measured, box):
    chip = Chip(4, physics=STATIC, **SMALL)
    errors = []
    for model in (fit_linear(measured), fit_columnar(measured), box):
        agreement = fidelity(jax.random.key(1), model, chip, DESIGN, active=(4, 24), repeats=16)
        errors.append(agreement.error)
    assert errors[0][1] > errors[1][1] > errors[2][1]
    assert max(e / n for e, n in zip(agreement.error, agreement.floor, strict=True)) <= 1.3
    assert "noise" in str(agreement)


@pytest.mark.slow
def test_the_table_is_that_of_the_synapses(box):
    pattern = Chip(4, **SMALL).pattern
    wanted = (1 + 0.1 * pattern["synapse"]) * (1 + 0.08 * pattern["column"]["gain"])[None, None]
    correlation = np.corrcoef(np.ravel(wanted), np.ravel(box.strength))[0, 1]
    assert correlation > 0.9
    codes = np.arange(64)
    curve = codes * (1 - 0.1 * codes / 63)
    scale = float(box.curve @ curve / (curve @ curve))
    np.testing.assert_allclose(box.curve / scale, curve, atol=1.0)


def test_the_noise_is_that_of_repeats(box):
    column = Chip(4, **SMALL).pattern["column"]["noise"]
    rate = (1 + 0.2 * column) ** 2
    wanted = rate * (0.36 + 0.015 * 24) + 1 / 12
    inputs, weights = jnp.ones((1, 24)), jnp.zeros((24, 6))
    variance = box.variance(inputs, weights)[0]
    # three counts of active rows, 8 vectors and 32 repeats: 744 degrees of freedom for each fit
    np.testing.assert_allclose(variance, wanted, rtol=5 * np.sqrt(2 / 248))
    quiet = dataclasses.replace(box, noise=dataclasses.replace(box.noise, level=0.5))
    np.testing.assert_allclose(quiet.variance(inputs, weights)[0], variance / 4, rtol=1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def events():
    """Trains of all lengths on a small array."""
    return measure_events(
        jax.random.key(0), Chip(3, **TINY), TINY_DESIGN, columns=2, active=None, programs=8,
        vectors=32,
    )  # fmt: skip


TINY = {"rows": 12, "columns": 4}
TINY_DESIGN = Design(**TINY, active=(8,))
QUICK = {"epochs": 6, "width": 8, "heads": 1, "batch_size": 16, "progress": False}


@pytest.fixture(scope="module")
def sequences(events):
    noise = ReadOutNoise(jnp.full(2, 0.3), jnp.full(2, 0.01))
    return {
        position: fit_sequence(
            jax.random.key(1), events.split()[0], TINY_DESIGN, noise=noise, position=position,
            **QUICK,
        )
        for position in ("time", "none")
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_sequences_are_learnt_per_column(events, sequences):
    assert events.inputs.shape == (256, 12)
    assert events.weights.shape == (256, 12, 2)
    sent = (events.inputs > 0).sum(1)
    assert sent.min() < 4 < 9 < sent.max()
    assert all((a[:n] > 0).all() for a, n in zip(events.inputs, sent, strict=True))
    train, test = events.split()
    model = sequences["time"]
    assert model.error(test).shape == (2,)
    assert (model.error(train) < train.counts.var(0)).all()
    timeless = dataclasses.replace(model, position="none")
    assert not np.allclose(timeless.predict(test), model.predict(test))
    with pytest.raises(ValueError, match="3 heads don't divide"):
        fit_sequence(jax.random.key(1), train, heads=3)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
@pytest.mark.parametrize("position", ["time", "none"])
def test_a_tile_has_its_rows_as_events(sequences, position):
    model = sequences[position]
    rng = np.random.default_rng(0)
    a = np.where(rng.random((5, 12)) < 0.6, rng.integers(1, 32, (5, 12)), 0).astype(np.float32)
    w = rng.integers(-63, 64, (12, 2)).astype(np.float32)
    # The same vectors with their silent rows taken out, as they were measured.
    order = np.argsort(a == 0, 1, kind="stable").astype(np.int32)
    trains = Events(np.take_along_axis(a, order, 1) / 31, w[order] / 63, order, np.zeros((5, 2)))
    counts = jax.jit(lambda m, a, w: m.counts(a, w, 1.0))
    np.testing.assert_allclose(counts(model, a, w), model.predict(trains), rtol=1e-4, atol=1e-3)
    # Two events change places: only their times differ.
    swapped = trains._replace(
        **{
            name: x[:, [1, 0, *range(2, 12)]]
            for name, x in trains._asdict().items()
            if name != "counts"
        }
    )
    apart = np.abs(model.predict(swapped) - model.predict(trains)).max()
    assert apart > 1e-2 if position == "time" else apart < 1e-3
    np.testing.assert_allclose(
        model.variance(a, w), np.repeat(0.3 + 0.01 * (a > 0).sum(1)[:, None], 2, 1), rtol=1e-5
    )


@pytest.mark.slow
def test_permuted_times_are_permuted_alike_and_shuffled_ones_are_not(sequences, events):
    """With times permuted, the positions learnt are another model's, in another order."""
    model, few = sequences["time"], jax.tree.map(lambda a: a[:16], events)
    permuted = dataclasses.replace(model, position="permuted")
    order = jax.random.permutation(jax.random.key(12), 12)
    assert (np.sort(order) == np.arange(12)).all()
    flat = {"lag": 0 * model.params["lag"]}  # without distances, which are those of wrong places
    moved = {"when": model.params["when"][:, order]}
    np.testing.assert_allclose(
        dataclasses.replace(permuted, params={**model.params, **flat}).predict(few),
        dataclasses.replace(model, params={**model.params, **flat, **moved}).predict(few),
        rtol=1e-4, atol=1e-3,
    )  # fmt: skip
    same = [permuted.predict(few, jax.random.key(i)) for i in range(2)]
    np.testing.assert_array_equal(*same)
    shuffled = dataclasses.replace(model, position="shuffled")
    one, two = (shuffled.predict(few, jax.random.key(i)) for i in range(2))
    assert np.abs(one - two).max() > 1e-3


@pytest.mark.slow
def test_a_crossbar_learns_through_a_model_of_sequences(sequences):
    """Tiles of rows and columns, compiled, on several chips at once, with a gradient."""
    models = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x]), sequences["time"])
    params = {"fc": {"kernel": jax.random.normal(jax.random.key(0), (20, 3))}}
    x = jax.random.uniform(jax.random.key(1), (4, 20))

    def run(model, params):
        array = Crossbar(rows=12, columns=2, gain=0.004, weight_step=0.05, model=model)
        g = analog(lambda p, x: x @ p["fc"]["kernel"], {"fc": array})
        return g(jax.random.key(2), params, x)

    each = jax.jit(jax.vmap(run, (0, None)))(models, params)
    alone = jax.jit(run)(sequences["time"], params)
    np.testing.assert_allclose(each[0], alone, rtol=1e-4, atol=1e-3)
    assert np.abs(each[1] - each[0]).max() > 0
    slope = jax.jit(jax.grad(lambda p: run(sequences["time"], p).sum()))(params)["fc"]["kernel"]
    assert np.isfinite(slope).all()
    # A larger weight lets more of a positive input through.
    assert (np.asarray(slope) > 0).all()


@pytest.mark.slow
def test_tiles_that_were_not_measured_are_refused(sequences):
    model = sequences["time"]
    with pytest.raises(ValueError, match="13 rows and 2 columns is larger than the 12 events"):
        model.counts(jnp.ones((1, 13)), jnp.ones((13, 2)), 1.0)
    with pytest.raises(ValueError, match="shuffled times are a control"):
        dataclasses.replace(model, position="shuffled").counts(
            jnp.ones((1, 12)), jnp.ones((12, 2)), 1.0
        )
