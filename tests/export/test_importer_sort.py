"""sort and what is built on it: any comparator, several operands, ties, NaN and signed zeros."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_oracle import assert_agrees, run
from jax import lax
from jaxeff_export.importer import import_stablehlo

FEW = settings(deadline=None, max_examples=10)
DTYPES = st.sampled_from(["float32", "int8", "uint32", "float16", "bfloat16", "bool"])


@pytest.mark.slow
@FEW
@given(data=st.data(), shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), dtype=DTYPES)
def test_sort(data, shape, dtype):
    rng = np.random.default_rng(0)
    axis = data.draw(st.sampled_from(range(len(shape))))
    keys = [jnp.asarray(rng.integers(0, 3, shape)).astype(dtype) for _ in range(2)]
    place = jnp.arange(np.prod(shape), dtype="int16").reshape(shape)

    def sorts(x, y, place):
        return (
            lax.sort((x, place), axis),
            lax.sort((x, y, place), axis, num_keys=2),
            jnp.sort(x, axis, descending=True),
            jnp.argsort(y, axis, stable=False),
        )

    assert_agrees(sorts, *keys, place)


@pytest.mark.slow
def test_order_of_nan_and_zeros():
    x = jnp.array(
        [[0.0, jnp.nan, -1.0, -0.0, jnp.inf, -jnp.nan], [-0.0, 3.0, 0.0, -2.0, -2.0, 1.0]]
    )

    def sorts(x):
        return jnp.sort(x), jnp.argsort(x, descending=True), lax.top_k(x, 4), jnp.lexsort(x)

    assert_agrees(sorts, x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_first_elements_of_a_sort(dtype):
    """Slices of a sort: only what they read is kept in order, with its ties and NaN."""
    x = np.random.default_rng(0).integers(-4, 4, (5, 90)).astype("float32")
    x[1], x[2] = np.sort(x[1]), -np.sort(-x[2])
    if dtype != "int32":
        x[3, ::7], x[3, 1::7], x[4] = np.nan, -np.nan, np.where(x[4] > 0, -0.0, 0.0)

    def firsts(x):
        return (
            [lax.top_k(x, k) for k in (1, 5, 64, 65, 90)],
            lax.top_k(x, 2, axis=0),
            jnp.sort(x)[:, 3:7],
            jnp.argsort(x, descending=True)[:4, :2],
        )

    assert_agrees(firsts, jnp.asarray(x).astype(dtype))


def test_sort_that_is_sliced_and_returned():
    def both(x):
        ordered = jnp.sort(x)
        return ordered, ordered[:2]

    assert_agrees(both, jnp.array([3.0, 1, 2, 5, 4]))


def test_comparator_that_is_no_known_one():
    module = """
    func.func public @main(%x: tensor<7xf32>, %y: tensor<7xi32>) -> (tensor<7xf32>, tensor<7xi32>) {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %0:2 = "stablehlo.sort"(%x, %y) <{dimension = -1 : i64, is_stable = true}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
        %1 = stablehlo.remainder %c, %limit : tensor<i32>
        %2 = stablehlo.remainder %d, %limit : tensor<i32>
        %3 = stablehlo.compare GT, %1, %2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %3 : tensor<i1>
      }) : (tensor<7xf32>, tensor<7xi32>) -> (tensor<7xf32>, tensor<7xi32>)
      return %0#0, %0#1 : tensor<7xf32>, tensor<7xi32>
    }"""
    x = np.arange(7, dtype=np.float32)
    y = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)
    order = np.argsort(-(y % 3), kind="stable")
    for got, want in zip(run(import_stablehlo(module), x, y), (x[order], y[order]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
def test_statistics_and_searches_that_sort():
    x = jax.random.normal(jax.random.key(0), (6, 40))

    def statistics(x):
        return (
            jnp.median(x, 1),
            jnp.quantile(x, 0.3, axis=0),
            jnp.unique(jnp.round(x), size=5),
            jnp.searchsorted(jnp.sort(x[0]), x[1]),
            lax.approx_max_k(x, 3),
            lax.approx_min_k(x, 2, reduction_dimension=0),
        )

    assert_agrees(statistics, x)
