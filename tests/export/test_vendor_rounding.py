"""Why CMSIS-NN's and ESP-NN's kernels aren't called: their sums become other codes than JAX's.

No registry of packages has their sources, so that what stands for them is the arithmetic that their
documents state: a multiplier of 31 bits, and one or two roundings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

SUMS, UNITS = 1_000_000, 32  # codes of one layer; a bias counts 32nds of a sum's unit


def two_roundings(sums, scale):
    """TensorFlow Lite's: a doubling high product, then a shift, each rounded to the nearest."""
    fraction, exponent = np.frexp(scale.astype(np.float64))
    multiplier = np.rint(fraction * 2**31).astype(np.int64)
    high = (sums * multiplier + 2**30) >> 31
    right = -exponent
    mask = (1 << right) - 1
    return (high >> right) + ((high & mask) > (mask >> 1) + (high < 0))


def one_rounding(sums, scale):
    """Of CMSIS_NN_USE_SINGLE_ROUNDING: the product of 64 bits, rounded once, halves upwards."""
    fraction, exponent = np.frexp(scale.astype(np.float64))
    multiplier = np.rint(fraction * 2**31).astype(np.int64)
    shift = 31 - exponent
    return (sums * multiplier + (np.int64(1) << (shift - 1))) >> shift


def ours(sums, bias, scale):
    """What kernels of the C source compute, by XLA: float32, rounded to even."""
    units = jnp.asarray(sums * UNITS + bias, jnp.int32).astype(jnp.float32)
    return np.asarray(jax.jit(lambda u, s: jnp.round(u * s))(units, jnp.asarray(scale / UNITS)))


@pytest.mark.parametrize(
    ("theirs", "integral", "fewest", "most"),
    [
        (two_roundings, True, 800, 1800),
        (two_roundings, False, 800, 1800),
        (one_rounding, True, 0, 10),
        (one_rounding, False, 200, 700),
    ],
)
def test_codes_of_a_million_differ_by_one(theirs, integral, fewest, most):
    draws = np.random.default_rng(0)
    sums = draws.integers(-60_000, 60_000, SUMS)
    scale = np.exp(draws.uniform(np.log(5e-4), np.log(5e-3), SUMS)).astype(np.float32)
    bias = draws.integers(-64_000, 64_000, SUMS)
    # Theirs counts whole units: an int32 that is added to the sum.
    bias = bias // UNITS * UNITS if integral else bias
    codes = ours(sums, bias, scale)
    others = theirs(sums + np.rint(bias / UNITS).astype(np.int64), scale)
    inside = np.abs(codes) < 127
    differing = 1e6 * (codes != others)[inside].mean()
    assert fewest <= differing <= most
    assert np.abs(codes - others)[inside].max() <= 1
