"""Noise of kernels that all positions share, up to a mean over them."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.adapters import LoRA, init_lora, lora
from jaxeff.compression import Int, fold_batch_norm
from jaxeff.core._jax_internals import sub_jaxprs
from jaxeff.moment_propagation import (
    Gaussian,
    MomentsError,
    MomentsWarning,
    calibrate_moments,
    is_gaussian,
    moments,
)
from jaxeff.moment_propagation.rules import relu, relu_slope
from jaxeff.nn import LeNet5, ResNet8
from jaxeff.noise import Additive, noisy

KEYS = iter(jax.random.split(jax.random.key(11), 200))
EACH = jax.random.split(jax.random.key(12), 50)
NUMBERS = ("NHWC", "HWIO", "NHWC")


def normal(*shape):
    return jax.random.normal(next(KEYS), shape)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order(monkeypatch):
    """What a test draws doesn't depend on which tests ran before it."""
    monkeypatch.setitem(globals(), "KEYS", iter(EACH))


def random(*shape):
    return Gaussian(normal(*shape), 0.2 + jnp.abs(normal(*shape)))


def posterior(params, noise=0.1):
    """Random parameters whose deviations are a share of their arrays'."""
    return jax.tree.map(lambda p: Gaussian(p, jnp.full_like(p, (noise * p.std()) ** 2)), params)


def kept(x):
    """What it is given, as long as that is above -1000: no exact rule looks through it."""
    return nnx.relu(x + 1000.0) - 1000.0


def standardized(y, axis):
    y = y - y.mean(axis, keepdims=True)
    return y / jnp.sqrt((y**2).mean(axis, keepdims=True) + 1e-3)


def convolve(x, w, **options):
    settings = {
        "window_strides": (1, 1),
        "padding": "SAME",
        "dimension_numbers": NUMBERS,
        **options,
    }
    return lax.conv_general_dilated(x, w, **settings)


SEQUENCE = jax.random.normal(jax.random.key(4), (6, 3, 4))
X = jax.random.normal(jax.random.key(3), (3, 6, 5, 4)) + 0.5
LINEAR = {
    "same": ({}, (3, 3, 4, 6)),
    "strided": ({"window_strides": (2, 3), "padding": [(1, 2), (0, 1)]}, (3, 2, 4, 6)),
    "dilated": ({"rhs_dilation": (2, 1)}, (3, 3, 4, 6)),
    "grouped": ({"feature_group_count": 2}, (3, 3, 2, 6)),
    "depthwise": ({"feature_group_count": 4}, (3, 3, 1, 4)),
    "two for a channel": ({"feature_group_count": 4}, (3, 3, 1, 8)),
    "pointwise": ({}, (1, 1, 4, 6)),
    "transposed": ({"lhs_dilation": (2, 3), "padding": [(1, 2), (2, 1)]}, (3, 2, 4, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINEAR)
def test_a_kernel_and_the_mean_over_positions_are_exact(name):
    options, shape = LINEAR[name]
    head = normal(shape[-1], 3)

    def f(params, x):
        y = convolve(x, params["kernel"], **options) + params["bias"]
        return kept(y).mean((1, 2)) @ head

    params = {"kernel": random(*shape), "bias": random(shape[-1])}
    ours, diagonal = (jax.jit(moments(f, shared=s))(params, X) for s in (True, False))
    exact = jax.jit(moments(f, method="linear"))(params, X)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-4)
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-4, atol=1e-5)
    assert (diagonal.var < 0.7 * exact.var).any()


def dense(params, x):
    y = nnx.relu(x @ params["first"] + params["bias"])
    return nnx.relu(y @ params["second"])


TOKENS = jax.random.normal(jax.random.key(6), (3, 6, 5))
POOLED_TOKENS = {
    "mean": (lambda p, x: dense(p, x).mean(1), TOKENS),
    "normalized sum": (
        lambda p, x: standardized(nnx.relu(x @ p["first"]).sum(1), -1),
        TOKENS,
    ),
    "no batch": (lambda p, x: dense(p, x).sum(0), TOKENS[0]),
    "steps in front": (lambda p, x: dense(p, x).mean(0) @ p["head"], TOKENS),
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", POOLED_TOKENS)
def test_tokens_share_the_noise_of_dense_layers(name, oracle):
    f, x = POOLED_TOKENS[name]
    shapes = {"first": (5, 8), "bias": (8,), "second": (8, 6), "head": (6, 3)}
    params = {k: jax.random.normal(jax.random.key(len(k)), s) for k, s in shapes.items()}
    weights = posterior(params, 0.03)
    samples = oracle.monte_carlo(f, (weights, x), 8000, 1000)
    ours, diagonal = (jax.jit(moments(f, shared=s))(weights, x) for s in (True, False))
    # 8000 draws know each variance to 1.6 %.
    oracle.assert_matches(ours, samples, var=0.1, mean=0.1)
    ratio, without = (np.asarray(one.var).sum() / samples.var.sum() for one in (ours, diagonal))
    assert abs(ratio - 1) < 0.02 + 0.016
    assert abs(without - 1) > 2 * abs(ratio - 1)


EDGES, ENDS = jnp.array([0, 5, 2, 2, 1, 0, 3, 2]), jnp.array([0, 0, 1, 1, 1, 2, 2, 2])


def softplus(x):
    return jnp.clip(nnx.softplus(x), 0.0, 2.0)


PARTLY_SUMMED = {
    "running sum": lambda w, x: jnp.cumsum(nnx.relu(x @ w), 1),
    "clipped": lambda w, x: jnp.cumsum(softplus(x @ w), 1)[:, -1],
    "segments": lambda w, x: jax.ops.segment_sum(nnx.relu((x[0] @ w)[EDGES]), ENDS, 3),
    "taken after": lambda w, x: jax.ops.segment_sum(nnx.relu(x[0] @ w)[EDGES], ENDS, 3),
    "rows": lambda w, x: nnx.relu((x[0] @ w)[EDGES]).mean(0),
    "summed again": lambda w, x: nnx.relu(
        jax.ops.segment_sum(nnx.relu(x[0] @ w)[EDGES], ENDS, 3)
    ).mean(0),
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", PARTLY_SUMMED)
def test_sums_of_some_positions_share_the_noise_of_a_dense_layer(name, oracle):
    f, w = PARTLY_SUMMED[name], jax.random.normal(jax.random.key(8), (16, 12)) / 4
    x, weights = jax.random.normal(jax.random.key(9), (2, 6, 16)), posterior(w, 0.03)
    samples = oracle.monte_carlo(f, (weights, x), 8000, 2000)
    ours = jax.jit(moments(f))(weights, x)
    # 8000 draws know each variance to 1.6 %.
    oracle.assert_matches(ours, samples, var=0.05, mean=0.1)
    assert abs(np.asarray(ours.var).sum() / samples.var.sum() - 1) < 0.01 + 0.016


def in_groups(y, axes, count=2):
    """A group norm by hand: statistics over positions and the channels of a group."""
    z = y.reshape(*y.shape[:-1], count, -1)
    return standardized(z, (*axes, z.ndim - 1)).reshape(y.shape)


def shuffled(y):
    return y.reshape(*y.shape[:-1], 4, -1).swapaxes(-1, -2).reshape(y.shape)


def flax_norm(p, y, reduced=None):
    """Flax's group norm, its scale and bias random, a scale negative."""
    norm = nnx.GroupNorm(12, num_groups=6, rngs=nnx.Rngs(0), reduction_axes=reduced)
    graph, _ = nnx.split(norm)
    signs = jnp.where(jnp.arange(12) == 3, -1.0, 1.0)
    params = {"scale": p["scale"] * signs, "bias": p["bias"]}
    return nnx.merge(graph, nnx.State({k: nnx.Param(v) for k, v in params.items()}))(y)


def residual_groups(p, x):
    y = nnx.relu(in_groups(convolve(x, p["in"]), (1, 2)))
    return nnx.relu(y + in_groups(convolve(y, p["mid"]), (1, 2))).mean((1, 2))


def halves(p, x):
    """Half of the channels go on, as in ShuffleNet V2."""
    y = nnx.relu(convolve(x, p["in"]))
    return shuffled(jnp.concatenate([y[..., :6], nnx.relu(y[..., 6:])], -1)).mean((1, 2)) @ p["out"]


CHANNELS = {
    "dense": lambda p, x: nnx.relu(in_groups(x @ p["in"][1, 1], (1, 2))).mean((1, 2)),
    "two norms": residual_groups,
    "flax": lambda p, x: nnx.relu(flax_norm(p, convolve(x, p["in"]))).mean((1, 2)),
    "one group": lambda p, x: nnx.relu(
        standardized(convolve(x, p["in"]), (1, 2, 3)) * p["scale"]
    ).mean((1, 2)),
    "layer norm": lambda p, x: nnx.relu(
        standardized(convolve(x, p["in"]), -1) * p["scale"] + p["bias"]
    ).mean((1, 2)),
    "shuffle": lambda p, x: shuffled(nnx.relu(convolve(x, p["in"]))).mean((1, 2)) @ p["out"],
    "halves": halves,
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", CHANNELS)
def test_norms_of_groups_and_shuffles_keep_what_positions_share(name, oracle):
    f = CHANNELS[name]
    shapes = {"in": (3, 3, 4, 12), "mid": (3, 3, 12, 12), "out": (12, 3)}
    params = {k: normal(*s) / np.prod(s[:-1]) ** 0.5 for k, s in shapes.items()}
    params |= {"scale": 1 + 0.3 * normal(12), "bias": 0.5 * normal(12)}
    weights = posterior(params, 0.03)
    samples = oracle.monte_carlo(f, (weights, X), 4000, 500)
    ours, diagonal = (jax.jit(moments(f, shared=s))(weights, X) for s in (True, False))
    ratio, without = (np.asarray(one.var).sum() / samples.var.sum() for one in (ours, diagonal))
    # 4000 draws know a variance to 2.2 %; a norm's slope is that of many channels: 1 / 12.
    assert abs(ratio - 1) < 1 / 12 + 0.022
    assert abs(without - 1) > 2 * abs(ratio - 1)


NEAR = jax.nn.softmax(jax.random.normal(jax.random.key(14), (6, 6)))


def added_by_steps(w, x):
    rows = x.swapaxes(0, 1)
    return lax.scan(lambda c, row: (c + nnx.relu(row @ w), None), jnp.zeros((2, 12)), rows)[0]


def counted_steps(w, x):
    return lax.fori_loop(0, 6, lambda t, c: c + nnx.relu(x[:, t] @ w), jnp.zeros((2, 12)))


COMBINED = {
    "neighbours": lambda w, x: nnx.softplus(NEAR @ nnx.softplus(x @ w)).mean(1),
    "deviation": lambda w, x: nnx.softplus(x @ w).std(1),
    "standardized": lambda w, x: standardized(nnx.softplus(x @ w), 1),
    "chosen": lambda w, x: nnx.relu(x @ w)[:, 1:5].mean(1),
    "steps of a scan": added_by_steps,
    "counted steps": counted_steps,
    "mapped rows": lambda w, x: lax.map(lambda row: nnx.relu(row @ w), x[0]).mean(0),
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINED)
def test_functions_of_positions_see_the_noise_that_these_share(name, oracle):
    """Rows have a part in common, without which what they share hardly reaches a result."""
    f, w = COMBINED[name], jax.random.normal(jax.random.key(8), (16, 12)) / 4
    common = jax.random.normal(jax.random.key(10), (16,))
    x = jax.random.normal(jax.random.key(9), (2, 6, 16)) + common
    weights = posterior(w, 0.03)
    samples = oracle.monte_carlo(f, (weights, x), 8000, 2000)
    ours = jax.jit(moments(f))(weights, x)
    # 8000 draws know each variance to 1.6 %.
    # Means are the diagonal pass's, which lacks what is of second order.
    oracle.assert_matches(ours, samples, var=0.05, mean=0.3)
    assert abs(np.asarray(ours.var).sum() / samples.var.sum() - 1) < 0.01 + 0.016


@pytest.mark.oracle
@pytest.mark.slow
def test_a_layer_norm_before_the_mean_is_a_gate(oracle):
    """What is left out, between channels, is of order 1 / 24."""
    w = jax.random.normal(jax.random.key(8), (16, 24)) / 4
    x = jax.random.normal(jax.random.key(9), (2, 6, 16)) + jnp.linspace(-1, 2, 16)
    weights = posterior(w, 0.03)

    def f(w, x):
        return standardized(nnx.relu(x @ w), -1).mean(1)

    samples = oracle.monte_carlo(f, (weights, x), 8000, 2000)
    ratio = np.asarray(jax.jit(moments(f))(weights, x).var).sum() / samples.var.sum()
    assert abs(ratio - 1) < 2 / 24 + 0.016


def of_few(norm, channels, inputs=1, read=None):
    """A norm of few rectified channels before the mean over positions; its noise of 5 %."""
    w = jax.random.normal(jax.random.key(0), (inputs, channels))
    head = jax.random.normal(jax.random.key(1), (read or channels, 4)) / np.sqrt(channels)
    x = jax.random.normal(jax.random.key(2), (4, 64, inputs))
    return lambda w, x: norm(nnx.relu6(x @ w)).mean(1) @ head, posterior(w, 0.05), x


NORMS = {
    "layer norm": lambda x: standardized(x, -1),
    "rms norm": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5),
    "unit length": lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-4),
}


@pytest.mark.oracle
@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("name", NORMS)
def test_channels_that_are_multiples_of_one_input_share_their_norm(name, channels, oracle):
    f, w, x = of_few(NORMS[name], channels)
    ratio = np.asarray(moments(f)(w, x).var) / oracle.monte_carlo(f, (w, x), 4000, 1000).var
    # 4000 draws know each variance to 2.3 %; the rest is of second order.
    assert np.abs(ratio - 1).max() < 0.1 + 5 * 0.023


def test_norms_of_few_channels_of_several_inputs_are_named():
    f, w, x = of_few(NORMS["layer norm"], 4, inputs=3)
    with pytest.warns(MomentsWarning, match="4 channels share of the statistics"):
        jax.eval_shape(moments(f), w, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f, w, x = of_few(NORMS["layer norm"], 16, inputs=3)
        jax.eval_shape(moments(f), w, x)
        # Behind another kernel little of it is left: .80 to 1.6 of the true variances.
        f, w, x = of_few(lambda x: NORMS["layer norm"](x) @ jnp.eye(4, 8), 4, inputs=3, read=8)
        jax.eval_shape(moments(f), w, x)


@pytest.mark.slow
def test_a_dead_channel_has_no_deviation():
    w = Gaussian(-jnp.ones((4, 2)), jnp.full((4, 2), 1e-6))
    f = jax.jit(moments(lambda w, x: nnx.relu(x @ w).std(0)))
    found = f(w, jnp.abs(SEQUENCE[:, 0]))
    np.testing.assert_allclose(found.var, 0, atol=1e-6)


def gram(w, x):
    y = nnx.relu(x @ w)
    return y.T @ y


@pytest.mark.parametrize("f", [gram, lambda w, x: ((x @ w - 1) ** 2).mean()])
def test_positions_combined_with_channels_are_named(f):
    with pytest.warns(MomentsWarning, match="positions share of a kernel, through [^ ]*, isn't"):
        moments(f)(random(4, 4), SEQUENCE[:, 0])


@pytest.mark.filterwarnings("ignore:moments. that all steps:jaxeff.MomentsWarning")
@pytest.mark.parametrize(
    "f",
    [
        lambda w, x: lax.scan(lambda c, r: (jnp.tanh(c @ w + r), None), x[0], x)[0],
        lambda w, x: lax.scan(lambda c, r: (c + r @ w, c @ w), x[0], x)[1],
        lambda w, x: lax.map(lambda r: r @ w, x),
    ],
    ids=["recurrent", "read elsewhere", "rows alone"],
)
def test_steps_that_wait_stay_a_loop(f):
    w = random(4, 4)
    text = str(jax.make_jaxpr(moments(f))(w, SEQUENCE))
    assert "scan[" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["same", "grouped"])
def test_running_sums_of_convolutions_are_exact(kind):
    options, shape = LINEAR[kind]
    w, scale = small(*shape), normal(6)

    def f(w, x):
        return jnp.cumsum(nnx.relu(convolve(x, w, **options)) * scale, 1)

    ours, exact = jax.jit(moments(f))(w, X), jax.jit(moments(f, method="linear"))(w, X)
    ratio = np.asarray(ours.var).sum((1, 2)) / np.asarray(exact.var).sum((1, 2))
    np.testing.assert_allclose(ratio, 1, rtol=5e-3)


@pytest.mark.slow
def test_channels_in_front_and_no_batch_are_exact_too():
    w, head = random(6, 4, 3, 3), normal(6, 3)

    def f(w, x):
        y = lax.conv_general_dilated(x[None], w, (1, 1), "SAME")[0]
        return kept(y).mean((1, 2)) @ head

    x = jnp.transpose(X[0], (2, 0, 1))
    ours = jax.jit(moments(f))(w, x)
    exact = jax.jit(moments(f, method="linear"))(w, x)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-4)


@pytest.mark.slow
def test_a_kernel_that_a_norm_was_folded_into_is_followed_as_any_other():
    head = normal(6, 3)

    def plain(params, x):
        y = kept(convolve(x, params["kernel"]) + params["bias"])
        return y.mean((1, 2)) @ head

    class Normed(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(4, 6, (3, 3), use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs, use_running_average=True)

        def __call__(self, x):
            return kept(self.norm(self.conv(x))).mean((1, 2)) @ head

    folded, params, _ = fold_batch_norm(*jaxeff.functional(Normed(nnx.Rngs(0))), X)
    # A second transform that changes nothing marks them once more.
    folded = jaxeff.quantized(folded, {})
    weights = posterior(params)
    ours = jax.jit(moments(folded))(weights, X)
    same = jax.jit(moments(plain))(weights["conv"], X)
    np.testing.assert_allclose(ours.var, same.var, rtol=1e-5)
    diagonal = jax.jit(moments(folded, shared=False))(weights, X)
    assert (diagonal.var < 0.7 * ours.var).any()


@pytest.mark.slow
def test_a_residual_sum_keeps_what_its_operands_share():
    mix, scale, head = normal(1, 1, 6, 6), normal(6), normal(6, 3)

    def f(w, x):
        y = kept(convolve(x, w))
        y = y + kept(convolve(y, mix)) * scale  # 1x1: what it reads is the mean's own
        return y.mean((1, 2)) @ head

    w = random(3, 3, 4, 6)
    ours, exact = jax.jit(moments(f))(w, X), jax.jit(moments(f, method="linear"))(w, X)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-3)


@pytest.mark.parametrize("first", [True, False], ids=["noise first", "noise last"])
def test_data_beside_channels_isnt_a_choice_of_them(first):
    u, v = random(4, 6), normal(10, 3)

    def f(u, x):
        h = kept(x @ u)
        return jnp.concatenate([h, x] if first else [x, h], -1) @ v

    ours = jax.jit(moments(f))(u, X)
    exact = jax.jit(moments(f, method="linear"))(u, X)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 3, 4, 6), (4, 6)], ids=["convolution", "dense"])
def test_a_bias_alone_is_shared_by_positions_too(shape):
    head = normal(6, 3)

    def f(params, x):
        y = convolve(x, params["kernel"]) if len(shape) == 4 else x @ params["kernel"]
        return kept(y + params["bias"]).mean((1, 2)) @ head

    params = {"kernel": normal(*shape), "bias": random(6)}
    ours, diagonal = (jax.jit(moments(f, shared=s))(params, X) for s in (True, False))
    exact = jax.jit(moments(f, method="linear"))(params, X)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-4)
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-4, atol=1e-4)
    assert (diagonal.var < 0.1 * exact.var).all()


@pytest.mark.slow
def test_a_sum_is_the_mean_times_positions_and_windows_may_come_before():
    w = random(3, 3, 4, 6)

    def mean(w, x):
        return kept(convolve(x, w)).mean((1, 2))

    def total(w, x):
        return kept(convolve(x, w)).sum((1, 2))

    def windows(w, x):
        y = nnx.avg_pool(kept(convolve(x[:, :, :4], w)), (2, 2), (2, 2))
        return nnx.avg_pool(y, (3, 2)).reshape(len(x), -1)

    gaussian = jax.jit(moments(total))(w, X).var / jax.jit(moments(mean))(w, X).var
    np.testing.assert_allclose(gaussian, 900, rtol=1e-4)
    exact = jax.jit(moments(windows, method="linear"))(w, X)
    np.testing.assert_allclose(jax.jit(moments(windows))(w, X).var, exact.var, rtol=1e-4)


@pytest.mark.slow
def test_channels_side_by_side_keep_what_their_positions_share():
    grown, head = normal(1, 1, 10, 5), normal(15, 3)

    def f(w, x):
        y = jnp.concatenate([kept(convolve(x, w)), x], -1)
        y = jnp.concatenate([kept(convolve(y, grown)), y], -1)
        return y.mean((1, 2)) @ head

    w = random(3, 3, 4, 6)
    ours, exact = jax.jit(moments(f))(w, X), jax.jit(moments(f, method="linear"))(w, X)
    np.testing.assert_allclose(ours.var, exact.var, rtol=1e-3)


def small(*shape):
    """A kernel whose noise is too small to bend a function."""
    w = normal(*shape) / np.prod(shape[:-1]) ** 0.5
    return Gaussian(w, jnp.full(shape, 1e-9))


def test_a_relu_lets_through_what_it_lets_through():
    """At inputs without a mean, a kernel's noise reaches the mean through the ReLU alone."""
    first, head = small(3, 3, 4, 6), normal(6, 3)
    x = X - X.mean((1, 2), keepdims=True)

    def f(w, x):
        return nnx.relu(convolve(x, w)).mean((1, 2)) @ head

    ours, exact = jax.jit(moments(f))(first, x), jax.jit(moments(f, method="linear"))(first, x)
    np.testing.assert_allclose(ours.var, exact.var, rtol=5e-3)


def attended(w, x, heads):
    """A block of attention in a stream, and a mean over its tokens."""
    q, k, v = ((x @ w[n]).reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3) for n in "qkv")
    p = jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    y = (p @ v).swapaxes(-2, -3).reshape(x.shape)
    return (x + y @ w["out"]).mean(-2) @ w["head"]


def of_attention(names, noise=1e-8):
    """Weights of that block, some of them random."""
    params = {n: normal(8, 8) / 8**0.5 for n in ("q", "k", "v", "out", "head")}
    return {n: Gaussian(w, jnp.full_like(w, noise * (n in names))) for n, w in params.items()}


@pytest.mark.parametrize("heads", [2, 4])
def test_what_tokens_share_passes_attention(heads):
    """Noise of values is exact; a mean over tokens would average it away as independent."""
    w, x = of_attention(("v", "out", "head")), normal(3, 6, 8) + 0.5
    f = functools.partial(attended, heads=heads)
    exact = jax.jit(moments(f, method="linear"))(w, x)
    with pytest.warns(MomentsWarning, match="attention"):
        ours = jax.jit(moments(f, shared="attention"))(w, x)
    np.testing.assert_allclose(ours.mean, exact.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var, exact.var, rtol=2e-3)
    with pytest.warns(MomentsWarning, match="attention"):
        apart = jax.jit(moments(f))(w, x)
    assert np.median(apart.var / exact.var) < 0.9


def attended_as_in_torch(w, x, heads):
    """The same block with kernels [out, in], and examples and heads merged for products."""
    split = lambda y: y.reshape(*y.shape[:-1], heads, -1).swapaxes(1, 2)  # noqa: E731
    merged = lambda y: y.reshape(-1, *y.shape[2:])  # noqa: E731
    linear = lambda y, w: lax.dot_general(y, w, (((y.ndim - 1,), (1,)), ((), ())))  # noqa: E731
    q, k, v = (split(linear(x, w[n])) for n in "qkv")
    scores = (merged(q) @ merged(k.swapaxes(-1, -2))).reshape(*q.shape[:3], -1)
    p = jax.nn.softmax(scores / q.shape[-1] ** 0.5)
    y = (merged(p) @ merged(v)).reshape(q.shape)
    return linear((x + linear(y.swapaxes(1, 2).reshape(x.shape), w["out"])).mean(-2), w["head"])


@pytest.mark.parametrize("shared", [True, "attention"])
def test_kernels_and_products_of_torch_are_followed_as_those_of_flax(shared):
    w, x = of_attention(("q", "k", "v", "out", "head"), 1e-3), normal(3, 6, 8) + 0.5
    turned = jax.tree.map(lambda w: w.T, w)
    with pytest.warns(MomentsWarning, match="attention") as told:
        ours = jax.jit(moments(functools.partial(attended_as_in_torch, heads=2), shared=shared))(
            turned, x
        )
    assert not any("softmax" in str(one.message) for one in told)
    with pytest.warns(MomentsWarning, match="attention"):
        flax = jax.jit(moments(functools.partial(attended, heads=2), shared=shared))(w, x)
    np.testing.assert_allclose(ours.mean, flax.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, flax.var, rtol=1e-4)


def test_a_kernel_in_front_is_followed_as_one_behind():
    """Equinox multiplies `weight @ x`, token by token."""

    def f(p, x, multiply):
        y = nnx.relu(multiply(p["first"], x) + p["bias"])
        return nnx.relu(multiply(p["second"], y)).mean(1)

    def in_front(w, x):
        return jax.vmap(jax.vmap(lambda x: w.T @ x))(x)

    params = {"first": random(5, 8), "bias": random(8), "second": random(8, 6)}
    ours, behind = (
        jax.jit(moments(functools.partial(f, multiply=m)))(params, TOKENS)
        for m in (in_front, lambda w, x: x @ w)
    )
    np.testing.assert_allclose(ours.mean, behind.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, behind.var, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("names", ["q", "k", "qk"])
def test_what_tokens_share_of_queries_and_keys(names):
    """Of their slopes a mean over tokens is kept, so that only its scale is right."""
    w, x = of_attention(tuple(names)), normal(3, 6, 8) + 0.5
    f = functools.partial(attended, heads=2)
    exact = jax.jit(moments(f, method="linear"))(w, x)
    with pytest.warns(MomentsWarning, match="attention"):
        ours = jax.jit(moments(f, shared="attention"))(w, x)
    # Single results are several times off, as what differs between tokens is taken as independent.
    assert 0.5 < np.median(ours.var / exact.var) < 1.6


@pytest.mark.slow
@pytest.mark.oracle
def test_a_block_of_attention_matches_monte_carlo(oracle):
    w, x = of_attention(("q", "k", "v", "out", "head"), 1e-3), normal(3, 6, 8) + 0.5
    f = functools.partial(attended, heads=2)
    with pytest.warns(MomentsWarning, match="attention"):
        ours = jax.jit(moments(f, shared="attention"))(w, x)
    sampled = oracle.monte_carlo(f, (w, x))
    ratio = np.asarray(ours.var) / sampled.var
    assert abs(np.median(ratio) - 1) < 0.05 + 3 * np.median(sampled.var_error / sampled.var)


@pytest.mark.slow
def test_attention_over_channels_in_another_order_is_left_as_it_is():
    """Heads whose features don't stand side by side are no layer that is followed."""

    def f(w, x):
        q, k, v = ((x @ w[n]).reshape(3, 6, 4, 2).transpose(0, 3, 1, 2) for n in "qkv")
        p = jax.nn.softmax(q @ k.swapaxes(-1, -2))
        return (p @ v).transpose(0, 2, 1, 3).reshape(x.shape).mean(-2) @ w["head"]

    w, x = of_attention("v"), normal(3, 6, 8)
    with pytest.warns(MomentsWarning, match="attention"):
        ours, apart = (jax.jit(moments(f, shared=shared))(w, x) for shared in ("attention", True))
    np.testing.assert_array_equal(ours.var, apart.var)


def test_an_unknown_kind_of_sharing_is_an_error():
    with pytest.raises(ValueError, match="shared is False, True or 'attention'"):
        moments(lambda x: x, shared="tokens")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["same", "strided", "dilated", "grouped", "depthwise"])
def test_two_kernels_and_their_relus_are_exact(name):
    """The second one's own noise is; of the first one's, positions share most."""
    options, shape = LINEAR[name]
    first, second, head = small(3, 3, 4, 4), small(*shape), normal(shape[-1], 3)
    x = X - X.mean((1, 2), keepdims=True)

    def f(w, x):
        y = nnx.relu(convolve(nnx.relu(convolve(x, w[0])), w[1], **options))
        return y.mean((1, 2)) @ head

    for given, tolerance in (((first.mean, second), 5e-3), ((first, second.mean), 0.35)):
        ours = jax.jit(moments(f))(given, x)
        exact = jax.jit(moments(f, method="linear"))(given, x)
        ratio = np.asarray(ours.var / exact.var)
        assert abs(np.median(ratio) - 1) < tolerance


class Net(nnx.Module):
    """Convolutions of a kind, batch norm, and a pooling of all positions."""

    def __init__(self, kind):
        rngs = nnx.Rngs(4)
        self.kind = kind
        self.stem = nnx.Conv(4, 8, (3, 3), rngs=rngs)
        groups = {"depthwise": 8, "grouped": 2}.get(kind, 1)
        self.conv1 = nnx.Conv(8, 8, (3, 3), feature_group_count=groups, rngs=rngs)
        self.conv2 = nnx.Conv(8, 8, (1, 1) if groups > 1 else (3, 3), rngs=rngs)
        self.bn = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.fc = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem(x))
        y = self.conv2(nnx.relu(self.bn(self.conv1(x))))
        if self.kind == "gated":
            y = y * nnx.sigmoid(self.fc(y.mean((1, 2))) @ jnp.ones((3, 8)))[:, None, None]
        x = nnx.relu(x + y) if self.kind in {"residual", "maximum"} else nnx.swish(y)
        return self.fc(x.max((1, 2)) if self.kind == "maximum" else x.mean((1, 2)))


def test_what_the_taps_of_a_depthwise_kernel_read_is_not_copied():
    """Tap by tap nothing is larger than the padded image; copies for all taps were nine times."""
    params = {"depth": random(3, 3, 1, 8), "again": random(3, 3, 1, 8)}
    x = normal(2, 6, 6, 8)

    def f(params, x):
        x = nnx.relu(convolve(x, params["depth"], feature_group_count=8))
        return nnx.relu(convolve(x, params["again"], feature_group_count=8)).mean((1, 2))

    def sizes(jaxpr):
        for eqn in jaxpr.eqns:
            yield from (v.aval.size for v in eqn.outvars)
            for inner in sub_jaxprs(eqn):
                yield from sizes(inner.jaxpr)

    assert max(sizes(jax.make_jaxpr(moments(f))(params, x).jaxpr)) <= 2 * 8 * 8 * 8


def network(kind):
    """A network and a posterior over all of its parameters but the running statistics."""
    graph, params, rest = nnx.split(Net(kind), nnx.Param, ...)
    return (lambda p, x: nnx.merge(graph, p, rest)(x)), nnx.to_pure_dict(params)


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["residual", "depthwise", "grouped", "plain", "gated"])
def test_networks_match_monte_carlo(kind, oracle):
    f, params = network(kind)
    weights = posterior(params, 0.1)
    samples = oracle.monte_carlo(f, (weights, X), 4000, 100)
    ours, diagonal = (jax.jit(moments(f, shared=s))(weights, X) for s in (True, False))
    ratio = np.asarray(ours.var) / samples.var
    # 4000 draws know a variance to 2.2 %.
    assert abs(np.median(ratio) - 1) < 0.1 + 0.022
    assert np.quantile(ratio, 0.05) > 0.75
    assert np.quantile(ratio, 0.95) < 1.3
    error = np.median(np.abs(ratio - 1))
    assert error < 0.6 * np.median(np.abs(np.asarray(diagonal.var) / samples.var - 1))


@pytest.mark.slow
def test_lenet_is_the_diagonal_pass_bit_for_bit():
    f, params = jaxeff.functional(LeNet5(rngs=nnx.Rngs(0)))
    weights, x = posterior(params), jnp.ones((1, 28, 28, 1))
    one, other = (jax.make_jaxpr(moments(f, shared=s))(weights, x) for s in (True, False))
    assert str(one) == str(other)


def residual():
    f, params = network("residual")
    return jax.jit(moments(f)), f, posterior(params)


@pytest.mark.slow
def test_the_laws_hold():
    g, f, weights = residual()
    expected = g(weights, X)
    np.testing.assert_allclose(moments(f)(weights, X).var, expected.var, rtol=1e-3)
    rows = jax.vmap(lambda x: moments(f)(weights, x[None]))(X)
    np.testing.assert_allclose(rows.var[:, 0], expected.var, rtol=1e-3)
    _, steps = lax.scan(lambda c, x: (c, moments(f)(weights, x[None]).var[0]), None, X)
    np.testing.assert_allclose(steps, expected.var, rtol=1e-3)


@pytest.mark.slow
def test_derivatives_are_those_of_differences():
    g, _, weights = residual()

    def loss(scale):
        scaled = jax.tree.map(lambda v: v * scale, weights)
        return g(scaled, X).var.sum()

    step = 1e-2
    found, expected = jax.grad(loss)(1.0), (loss(1 + step) - loss(1 - step)) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-2)


@pytest.mark.slow
def test_an_empty_batch_has_empty_moments():
    f, params = network("residual")
    assert moments(f)(posterior(params), X[:0]).var.shape == (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 12], ids=["convolution", "dense"])
def test_a_variance_in_bfloat16_has_the_dtype_of_its_mean(width):
    def f(w, x):
        hidden = convolve(x, w["in"]) if width == 2 else x @ w["in"]
        return nnx.relu(hidden).mean((1, 2)) @ w["out"]

    shape = (3, 3, 4, 2) if width == 2 else (4, width)
    wide = {"in": random(*shape), "out": random(width, 3)}
    narrow, x = (jax.tree.map(lambda v: v.astype(jnp.bfloat16), one) for one in (wide, X))
    gaussian = moments(f)(narrow, x)
    assert gaussian.mean.dtype == gaussian.var.dtype == jnp.bfloat16
    np.testing.assert_allclose(gaussian.var.astype(float), moments(f)(wide, X).var, rtol=0.1)


@pytest.mark.slow
def test_a_posterior_without_noise_has_none_and_finite_derivatives():
    g, _, weights = residual()
    still = jax.tree.map(lambda v: Gaussian(v.mean, 0 * v.var), weights, is_leaf=is_gaussian)
    assert not g(still, X).var.any()
    slopes = jax.grad(lambda p: g(p, X).var.sum())(still)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
def test_calibrated_factors_belong_to_the_diagonal_pass():
    def f(w, x):
        return kept(convolve(x, w)).mean((1, 2))

    w = random(3, 3, 4, 2)
    calibrated = calibrate_moments(jax.random.key(0), f, w, X, samples=200)
    one, other = (moments(f, shared=s)(calibrated, X) for s in (True, False))
    np.testing.assert_array_equal(one.var, other.var)


def running_channels(w, x):
    return jnp.cumsum(kept(convolve(x, w)), -1).mean((1, 2))


def half_normalized(w, x):
    """A norm over rows of the image, whose statistics are no position's and not all positions'."""
    return nnx.relu(standardized(convolve(x, w), (1, 3))).mean((1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "site"),
    [
        (running_channels, "cumsum"),
        (half_normalized, "normalize"),
    ],
)
def test_a_layer_without_a_rule_is_named(f, site):
    w = random(3, 3, 4, 2)
    with pytest.warns(MomentsWarning, match=f"through {site!r} up to"):
        moments(f)(w, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments(f, shared=False)(w, X)
        # What was flattened isn't averaged, and nothing is followed.
        flat = moments(lambda w, x: convolve(x, w).reshape(3, -1))(w, X)
        calibrated = calibrate_moments(jax.random.key(0), f, w, X, samples=4)
        moments(f)(calibrated, X)
    assert flat.var.all()


def one_convolution(params, x):
    return kept(convolve(x, params["conv"]["kernel"])).mean((1, 2))


KEY = jax.random.key(5)
FROZEN = {"conv": {"kernel": jax.random.normal(KEY, (3, 3, 4, 2))}}
ADAPTERS = init_lora(KEY, one_convolution, FROZEN, X, {"conv": LoRA(2)})
TRANSFORMED = {
    "quantized": jaxeff.quantized(one_convolution, {"conv": Int(8)}),
    "quantized throughout": jaxeff.quantized(one_convolution, {"*": Int(8)}),
    "lora": lambda w, x: lora(one_convolution, {"conv": LoRA(2)})(FROZEN, w, x),
    "noisy throughout": lambda w, x: noisy(one_convolution, {"*": Additive(0.1)})(KEY, w, x),
    "noisy pooling": lambda w, x: noisy(one_convolution, {"mean": Additive(0.1)})(KEY, w, x),
    "noisy": lambda w, x: noisy(one_convolution, {"conv": Additive(0.1)})(KEY, w, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_convolution_that_a_transform_has_acted_on_is_named(name):
    still = ADAPTERS if name == "lora" else FROZEN
    w = jax.tree.map(lambda leaf: Gaussian(leaf, jnp.full_like(leaf, 0.2)), still)
    # The other layers stay as they are, though they are marked too.
    site = "mean" if name == "noisy pooling" else "conv"
    with pytest.warns(MomentsWarning, match=f"through '{site}' up to"):
        moments(TRANSFORMED[name])(w, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moments(TRANSFORMED[name], shared=False)(w, X)
        # Noise of the inputs has a mean of its own at every position.
        moments(TRANSFORMED[name])(still, Gaussian(X, jnp.ones_like(X)))


@pytest.mark.slow
def test_followed_poolings_are_no_assumptions_any_more():
    def f(w, x):
        return kept(convolve(x, w)).mean((1, 2))

    w = random(3, 3, 4, 2)
    assert not jaxeff.assumptions(f, w, X)
    moments(f, strict=True)(w, X)
    with pytest.raises(MomentsError, match="strict"):
        moments(f, strict=True, shared=False)(w, X)


def averaged(y):
    return lax.reduce_window(y, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9


@pytest.mark.parametrize(
    "body",
    [
        lambda x: standardized(x, 3),
        lambda x: averaged(standardized(x, 3)) - standardized(x, 3),
        lambda x: x + averaged(standardized(x, 3)) - standardized(x, 3),
    ],
    ids=["norm", "pool", "stream"],
)
@pytest.mark.filterwarnings("ignore::jaxeff.moment_propagation.MomentsWarning")
def test_a_norm_of_pooled_values_reads_their_moments(body):
    def pooled(w, x):
        return body(convolve(x, w)).mean((1, 2))

    w = posterior(normal(3, 3, 4, 12))
    both = moments(lambda w, x: standardized(pooled(w, x), 1))(w, X)
    # Joined with the mean, the norm took its positions as independent: 9 and .3 times as much.
    alone = moments(lambda z: standardized(z, 1))(moments(pooled)(w, X))
    np.testing.assert_allclose(both.var, alone.var, rtol=1e-4)
    np.testing.assert_allclose(both.mean, alone.mean, rtol=1e-4, atol=1e-5)


def stream(blocks, last):
    """A residual stream of so many convolutions, and what reads it."""

    def f(w, x):
        for kernel in w[:blocks]:
            x = x + nnx.relu(convolve(x, kernel))
        return last(x)

    return f


def test_a_deep_residual_stream_of_convolutions_is_named():
    w = [random(3, 3, 4, 4)] * 5
    with pytest.warns(MomentsWarning, match="summed 4 times up to 'add_4'") as caught:
        jax.eval_shape(moments(stream(5, lambda x: x.mean((1, 2)))), w, X)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(stream(4, lambda x: x.mean((1, 2)))), w, X)
        # Where positions aren't pooled, nothing is followed; and an input's noise isn't shared.
        jax.eval_shape(moments(stream(5, lambda x: x.reshape(3, -1))), w, X)
        noisy_input = Gaussian(X, jnp.ones_like(X))
        jax.eval_shape(
            moments(stream(5, lambda x: x.mean((1, 2)))), [one.mean for one in w], noisy_input
        )


def test_one_place_is_named_where_there_are_several_kinds():
    w = [random(3, 3, 4, 4)] * 5
    f = stream(5, lambda x: NORMS["layer norm"](x).mean((1, 2)))
    with pytest.warns(MomentsWarning, match=r"summed 4 times.*\(1 more.*too small") as caught:
        jax.eval_shape(moments(f), w, X)
    assert len(caught) == 1


def test_calibrated_results_are_not_warned_of():
    """Factors of results hold what the pass with what positions share leaves out."""
    w = [random(3, 3, 4, 4)] * 5
    f = stream(5, lambda x: x.mean((1, 2)))
    with pytest.warns(MomentsWarning, match="summed 4 times"):
        calibrated = calibrate_moments(jax.random.key(0), f, w, X, samples=4, shared=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(f), calibrated, X)


@pytest.mark.parametrize("mean", [-2.0, -1e-3, 0.0, 0.3, 12.0])
@pytest.mark.parametrize("var", [0.0, 1e-12, 1e-3, 4.0])
def test_slope_of_relu_is_the_derivative_of_its_mean(mean, var):
    """At every mean and variance, none and far away included; where the mean is zero, a half."""
    x = Gaussian(jnp.float32(mean), jnp.float32(var))
    at_mean = jax.grad(lambda m: relu(Gaussian(m, x.var)).mean)(x.mean) if mean else 0.5
    np.testing.assert_allclose(relu_slope(x), at_mean, rtol=1e-5, atol=1e-6)


def test_slopes_take_few_equations():
    """An affine layer's slopes are numbers at hand, and helpers of equal shapes traced once."""

    def count(jaxpr, seen):
        if id(jaxpr) in seen:
            return 0
        seen.add(id(jaxpr))
        inside = (sub.jaxpr for eqn in jaxpr.eqns for sub in sub_jaxprs(eqn))
        return len(jaxpr.eqns) + sum(count(sub, seen) for sub in inside)

    model = ResNet8(rngs=nnx.Rngs(0))
    model.eval()
    f, params = jaxeff.functional(model)
    x = normal(2, 32, 32, 3)
    least = count(jax.make_jaxpr(f)(params, x).jaxpr, set())
    ours = count(jax.make_jaxpr(moments(f))(posterior(params), x).jaxpr, set())
    assert ours <= 16 * least
