"""Eight-bit floats: conversions, arithmetic that rounds to them, and moving them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import export, run
from jaxeff_export.importer import import_stablehlo

DTYPES = (
    jnp.float8_e3m4, jnp.float8_e4m3, jnp.float8_e4m3b11fnuz, jnp.float8_e4m3fn,
    jnp.float8_e4m3fnuz, jnp.float8_e5m2, jnp.float8_e5m2fnuz,
)  # fmt: skip
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)


def _assert_same(ours, theirs):
    """Equal values, and NaN where there is NaN."""
    assert ours.dtype == theirs.dtype
    ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
    np.testing.assert_array_equal(ours, theirs)
    zero = theirs == 0
    np.testing.assert_array_equal(np.signbit(ours[zero]), np.signbit(theirs[zero]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_of_every_value(dtype):
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    near = HALVES[np.isfinite(HALVES)].astype(np.float32)
    near = np.append(near, [np.inf, -np.inf, np.nan]).astype(np.float32)
    with np.errstate(invalid="ignore"):
        wide = np.concatenate([np.nextafter(near, np.inf), np.nextafter(near, -np.inf), near])

    def convert(codes, wide, numpy=jnp):
        return (
            codes.astype(numpy.float32),
            codes.astype(jnp.bfloat16),
            wide.astype(dtype),
            wide.astype(dtype).astype(numpy.float16),
            numpy.concatenate([codes, codes]).reshape(2, 256).T[::2],
            numpy.full(5000, 1.5, dtype),
            numpy.asarray(codes[:7]),
        )

    got = run(import_stablehlo(export(convert, codes, wide)), codes, wide)
    with np.errstate(over="ignore", invalid="ignore"):
        want = convert(codes, wide, np)
    for ours, theirs in zip(got, want, strict=True):
        _assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_rounds_once(dtype):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 512)).astype(dtype)

    def arithmetic(x, y):
        return x + y, x * y, jnp.maximum(x, y), jnp.where(x > y, x, -y)

    got = run(import_stablehlo(export(arithmetic, x, y)), x, y)
    a, b = x.astype(np.float32), y.astype(np.float32)
    want = a + b, a * b, np.maximum(a, b), np.where(a > b, a, -b)
    for ours, theirs in zip(got, want, strict=True):
        _assert_same(ours, theirs.astype(dtype))
