"""HQQ: its two closed forms, its error beside that of the range, groups, numbers of 16 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Grouped, LayerQuantization, Tensor, Uniform, gptq, init, quantized
from jaxeff.contrib import HalfQuadratic

TENSOR = Tensor("fc", "weights_1", "weight", 2, None, lambda: (1,), find_summed=lambda: (0,))
W = jax.random.t(jax.random.key(0), 3.0, (64, 8)) * 0.02  # a few are far from the others


def by_hand(w, bits, turns, power=0.7, beta=10.0, growth=1.01):
    """The solver on one output, in float64, with all of its zeros."""
    w = np.asarray(w, np.float64)
    top = 2**bits - 1
    step = (w.max() - w.min()) / top
    zero = -w.min() / step
    found = []
    for i in range(turns + 1):
        codes = np.clip(np.rint(w / step + zero), 0, top)
        e = w / step - (codes - zero)
        found.append((float((np.abs(e) ** power).sum()), zero))
        size = np.maximum(np.abs(e), 1e-30)
        m = np.sign(e) * np.maximum(size - size ** (power - 1) / (beta * growth**i), 0)
        zero = (codes - w / step + m).mean()
    return step, min(found)[1]


def test_the_solver_by_hand():
    started = HalfQuadratic(3, turns=8).start(W, TENSOR)
    for column in range(8):
        step, zero = by_hand(W[:, column], 3, 8)
        np.testing.assert_allclose(started.step[0, column], step, rtol=1e-5)
        np.testing.assert_allclose(started.zero[0, column], zero, rtol=1e-3)


def test_shrinking_minimises_its_sub_problem():
    """|e|^p / p + beta/2 (e - x)^2, of which shrinking is one step: better than zero and x."""
    x, power, beta = np.linspace(0.5, 2, 40), 0.7, 10.0
    e = np.maximum(x - x ** (power - 1) / beta, 0)

    def cost(e):
        return np.abs(e) ** power / power + beta / 2 * (e - x) ** 2

    assert (cost(e) < cost(0 * x)).all()
    assert (cost(e) < cost(x)).all()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_errors_are_below_those_of_the_range(bits):
    def error(method):
        rounded = Grouped(method, 32).quantize(W, TENSOR)
        return float((jnp.abs(rounded - W) ** 0.7).sum())

    assert error(HalfQuadratic(bits)) < 0.97 * error(HalfQuadratic(bits, turns=0))
    assert error(HalfQuadratic(bits)) < 0.97 * error(Uniform(bits))


@pytest.mark.parametrize("numbers", ["float32", "float16"])
def test_values_are_kept_and_counted(numbers):
    method = Grouped(HalfQuadratic(4, numbers=numbers), 32)
    started = method.start(W, TENSOR)
    rounded = started.quantize(W, TENSOR)
    np.testing.assert_array_equal(started.quantize(rounded, TENSOR), rounded)
    np.testing.assert_array_equal(method.quantize(W, TENSOR), rounded)
    if numbers == "float16":
        for number in (started.method.step, started.method.zero):
            np.testing.assert_array_equal(number.astype(jnp.float16).astype(jnp.float32), number)
    bits = {"float32": 64, "float16": 32}[numbers]
    assert method.storage(W.shape, TENSOR) == W.size * 4 + W.size // 32 * bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [0.0, 0.3, -7.0])
def test_a_constant_array_is_kept(value, dtype):
    x = jnp.full((8, 2), value, dtype)
    for numbers in ("float32", "float16"):
        rounded = HalfQuadratic(4, numbers=numbers).quantize(x, TENSOR)
        assert rounded.dtype == x.dtype
        np.testing.assert_allclose(rounded.astype(jnp.float32), x.astype(jnp.float32), rtol=4e-3)


def test_gradients_pass_inside_of_the_range():
    method = HalfQuadratic(4).start(W, TENSOR)
    codes = W / method.step + method.zero
    gradient = jax.grad(lambda w: method.quantize(w, TENSOR).sum())(W)
    inside, outside = (codes > 0) & (codes < 15), (codes < 0) | (codes > 15)
    assert outside.any()
    np.testing.assert_allclose(gradient[inside], jnp.ones(inside.sum()), rtol=1e-6)
    np.testing.assert_array_equal(gradient[outside], jnp.zeros(outside.sum()))


@pytest.mark.slow
def test_with_gptq():
    def f(params, x):
        return x @ params["fc"]["kernel"]

    params, x = {"fc": {"kernel": W}}, jax.random.normal(jax.random.key(1), (200, 64))
    spec = {"fc": LayerQuantization(Grouped(HalfQuadratic(3), 16))}
    nearest = quantized(f, init(f, params, x, spec))(params, x)
    _, new, started = gptq(f, params, x, spec)
    exact = f(params, x)
    assert jnp.square(f(new, x) - exact).mean() < jnp.square(nearest - exact).mean()
    np.testing.assert_array_equal(quantized(f, started)(new, x), f(new, x))


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e6, 1e30])
def test_numbers_that_float16_does_not_hold_are_its_nearest(size):
    method = HalfQuadratic(8, numbers="float16").start(W * size, TENSOR)
    for number in (method.step, method.zero):
        assert jnp.array_equal(number, number.astype(jnp.float16).astype(jnp.float32))
        assert jnp.isfinite(number).all()
    assert (method.step > 0).all()
    rounded = method.quantize(W * size, TENSOR)
    assert jnp.isfinite(rounded).all()
    assert jnp.abs(rounded - W * size).max() <= max(jnp.abs(W * size).max(), 2.0**-24)
