import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation.rules import maximum, window_max
from jaxeff.moment_propagation.rules._extremes import PoolingWindow, minimum, paired_max


def window(size, strides, padding=None, window_dilation=None):
    ones = (1,) * len(size)
    padding = tuple(padding or [(0, 0)] * len(size))
    return PoolingWindow(size, strides, padding, ones, window_dilation or ones)


def random(*shape, seed=0, spread=1.0):
    a, b = jax.random.split(jax.random.key(seed))
    return Gaussian(spread * jax.random.normal(a, shape), 0.2 + jax.random.uniform(b, shape))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "plain"), [(maximum, jnp.maximum), (minimum, jnp.minimum)])
def test_clark_is_exact_for_two_gaussians(rule, plain, oracle):
    x, y = random(50, seed=1), random(50, seed=2)
    oracle.assert_matches(rule(x, y), oracle.monte_carlo(plain, (x, y), 100_000))


@pytest.mark.slow
def test_maximum_with_a_constant_is_the_rectifier(oracle):
    x = random(50, spread=0.3)
    ours = maximum(x, jnp.full(50, 0.3))
    oracle.assert_matches(ours, oracle.monte_carlo(lambda x: jnp.maximum(x, 0.3), (x,), 100_000))


@pytest.mark.slow
def test_the_tree_over_four_is_as_far_off_as_documented(oracle):
    alike = Gaussian(jnp.zeros((1, 4)), jnp.ones((1, 4)))
    samples = oracle.monte_carlo(lambda x: x.max(1), (alike,), 400_000, 50_000)
    ours = paired_max(alike, (1,))
    ratio = ours.var[0] / samples.var[0]
    assert abs(ratio - 0.952) <= 0.004 + 5 * samples.var_error[0] / samples.var[0]
    unequal = random(200, 4)
    samples = oracle.monte_carlo(lambda x: x.max(1), (unequal,), 50_000)
    ours = paired_max(unequal, (1,))
    oracle.assert_matches(ours, samples, mean=0.03, var=0.21)
    assert np.median(np.asarray(ours.var) / samples.var) < 1


EXTREME = [-np.inf, -1e38, -1.0, 0.0, 1e-30, 1.0, 3e38]


@pytest.mark.slow
@pytest.mark.parametrize("var", [0.0, 1e-38, 1e-12, 1.0, 1e20])
def test_clark_never_gives_nan_nor_a_negative_variance_in_float32(var):
    m1, m2 = (jnp.asarray(m, jnp.float32).ravel() for m in np.meshgrid(EXTREME, EXTREME))

    def both(m1, m2, v1, v2):
        out = maximum(Gaussian(m1, v1), Gaussian(m2, v2))
        return jnp.stack([out.mean, out.var])

    args = (m1, m2, jnp.full_like(m1, var), jnp.full_like(m1, var / 2))
    out = jax.vmap(both)(*args)
    assert not np.isnan(out).any()
    assert (np.asarray(out[:, 1]) >= 0).all()
    assert all(np.isfinite(g).all() for g in jax.vmap(jax.jacrev(both, (0, 1, 2, 3)))(*args))
    if var == 0:
        np.testing.assert_array_equal(out[:, 0], jnp.maximum(m1, m2))
        np.testing.assert_array_equal(out[:, 1], 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    shape=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 1), st.integers(0, 1)),
    dilation=st.integers(1, 2),
)
def test_windows_of_certain_values_are_those_of_reduce_window(
    shape, size, strides, padding, dilation
):
    x = jax.random.normal(jax.random.key(0), shape)
    pads = tuple((min(p, s - 1),) * 2 for p, s in zip(padding, size, strict=True))
    win = window(size, strides, pads, window_dilation=(dilation, 1))
    ours = jax.jit(lambda x: window_max(Gaussian(x, jnp.zeros_like(x)), win))(x)
    expected = jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, size, strides, pads, None, (dilation, 1)
    )
    np.testing.assert_array_equal(ours.mean, expected)
    np.testing.assert_array_equal(ours.var, 0)


def pool(kind, size, stride, padding):
    def f(_, x):
        fn = {"max": nn.max_pool, "avg": nn.avg_pool}[kind]
        return fn(x, (size, size), (stride, stride), padding)

    return f


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_average_pooling_is_exact_and_max_pooling_within_its_bias(size, padding, oracle):
    x = random(1, 5, 5, 2)
    average = pool("avg", size, 2, padding)
    oracle.assert_matches(
        jax.jit(moments(average, method="diagonal"))({}, x), oracle.monte_carlo(average, ({}, x))
    )
    top = pool("max", size, 2, padding)
    # A tree over nine is off by more than one over four.
    bias = {"mean": 0.03, "var": 0.21} if size == 2 else {"mean": 0.07, "var": 0.31}
    oracle.assert_matches(
        jax.jit(moments(top, method="diagonal"))({}, x), oracle.monte_carlo(top, ({}, x)), **bias
    )


@pytest.mark.parametrize("spread", [1e-6, 1e-2, 1.0])
def test_padding_leaves_forward_derivatives_of_what_wins(spread):
    """The lowest numbers pad: far enough for an infinite derivative, which counts for nothing."""
    x = random(1, 4, 4, 1)
    x = Gaussian(x.mean, spread**2 * x.var)
    low = jnp.full((1, 5, 5, 1), x.mean.min() - 50)

    def step(f):
        """Of the result, along a step of means and variances that grow (forward mode)."""
        return jax.jit(lambda x: jax.jvp(f, (x,), (Gaussian(jnp.ones_like(x.mean), x.var),))[1])(x)

    def by_hand(x):
        mean = low.at[:, :4, :4].set(x.mean)
        var = jnp.zeros_like(low).at[:, :4, :4].set(x.var)
        return window_max(Gaussian(mean, var), window((1, 3, 3, 1), (1, 2, 2, 1)))

    padding = ((0, 0), (0, 1), (0, 1), (0, 0))
    padded = step(lambda x: window_max(x, window((1, 3, 3, 1), (1, 2, 2, 1), padding)))
    for ours, expected in zip(jax.tree.leaves(padded), jax.tree.leaves(step(by_hand)), strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6 * np.abs(expected).max())


@pytest.mark.slow
def test_global_pooling(oracle):
    x = random(2, 3, 3, 2)
    for f, bias in (
        (lambda _, x: x.mean((1, 2)), {}),
        (lambda _, x: x.sum((1, 2)), {}),
        (lambda _, x: x.max((1, 2)), {"mean": 0.07, "var": 0.31}),
        (lambda _, x: x.min((1, 2)), {"mean": 0.07, "var": 0.31}),
    ):
        oracle.assert_matches(
            jax.jit(moments(f, method="diagonal"))({}, x), oracle.monte_carlo(f, ({}, x)), **bias
        )


@pytest.mark.slow
def test_a_rectifier_is_pooled_before_it_is_applied(oracle):
    """Clark's rule wants Gaussian operands: pooling first removes most of the bias."""
    x = random(1, 12, 12, 2)

    def f(_, x):
        return nn.max_pool(jax.nn.relu(x), (2, 2), (2, 2))

    samples = oracle.monte_carlo(f, ({}, x))
    ours = moments(f, method="diagonal")({}, x)
    after = window_max(
        moments(lambda _, x: jax.nn.relu(x), method="diagonal")({}, x),
        window((1, 2, 2, 1), (1, 2, 2, 1)),
    )

    def deviation(out):
        return np.sqrt(np.mean((np.sqrt(out.var / samples.var) - 1) ** 2))

    assert deviation(ours) < 0.1 < 0.2 < deviation(after)
    oracle.assert_matches(ours, samples, mean=0.06, var=0.35)


@pytest.mark.slow
def test_commuting_with_the_maximum_also_holds_for_other_nondecreasing_activations():
    x = random(1, 4, 4, 2)
    for activation in (jax.nn.relu6, jax.nn.leaky_relu, jax.nn.hard_tanh):

        def f(_, x, activation=activation):
            return nn.max_pool(activation(x), (2, 2), (2, 2))

        def g(_, x, activation=activation):
            return activation(nn.max_pool(x, (2, 2), (2, 2)))

        a, b = moments(f, method="diagonal")({}, x), moments(g, method="diagonal")({}, x)
        np.testing.assert_array_equal(a.mean, b.mean)
        np.testing.assert_array_equal(a.var, b.var)
