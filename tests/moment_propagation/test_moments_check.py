"""What `moments_check` says of networks whose variances are right, or wrong in a known way."""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.moment_propagation import Gaussian, calibrate_moments

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 8, 8, 2))


def dense(p, x):
    return jnp.tanh(x.reshape(len(x), -1) @ p["first"]) @ p["head"]


def conv(p, x):
    """Positions share their kernel, which the mean over rectified ones forgets."""
    for name in ("first", "second"):
        y = jax.lax.conv_general_dilated(
            x, p[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x + jax.nn.relu(y)
    return x.mean((1, 2)) @ p["head"]


def posterior(noise, *first):
    keys = jax.random.split(KEY, 3)
    means = {
        "first": jax.random.normal(keys[0], first) / 5,
        "second": jax.random.normal(keys[2], first) / 5,
        "head": jax.random.normal(keys[1], (first[-1], 4)) / 4,
    }
    return jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, noise**2 * jnp.var(w))), means)


def test_right_variances_are_called_right():
    check = jaxeff.moments_check(KEY, dense, posterior(0.05, 128, 32), X)
    assert check.reference == "linear"
    assert check.agrees
    assert check.advice.startswith("The variances agree (nine in ten lie within ")
    # Six inputs can't show what one in ten of them has.
    assert check.advice.endswith("take moments(f) as it is. This is of 6 inputs: ask 10 or more.")
    np.testing.assert_allclose(check.noise, 0.05, rtol=1e-3)
    assert check.ratio.error == pytest.approx(0.06)
    assert check.mean_error < 0.3


@pytest.mark.slow
def test_draws_state_their_error_and_agree_with_the_linear_method():
    weights = posterior(0.05, 128, 32)
    check = jaxeff.moments_check(KEY, dense, weights, X, draws=800)
    assert check.reference == "draws"
    assert check.ratio.error == pytest.approx(0.05)
    linear = jaxeff.moments_check(KEY, dense, weights, X)
    # 24 entries, each of them known to 5 %.
    assert abs(check.ratio.median / linear.ratio.median - 1) < 0.06
    assert jaxeff.moments_check(KEY, dense, posterior(0.3, 128, 32), X).reference == "draws"


def twice(p, x):
    """A residual stream whose terms share a kernel, seen by no layer that would average it."""
    x = x[:, 0, 0]
    for _ in range(3):
        x = x + jnp.tanh(x @ p["first"])
    return x @ p["head"]


@pytest.mark.slow
def test_a_linear_reference_that_draws_contradict_is_none():
    """Small noise, and a function whose slopes change within it."""

    def bent(p, x):
        h = conv(p, x)
        for _ in range(4):
            h = h + jnp.sin(6 * h)
        return h

    check = jaxeff.moments_check(KEY, bent, posterior(0.1, 3, 3, 2, 2), X, method="diagonal")
    assert check.noise <= 0.1 + 1e-6
    assert check.reference == "draws"
    assert check.linear_error > 1
    assert "linear" not in check.advice
    assert "off those draws" in check.verdict
    smooth = jaxeff.moments_check(KEY, conv, posterior(0.1, 3, 3, 2, 2), X, method="diagonal")
    assert smooth.reference == "linear"
    assert smooth.linear_error < 0.26


@pytest.mark.slow
def test_shared_kernels_are_right_by_default():
    check = jaxeff.moments_check(KEY, conv, posterior(0.05, 3, 3, 2, 2), X)
    assert check.method == "linear"
    assert check.reference == "draws"  # the linear method would agree with itself
    assert abs(check.ratio.median - 1) < 0.13 + check.ratio.error


@pytest.mark.slow
def test_wrong_variances_have_a_place_and_an_advice():
    weights = posterior(0.05, 2, 2)
    weights["head"] = weights["head"].mean
    check = jaxeff.moments_check(KEY, twice, weights, X, sites=True, method="diagonal")
    assert not check.agrees
    losses = [abs(np.log(one.ratio.median)) for one in check.sites if one.ratio]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > np.log(1.3)
    assert "first" in check.sites[0].shares
    assert "calibrate_moments" in check.advice or "linear" in check.advice
    text = str(check)
    assert check.advice in text
    assert "own error is 6%" in text
    assert "<table>" in check._repr_html_()
    assert check.advice in check.verdict
    assert f"{check.ratio.median:.2f} ({check.ratio.low:.2f}" in check.verdict
    verdict = jaxeff.moments_check(KEY, twice, weights, X, method="diagonal")
    # The same verdict without the places, which are named alone.
    assert verdict.ratio == check.ratio
    assert {one.site for one in verdict.sites} == {one.site for one in check.sites}
    assert not any(one.ratio for one in verdict.sites)
    assert "sites against" in text
    assert "sites against" not in str(verdict)


@pytest.mark.slow
def test_calibrated_variances_are_checked_as_calibrated():
    weights = posterior(0.05, 2, 2)
    calibrated = jaxeff.calibrate_moments(KEY, twice, weights, X, samples=400)
    before = jaxeff.moments_check(KEY, twice, weights, X).ratio.median
    after = jaxeff.moments_check(KEY, twice, calibrated, X).ratio.median
    assert abs(after - 1) < abs(before - 1)


@pytest.mark.slow
def test_several_results_and_undefined_ones():
    weights = posterior(0.05, 128, 32)
    f = lambda p, x: (dense(p, x), dense(p, x).argmax(-1), jnp.ones(3))  # noqa: E731
    assert jaxeff.moments_check(KEY, f, weights, X).agrees
    assert jaxeff.moments_check(KEY, lambda p, x: x, weights, X).ratio is None
    with pytest.raises(ValueError, match="nothing is random"):
        jaxeff.moments_check(KEY, dense, {n: g.mean for n, g in weights.items()}, X)


def test_one_factor_leaves_an_error_that_is_stated():
    """LeNet-5's ratios at 3 %: calibration left a median error of 12 %."""
    check = jaxeff.moments_check(KEY, dense, posterior(0.05, 128, 32), X)
    ratio = check.ratio._replace(median=0.81, low=0.56, high=0.94)
    one = dataclasses.replace(check, ratio=ratio)
    assert "calibrate_moments" in one.advice
    assert "half of them 11% off or more" in one.advice


def test_a_median_alone_is_no_verdict():
    """An LSTM's ratios at noise of 10 %: the median is near one, a tail is a quarter of it."""
    check = jaxeff.moments_check(KEY, dense, posterior(0.05, 128, 32), X)
    given = dataclasses.replace(check, inputs=10)
    assert given.agrees
    assert "ask 10" not in given.advice
    right = check.ratio._replace(median=0.89, low=0.75, high=0.96)
    for tail in (right._replace(low=0.25), right._replace(high=1.6)):
        one = dataclasses.replace(given, ratio=tail)
        assert not one.agrees
        said = (
            f"The median is right, but the variances spread (nine in ten lie within {tail.low:.2f}"
        )
        assert one.advice.startswith(said)
        assert 'method="linear"' in one.advice
        assert one.advice in one.verdict
    # The same tail beside a wrong median, which is what is said first.
    wrong = dataclasses.replace(given, ratio=right._replace(median=0.5, low=0.25))
    assert wrong.advice.startswith("The variances are off (nine in ten lie within 0.25 to 0.96")


@pytest.mark.slow
def test_equal_places_are_compiled_once(monkeypatch):
    programs = []
    compiled = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda self, *args, **kwargs: programs.append(self) or compiled(self, *args, **kwargs),
    )

    def count(depth):
        def f(p, x):
            for w in p:
                x = x + jax.nn.relu(x @ w)
            return x

        keys = jax.random.split(KEY, depth)
        posterior = [
            Gaussian(jax.random.normal(k, (4, 4)) / 4, jnp.full((4, 4), 0.01)) for k in keys
        ]
        programs.clear()
        places = jaxeff.moment_propagation.measure_assumptions(
            KEY, f, posterior, X[0, :, 0].repeat(2, -1), samples=20, chunk=1
        )
        assert len(places) >= depth - 1
        assert all(one.ratio is not None for one in places)
        return len(programs)

    assert count(3) == count(6)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, weights: jaxeff.moments_check(KEY, f, weights, X, draws=4),
        lambda f, weights: calibrate_moments(KEY, f, weights, X, samples=4, form="static"),
    ],
    ids=["moments_check", "calibrate_moments"],
)
def test_what_the_host_compiles_is_kept_as_long_as_the_function_lives(call):
    calls = []

    def f(params, x):
        calls.append(x.shape)
        return dense(params, x)

    weights = posterior(0.05, 128, 8)
    first = call(f, weights)
    reads = len(calls)
    assert str(call(f, weights)) == str(first)
    assert len(calls) == reads > 0
    alive = weakref.ref(f)
    del f
    gc.collect()
    assert alive() is None
