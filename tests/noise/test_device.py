"""What belongs to a device: the same in every call, and the statistics of drift, traps, columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import Gaussian, moments, sites
from jaxeff.noise import Additive, Drift, Mismatch, Repeated, SiteNoise, Telegraph, noisy

KEY, OTHER = jax.random.key(0), jax.random.key(1)
X = jax.random.normal(jax.random.key(2), (4, 5, 5, 3))
MODELS = {
    "drift": Drift(100.0, 0.05, 0.02, device=3),
    "telegraph": Telegraph(1.0, up=2.0, down=1.0, time=1.5, device=3),
    "mismatch": Mismatch(0.1, 0.2, length=2.0, device=3),
}
every = pytest.mark.parametrize("name", MODELS)


def two_layers(params, x):
    return x @ params["a"], x @ params["b"]


def within_standard_error(samples, mean, var):
    """Compares the mean and variance of samples with their expectation, at 5 SE."""
    samples = np.asarray(samples, np.float64)
    n = len(samples)
    assert (np.abs(samples.mean(0) - mean) < 5 * np.sqrt(var / n) + 1e-6).all()
    centred = (samples - samples.mean(0)) ** 2
    assert (np.abs(centred.mean(0) - var) < 5 * centred.std(0) / np.sqrt(n) + 1e-6).all()


# Every model -------------------------------------------------------------------------------------


@pytest.mark.slow
@every
def test_a_device_is_the_same_in_every_call_and_for_every_sample(name):
    model = MODELS[name]
    assert isinstance(model, SiteNoise)
    out = model.perturb(KEY, X)
    np.testing.assert_array_equal(out, model.perturb(OTHER, X))
    np.testing.assert_array_equal(out[1:2], model.perturb(KEY, X[1:2]))
    assert out.dtype == X.dtype
    assert model.perturb(KEY, X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.slow
@every
def test_sites_and_devices_differ_and_calls_of_a_network_agree(name):
    model = MODELS[name]
    params = {"a": jnp.eye(16), "b": jnp.eye(16)}
    x = jnp.ones((2, 16))
    g = noisy(two_layers, {"a": model, "b": model})
    a, b = g(KEY, params, x)
    assert (a != b).any()
    again = noisy(two_layers, {"a": model, "b": Additive(1.0)})(OTHER, params, x)[0]
    np.testing.assert_array_equal(a, again)

    def of_device(device):
        replaced = type(model)(**{**vars(model), "device": device})
        return noisy(two_layers, {"a": replaced})(KEY, params, x)[0]

    devices = jax.jit(jax.vmap(of_device))(jnp.arange(5))
    np.testing.assert_allclose(devices[3], a, rtol=1e-6)
    assert len(np.unique(devices.reshape(5, -1), axis=0)) == 5


@every
def test_weights_of_a_device_have_no_samples(name):
    placed = type(MODELS[name])(**{**vars(MODELS[name]), "at": "weights"})
    kernel = jnp.ones((6, 7))
    rows = placed.perturb(KEY, kernel)
    same = (rows == rows[:1]).all()
    assert same == (name == "mismatch")  # a column's errors are those of all its weights
    g = noisy(lambda p, x: x @ p["w"], {"w": placed})
    np.testing.assert_array_equal(
        g(KEY, {"w": kernel}, jnp.eye(6)), g(OTHER, {"w": kernel}, jnp.eye(6))
    )


@pytest.mark.slow
def test_repetition_does_not_average_a_device_away():
    params, x = {"a": jnp.eye(3), "b": jnp.eye(3)}, X[:, 0, 0]
    once = noisy(two_layers, {"a": MODELS["drift"]})(KEY, params, x)[0]
    repeated = noisy(two_layers, {"a": Repeated(MODELS["drift"], 3)})(KEY, params, x)[0]
    np.testing.assert_allclose(once, repeated, rtol=1e-6)


@pytest.mark.slow
def test_other_transforms_see_the_layers_of_a_device():
    g = noisy(two_layers, {"a": MODELS["telegraph"], "b": MODELS["mismatch"]})
    params, x = {"a": jnp.eye(3), "b": jnp.eye(3)}, X[:, 0, 0]
    assert [s for s in sites(g, KEY, params, x) if s in "ab"] == ["a", "b"]
    spread = jax.tree.map(lambda w: Gaussian(w, 0.1 * jnp.ones_like(w)), params)
    predicted = moments(jax.checkpoint(g), method="diagonal")(KEY, spread, x)
    for ours, plain in zip(predicted, g(KEY, params, x), strict=True):
        np.testing.assert_allclose(ours.mean, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", [Drift, lambda **c: Telegraph(0.1, **c), Mismatch])
def test_bad_devices_are_named(model):
    choices = {"time": 1.0} if model is Drift else {}
    with pytest.raises(TypeError, match=r"\.device must be an integer, not 0\.5"):
        model(device=0.5, **choices)
    with pytest.raises(ValueError, match=r"\.device must be at least 0"):
        model(device=-1, **choices)


# Drift -------------------------------------------------------------------------------------------


def test_drift_has_the_moments_of_a_log_normal_factor():
    time, nu, spread = 50.0, 0.06, 0.03
    x = jnp.full((1, 20_000), 2.0)
    samples = Drift(time, nu, spread).perturb(KEY, x)[0]
    log = np.log(time)
    mean = 2 * np.exp(-nu * log + (spread * log) ** 2 / 2)
    within_standard_error(samples, mean, mean**2 * np.expm1((spread * log) ** 2))


def test_drift_without_spread_is_the_power_of_time_for_every_sample_its_own():
    times = np.array([1.0, 10.0, 100.0, 1e6], np.float32)
    out = jax.jit(Drift(times, 0.05, along="sample").perturb)(KEY, X)
    np.testing.assert_allclose(out, X * times[:, None, None, None] ** -0.05, rtol=1e-5)
    np.testing.assert_array_equal(Drift(1.0, 0.05, 0.02).perturb(KEY, X), X)


def test_an_exponent_belongs_to_its_element_or_channel():
    def exponents(time, **choices):
        ones = jnp.ones((2, 3, 3, 4))
        drifted = Drift(time, 0.05, 0.02, **choices).perturb(KEY, ones)
        return -np.log(drifted) / np.log(time)

    np.testing.assert_allclose(exponents(10.0), exponents(1000.0), atol=1e-5)
    assert len(np.unique(exponents(10.0)[0])) > 30
    shared = exponents(10.0, per="channel")
    np.testing.assert_allclose(shared, np.broadcast_to(shared[:1, :1, :1], shared.shape))
    assert len(np.unique(shared[0, 0, 0])) == 4


def test_gradients_reach_exponent_and_time():
    def total(nu, time):
        return Drift(time, nu).perturb(KEY, jnp.float32(2.0))

    d_nu, d_time = jax.grad(total, (0, 1))(0.1, 10.0)
    np.testing.assert_allclose(d_nu, -2 * np.log(10) * 10**-0.1, rtol=1e-5)
    np.testing.assert_allclose(d_time, -0.1 * 2 * 10**-1.1, rtol=1e-5)


# Telegraph ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("up", "down"), [(2.0, 1.0), (0.1, 3.0)])
def test_telegraph_has_the_occupancy_and_autocorrelation_of_its_process(up, down):
    traps = 20_000
    times = jnp.array([0.0, 0.1, 0.5, 1.0, 3.0])
    states = np.asarray(Telegraph(1.0, up, down).trace(times, (traps,)), np.float64)
    occupancy = up / (up + down)
    var = occupancy * (1 - occupancy)
    assert (np.abs(states.mean(1) - occupancy) < 5 * np.sqrt(var / traps)).all()
    products = (states - occupancy) * (states[:1] - occupancy)
    error = products.std(1) / np.sqrt(traps)
    expected = var * np.exp(-(up + down) * np.asarray(times))
    assert (np.abs(products.mean(1) - expected) < 5 * error).all()


@pytest.mark.oracle
def test_telegraph_has_exponential_holding_times():
    up, down, step = 0.5, 2.0, 0.02
    trace = np.asarray(Telegraph(1.0, up, down).trace(np.arange(0, 40, step), (500,)))
    for state, rate in ((False, up), (True, down)):
        leaves = (trace[1:] != state) & (trace[:-1] == state)
        visits = (trace[:-1] == state).sum()
        expected = -np.expm1(-rate * step)
        # Seen switched after one step, up to an even number of further switches.
        tolerance = 5 * np.sqrt(expected / visits) + up * down * step**2
        assert abs(leaves.sum() / visits - expected) < tolerance


@pytest.mark.slow
def test_reading_and_trace_are_one_process():
    times = jnp.array([0.0, 3.0, 1.0, 7.3])  # one read-out each
    each = Telegraph(1.0, 2.0, 1.0, times, along="sample").perturb(KEY, 0 * X)
    np.testing.assert_array_equal(each, Telegraph(1.0, 2.0, 1.0).trace(times, X.shape[1:]))
    last = Telegraph(1.0, 2.0, 1.0, time=7.3).perturb(KEY, 0 * X)
    np.testing.assert_array_equal(last, jnp.broadcast_to(each[3], X.shape))


@pytest.mark.slow
def test_rates_of_zero_and_gradients():
    assert not Telegraph(1.0, up=0.0, down=0.0, time=9.0).perturb(KEY, jnp.zeros((1, 99))).any()
    assert not Telegraph(1.0, up=0.0, down=1.0, time=9.0).perturb(KEY, jnp.zeros((1, 99))).any()
    assert Telegraph(1.0, up=1.0, down=0.0, time=9.0).perturb(KEY, jnp.zeros((1, 99))).all()

    def total(amplitude, up):
        return Telegraph(amplitude, up, 1.0, time=2.0).perturb(KEY, jnp.zeros((1, 99))).sum()

    d_amplitude, d_up = jax.jit(jax.grad(total, (0, 1)))(0.5, 2.0)
    assert d_amplitude == total(1.0, 2.0)
    assert d_up == 0


def test_telegraph_refuses_what_would_take_forever():
    with pytest.raises(ValueError, match=r"follow 1e\+06 switches .* from a later start"):
        Telegraph(1.0, 1.0, 1.0, time=1e6)
    with pytest.raises(ValueError, match=r"follow 1e\+06 switches"):
        Telegraph(1.0, 1.0, 1.0).trace(np.array([0.0, 1e6]))
    with pytest.raises(ValueError, match=r"Telegraph\.up must be at least 0"):
        Telegraph(1.0, up=-1.0)
    with pytest.raises(ValueError, match=r"times must be at least 0"):
        Telegraph(1.0).trace(np.array([-1.0]))
    with pytest.raises(
        ValueError, match=r"Telegraph\.per must be one of 'element', 'channel', not"
    ):
        Telegraph(1.0, per="sample")


# Mismatch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0.0, 3.0, 1000.0])
def test_columns_correlate_by_their_distance(length):
    n, columns = 10_000, 8

    def errors(device):
        return Mismatch(0.5, 0.0, length, device).perturb(KEY, jnp.ones((1, columns)))[0] - 1

    errors = np.asarray(jax.jit(jax.vmap(errors))(jnp.arange(n)), np.float64)
    within_standard_error(errors, 0.0, np.full(columns, 0.25))
    distance = np.abs(np.subtract.outer(np.arange(columns), np.arange(columns)))
    expected = np.exp(-distance / length) if length else np.eye(columns)
    # The standard error of a correlation is (1 - rho^2) / sqrt(n).
    error = 5 * (1 - expected**2) / np.sqrt(n) + 1e-6
    assert (np.abs(np.corrcoef(errors.T) - expected) < error).all()


@pytest.mark.slow
def test_gain_and_offset_are_independent_and_shared_by_a_column():
    model = Mismatch(0.2, 0.3, length=2.0, device=1)
    offset = model.perturb(KEY, jnp.zeros(X.shape))
    np.testing.assert_array_equal(offset, jnp.broadcast_to(offset[0, 0, 0], X.shape))
    gain = model.perturb(KEY, jnp.ones(X.shape)) - offset
    np.testing.assert_allclose(model.perturb(KEY, X), X * gain + offset, rtol=1e-5, atol=1e-6)
    wide = jnp.zeros((1, 2_000))
    alone = [Mismatch(*levels).perturb(KEY, wide + 1)[0] - 1 for levels in ((1.0, 0.0), (0.0, 1.0))]
    assert abs(np.corrcoef(alone)[0, 1]) < 5 / np.sqrt(2_000)


@pytest.mark.slow
def test_gradients_reach_levels_and_length():
    def total(gain, length):
        return (Mismatch(gain, 0.1, length).perturb(KEY, X) ** 2).sum()

    point, eps = (0.3, 2.0), 1e-2
    for i, shift in enumerate(np.eye(2) * eps):
        slope = (total(*(point + shift)) - total(*(point - shift))) / (2 * eps)
        np.testing.assert_allclose(jax.grad(total, i)(*point), slope, rtol=1e-2)
    assert jnp.isfinite(jax.grad(total, 1)(0.3, 0.0))
