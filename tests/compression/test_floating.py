"""`Floating`: every format against the casts of ml_dtypes, scales, saturation, gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 - gives NumPy the narrow dtypes
import numpy as np
import pytest

from jaxeff.compression import Floating
from jaxeff.compression.quantizers._levels import FORMATS
from tests.compression.tensors import WEIGHT


def values_of(dtype):
    """Every value of a format of up to 16 bits that is finite."""
    width = jnp.finfo(dtype).bits
    if width == 16:
        values = np.arange(2**16, dtype=np.uint16).view(dtype)
    else:
        values = np.arange(2**width, dtype=np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = np.unique(values.astype(np.float64))
    return values[np.isfinite(values)]


def hard_values(name):
    """Values of the format, the middles between them, and their float32 neighbours."""
    values = values_of(jnp.dtype(name))
    if len(values) > 1000:
        values = np.concatenate(
            [values[:300], values[::97], values[-300:], values[abs(values) < 1e-6][::7]]
        )
        values = np.unique(values)
    middles = (values[1:] + values[:-1]) / 2
    most = values.max()
    some = np.concatenate([values, middles, [most * 1.01, most * 1.2, most * 4, -most * 4]])
    some = some[np.abs(some) < 3e38].astype(np.float32)
    if name == "bfloat16":  # whose smallest values are float32's subnormals, which processors flush
        some = some[(np.abs(some) > 1e-37) | (some == 0)]
    up, down = (np.nextafter(some, np.float32(end)) for end in (np.inf, -np.inf))
    some = np.concatenate([some, up, down])
    if name == "bfloat16":
        some = some[(np.abs(some) > 1e-37) | (some == 0)]
    return some[np.isfinite(some)]


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(Floating("e4m3", scaling="power_of_two"))
    check_method(Floating("e5m2", scaling="real", per="channel"))


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_a_cast(name):
    x = hard_values(name)
    with np.errstate(over="ignore"):
        expected = x.astype(jnp.dtype(name)).astype(np.float32)
    ours = jax.jit(Floating(name, saturate=False).quantize, static_argnums=1)(
        jnp.asarray(x)[:, None], WEIGHT
    )[:, 0]
    np.testing.assert_array_equal(ours, expected)
    info = jnp.finfo(name)
    clipped = np.clip(x, float(info.min), float(info.max))
    saturated = Floating(name).quantize(jnp.asarray(x)[:, None], WEIGHT)[:, 0]
    np.testing.assert_array_equal(saturated, clipped.astype(info.dtype).astype(np.float32))
    again = Floating(name).quantize(saturated[:, None], WEIGHT)[:, 0]
    np.testing.assert_array_equal(again, saturated)


@pytest.mark.parametrize("name", ["float16", "e4m3"])
def test_not_by_way_of_another_format(name):
    # float64 is rounded once, infinities are ends, NaN stays.
    with jax.enable_x64(True):
        full = {"e4m3": "float8_e4m3fn"}.get(name, name)
        values = values_of(jnp.dtype(full))
        x = values[::7]
        x = np.concatenate([x, (x[1:] + x[:-1]) / 2 * (1 + 2e-16)])
        ours = Floating(name).quantize(jnp.asarray(x)[:, None], WEIGHT)[:, 0]
        assert ours.dtype == np.float64
        at = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
        nearest = np.minimum(np.abs(values[at] - x), np.abs(values[at - 1] - x))
        np.testing.assert_array_equal(np.abs(ours - x), nearest)
    ends = Floating(name).quantize(jnp.array([[jnp.inf], [-jnp.inf], [jnp.nan]]), WEIGHT)
    most = float(jnp.finfo(full).max)
    np.testing.assert_array_equal(ends[:, 0], [most, -most, np.nan])


@pytest.mark.slow
def test_scales():
    x = jnp.array([[1.0, 300.0], [-3.0, 500.0], [0.01, -1000.0]])
    power = Floating("e4m3", scaling="power_of_two", per="channel").start(x, WEIGHT)
    np.testing.assert_array_equal(power.scale, [[2.0**-7, 4.0]])  # 3 / 448 and 1000 / 448
    expected = np.asarray(x / power.scale).astype(jnp.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(power.quantize(x, WEIGHT), expected * power.scale)
    real = Floating("e4m3", scaling="real").start(x, WEIGHT)
    np.testing.assert_allclose(real.scale, 1000 / 448, rtol=1e-6)
    assert float(real.quantize(x, WEIGHT).min()) == pytest.approx(-1000)
    exact = Floating("e4m3", scaling="power_of_two").start(jnp.full((2, 2), 448.0), WEIGHT)
    assert exact.scale == 1


def test_gradients():
    x = jnp.array([[100.0], [1000.0], [-500.0]])
    q = Floating("e4m3", scale=jnp.array(2.0))
    by_q, by_x = jax.grad(lambda q, x: q.quantize(x, WEIGHT).sum(), (0, 1))(q, x)
    np.testing.assert_array_equal(by_x[:, 0], [1, 0, 1])
    # With v = x / s: q(v) - v inside, the largest value outside.
    inside = [(np.float32(v).astype(jnp.float8_e4m3fn).astype(np.float32) - v) for v in (50, -250)]
    np.testing.assert_allclose(by_q.scale, sum(inside) + 448, rtol=1e-6)


def test_the_error_is_relative():
    # Uniform over an octave with m bits of mantissa: step^2 / 12 for a step of 2^-m.
    x = jnp.linspace(1, 2, 20001)[:-1, None]
    for name in ("float8_e4m3fn", "float8_e5m2", "float16"):
        step = 2.0 ** -jnp.finfo(name).nmant
        error = jnp.mean((Floating(name).quantize(x, WEIGHT) - x) ** 2)
        np.testing.assert_allclose(error, step**2 / 12, rtol=0.02)


def test_bits_of_an_array():
    assert Floating().storage((6, 4), WEIGHT) == 24 * 16
    assert (
        Floating("e4m3", scaling="real", per="channel").storage((6, 4), WEIGHT) == 24 * 8 + 4 * 32
    )
    assert Floating("e5m2", scaling="power_of_two").storage((6, 4), WEIGHT) == 24 * 8 + 8
    assert Floating("float4_e2m1fn").width == 4


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"Floating.format must be one of 'bfloat16', 'float16'"):
        Floating("float8")
    with pytest.raises(ValueError, match=r"Floating.scale must be positive"):
        Floating("e4m3", scale=0.0)
