import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation._values import RawMoments, to_raw
from jaxeff.moment_propagation.rules import bilinear

KEYS = iter(jax.random.split(jax.random.key(7), 100))


def normal(*shape):
    return jax.random.normal(next(KEYS), shape)


def random(*shape):
    return Gaussian(normal(*shape), 0.2 + jnp.abs(normal(*shape)))


def dense(x, w):
    return x @ w


@pytest.mark.oracle
@pytest.mark.parametrize("x_random", [False, True])
@pytest.mark.parametrize("w_random", [False, True])
def test_dense_matches_monte_carlo_for_every_mix_of_operands(x_random, w_random, oracle):
    x = random(3, 8) if x_random else normal(3, 8)
    w = random(8, 4) if w_random else normal(8, 4)
    ours = bilinear(dense, x, w)
    if not (x_random or w_random):
        np.testing.assert_array_equal(ours, x @ w)
        return
    oracle.assert_matches(ours, oracle.monte_carlo(dense, (x, w), 50_000))


CONVOLUTIONS = {
    "same": {"padding": "SAME"},
    "valid": {"padding": "VALID"},
    "strided": {"window_strides": (2, 3), "padding": [(1, 2), (0, 1)]},
    "dilated": {"rhs_dilation": (2, 1), "padding": "SAME"},
    "transposed": {"lhs_dilation": (2, 2), "padding": [(2, 2), (2, 2)]},
    "grouped": {"feature_group_count": 2, "padding": "SAME"},
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_with_bias_matches_monte_carlo(name, oracle):
    options = {"window_strides": (1, 1), **CONVOLUTIONS[name]}
    groups = options.get("feature_group_count", 1)

    def f(params, x):
        y = jax.lax.conv_general_dilated(
            x, params["kernel"], dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
        )
        return y + params["bias"]

    params = {"kernel": random(3, 3, 4 // groups, 4), "bias": random(4)}
    args = (params, random(1, 6, 5, 4))
    # Overlapping windows are correlated, each output's own moments are exact.
    oracle.assert_matches(
        jax.jit(moments(f, method="diagonal"))(*args), oracle.monte_carlo(f, args)
    )


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["none", "deterministic", "random"])
def test_the_first_layer_takes_two_contractions_and_any_bias(bias, oracle):
    def f(params, x):
        y = x @ params["kernel"]
        return y + params["bias"] if "bias" in params else y

    params = {"kernel": random(6, 3)}
    if bias != "none":
        params["bias"] = normal(3) if bias == "deterministic" else random(3)
    args = (params, normal(2, 6))
    g = moments(f, method="diagonal")
    oracle.assert_matches(g(*args), oracle.monte_carlo(f, args, 50_000))
    assert str(jax.make_jaxpr(g)(*args)).count("dot_general") == 2


@pytest.mark.oracle
def test_contraction_of_two_random_tensors_matches_monte_carlo(oracle):
    def f(_, q, k):
        return jnp.einsum("bqd,bkd->bqk", q, k)

    args = ({}, random(2, 3, 4), random(2, 5, 4))
    oracle.assert_matches(moments(f, method="diagonal")(*args), oracle.monte_carlo(f, args, 50_000))


@pytest.mark.slow
def test_both_forms_agree_where_both_are_accurate():
    x, w = random(3, 16), random(16, 5)
    a, b = bilinear(dense, x, w), bilinear(dense, to_raw(x), w)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-6)
    np.testing.assert_allclose(a.var, b.var, rtol=1e-5)


def test_mean_variance_form_keeps_digits_that_the_raw_form_loses():
    x = Gaussian(jnp.full((1, 64), 100.0), jnp.full((1, 64), 1e-4))
    w = Gaussian(jnp.ones((64, 1)), jnp.full((64, 1), 1e-12))
    exact = 64 * (1e-4 + 1e-12 * (1e4 + 1e-4))
    np.testing.assert_allclose(bilinear(dense, x, w).var, exact, rtol=1e-5)
    raw = bilinear(dense, RawMoments(x.mean, x.second_moment), w)
    assert raw.var >= 0
    assert abs(float(raw.var[0, 0]) - exact) > 0.1 * exact


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-10, 1e10])
def test_variances_stay_finite_and_non_negative_at_any_scale(scale):
    x, w = random(4, 8), random(8, 3)
    x = Gaussian(x.mean, scale * x.var)
    for form in ("variance", "raw"):
        out = moments(lambda w, x: x @ w, form=form, method="diagonal")(w, x)
        assert np.isfinite(out.var).all()
        assert (np.asarray(out.var) >= 0).all()
