"""Decisions as bundles: sets, intervals and abstention come out of compiled code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.nn import MLP

X = jax.random.normal(jax.random.key(1), (40, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 5), rngs=nnx.Rngs(0)))
POSTERIOR = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.02 * w**2), PARAMS)
MOMENTS = jaxeff.moments(F, method="diagonal")
Y = jax.random.categorical(jax.random.key(2), 4 * F(PARAMS, X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [u.LAC(), u.APS(), u.RAPS(0.05, 1)], ids=lambda m: type(m).__name__
)
def test_sets_come_out_of_a_bundle(method, tmp_path):
    temperature = u.temperature_scale(MOMENTS(POSTERIOR, X), Y)
    g = u.tempered(MOMENTS, temperature)
    calibration = u.conformalize(g(POSTERIOR, X), Y, method, 0.7)
    sets = u.conformal(g, calibration)
    fresh = jax.random.normal(jax.random.key(3), (40, 6))
    bundle = deploy(sets, (POSTERIOR, fresh), path=tmp_path / "bundle")
    output, expected = np.asarray(bundle.run(fresh)), np.asarray(jax.jit(sets)(POSTERIOR, fresh))
    assert output.dtype == bool
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(output, expected)


@pytest.mark.slow
def test_intervals_and_abstention_come_out_of_bundles(tmp_path):
    f, params = jaxeff.functional(MLP((6, 12, 1), rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.02 * w**2), params)
    moments = jaxeff.moments(f, method="diagonal")
    targets = jax.random.normal(jax.random.key(4), (40,))
    calibration = u.conformalize(moments(posterior, X), targets, u.NormalizedResidual())
    g = u.conformal(moments, calibration)
    bundle = deploy(g, (posterior, X), path=tmp_path / "intervals")
    jax.tree.map(
        lambda ours, xla: np.testing.assert_allclose(ours, xla, rtol=1e-4, atol=1e-5),
        bundle.run(X),
        g(posterior, X),
    )
    threshold = u.coverage_threshold(u.raw_variance(MOMENTS(POSTERIOR, X)), 0.5) * 1.001
    chosen = u.selective(MOMENTS, u.raw_variance, threshold)
    bundle = deploy(chosen, (POSTERIOR, X), path=tmp_path / "selective")
    np.testing.assert_array_equal(bundle.run(X)[1], chosen(POSTERIOR, X)[1])
    assert jnp.mean(bundle.run(X)[1]) == 0.5


@pytest.mark.slow
def test_a_monitor_is_the_same_in_a_session_and_in_c(tmp_path):
    """Readings and state of 25 steps with late labels, and drift from the twelfth on."""
    calibration = u.conformalize(F(PARAMS, X), Y, u.LAC(), 0.8)
    spec = u.Monitoring(coverage=0.8, rate=0.05, delay=2, window=10, false_alarms=0.1, bins=4)
    step, state = u.monitor(jax.random.key(5), F, PARAMS, X, calibration, u.energy, spec)
    stream = jax.random.normal(jax.random.key(6), (25, 1, 6)).at[12:].multiply(4)
    labels = jnp.where(jnp.arange(25) % 3 == 0, jnp.arange(25) % 5, -1)[:, None].astype(jnp.int32)
    labels = labels.at[:2].set(-1)
    bundle = deploy(step, (PARAMS, stream[0], labels[0], state), state=("state",))
    library = bundle.export_c(tmp_path / "net", source=True)
    session, jitted, calls, expected = bundle.session(), jax.jit(step), [], []
    for x, label in zip(stream, labels, strict=True):
        calls.append([np.asarray(leaf) for leaf in jax.tree.leaves((x, label, state))])
        reading, state = jitted(PARAMS, x, label, state)
        expected.append(reading)
        assert_close(session.step(x, label), reading)
    assert_close(session.state(), state)
    assert not expected[11].alarm
    assert expected[-1].alarm
    assert 0 < float(reading.coverage) < 1
    for ours, theirs in zip(ExampleProgram(library, None).run_all(calls), expected, strict=True):
        assert_close(ours[: len(jax.tree.leaves(theirs))], theirs)


@pytest.mark.slow
def test_a_monitor_runs_on_a_microcontroller():
    require("arm-none-eabi-gcc", "qemu-system-arm")
    calibration = u.conformalize(F(PARAMS, X), Y, u.LAC(), 0.8)
    step, state = u.monitor(jax.random.key(5), F, PARAMS, X, calibration, u.energy)
    args = X[:1], Y[:1].astype(jnp.int32), state
    bundle = deploy(step, (PARAMS, *args), target="cortex-m4", state=("state",))
    assert_close(bundle.run(*args, board="emulated"), jax.jit(step)(PARAMS, *args))


def assert_close(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
