"""Integer constants at the ends of their dtypes: XLA's results, wherever a constant may stand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import pytest
from flax import nnx
from importer_oracle import assert_agrees
from jax import lax

from jaxeff.core import functional
from jaxeff.core._from_jax import TrainingModeWarning


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def ends(dtype):
    limits = np.iinfo(dtype)
    middle = limits.max // 2 if limits.min == 0 else 0
    return np.array([limits.min, 1, middle, middle + 1, limits.max], dtype)


CONSTANTS = [
    *(np.array(2**bits - 1, f"uint{bits}") for bits in (8, 16, 32, 64)),
    *(np.array(2 ** (bits - 1), f"uint{bits}") for bits in (32, 64)),
    np.array(2718843009, "uint32"),
    *(np.array(value, "int32") for value in (-(2**31), 2**31 - 1)),
    *(np.array(value, "int64") for value in (-(2**63), 2**63 - 1)),
]
KINDS = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")
constants = pytest.mark.parametrize("c", CONSTANTS, ids=lambda c: f"{c.dtype}-{c}")


@constants
def test_arithmetic_and_order(c):
    def f(x):
        some = jnp.where(x > 1, c, c - c // 2)
        return [
            (x + c, x - c, c - x, x * c, x // c, x % c, -(x + c), x[1] + c),
            (x < c, x == c, x >= c, jnp.maximum(x, c), jnp.minimum(x, c), jnp.clip(x, c // 2, c)),
            (x & c, x | c, x ^ c, ~(x ^ c), lax.population_count(x ^ c), lax.clz(x | c)),
            (some + x, some * some, -some, x - some, lax.integer_pow(x + c, 3)),
            (x + jnp.full(x.shape, c), x + jnp.array([c, 0, c, 1, c], c.dtype)),
        ]

    assert_agrees(f, ends(c.dtype))


@constants
def test_shifts(c):
    def f(x):
        constant = jnp.full_like(x, c)
        shifts = lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic
        return [(shift(constant, x), shift(x, constant)) for shift in shifts]

    assert_agrees(f, ends(c.dtype))


@pytest.mark.slow
@constants
def test_conversions(c):
    def f(x):
        chosen, zero = jnp.where(x > 1, c, x), jnp.array(0, c.dtype)
        values = chosen, x + c, c, jnp.where(x > 1, c, zero), x // zero, chosen.astype("float64")
        return [value.astype(kind) for kind in KINDS for value in values[:-1]], [
            values[-1].astype(kind) for kind in KINDS if kind != "float64"
        ]

    assert_agrees(f, ends(c.dtype))


@constants
def test_loops_and_branches(c):
    def f(x):
        return (
            lax.fori_loop(0, 3, lambda _, y: y * jnp.array(3, c.dtype) + c, x),
            lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + c), (0, x)),
            lax.scan(lambda s, y: (s + c, (s ^ y ^ c, c.astype("int32"))), c, x),
            lax.cond(x[0] < c, lambda x: x + c, lambda x: x - c, x),
        )

    assert_agrees(f, ends(c.dtype))


@constants
def test_reductions_and_their_bodies(c):
    def f(x):
        return (
            (jnp.sum(x + c, dtype=c.dtype), jnp.max(x | c), jnp.min(x + c), jnp.argmax(x ^ c)),
            lax.reduce(x, c, lax.bitwise_xor, (0,)),
            lax.reduce(x, c, lambda a, b: jnp.maximum(a + c, b), (0,)) * jnp.array(0, c.dtype),
            lax.reduce_window(x, c, lax.max, (2,), (1,), "SAME"),
            (jnp.cumsum(x + c, dtype=c.dtype), lax.cummax(x + c), jnp.sort(x ^ c)),
            jnp.dot(x, x + c),
        )

    assert_agrees(f, ends(c.dtype))


@constants
def test_padding_and_scattering(c):
    def f(x):
        return (
            lax.pad(x, c, [(1, 2, 1)]),
            x.at[1].set(c),
            x.at[jnp.array([0, 0])].add(c),
            x.at[jnp.array([7])].get(mode="fill", fill_value=c),
            jnp.full((3,), c),
        )

    assert_agrees(f, ends(c.dtype))


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.drop = nnx.Dropout(0.4, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.first(x))


@pytest.mark.slow
def test_dropout_in_training_has_the_same_mask():
    with jax.enable_x64(False):
        model = Dropping(nnx.Rngs(0))
        with pytest.warns(TrainingModeWarning):
            frozen, params = functional(model)
        x = jax.random.normal(jax.random.key(1), (8, 6))
        bundle = jaxeff_export.deploy(frozen, (params, x))
        assert_same_mask(bundle.run(x), frozen(params, x))

        f, _ = functional(model, keyed=True)
        of_data = lambda p, data, x: f(jax.random.wrap_key_data(data), p, x)  # noqa: E731
        one, other = (jax.random.key_data(jax.random.key(seed)) for seed in (0, 3))
        bundle = jaxeff_export.deploy(of_data, (params, one, x))
        masks = [assert_same_mask(bundle.run(d, x), of_data(params, d, x)) for d in (one, other)]
        assert (masks[0] != masks[1]).any()


def assert_same_mask(ours, expected):
    mask = np.asarray(ours) == 0
    assert 0.2 < mask.mean() < 0.6
    np.testing.assert_array_equal(mask, np.asarray(expected) == 0)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    return mask
