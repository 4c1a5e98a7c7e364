"""`Grouped` and the formats by group: against the method on each group alone, casts and tables."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 - gives NumPy the narrow dtypes
import numpy as np
import pytest

from jaxeff import compression as jc
from jaxeff.compression import Grouped, Int, Tensor, Uniform, quantized
from jaxeff.compression.quantizers._levels import NF4_VALUES

W = jax.random.normal(jax.random.key(0), (64, 6)) * jnp.linspace(0.1, 2, 64)[:, None]
WEIGHT = Tensor("fc", "weights_1", "weight", 2, None, lambda: (1,), find_summed=lambda: (0,))
DATA = Tensor("fc", "input_0", "activation", 2, find_summed=lambda: (1,))
ALONE = Tensor("fc", "weights_1", "weight", 1, find_channels=lambda: ())


def groups(x, size):
    """The groups of a matrix along its first axis, one array each."""
    return np.asarray(x).reshape(len(x) // size, size, -1).transpose(0, 2, 1).reshape(-1, size)


@pytest.mark.parametrize(
    "method", [Uniform(4), Uniform(3, symmetric=True), jc.LSQ(4), jc.Floating("e4m3", None, "real")]
)
def test_a_group_is_quantized_as_if_it_were_alone(method):
    got = groups(Grouped(method, 16).quantize(W, WEIGHT), 16)
    alone = [method.quantize(jnp.asarray(g), ALONE) for g in groups(W, 16)]
    np.testing.assert_allclose(got, np.stack(alone), rtol=1e-6)


def test_started_numbers_give_the_same_values():
    for steps, symmetric in itertools.product(("float32", "float16", "int8"), (True, "full")):
        method = Grouped(Uniform(4, symmetric), 32, steps)
        started = method.start(W, WEIGHT)
        assert started.method.range[0].shape == (2, 1, 6)
        first = method.quantize(W, WEIGHT)
        np.testing.assert_array_equal(started.quantize(W, WEIGHT), first)
        np.testing.assert_array_equal(started.quantize(first, WEIGHT), first)


@pytest.mark.parametrize("value", [1.0, -1.0, 0.7, -0.7])
@pytest.mark.parametrize("bits", [2, 4, 7])
def test_a_group_of_one_value_keeps_it(bits, value):
    """A range above zero reaches no further below it than above."""
    alone = jnp.full((4, 2), value)
    for size in (1, 4):
        rounded = Grouped(Uniform(bits, "full"), size).quantize(alone, WEIGHT)
        np.testing.assert_allclose(rounded, alone, rtol=1e-6)
    # Of a positive value among zeros as well as of equal ones.
    np.testing.assert_allclose(
        Grouped(Uniform(bits, "full"), 4).quantize(value * jnp.eye(4), WEIGHT), value * jnp.eye(4)
    )


def test_all_values_of_four_bits_reach_the_largest_of_a_group():
    """The grid of llama.cpp's Q4_0: the value of largest magnitude is -8 signed steps."""
    x = groups(W, 32)
    furthest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    step = furthest / np.float32(-8)
    expected = np.clip(np.rint(x / step), -8, 7) * step
    method = Grouped(Uniform(4, "full"), 32)
    np.testing.assert_array_equal(groups(method.quantize(W, WEIGHT), 32), expected)
    traced = jax.jit(lambda bits: Grouped(Uniform(bits, "full"), 32).quantize(W, WEIGHT))
    np.testing.assert_array_equal(groups(traced(4), 32), expected)
    # A bit and eight bits have nothing to gain: they stay centred.
    for bits in (1, 8):
        centred, full = (Grouped(Uniform(bits, s), 32).quantize(W, WEIGHT) for s in (True, "full"))
        np.testing.assert_array_equal(full, centred)


def test_narrow_steps_are_what_they_say():
    plain = jnp.abs(W).reshape(4, 16, 6).max(1, keepdims=True) / 7
    half = Grouped(Uniform(4, symmetric=True), 16, "float16").start(W, WEIGHT).method.range[1] / 7
    np.testing.assert_allclose(half, plain.astype(jnp.float16).astype(jnp.float32), rtol=2e-7)
    byte = Grouped(Uniform(4, symmetric=True), 16, "int8").start(W, WEIGHT).method.range[1] / 7
    unit = plain.max(0, keepdims=True) / 127
    np.testing.assert_allclose(byte / unit, np.round(byte / unit), atol=1e-4)
    assert (byte >= plain * (1 - 1e-3)).all()
    assert (byte <= plain + unit).all()


def test_bits_of_an_array():
    assert Grouped(Uniform(4, symmetric=True), 32).storage((64, 6), WEIGHT) == 64 * 6 * 5
    half = Grouped(Uniform(4, symmetric=True), 32, "float16")
    assert half.storage((64, 6), WEIGHT) == 64 * 6 * 4.5
    byte = Grouped(Uniform(4, symmetric=True), 32, "int8")
    assert byte.storage((64, 6), WEIGHT) == 64 * 6 * 4.25 + 6 * 32
    assert jc.nf4(32).storage((64, 6), WEIGHT) == 64 * 6 * 5
    assert jc.mxfp().storage((64, 6), WEIGHT) == 64 * 6 * 4.25
    assert jc.nvfp4().storage((64, 6), WEIGHT) == 64 * 6 * 4.5


def test_nf4_is_the_nearest_of_its_values():
    got = groups(jc.nf4(16).quantize(W, WEIGHT), 16)
    weight_groups = groups(W, 16)
    top = np.abs(weight_groups).max(1, keepdims=True)
    distance = np.abs(weight_groups[..., None] / top[..., None] - np.asarray(NF4_VALUES))
    expected = np.asarray(NF4_VALUES)[distance.argmin(-1)] * top
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "dtype", "exponent"),
    [("e2m1", "float4_e2m1fn", 2), ("e3m2", "float6_e3m2fn", 4), ("e4m3", "float8_e4m3fn", 8)],
)
def test_mx_formats_share_an_exponent(name, dtype, exponent):
    got = groups(jc.mxfp(name).quantize(W, WEIGHT), 32)
    weight_groups = groups(W, 32)
    # OCP MX, section 6.3: X = 2^(floor(log2 max) - e_max), elements saturate.
    scale = 2.0 ** (np.floor(np.log2(np.abs(weight_groups).max(1, keepdims=True))) - exponent)
    most = float(jnp.finfo(dtype).max)
    expected = (
        np.clip(weight_groups / scale, -most, most).astype(jnp.dtype(dtype)).astype(np.float32)
    )
    np.testing.assert_array_equal(got, expected * scale)


def test_mxint_has_whole_numbers_of_its_exponent():
    got = groups(jc.mxint(8).quantize(W, WEIGHT), 32)
    weight_groups = groups(W, 32)
    scale = 2.0 ** np.floor(np.log2(np.abs(weight_groups).max(1, keepdims=True))) / 64
    expected = np.clip(np.round(weight_groups / scale), -127, 127) * scale
    np.testing.assert_allclose(got, expected, atol=1e-7)


def test_nvfp4_has_scales_of_two_levels():
    got, weight_groups = groups(jc.nvfp4().quantize(W, WEIGHT), 16), groups(W, 16)
    unit = np.abs(weight_groups).max() / (6 * 448)
    ratio = np.abs(weight_groups).max(1, keepdims=True) / 6 / unit
    scale = ratio.astype(jnp.float8_e4m3fn).astype(np.float32) * np.float32(unit)
    steps = np.clip(weight_groups / scale, -6, 6).astype(jnp.float4_e2m1fn).astype(np.float32)
    np.testing.assert_allclose(got, steps * scale, rtol=1e-5)


@pytest.mark.slow
def test_activations_have_groups_of_their_own():
    x = W.T
    got = jc.mxfp("e4m3").quantize(x, DATA)
    np.testing.assert_array_equal(got.T, jc.mxfp("e4m3").quantize(W, WEIGHT))
    token = Uniform(8, True, per="token").quantize(x, DATA)
    rows = jnp.stack([Uniform(8, True, per="tensor").quantize(row, ALONE) for row in x])
    np.testing.assert_array_equal(token, rows)


def test_layers_by_group():
    def f(params, x):
        h = jnp.einsum("btd,dhk->bthk", x, params["a"])
        return jnp.einsum("bthk,hko->bto", h, params["b"])

    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "a": jax.random.normal(keys[0], (32, 2, 16)),
        "b": jax.random.normal(keys[1], (2, 16, 5)),
    }
    x = jax.random.normal(keys[2], (2, 3, 32))
    setting = Int(4, per="group", group=16, symmetric=True, activations=False)
    y = quantized(f, {"*:linear": setting})(params, x)
    split = params["b"].reshape(32, 5)
    by_hand = {
        "a": Grouped(Uniform(4, "full"), 16)
        .quantize(params["a"].reshape(32, 32), WEIGHT)
        .reshape(32, 2, 16),
        "b": Grouped(Uniform(4, "full"), 16).quantize(split, WEIGHT).reshape(2, 16, 5),
    }
    np.testing.assert_allclose(y, f(by_hand, x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_square_arrays_are_told_apart():
    def f(params, x):
        return (x * params["s"]) @ jnp.sin(x)

    x = jax.random.normal(jax.random.key(2), (4, 4)) * jnp.array([[1, 0.1, 0.01, 0.001]])
    method, rows = Grouped(Uniform(4), 2), Tensor("", "", "activation", 2, find_summed=lambda: (1,))
    rounded = quantized(f, {"*": jc.LayerQuantization(None, method)})({"s": jnp.ones(())}, x)
    # Of the second factor columns are summed over.
    expected = method.quantize(x, rows) @ method.quantize(jnp.sin(x).T, rows).T
    np.testing.assert_allclose(rounded, expected, rtol=1e-6)


def test_what_cannot_be():
    def f(params, x):
        return x @ params["w"]

    spec = {"*": Int(4, per="group", group=32, activations=False, symmetric=False)}
    with pytest.raises(ValueError, match=r"weights_1 sums over 40 entries, which groups of 32"):
        quantized(f, spec)({"w": jnp.ones((40, 3))}, jnp.ones((2, 40)))
    with pytest.raises(TypeError, match=r"Grouped.method must be a quantizer with numbers per"):
        Grouped(jc.DoReFa(2))
    with pytest.raises(ValueError, match=r"Grouped.steps='int8' needs a grid around zero"):
        Grouped(Uniform(4), 32, "int8")
    with pytest.raises(ValueError, match=r"Int.group and Int.steps are for per="):
        Int(4, group=32, symmetric=False)
    with pytest.raises(ValueError, match=r'activations_per="token" is for what layers read'):
        Int(8, activations_per="token", at="output", symmetric=False)
    with pytest.raises(ValueError, match=r"Levels.values must be two finite numbers or more"):
        jc.Levels((1.0, 0.0))
    with pytest.raises(TypeError, match=r"Levels.values must be a tuple of numbers"):
        jc.Levels([0.0, 1.0])
    with pytest.raises(ValueError, match=r"mxfp: format must be one of e2m1"):
        jc.mxfp("e1m2")


def test_gradients_pass_straight_through():
    for method in (Grouped(Uniform(4), 16), jc.nf4(16)):
        by_w = jax.grad(lambda w, m=method: m.quantize(w, WEIGHT).sum())(W)
        np.testing.assert_allclose(by_w, np.ones_like(W), rtol=1e-6)
