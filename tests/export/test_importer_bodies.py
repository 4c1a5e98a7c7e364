"""Bodies that JAX seldom writes, against what the specification says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_oracle import assert_agrees, export, run
from jax import lax
from jaxeff_export.importer import import_stablehlo


def test_reduction_in_a_wider_dtype_than_its_operand():
    module = """
    func.func public @main(%x: tensor<3x4xi8>) -> tensor<3xi32> {
      %init = stablehlo.constant dense<5> : tensor<i32>
      %0 = "stablehlo.reduce"(%x, %init) <{dimensions = array<i64: 1>}> ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %1 = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %1 : tensor<i32>
      }) : (tensor<3x4xi8>, tensor<i32>) -> tensor<3xi32>
      return %0 : tensor<3xi32>
    }"""
    (got,) = run(import_stablehlo(module), np.full((3, 4), 100, np.int8))
    np.testing.assert_array_equal(got, np.full(3, 405, np.int32))


def test_body_that_calls_a_function():
    module = """
    func.func private @twice(%a: tensor<f16>) -> tensor<f16> {
      %c = stablehlo.constant dense<2.0> : tensor<f16>
      %0 = stablehlo.multiply %a, %c : tensor<f16>
      return %0 : tensor<f16>
    }
    func.func public @main(%x: tensor<3x4xf16>, %init: tensor<f16>) -> tensor<3xf16> {
      %0 = "stablehlo.reduce"(%x, %init) <{dimensions = array<i64: 1>}> ({
      ^bb0(%a: tensor<f16>, %b: tensor<f16>):
        %1 = func.call @twice(%b) : (tensor<f16>) -> tensor<f16>
        %2 = stablehlo.add %a, %1 : tensor<f16>
        stablehlo.return %2 : tensor<f16>
      }) : (tensor<3x4xf16>, tensor<f16>) -> tensor<3xf16>
      return %0 : tensor<3xf16>
    }"""
    (got,) = run(import_stablehlo(module), np.ones((3, 4), np.float16), np.float16(1))
    np.testing.assert_array_equal(got, np.full(3, 9, np.float16))


def test_scatter_that_exchanges_two_operands():
    module = """
    func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>, %i: tensor<2x1xui8>,
                           %u: tensor<2xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %u) <{
        scatter_dimension_numbers = #stablehlo.scatter<
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>
      }> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
        stablehlo.return %b, %a : tensor<f32>, tensor<f32>
      }) : (tensor<3xf32>, tensor<3xf32>, tensor<2x1xui8>, tensor<2xf32>, tensor<2xf32>)
        -> (tensor<3xf32>, tensor<3xf32>)
      return %0#0, %0#1 : tensor<3xf32>, tensor<3xf32>
    }"""
    x, y = np.arange(3, dtype=np.float32), np.arange(10, 13, dtype=np.float32)
    inside_and_not = np.array([[1], [200]], np.uint8)
    got = run(import_stablehlo(module), x, y, inside_and_not, np.zeros(2, np.float32))
    np.testing.assert_array_equal(got, [[0, 11, 2], [10, 1, 12]])


def test_map_and_windows_of_one_element():
    module = """
    func.func public @main(%x: tensor<3xbf16>, %y: tensor<3xi32>, %p: tensor<bf16>,
                           %q: tensor<i32>) -> (tensor<3xi1>, tensor<3xbf16>, tensor<3xi32>) {
      %0:2 = "stablehlo.reduce_window"(%x, %y, %p, %q) <{window_dimensions = array<i64: 1>}> ({
      ^bb0(%a: tensor<bf16>, %b: tensor<i32>, %c: tensor<bf16>, %d: tensor<i32>):
        %3 = stablehlo.add %a, %c : tensor<bf16>
        %4 = stablehlo.multiply %b, %d : tensor<i32>
        stablehlo.return %3, %4 : tensor<bf16>, tensor<i32>
      }) : (tensor<3xbf16>, tensor<3xi32>, tensor<bf16>, tensor<i32>)
        -> (tensor<3xbf16>, tensor<3xi32>)
      %1 = "stablehlo.map"(%x, %0#0) <{dimensions = array<i64: 0>}> ({
      ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
        %3 = stablehlo.compare LT, %a, %b : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
        stablehlo.return %3 : tensor<i1>
      }) : (tensor<3xbf16>, tensor<3xbf16>) -> tensor<3xi1>
      return %1, %0#0, %0#1 : tensor<3xi1>, tensor<3xbf16>, tensor<3xi32>
    }"""
    x, y = jnp.array([1, 512, jnp.nan], jnp.bfloat16), np.arange(3, dtype=np.int32)
    less, total, product = run(import_stablehlo(module), x, y, jnp.bfloat16(1), np.int32(7))
    np.testing.assert_array_equal(less, [True, False, False])  # 512 + 1 is 512 in bfloat16
    np.testing.assert_array_equal(total.astype(np.float32), [2, 512, np.nan])
    np.testing.assert_array_equal(product, 7 * y)


def _running(x, init, body, *, backwards=False):
    n = jax.tree.leaves(x)[0].shape[1]
    pads = [(0, 0), (0, n - 1) if backwards else (n - 1, 0)]
    return lax.reduce_window(x, init, body, (1, n), (1, 1), pads)


@pytest.mark.slow
def test_running_windows_of_any_body():
    def larger(a, b):
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    def windows(x, i):
        flags = x > 1
        return (
            [lax.cumlogsumexp(x, axis, reverse=reverse) for axis in (0, 1) for reverse in (0, 1)],
            [lax.cumlogsumexp(x.astype(d), 1) for d in ("bfloat16", "float16")],
            _running((x, i), (-jnp.inf, 2**31 - 1), larger),
            _running((x, i), (-jnp.inf, 2**31 - 1), larger, backwards=True),
            _running(flags, False, lambda a, b: a | b),
            _running(flags, False, lambda a, b: a ^ b, backwards=True),
            _running(i, i[0, 0] - 1, lambda a, b: a * b % 7),
        )

    x = np.random.default_rng(0).normal(size=(3, 12)).round(1).astype(np.float32)
    x[1, 4:] = -np.inf
    i = jnp.broadcast_to(jnp.arange(2, 14, dtype=jnp.int32), x.shape)
    assert_agrees(windows, jnp.asarray(x), i)


def test_running_windows_whose_padding_counts():
    def windows(x):
        return _running(x, 1, lax.add), _running(x, x[0, 0], lax.add, backwards=True)

    x = np.arange(2, 14, dtype=np.int32).reshape(2, 6)
    forward, backward = run(import_stablehlo(export(windows, x)), x)
    padding = np.arange(6, 0, -1)  # and the initial value
    np.testing.assert_array_equal(forward, x.cumsum(1) + padding)
    np.testing.assert_array_equal(backward, x[:, ::-1].cumsum(1)[:, ::-1] + 2 * padding[::-1])
