"""GPTQ against its definition, against nearest rounding, and on models of several kinds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import (
    LSQ,
    Floating,
    Grouped,
    Int,
    LayerQuantization,
    Scaled,
    Uniform,
    gptq,
    init,
    quantized,
    round_weights,
)
from jaxeff.compression.post_training._rounding import inverse_factor
from jaxeff.core import functional
from jaxeff.nn import LinenMLP


def linear(params, x):
    return x @ params["fc"]["kernel"]


def _problem(rows, inputs, outputs, seed=0):
    """Correlated inputs, so that one weight can make good what another one does."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs)) @ rng.normal(size=(inputs, inputs))
    w = rng.normal(size=(inputs, outputs))
    return {"fc": {"kernel": jnp.asarray(w, jnp.float32)}}, jnp.asarray(x, jnp.float32)


def _reference(w, x, quantize, damping):
    """Eqs. 2 and 3 as they stand: the inverse is updated by elimination; float64, no Cholesky."""
    w = np.array(w, np.float64)
    hessian = np.array(x, np.float64).T @ np.array(x, np.float64)
    hessian += damping * np.diag(hessian).mean() * np.eye(len(w))
    inverse = np.linalg.inv(hessian)
    for i in range(len(w)):
        rounded = quantize(w[i])
        change = -(w[i] - rounded)[None, :] / inverse[i, i] * inverse[:, i : i + 1]
        w = w + np.where(np.arange(len(w))[:, None] > i, change, 0)
        w[i] = rounded
        inverse = inverse - np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return w


def _grid(spec):
    method = spec["fc"].weights
    step = np.abs(np.asarray(method.range, np.float64)).max(0) / (2 ** (method.bits - 1) - 1)
    top = 2 ** (method.bits - 1) - 1
    return lambda w: np.clip(np.rint(w / step.reshape(-1)), -top, top) * step.reshape(-1)


@pytest.mark.parametrize("block", [1, 3, 128])
def test_against_the_definition(block):
    params, x = _problem(50, 8, 5)
    spec = {"fc": LayerQuantization(Uniform(3, symmetric=True))}
    _, new, started = gptq(linear, params, x, spec, block=block)
    expected = _reference(params["fc"]["kernel"], x, _grid(started), 0.01)
    np.testing.assert_allclose(new["fc"]["kernel"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sort", [False, True])
def test_groups_have_steps_of_their_own(sort):
    params, x = _problem(50, 8, 5)
    w = np.asarray(params["fc"]["kernel"], np.float64)
    # A group's value of largest magnitude is four steps from zero, all others are at most three.
    split = w.reshape(2, 4, 5)
    furthest = np.take_along_axis(split, np.abs(split).argmax(1)[:, None], 1)[:, 0]
    step = furthest.repeat(4, 0) / -4
    order = np.argsort(-np.square(np.asarray(x)).mean(0)) if sort else np.arange(8)
    rows = iter(step[order])
    expected = np.empty_like(w)
    expected[order] = _reference(
        w[order], x[:, order], lambda w: (s := next(rows)) * np.clip(np.rint(w / s), -4, 3), 0.01
    )
    setting = Int(3, per="group", group=4, symmetric=True, activations=False)
    _, new, spec = gptq(linear, params, x, {"fc": setting}, sort=sort, block=3)
    np.testing.assert_allclose(new["fc"]["kernel"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(jax.jit(quantized(linear, spec))(new, x), linear(new, x))


def test_groups_of_a_format_without_scales_are_as_without_groups():
    params, x = _problem(50, 8, 5)
    alone, grouped = (
        gptq(linear, params, x, {"fc": LayerQuantization(method)}).params["fc"]["kernel"]
        for method in (Floating("float4_e2m1fn"), Grouped(Floating("float4_e2m1fn"), 4))
    )
    np.testing.assert_array_equal(grouped, alone)
    assert (alone != params["fc"]["kernel"]).all()


@pytest.mark.parametrize("group", [None, 4])
def test_scaled_inputs_are_rounded_where_they_are_large(group):
    """With scales s of inputs it is the problem of x / s and s W, whose result is divided by s."""
    params, x = _problem(50, 8, 5)
    scale = jnp.linspace(0.5, 3, 8)[:, None]
    method = Uniform(3, symmetric=True)
    method = method if group is None else Grouped(method, group)
    _, new, spec = gptq(
        linear, params, x, {"fc": LayerQuantization(Scaled(method, scale))}, damping=0
    )
    scaled = {"fc": {"kernel": params["fc"]["kernel"] * scale}}
    _, other, _ = gptq(
        linear, scaled, x / scale[:, 0][None], {"fc": LayerQuantization(method)}, damping=0
    )
    np.testing.assert_allclose(new["fc"]["kernel"] * scale, other["fc"]["kernel"], rtol=1e-4)
    np.testing.assert_array_equal(jax.jit(quantized(linear, spec))(new, x), linear(new, x))


def test_two_inputs_in_closed_form():
    """With the first weight rounded, the second one is w2 + H12 (w1 - q1) / H22, rounded."""
    params, x = _problem(40, 2, 6)
    _, new, started = gptq(
        linear, params, x, {"fc": LayerQuantization(Uniform(3, symmetric=True))}, damping=0
    )
    quantize = _grid(started)
    w, h = np.asarray(params["fc"]["kernel"], np.float64), np.asarray(x, np.float64)
    h = h.T @ h
    first = quantize(w[0])
    second = quantize(w[1] + h[0, 1] * (w[0] - first) / h[1, 1])
    np.testing.assert_allclose(new["fc"]["kernel"], [first, second], rtol=1e-5, atol=1e-6)


def test_the_factor_of_the_inverse():
    _, x = _problem(30, 6, 1)
    h = np.asarray(x, np.float64).T @ np.asarray(x, np.float64)
    u = np.asarray(inverse_factor(jnp.asarray(h, jnp.float32)[None]))[0]
    assert np.all(np.tril(u, -1) == 0)
    np.testing.assert_allclose(u.T @ u @ h, np.eye(6), atol=2e-3)


@pytest.mark.slow
def test_sorting_is_a_permutation_of_inputs():
    params, x = _problem(50, 8, 5)
    spec = {"fc": LayerQuantization(Uniform(3, symmetric=True))}
    order = np.argsort(-np.square(np.asarray(x)).mean(0))
    permuted = {"fc": {"kernel": params["fc"]["kernel"][order]}}
    _, new, _ = gptq(linear, permuted, x[:, order], spec)
    _, ours, _ = gptq(linear, params, x, spec, sort=True)
    np.testing.assert_array_equal(ours["fc"]["kernel"][order], new["fc"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("bits", [3, 4])
def test_better_than_nearest(trained, divergence, bits):
    f, params, x = trained
    spec = {"*:linear": Int(bits, 8, activations=False, symmetric=False)}
    _, new, started = gptq(f, params, x, spec)
    assert divergence(new, started) < 0.5 * divergence(params, spec)
    # The first layer's inputs are the same in both networks, so its outputs compare directly.
    only = {"conv1": Int(bits, activations=False, symmetric=False)}
    before = _first_layer(params, x)
    nearest = _first_layer(_nearest(params, "conv1", bits), x)
    ours = _first_layer(gptq(f, params, x, only).params, x)
    assert jnp.square(ours - before).mean() < 0.9 * jnp.square(nearest - before).mean()


@pytest.mark.slow
def test_the_spec_reproduces_the_weights_exactly(trained):
    f, params, x = trained
    for method in (
        Int(3, activations=False, symmetric=False),
        LayerQuantization(LSQ(3)),
        LayerQuantization(Uniform(4, per="tensor")),
    ):
        _, new, spec = gptq(f, params, x, {"fc1": method})
        np.testing.assert_array_equal(jax.jit(quantized(f, spec))(new, x), f(new, x))
        np.testing.assert_array_equal(jax.jit(quantized(f, spec))(new, x), jax.jit(f)(new, x))
        kernel = np.asarray(new["fc1"]["kernel"])
        assert max(len(np.unique(column)) for column in kernel.T) <= 16
        np.testing.assert_array_equal(new["fc1"]["bias"], params["fc1"]["bias"])
        assert new["fc2"]["kernel"] is params["fc2"]["kernel"]


@pytest.mark.slow
def test_later_layers_see_quantized_inputs():
    """With the first layer at one bit, the second is solved on what that one gives."""
    params, x = _problem(60, 6, 6)
    params = {"a": params["fc"], "b": {"kernel": _problem(1, 6, 4, seed=3)[0]["fc"]["kernel"]}}

    def f(params, x):
        return (x @ params["a"]["kernel"]) @ params["b"]["kernel"]

    coarse = LayerQuantization(Uniform(1, symmetric=True))
    _, new, _ = gptq(
        f, params, x, {"a": coarse, "b": LayerQuantization(Uniform(3, symmetric=True))}
    )
    given = x @ new["a"]["kernel"]
    _, alone, _ = gptq(
        linear, {"fc": params["b"]}, given, {"fc": LayerQuantization(Uniform(3, symmetric=True))}
    )
    np.testing.assert_array_equal(new["b"]["kernel"], alone["fc"]["kernel"])
    # ... and on quantized activations where there are any.
    both = LayerQuantization(Uniform(3, symmetric=True), Uniform(2, per="tensor"))
    read = LayerQuantization(None, Uniform(2, per="tensor"))
    seen = quantized(lambda p, x: x @ p, {"*:linear": read})(jnp.eye(6), x)
    _, one, _ = gptq(linear, {"fc": params["a"]}, x, {"fc": both})
    _, two, _ = gptq(
        linear, {"fc": params["a"]}, seen, {"fc": LayerQuantization(Uniform(3, symmetric=True))}
    )
    np.testing.assert_array_equal(one["fc"]["kernel"], two["fc"]["kernel"])


class Blocks(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(4, 4, (3, 3), feature_group_count=4, strides=2, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.heads = nnx.LinearGeneral(4, (2, 3), rngs=rngs)

    def __call__(self, x):
        x = nnx.gelu(self.depthwise(nnx.relu(self.conv(x))))
        x = x.reshape(x.shape[0], -1, 4)
        return self.heads(x + self.attention(x)).mean(1)


@pytest.mark.slow
def test_unseen_models():
    x = jax.random.normal(jax.random.key(0), (12, 6, 6, 1))
    f, params = functional(Blocks(nnx.Rngs(0)))
    _improves(f, params, x)
    model = LinenMLP((36, 8, 3))
    f, params = functional(model, model.init(jax.random.key(1), x))
    _improves(f, params, x)


def _improves(f, params, x):
    spec = {"*:linear": Int(3, activations=False, symmetric=False)}
    _, new, started = gptq(f, params, x, spec)
    exact = f(params, x)
    # Weights stay where they are; a compiled sum may be taken in another order than an eager one.
    compiled = jax.jit(quantized(f, started))(new, x)
    np.testing.assert_allclose(compiled, f(new, x), rtol=1e-5, atol=1e-6)
    ours = jnp.square(f(new, x) - exact).mean()
    assert ours < jnp.square(jax.jit(quantized(f, spec))(params, x) - exact).mean()


@pytest.mark.slow
def test_a_weight_used_twice_is_solved_once():
    params, x = _problem(50, 6, 6)

    def f(params, x):
        return jnp.tanh(x @ params["fc"]["kernel"]) @ params["fc"]["kernel"]

    _, new, spec = gptq(f, params, x, {"fc": Int(4, activations=False, symmetric=False)})
    assert list(spec) == ["fc", "fc#1"]
    np.testing.assert_array_equal(jax.jit(quantized(f, spec))(new, x), f(new, x))


@pytest.mark.slow
def test_bfloat16_and_degenerate_weights():
    params, x = _problem(50, 6, 4)
    narrow = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    _, new, spec = gptq(
        linear, narrow, x.astype(jnp.bfloat16), {"fc": Int(4, activations=False, symmetric=False)}
    )
    kernel = new["fc"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    again = spec["fc"].weights.quantize(kernel, _tensor())
    np.testing.assert_array_equal(again.astype(jnp.float32), kernel.astype(jnp.float32))
    constant = {"fc": {"kernel": jnp.array([[0.0, 0.7, -0.3, 1e-30]] * 6)}}
    _, new, _ = gptq(linear, constant, x, {"fc": Int(4, activations=False, symmetric=False)})
    np.testing.assert_array_equal(new["fc"]["kernel"], constant["fc"]["kernel"])
    # Inputs that are always zero: nothing is known, so weights are rounded to the nearest.
    _, new, spec = gptq(
        linear, params, jnp.zeros_like(x), {"fc": Int(4, activations=False, symmetric=False)}
    )
    nearest = spec["fc"].weights.quantize(params["fc"]["kernel"], _tensor())
    np.testing.assert_array_equal(new["fc"]["kernel"], nearest)


@pytest.mark.slow
def test_mistakes_are_named():
    params, x = _problem(20, 4, 3)
    spec = {"fc": Int(4, activations=False, symmetric=False)}
    with pytest.raises(ValueError, match="gptq: batch is empty"):
        gptq(linear, params, x[:0], spec)
    with pytest.raises(ValueError, match="batch holds NaN"):
        gptq(linear, params, x.at[0, 0].set(jnp.nan), spec)
    bad = {"fc": {"kernel": params["fc"]["kernel"].at[0, 0].set(jnp.inf)}}
    with pytest.raises(ValueError, match="weights of 'fc' hold NaN"):
        gptq(linear, bad, x, spec)
    with pytest.raises(ValueError, match="no weights to quantize"):
        gptq(linear, params, x, {"fc": Int(4, weights=False)})
    with pytest.raises(ValueError, match=r"'fc' is singular"):
        gptq(linear, params, jnp.ones_like(x), spec, damping=0)
    with pytest.raises(ValueError, match="damping must be at least 0"):
        gptq(linear, params, x, spec, damping=-1)

    def tied(params, x):
        return (x @ params["fc"]["kernel"]) * params["fc"]["kernel"].sum()

    with pytest.raises(ValueError, match=r"fc/kernel' is read by .* too"):
        gptq(tied, params, x, {"*:linear": Int(4, activations=False, symmetric=False)})

    def low_rank(params, x):
        return x @ (params["fc"]["kernel"] * 2)

    with pytest.raises(ValueError, match="is computed from parameters"):
        gptq(low_rank, params, x, {"*:linear": Int(4, activations=False, symmetric=False)})


def test_a_loop_is_left_to_its_setting():
    params, x = _problem(20, 4, 4)

    def f(params, x):
        def step(h, _):
            return jnp.tanh(h @ params["cell"]), None

        return jax.lax.scan(step, x @ params["fc"]["kernel"], None, length=2)[0]

    params = {**params, "cell": jnp.eye(4) * 0.7}
    _, new, spec = gptq(f, params, x, {"*:linear": Int(3, activations=False, symmetric=False)})
    np.testing.assert_array_equal(new["cell"], params["cell"])
    assert spec["cell"].weights.range is None
    assert spec["fc"].weights.range is not None


def _tensor():
    from jaxeff.compression import Tensor

    return Tensor("fc", "weights_1", "weight", 2, None, lambda: (1,))


def _nearest(params, site, bits):
    from jaxeff.compression import fake_quantize, value_range

    kernel = params[site]["kernel"]
    low, high = value_range(kernel, (3,))
    return {**params, site: {**params[site], "kernel": fake_quantize(kernel, bits, low, high)}}


def _first_layer(params, x):
    return nn.Conv(4, (5, 5), strides=4).apply({"params": params["conv1"]}, x)


@pytest.mark.slow
def test_a_started_spec_is_kept(trained):
    """Ranges that were measured before, such as clipped ones, are those of the result."""
    f, params, x = trained
    spec = init(f, params, x, {"fc*": Int(3, activations=False, symmetric=False)})
    _, _, started = gptq(f, params, x, spec)
    np.testing.assert_array_equal(started["fc1"].weights.range, spec["fc1"].weights.range)


@pytest.mark.parametrize("method", [Int(3, activations=False), LSQ(2), Int(4, 8)])
def test_nearest_rounding_is_what_quantized_computes(method):
    params, x = _problem(20, 6, 4)
    _, rounded, spec = round_weights(linear, params, x, {"fc": method})
    w, new = params["fc"]["kernel"], rounded["fc"]["kernel"]
    assert np.abs(new - w).max() > 0
    np.testing.assert_array_equal(
        quantized(linear, spec)(params, x), quantized(linear, spec)(rounded, x)
    )
    levels = {len(np.unique(column)) for column in np.asarray(new).T}
    assert max(levels) <= 2 ** (2 if isinstance(method, LSQ) else method.bits)
