"""Weights in memory cells: the published statistics, digits, write-verify, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import sites
from jaxeff.noise import (
    ChargeTrap,
    PhaseChange,
    ProgrammedCell,
    ResistiveRAM,
    SiteNoise,
    StaticRAM,
    noisy,
)

KEY, OTHER = jax.random.key(0), jax.random.key(1)
W = jax.random.normal(jax.random.key(2), (40, 30))
DAY = 86_400.0
MODELS = {
    "phase-change": PhaseChange(time=DAY, device=3),
    "resistive": ResistiveRAM(time=DAY, device=3),
    "charge-trap": ChargeTrap(time=DAY, device=3),
    "programmed": ProgrammedCell(0.05, device=3),
    "static": StaticRAM(device=3),
}
every = pytest.mark.parametrize("name", MODELS)


@pytest.mark.slow
@every
def test_what_was_written_stays_and_other_devices_and_sites_differ(name):
    quiet = jax.tree.map(lambda x: x, MODELS[name])
    quiet = type(quiet)(**{**vars(quiet), "read": 0.0})
    assert isinstance(quiet, SiteNoise)
    out = quiet.perturb_site(KEY, 1, W)
    np.testing.assert_array_equal(out, quiet.perturb_site(OTHER, 1, W))
    assert (out != quiet.perturb_site(KEY, 2, W)).any()
    assert (out != type(quiet)(**{**vars(quiet), "device": 4}).perturb_site(KEY, 1, W)).any()
    assert quiet.perturb(KEY, W.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    np.testing.assert_array_equal(quiet.perturb(KEY, jnp.zeros((2, 2))).shape, (2, 2))


@every
def test_reading_is_noisy_and_weights_have_the_gradient_of_none(name):
    model = type(MODELS[name])(**{**vars(MODELS[name]), "read": 0.1})
    assert (model.perturb(KEY, W) != model.perturb(OTHER, W)).any()
    gradient = jax.grad(lambda w: model.perturb(KEY, w).sum())(W)
    np.testing.assert_array_equal(gradient, jnp.ones_like(W))


@every
def test_compiled_cells_are_the_same(name):
    model = MODELS[name]
    np.testing.assert_allclose(
        jax.jit(model.perturb)(KEY, W), model.perturb(KEY, W), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phase-change", "resistive", "charge-trap"])
def test_cells_do_the_same_whatever_the_largest_weight_takes(name):
    kind = type(MODELS[name])
    full_range, half = kind(read=0.0), kind(read=0.0, top=kind().top / 2)
    share = jax.random.uniform(OTHER, (1000,)).at[0].set(1.0)
    low = half.perturb(KEY, share)[1:] * half.top
    # The same conductances, of which the largest weight takes twice as much.
    same = full_range.perturb(KEY, (share / 2).at[0].set(1.0))[1:] * full_range.top
    np.testing.assert_allclose(low, same, rtol=1e-4, atol=1e-3)


def cells(model, share, count=20_000, key=KEY):
    """Reads many cells that were asked for a share of the top, beside one that sets the scale."""
    read = model.perturb(key, jnp.full(count, share, jnp.float32).at[0].set(1.0))[1:]
    return np.asarray(read, np.float64) * model.top


def close(values, mean, deviation):
    """Mean and deviation of draws against theirs, at five standard errors."""
    n = len(values)
    assert abs(values.mean() - mean) < 5 * deviation / n**0.5 + 1e-6
    assert abs(values.std() - deviation) < 5 * deviation / (2 * n) ** 0.5 + 1e-6


@pytest.mark.oracle
@pytest.mark.parametrize("share", [0.4, 0.8])
def test_phase_change_is_written_as_it_was_measured(share):
    model = PhaseChange(read=0.0)
    deviation = 0.26348 + 1.9650 * share - 1.1731 * share**2
    # The other sign's cell was asked for nothing: |N(0, .26)| above zero, by chance.
    off = 0.26348 * np.sqrt(1 / 2 - 1 / (2 * np.pi))
    close(cells(model, share), share * 25 - 0.26348 / np.sqrt(2 * np.pi), np.hypot(deviation, off))


@pytest.mark.oracle
def test_phase_change_drifts_and_its_reading_grows():
    model = PhaseChange(time=DAY, programming=0.0, read=0.0)
    spread = -0.0125 * np.log(0.8) - 0.0059
    mean, spread = 0.049, np.clip(spread, 0.008, 0.045)
    log = np.log1p(DAY / 20)
    moments = [np.exp(-k * mean * log + (k * spread * log) ** 2 / 2) for k in (1, 2)]
    close(cells(model, 0.8), 20 * moments[0], 20 * np.sqrt(moments[1] - moments[0] ** 2))
    model = PhaseChange(time=DAY, programming=0.0, drift=0.0)
    q = 0.0088 / 0.8**0.65
    close(cells(model, 0.8), 20, 20 * q * np.sqrt(np.log((DAY + 20 + 250e-9) / 500e-9)))


@pytest.mark.slow
def test_drift_goes_on_along_the_same_curve_and_is_compensated():
    def read(time, **options):
        return PhaseChange(time=time, programming=0.0, read=0.0, **options).perturb(KEY, W)

    share = [np.asarray(read(time) / W) for time in (100.0, 1000.0)]
    exponents = [-np.log(s) / np.log1p(t / 20) for s, t in zip(share, (100, 1000), strict=True)]
    np.testing.assert_allclose(*exponents, rtol=2e-3)
    uncompensated = np.abs(read(1e5) - W).mean()
    assert np.abs(read(1e5, compensate=True) - W).mean() < 0.3 * uncompensated
    slope = jax.grad(lambda time: jnp.abs(read(time)).sum())(100.0)
    difference = (jnp.abs(read(110.0)).sum() - jnp.abs(read(90.0)).sum()) / 20
    np.testing.assert_allclose(slope, difference, rtol=0.02)


@pytest.mark.oracle
@pytest.mark.parametrize(("time", "coefficients"), [
    (1.0, (0.348, 16.030, -43.853, 45.393, -16.815)),
    (DAY, (0.701, 22.086, -50.773, 47.095, -16.458)),
])  # fmt: skip
def test_resistive_cells_relax_as_they_were_measured(time, coefficients):
    deviation = np.polyval(coefficients[::-1], 0.6)
    off = coefficients[0] * np.sqrt(1 / 2 - 1 / (2 * np.pi))
    mean = 24 - coefficients[0] / np.sqrt(2 * np.pi)
    close(cells(ResistiveRAM(time=time, read=0.0), 0.6), mean, np.hypot(deviation, off))
    between = cells(ResistiveRAM(time=DAY**0.5, read=0.0), 0.6).std()
    ends = [cells(ResistiveRAM(time=t, read=0.0), 0.6).std() for t in (1.0, DAY)]
    assert min(ends) < between < max(ends)


@pytest.mark.oracle
def test_charge_traps_are_as_they_were_measured():
    size, scale = 25.59102, 186.85544
    mean = 800 - 24.9
    deviation = size * (1 - np.exp(-mean / scale))
    close(cells(ChargeTrap(time=DAY, read=0.0), 800 / 1400), mean, deviation)
    # Of small currents the change bends: the other sign's cell gains .7 nA, this one loses as much.
    low = cells(ChargeTrap(time=DAY, spread=0.0, read=0.0), 100 / 1400)
    np.testing.assert_allclose(low, 100 - 0.7 - 0.7, atol=0.01)
    model = ChargeTrap(spread=0.0)
    close(cells(model, 800 / 1400), 800, 12.58037 * (1 - np.exp(-800 / 215.36557)))


@pytest.mark.oracle
def test_bits_of_static_memory_have_the_spread_and_noise_of_their_capacitors():
    # A half of 255 is 128, one bit: a single capacitor of .8 % is all that differs.
    half = cells(StaticRAM(read=0.0), 128 / 255)
    close(half, 128 / 255, 128 / 255 * 0.0085 / 1.2**0.5)
    assert (cells(StaticRAM(read=0.0), 0.0) == 0).all()
    # Noise of all bits and of both signs, each with its place.
    volts = np.sqrt(1.380649e-23 * 300 / 1.2e-15)
    places = 2.0 ** np.arange(8) / 255
    close(
        cells(StaticRAM(mismatch=0.0), 128 / 255), 128 / 255, volts * np.sqrt(2 * places @ places)
    )
    with pytest.raises(ValueError, match="number of states"):
        StaticRAM(states=None)


@pytest.mark.slow
def test_digits_are_exact_where_cells_are():
    perfect = ProgrammedCell(0.0, states=4, slices=3)
    code = np.asarray(perfect.perturb(KEY, W) / jnp.abs(W).max() * 63)
    np.testing.assert_allclose(code, np.round(code), atol=1e-4)
    np.testing.assert_allclose(code, np.round(W / jnp.abs(W).max() * 63), atol=1e-3)
    # A compiler multiplies by a reciprocal, and 121 / 11**2 comes out below one.
    odd, codes = ProgrammedCell(0.0, states=11, slices=3), jnp.arange(11.0**3)
    np.testing.assert_allclose(jax.jit(odd.perturb)(KEY, codes), codes, atol=1e-3)
    full_range = np.abs(PhaseChange(read=0.0).perturb(KEY, W) - W).mean()
    sliced = np.abs(PhaseChange(read=0.0, states=4, slices=4).perturb(KEY, W) - W).mean()
    assert sliced < 0.8 * full_range


def test_write_verify_ends_within_the_tolerance():
    model = ProgrammedCell(0.05, tries=200, tolerance=0.01)
    error = np.abs(model.perturb(KEY, W) - W) / np.abs(W).max()
    assert error.max() <= 0.02 + 1e-6  # of a pair
    assert (np.abs(ProgrammedCell(0.05).perturb(KEY, W) - W) / np.abs(W).max()).max() > 0.05


def test_channels_have_tops_of_their_own():
    small = W.at[:, 0].multiply(1e-3)
    full_range = PhaseChange(read=0.0).perturb(KEY, small)
    own = PhaseChange(read=0.0, tops="channel").perturb(KEY, small)
    assert np.abs(own - small)[:, 0].max() < 1e-2 * np.abs(full_range - small)[:, 0].max()


@pytest.mark.slow
def test_devices_and_times_are_vmapped_and_the_transform_takes_cells():
    def f(params, x):
        return x @ params["w"]

    def at(device, time):
        return noisy(f, {"*:linear": PhaseChange(time=time, device=device)})(KEY, {"w": W}, X)

    X = jnp.ones((2, 40))
    assert sites(f, {"w": W}, X)
    out = jax.jit(jax.vmap(jax.vmap(at, (None, 0)), (0, None)))(jnp.arange(3), jnp.array([0, DAY]))
    assert out.shape == (3, 2, 2, 30)
    assert (out[0] != out[1]).any()
    assert (out[:, 0] != out[:, 1]).any()
    np.testing.assert_allclose(out[1, 1], at(1, DAY), rtol=1e-5)


@pytest.mark.parametrize(("bad", "message"), [
    (lambda: PhaseChange(time=-1.0), "time"),
    (lambda: PhaseChange(top=50.0), "top"),
    (lambda: ResistiveRAM(top=50.0), "top"),
    (lambda: ChargeTrap(top=1500.0), "top"),
    (lambda: ResistiveRAM(slices=2), "number of states"),
    (lambda: ChargeTrap(states=1), "states"),
    (lambda: StaticRAM(capacitance=0.0), "capacitance"),
    (lambda: ProgrammedCell(tops="row"), "tops"),
])  # fmt: skip
def test_bad_numbers_are_refused_by_name(bad, message):
    with pytest.raises(ValueError, match=message):
        bad()
