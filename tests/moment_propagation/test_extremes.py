"""Maxima of many, and inverses and logarithms of a tensor's variance, against Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxeff.moment_propagation import Gaussian, assumptions, moments
from jaxeff.moment_propagation.rules._extremes import reduce_max, reduce_min

SAMPLES = 40_000


def entries(count, kind):
    keys = jax.random.split(jax.random.key(count), 2)
    mean = jax.random.normal(keys[0], (4, count))
    var = jnp.ones_like(mean)
    if kind in ("scales", "some known"):
        var = jnp.exp(3 * jax.random.normal(keys[1], mean.shape))
    if kind == "some known":
        var = var.at[:, ::2].set(0)
    return Gaussian(jnp.zeros_like(mean) if kind == "alike" else mean, var)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["alike", "unequal", "scales", "some known"])
@pytest.mark.parametrize("count", [5, 16, 64])
def test_the_maximum_of_many_is_that_of_monte_carlo(count, kind, oracle):
    x = entries(count, kind)
    ours = jax.jit(lambda x: reduce_max(x, (1,)))(x)
    true = oracle.monte_carlo(lambda x: x.max(-1), (x,), SAMPLES)
    oracle.assert_matches(ours, true, mean=1e-4, var=1e-3)


def test_axes_and_minima():
    x = Gaussian(jax.random.normal(jax.random.key(0), (2, 3, 4)), jnp.full((2, 3, 4), 0.1))
    both = reduce_max(x, (0, 2))
    flat = reduce_max(
        Gaussian(*(jnp.moveaxis(m, 1, 0).reshape(3, -1) for m in (x.mean, x.var))), (1,)
    )
    np.testing.assert_array_equal(both.var, flat.var)
    least = reduce_min(x, (0, 2))
    np.testing.assert_array_equal(least.mean, -reduce_max(Gaussian(-x.mean, x.var), (0, 2)).mean)


def test_known_and_infinite_entries():
    known = Gaussian(jnp.arange(6.0), jnp.zeros(6))
    assert [float(m) for m in (reduce_max(known, (0,)).mean, reduce_max(known, (0,)).var)] == [5, 0]
    masked = Gaussian(jnp.array([-jnp.inf, 0, 1, 2, 3, 4]), jnp.array([0.0, 1, 1, 1, 1, 1]))
    without = Gaussian(masked.mean[1:], masked.var[1:])
    np.testing.assert_allclose(reduce_max(masked, (0,)).var, reduce_max(without, (0,)).var, 1e-6)
    top = reduce_max(Gaussian(masked.mean.at[0].set(jnp.inf), masked.var), (0,))
    assert (top.mean, top.var) == (jnp.inf, 0)


@pytest.mark.slow
def test_the_largest_of_what_is_written_to_a_place(oracle):
    """5 standard errors of 40,000 draws; a segment without entries is certain."""
    segments = jnp.array([0, 2, 2, 2, 4, 2, 0])
    x = Gaussian(jax.random.normal(jax.random.key(0), (7, 2)), jnp.full((7, 2), 0.6))
    start = Gaussian(jnp.zeros((5, 2)), jnp.full((5, 2), 0.3))

    def f(x, start):
        top = jax.ops.segment_max(x, segments, 5)
        least = jax.ops.segment_min(x, segments, 5)
        written = start.at[segments].max(x)
        return jnp.concatenate([top, least, written], 1)

    ours = jax.jit(moments(lambda x, s: f(x, s), method="diagonal"))(x, start)
    filled = jnp.array([0, 2, 4])
    true = oracle.monte_carlo(lambda x, s: f(x, s)[filled], (x, start), SAMPLES)
    oracle.assert_matches(jax.tree.map(lambda a: a[filled], ours), true, mean=1e-4, var=1e-3)
    assert (ours.mean[1, :4] == jnp.array([-jnp.inf, -jnp.inf, jnp.inf, jnp.inf])).all()
    assert (ours.var[1, :4] == 0).all()
    np.testing.assert_allclose(ours.var[1, 4:], 0.3, rtol=1e-3)
    slopes = jax.jit(jax.grad(lambda x: moments(f, method="diagonal")(x, start).var[filled].sum()))(
        x
    )
    assert all(np.isfinite(a).all() for a in (slopes.mean, slopes.var))
    rows = jax.vmap(lambda x: moments(f, method="diagonal")(x, start), out_axes=1)(
        jax.tree.map(lambda a: a[None], x)
    )
    np.testing.assert_allclose(rows.var[:, 0], ours.var, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alike", "some known"])
def test_gradients_are_those_of_finite_differences(kind):
    x = entries(8, kind)
    check_grads(
        lambda m: reduce_max(Gaussian(m, x.var), (1,)).mean, (x.mean,), 1, ["rev"], 1e-2, 1e-2, 1e-2
    )


STATISTICS = {
    "1/std": lambda x: 1 / x.std(-1),
    "1/norm": lambda x: 1 / jnp.linalg.norm(x, axis=-1),
    "1/variance": lambda x: 1 / x.var(-1),
    "1/mean square": lambda x: 1 / (x * x).mean(-1),
    "log variance": lambda x: jnp.log(x.var(-1) + 0.1),
    "log of a sum of squares": lambda x: jnp.log((x * x).sum(-1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATISTICS)
def test_powers_and_logarithms_of_a_variance(name, oracle):
    """Within 5 % of 16 entries with a variance as large as their mean square, 3 % of 64."""
    for count, tolerance in ((16, 0.05), (64, 0.03)):
        x = entries(count, "unequal")
        ours = jax.jit(moments(STATISTICS[name], method="diagonal"))(x)
        true = oracle.monte_carlo(STATISTICS[name], (x,), SAMPLES)
        oracle.assert_matches(ours, true, mean=0.02, var=tolerance)


@pytest.mark.parametrize("f", [*STATISTICS.values(), jax.nn.standardize])
def test_what_is_inexact_for_few_entries_is_listed(f):
    few, many = (Gaussian(jnp.ones((2, n)), jnp.full((2, n), 0.5)) for n in (8, 16))
    (assumption,) = assumptions(f, few)
    assert "of so few entries" in str(assumption)
    assert not assumptions(f, many)


def test_a_log_sum_exp_is_listed():
    (assumption,) = assumptions(lambda x: jax.nn.logsumexp(x, -1), entries(64, "unequal"))
    assert "log-sum-exp" in str(assumption)


POSITIVE = {
    "1/x": lambda x: 1 / x,
    "2/x": lambda x: 2 / x + 1,
    "x^-2": lambda x: x**-2,
    "x^-1.5": lambda x: x**-1.5,
    "x^1.5": lambda x: x**1.5,
    "root": jnp.sqrt,
    "inverse root": jax.lax.rsqrt,
    "logarithm": jnp.log,
    "log1p": lambda x: jnp.log1p(x - 1),
    "quotient": lambda x: x[::-1] / x,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POSITIVE)
def test_functions_with_a_pole_or_a_branch_that_is_out_of_reach(name, oracle):
    """From 6.3 standard deviations on exact: 5 standard errors of 100,000 draws and 1 %."""
    f = POSITIVE[name]
    x = Gaussian(jnp.array([4.0, 4.0, 5.0, 0.04]), jnp.array([0.4, 0.16, 0.04, 4e-5]))
    x = x if name != "log1p" else Gaussian(x.mean + 0.5, x.var)
    ours = jax.jit(moments(f, method="diagonal"))(x)
    oracle.assert_matches(ours, oracle.monte_carlo(f, (x,), 100_000, 20_000), var=0.01)
    slopes = jax.jit(jax.grad(lambda x: moments(f, method="diagonal")(x).var.sum()))(x)
    assert all(np.isfinite(a).all() for a in (slopes.mean, slopes.var))


def test_poles_do_not_depend_on_the_scale_of_their_operand():
    distance = jnp.array([2.0, 3.9, 4.2, 5.0, 7.0, 100.0])
    for f, power in ((lambda x: 1 / x, 1), (lambda x: x**-1.5, 1.5)):
        one, tiny = (
            jax.jit(moments(f, method="diagonal"))(Gaussian(distance * s, jnp.full(6, s * s)))
            for s in (1.0, 1e-4)
        )
        np.testing.assert_allclose(tiny.mean, one.mean * 1e4**power, rtol=1e-4)
        np.testing.assert_allclose(tiny.var, one.var * 1e8**power, rtol=1e-3)
        relative = one.var * distance ** (2 * power)
        assert (jnp.diff(relative) < 0).all()  # from log-normal to Gaussian without a jump back


@pytest.mark.slow
def test_a_pole_within_reach_makes_a_log_normal():
    """Its variance is infinite; what is given is finite, and exact for a log-normal variable."""
    x = Gaussian(jnp.array([1.0, -1.0]), jnp.array([0.2, 0.2]))
    for f, power in ((lambda x: 1 / x, 1), (lambda x: x**-2, 2)):
        y = moments(f, method="diagonal")(x)
        spread = jnp.log(1.2)  # of the logarithm
        mean = jnp.exp(power * spread / 2 + power**2 * spread / 2)
        np.testing.assert_allclose(abs(y.mean), mean, rtol=1e-5)
        np.testing.assert_allclose(y.var, mean**2 * jnp.expm1(power**2 * spread), rtol=1e-5)
        assert jnp.isfinite(
            jax.grad(lambda x, f=f: moments(f, method="diagonal")(x).var.sum())(x).var
        ).all()
