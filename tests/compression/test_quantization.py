"""Uniform quantization: levels, error bounds, idempotence, codes, gradients, odd ranges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxeff.compression import (
    dequantize,
    fake_quantize,
    grid,
    quantize,
    straight_through,
    value_range,
)

FINITE = st.floats(-1e6, 1e6, width=32).map(lambda v: 0.0 if abs(v) < 1e-30 else v)
ARRAYS = hnp.arrays(np.float32, st.sampled_from([2, 33]), elements=FINITE)
CHECKS = settings(deadline=None, max_examples=25)


def reference(x, bits, low, high):
    """The affine quantizer as the source writes it, in float64."""
    n = 2**bits - 1
    s = n / (high - low)
    z = np.round(s * low) + 2 ** (bits - 1)
    q = np.clip(np.round(s * x - z), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return (q + z) / s


@pytest.mark.parametrize("bits", range(1, 9))
def test_affine_follows_the_source(bits):
    x = np.random.default_rng(bits).normal(size=2_000).astype(np.float32)
    low, high = x.min(), x.max()
    ours = fake_quantize(x, bits, low, high)
    expected = reference(x.astype(np.float64), bits, float(low), float(high))
    step = float(high - low) / (2**bits - 1)
    same = np.abs(ours - expected) < 1e-4 * step
    assert same.mean() > 0.999  # the rest rounds to the other side of a tie in float32
    np.testing.assert_allclose(ours[~same], expected[~same], atol=1.001 * step)


@pytest.mark.slow
@CHECKS
@given(ARRAYS, st.integers(1, 8), st.booleans())
def test_levels_error_and_idempotence(x, bits, symmetric):
    low, high = value_range(jnp.asarray(x))
    y = np.asarray(fake_quantize(x, bits, low, high, symmetric))
    assert np.isfinite(y).all()
    assert len(np.unique(y)) <= 2**bits
    again = fake_quantize(y, bits, low, high, symmetric)
    largest = np.abs(x).max()
    ulp = 4 * np.finfo(np.float32).eps * largest
    np.testing.assert_allclose(again, y, rtol=0, atol=ulp)
    step = float(grid(bits, low, high, symmetric).step[0])
    ends = max(float(high[0]), 0), min(float(low[0]), 0)  # extended to zero
    width = 2 * largest if symmetric else ends[0] - ends[1]
    if width > 0 and (symmetric or low[0] != high[0]):  # a single value is kept, whatever the step
        bound = step / 2
        np.testing.assert_array_less(np.abs(y.astype(np.float64) - x), bound * (1 + 1e-5) + ulp)
        steps = 2**bits - 1 if bits == 1 or not symmetric else 2**bits - 2
        expected = width / 2 if symmetric and bits == 1 else width / steps
        np.testing.assert_allclose(step, expected, rtol=1e-5)


@pytest.mark.slow
@CHECKS
@given(ARRAYS, st.integers(1, 8), st.booleans())
def test_a_covering_range_changes_no_bit(x, bits, symmetric):
    for values in (x, np.full_like(x, x[0]), np.append(x, np.float32(np.nan))):
        low, high = value_range(jnp.asarray(values))
        np.testing.assert_array_equal(
            fake_quantize(values, bits, low, high, symmetric, covered=True),
            fake_quantize(values, bits, low, high, symmetric),
        )


@pytest.mark.slow
@CHECKS
@given(ARRAYS, st.integers(1, 8), st.booleans())
def test_codes_are_the_same_quantization(x, bits, symmetric):
    low, high = value_range(jnp.asarray(x))
    to = grid(bits, low, high, symmetric)
    codes = quantize(jnp.asarray(x), to)
    assert codes.dtype == jnp.int8
    assert int(codes.max()) - int(codes.min()) < 2**bits
    assert int(codes.min()) >= -(2 ** (bits - 1))
    assert int(codes.max()) < 2 ** (bits - 1)
    np.testing.assert_array_equal(
        dequantize(codes, to), fake_quantize(x, bits, low, high, symmetric)
    )


RANGES = [(-0.37, 1.0), (0.5, 1.0), (-1.0, -0.5), (9.0, 10.0), (2.0, 2.0), (-2.0, -2.0), (0, 0)]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("low", "high"), RANGES)
def test_zero_is_on_the_grid(low, high, symmetric):
    x = jnp.array([low, 0.0, high])
    for bits in range(2 if symmetric else 1, 9):
        to = grid(bits, low, high, symmetric)
        codes = quantize(x, to)
        assert dequantize(codes, to)[1] == 0
        assert fake_quantize(x, bits, low, high, symmetric)[1] == 0
        # Its code is one of the kernel's, so that padding can use it.
        assert to.lower <= float(codes[1]) <= to.upper


@pytest.mark.slow
@CHECKS
@given(st.floats(-1e6, 1e6, width=32), st.floats(0, 1e6, width=32), st.integers(1, 8))
def test_every_affine_range_holds_zero_and_its_ends_to_half_a_step(low, width, bits):
    low = 0.0 if abs(low) < 1e-30 else low
    low, high = np.float32(low), np.float32(low + width)
    to = grid(bits, low, high)
    values = dequantize(jnp.arange(int(to.lower), int(to.upper) + 1).astype(jnp.int8), to)
    assert (values == 0).any()
    bound = float(to.step) / 2 * (1 + 1e-5) + 1e-6 * max(abs(low), abs(high))
    for end in (low, high):
        assert np.abs(np.asarray(values, np.float64) - end).min() <= bound


def test_one_symmetric_bit_is_the_sign():
    x = jnp.array([-2.0, -0.1, 0.0, 0.1, 2.0])
    np.testing.assert_array_equal(fake_quantize(x, 1, -2.0, 2.0, symmetric=True), [-1, -1, 1, 1, 1])


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradient_is_straight_through(symmetric):
    x = jnp.array([-9.0, -0.3, 0.0, 0.2, 9.0])

    def total(x, low, high):
        return fake_quantize(x, 3, low, high, symmetric).sum()

    dx, dlow, dhigh = jax.grad(total, (0, 1, 2))(x, -1.0, 1.0)
    np.testing.assert_array_equal(dx, 1)
    assert dlow == dhigh == 0
    own_range = jax.grad(lambda x: fake_quantize(x, 3, *value_range(x), symmetric).sum())
    np.testing.assert_array_equal(own_range(x), 1)
    np.testing.assert_array_equal(jax.jit(own_range)(x), 1)


def test_straight_through_is_one_equation_with_derivatives_of_any_order():
    x = jnp.array([-0.3, 0.2, jnp.inf])
    y = jnp.array([-0.5, 0.0, 1.0])

    def squares(x, y):
        return straight_through(x, y) ** 2

    assert len(jax.make_jaxpr(straight_through)(x, y).eqns) == 1
    np.testing.assert_array_equal(straight_through(x, y), y)
    first = jax.grad(lambda x, y: squares(x, y).sum(), (0, 1))(x, y)
    np.testing.assert_array_equal(first, [2 * y, jnp.zeros(3)])
    ones = jnp.ones(3)

    def along(x):
        return jax.jvp(lambda x: squares(x, y), (x,), (ones,))[1]

    np.testing.assert_array_equal(jax.jvp(along, (x,), (ones,))[1], 2 * ones)


@pytest.mark.parametrize("symmetric", [False, True, "full"])
@pytest.mark.parametrize("bits", [1, 4, 16])
def test_known_ranges_have_the_grid_that_traced_ones_have(bits, symmetric, caplog):
    ends = np.random.default_rng(bits).normal(size=(2, 7, 13)).astype(np.float32)
    ends = np.sort(ends * np.float32(10.0) ** np.linspace(-30, 36, 13, dtype=np.float32), 0)
    ends[:, 0, :3] = [[0, -1, 2], [0, -1, 2]]
    with jax.log_compiles():
        known = grid(bits, *ends, symmetric)
    assert not [r for r in caplog.records if "Compiling" in r.message]  # one range is many programs
    traced = jax.jit(lambda low, high: grid(bits, low, high, symmetric))(*ends)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), known) == jax.tree.map(
        lambda a: (a.shape, a.dtype), traced
    )
    jax.tree.map(np.testing.assert_array_equal, known, traced)


@pytest.mark.parametrize("value", [0.0, 3.0, -0.1, 1e-30, 3e38])
def test_a_range_of_no_width_keeps_its_value(value):
    x = jnp.full(4, value, jnp.float32)
    for bits in (8,) if value > 1e37 else (1, 2, 8):
        np.testing.assert_array_equal(fake_quantize(x, bits, x[0], x[0]), x)
        np.testing.assert_array_equal(fake_quantize(jnp.float32(1.1) * x, bits, x[0], x[0]), x)
        np.testing.assert_array_equal(fake_quantize(-x, bits, x[0], x[0]), 0)


def test_zeros_stay_zero_on_a_symmetric_grid():
    for bits in (1, 2, 8):
        np.testing.assert_array_equal(fake_quantize(jnp.zeros(3), bits, 0.0, 0.0, True), 0)


def test_extreme_ranges_stay_finite_and_nan_stays_nan():
    x = jnp.array([-3.4e38, 0, 3.4e38])
    y = fake_quantize(x, 8, *value_range(x))
    assert bool(jnp.isfinite(y).all())
    np.testing.assert_allclose(y, x, rtol=0.01)
    y = fake_quantize(jnp.array([1.0, jnp.nan]), 8, 0.0, 1.0)
    assert y[0] == 1
    assert jnp.isnan(y[1])


def test_values_outside_the_range_are_clamped():
    y = fake_quantize(jnp.array([-5.0, 5.0]), 4, 0.0, 1.5)
    np.testing.assert_allclose(y, [0, 1.5], rtol=1e-6)


@pytest.mark.slow
def test_jit_equals_eager_bit_for_bit():
    x = jax.random.normal(jax.random.key(0), (7, 300))
    for bits in (1, 8):
        for symmetric in (False, True):
            for keep in ((), (0,)):

                def f(x, b=bits, s=symmetric, k=keep):
                    return fake_quantize(x, b, *value_range(x, k), s)

                np.testing.assert_array_equal(jax.jit(f)(x), f(x))


@pytest.mark.slow
@pytest.mark.promotes("rank")
def test_a_range_per_channel_is_that_of_each_channel():
    x = jax.random.normal(jax.random.key(1), (5, 4, 3)) * jnp.array([1.0, 10.0, 0.1])
    low, high = value_range(x, keep=(-1,))
    assert low.shape == high.shape == (1, 1, 3)
    y = fake_quantize(x, 4, low, high)
    for channel in range(3):
        part = x[..., channel]
        np.testing.assert_array_equal(
            y[..., channel], fake_quantize(part, 4, part.min(), part.max())
        )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtype_is_kept(dtype):
    x = jnp.linspace(-1, 1, 50).astype(dtype)
    y = fake_quantize(x, 3, *value_range(x))
    assert y.dtype == dtype
    assert len(np.unique(y.astype(jnp.float32))) <= 8


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="bits must be between 1 and 16, but is 17"):
        fake_quantize(jnp.ones(3), 17, 0.0, 1.0)
    with pytest.raises(TypeError, match=r"bits must be an integer, not 4\.0"):
        grid(4.0, 0.0, 1.0)
    with pytest.raises(TypeError, match="int32"):
        fake_quantize(jnp.arange(3), 8, 0.0, 1.0)
