import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.core._from_jax import TrainingModeWarning
from jaxeff.moment_propagation import Gaussian, MomentsError, assumptions, moments
from jaxeff.moment_propagation.rules._normalization import (
    centred,
    mean_square,
    normalize,
    normalize_in_short,
    variance,
)


def random(*shape, var=0.5):
    a, b = jax.random.split(jax.random.key(len(shape)))
    return Gaussian(
        0.3 + jax.random.normal(a, shape),
        var * jax.random.uniform(b, shape, minval=0.5, maxval=1.5),
    )


rms_norm = functools.partial(normalize, eps=1e-6, centre=False)


def plain_layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def plain_rms_norm(x):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


# Relative bias of the variance and of the mean (in standard deviations), by width.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "var", "bias"),
    [
        (8, 0.02, {"mean": 0.01, "var": 0.02}),
        (8, 0.5, {"mean": 0.06, "var": 0.20}),
        (64, 0.5, {"mean": 0.01, "var": 0.02}),
    ],
)
@pytest.mark.parametrize(
    ("rule", "plain"), [(normalize, plain_layer_norm), (rms_norm, plain_rms_norm)]
)
def test_norms_are_within_the_stated_bias(rule, plain, width, var, bias, oracle):
    x = random(10, width, var=var)
    samples = oracle.monte_carlo(plain, (x,), 20_000, 5_000)
    oracle.assert_matches(rule(x), samples, **bias)


@pytest.mark.parametrize("centre", [True, False])
def test_the_short_form_is_exact_to_first_order_where_all_variances_are_equal(centre):
    x = jax.random.normal(jax.random.key(0), (16,)) + 0.3
    plain, eps = (plain_layer_norm, 1e-5) if centre else (plain_rms_norm, 1e-6)
    ours = jax.jit(lambda x: normalize_in_short(x, (-1,), eps, centre=centre))(
        Gaussian(x, jnp.full(16, 1e-6))
    )
    np.testing.assert_allclose(ours.mean, plain(x), rtol=1e-4)
    slopes = jax.jit(jax.jacobian(plain))(x)
    np.testing.assert_allclose(ours.var, 1e-6 * (slopes**2).sum(1), rtol=1e-4)


@pytest.mark.slow
def test_statistics_themselves_are_exact(oracle):
    x = random(10, 6)
    for rule, plain in (
        (lambda x: centred(x, (1,)), lambda x: x - x.mean(1, keepdims=True)),
        (lambda x: variance(x, (1,)), lambda x: x.var(1, keepdims=True)),
        (lambda x: mean_square(x, (1,)), lambda x: (x**2).mean(1, keepdims=True)),
    ):
        oracle.assert_matches(rule(x), oracle.monte_carlo(plain, (x,), 50_000, 10_000))


def written_out(x):
    mean = jnp.mean(x, -1, keepdims=True)
    power = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(power + 1e-5)


LAYER_NORMS = {
    "divided": plain_layer_norm,
    "two passes": written_out,
    "standardize": lambda x: jax.nn.standardize(x, epsilon=1e-5),
    "vmapped": jax.vmap(lambda x: plain_layer_norm(x[None])[0]),
    "linen": lambda x: nn.LayerNorm(epsilon=1e-5, use_bias=False, use_scale=False).apply({}, x),
}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norm_is_recognised_however_it_is_written(name):
    x = random(3, 8)
    ours = jax.jit(moments(lambda _, x: LAYER_NORMS[name](x), method="diagonal"))({}, x)
    expected = normalize(x, eps=1e-5)
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var, expected.var, rtol=1e-4)


MODULES = {
    "layer norm": lambda rngs: nnx.LayerNorm(16, rngs=rngs),
    "layer norm, slow variance": lambda rngs: nnx.LayerNorm(16, use_fast_variance=False, rngs=rngs),
    "layer norm, no bias": lambda rngs: nnx.LayerNorm(16, use_bias=False, rngs=rngs),
    "rms norm": lambda rngs: nnx.RMSNorm(16, rngs=rngs),
    "batch norm, inference": lambda rngs: nnx.BatchNorm(16, use_running_average=True, rngs=rngs),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODULES)
def test_modules_with_random_scale_and_bias_match_monte_carlo(name, oracle):
    f, params = functional(MODULES[name](nnx.Rngs(0)))
    params = jax.tree.map(lambda p: Gaussian(p + 0.5, jnp.full_like(p, 0.04)), params)
    args = (params, random(4, 16))
    bias = {} if name.startswith("batch") else {"mean": 0.03, "var": 0.10}
    samples = oracle.monte_carlo(f, args, 20_000, 5_000)
    oracle.assert_matches(jax.jit(moments(f, method="diagonal"))(*args), samples, **bias)


# Noise that an entry shares with its statistics is assumed away: the fewer entries, the more it is.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "bias"),
    [((3, 8, 8, 8), {"mean": 0.03, "var": 0.08}), ((3, 4, 4, 8), {"mean": 0.05, "var": 0.35})],
)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_group_norm_is_within_the_stated_bias(affine, shape, bias, oracle):
    model = nnx.GroupNorm(8, 2, use_scale=affine, use_bias=affine, rngs=nnx.Rngs(0))
    f, params = functional(model)
    params = jax.tree.map(lambda p: Gaussian(p + 0.5, jnp.full_like(p, 0.04)), params)
    args = (params, random(*shape))
    samples = oracle.monte_carlo(f, args, 20_000, 5_000)
    oracle.assert_matches(jax.jit(moments(f, method="diagonal"))(*args), samples, **bias)
    assert {a.site for a in assumptions(f, *args)} == {"scale" if affine else "group_norm"}


@pytest.mark.slow
def test_batch_norm_in_training_is_a_norm_over_the_batch():
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with pytest.warns(TrainingModeWarning):
        f, params = functional(model)
    x = random(32, 3)
    ours = moments(f, method="diagonal")(params, x)
    expected = normalize(x, (0,), 1e-5)
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var, expected.var, rtol=1e-4)


@pytest.mark.slow
def test_norms_of_norms_are_right_where_pairs_of_entries_are_too_many():
    """Post-norm blocks, joined to one function of 7 arrays of 32 channels: 224^2 derivatives."""

    def f(x, blocks, scales):
        for block, scale in zip(blocks, scales, strict=True):
            x = plain_layer_norm((x + block) * scale)
        return x

    scales = [Gaussian(jnp.ones(32), jnp.full(32, 1e-3)) for _ in range(3)]
    args = random(4, 8, 32, var=0), [random(4, 8, 32, var=1e-3) for _ in range(3)], scales
    expanded, exact = (
        jax.jit(moments(f, method="diagonal"))(*args),
        jax.jit(moments(f, method="linear"))(*args),
    )
    np.testing.assert_allclose(expanded.var, exact.var, rtol=0.02)


def test_a_deterministic_input_has_zero_variance_and_finite_gradients():
    x = random(3, 8)
    zero = Gaussian(x.mean, jnp.zeros_like(x.var))
    out = normalize(zero)
    np.testing.assert_allclose(out.mean, plain_layer_norm(x.mean), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(out.var, 0)
    grads = jax.grad(lambda x: normalize(x).mean.sum() + normalize(x).var.sum())(zero)
    assert np.isfinite(grads.mean).all()
    assert np.isfinite(grads.var).all()


def test_an_unknown_use_of_statistics_is_listed_and_refused_on_request():
    def f(_, x):
        return x * jnp.max(x, -1, keepdims=True)

    (place,) = assumptions(f, {}, random(3, 8))
    assert place.reason == "mul combines values that share noise"
    with pytest.raises(MomentsError, match=r"strict=True.*\n.*mul combines"):
        moments(f, strict=True, method="diagonal")({}, random(3, 8))
