"""Operations of raw StableHLO that JAX does not write: XLA runs the same text."""

from __future__ import annotations

import jax
import jax.interpreters.mlir as jax_mlir
import jaxlib._jax
import ml_dtypes
import numpy as np
import pytest
from importer_oracle import assert_close, run
from jax import lax
from jax.extend.backend import get_backend
from jaxeff_export.importer import UnsupportedOpError, import_stablehlo
from jaxlib.mlir import ir

X = np.random.default_rng(0).uniform(0.5, 2.0, (4, 3)).astype(np.float32)
S = np.random.default_rng(1).uniform(0.5, 2.0, 3).astype(np.float32)
XS = "%x: tensor<4x3xf32>, %s: tensor<3xf32>"


def _module(results: dict[str, str], body: str, arguments: str = XS) -> str:
    names, types = ", ".join(results), ", ".join(results.values())
    return (
        f"func.func public @main({arguments}) -> ({types}) {{\n{body}\n"
        f"  return {names} : {types}\n}}\n"
    )


def _by_xla(text: str, *arguments: np.ndarray) -> list[np.ndarray]:
    backend = get_backend("cpu")
    devices = backend.devices()[:1]
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        program = backend.compile_and_load(module, jaxlib._jax.DeviceList(tuple(devices)))
    results = program.execute_sharded([jax.device_put(a, devices[0]) for a in arguments])
    return [np.asarray(r[0]) for r in results.disassemble_into_single_device_arrays()]


def _assert_agrees(text: str, *arguments: np.ndarray, rtol: float | None = None) -> None:
    got = run(import_stablehlo(text), *arguments)
    for ours, theirs in zip(got, _by_xla(text, *arguments), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert_close(ours, theirs, rtol)


def test_dynamic_operations_with_constant_operands():
    body = """
      %23 = stablehlo.constant dense<[4, 3]> : tensor<2xi64>
      %62 = stablehlo.constant dense<[6, 2]> : tensor<2xi32>
      %00 = stablehlo.constant dense<[0, 0]> : tensor<2xi64>
      %01 = stablehlo.constant dense<[0, 1]> : tensor<2xi64>
      %11 = stablehlo.constant dense<[1, 1]> : tensor<2xi64>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %v = stablehlo.constant dense<7.0> : tensor<f32>
      %0 = stablehlo.dynamic_broadcast_in_dim %s, %23, dims = [1]
        : (tensor<3xf32>, tensor<2xi64>) -> tensor<4x3xf32>
      %1 = stablehlo.dynamic_iota %23, dim = 0 : (tensor<2xi64>) -> tensor<4x3xi32>
      %2 = stablehlo.dynamic_reshape %x, %62 : (tensor<4x3xf32>, tensor<2xi32>) -> tensor<6x2xf32>
      %3 = stablehlo.dynamic_pad %x, %v, %00, %01, %11 : (tensor<4x3xf32>, tensor<f32>,
        tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<7x6xf32>
      %4 = stablehlo.real_dynamic_slice %x, %01, %23, %11 : (tensor<4x3xf32>, tensor<2xi64>,
        tensor<2xi64>, tensor<2xi64>) -> tensor<4x2xf32>
      %5 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<4x3xf32>) -> tensor<i32>
      %6 = stablehlo.set_dimension_size %x, %three, dim = 1
        : (tensor<4x3xf32>, tensor<i32>) -> tensor<4x3xf32>
      %i = stablehlo.constant dense<[[2], [9]]> : tensor<2x1xi32>
      %13 = stablehlo.constant dense<[1, 3]> : tensor<2xi32>
      %7 = "stablehlo.dynamic_gather"(%x, %i, %13) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
        index_vector_dim = 1>} : (tensor<4x3xf32>, tensor<2x1xi32>, tensor<2xi32>)
        -> tensor<2x3xf32>"""
    kinds = {
        "%0": "4x3xf32", "%1": "4x3xi32", "%2": "6x2xf32", "%3": "7x6xf32", "%4": "4x2xf32",
        "%5": "i32", "%6": "4x3xf32", "%7": "2x3xf32",
    }  # fmt: skip
    _assert_agrees(_module({k: f"tensor<{v}>" for k, v in kinds.items()}, body), X, S)


def test_dynamic_convolution():
    body = """
      %p = stablehlo.constant dense<[[1, 0], [0, 2]]> : tensor<2x2xi64>
      %0 = "stablehlo.dynamic_conv"(%x, %w, %p) {
        dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>,
        window_strides = array<i64: 2, 1>, feature_group_count = 1 : i64,
        batch_group_count = 1 : i64
      } : (tensor<1x4x4x2xf32>, tensor<3x3x2x1xf32>, tensor<2x2xi64>) -> tensor<1x2x4x1xf32>"""
    arguments = "%x: tensor<1x4x4x2xf32>, %w: tensor<3x3x2x1xf32>"
    x, w = X.repeat(3)[:32].reshape(1, 4, 4, 2), X.repeat(2)[:18].reshape(3, 3, 2, 1)
    (got,) = run(import_stablehlo(_module({"%0": "tensor<1x2x4x1xf32>"}, body, arguments)), x, w)
    numbers = ("NHWC", "HWIO", "NHWC")  # XLA itself does not take the dynamic one
    want = lax.conv_general_dilated(x, w, (2, 1), [(1, 0), (0, 2)], dimension_numbers=numbers)
    assert_close(got, np.asarray(want))


def test_deprecated_operations():
    body = """
      %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
      %0 = stablehlo.dot %x, %t : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x4xf32>
      %1 = stablehlo.dot %x, %s : (tensor<4x3xf32>, tensor<3xf32>) -> tensor<4xf32>
      %2 = stablehlo.einsum %x, %t, config = "ij,jk->ki"
        : (tensor<4x3xf32>, tensor<3x4xf32>) -> tensor<4x4xf32>
      %3 = stablehlo.broadcast %x, sizes = [2] : (tensor<4x3xf32>) -> tensor<2x4x3xf32>
      %i = stablehlo.constant dense<[1, 0, 3]> : tensor<3xi32>
      %4 = "stablehlo.torch_index_select"(%x, %i) {dim = 0 : i64, batch_dims = 0 : i64}
        : (tensor<4x3xf32>, tensor<3xi32>) -> tensor<3x3xf32>
      %5 = "stablehlo.map"(%x, %x) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %p = stablehlo.multiply %a, %b : tensor<f32>
        %e = stablehlo.sine %p : tensor<f32>
        stablehlo.return %e : tensor<f32>
      }) {dimensions = array<i64: 0, 1>} : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
      %token = stablehlo.create_token : !stablehlo.token
      %after = stablehlo.after_all %token, %token : !stablehlo.token
      %pair = stablehlo.tuple %x, %s {name = "pair"} : tuple<tensor<4x3xf32>, tensor<3xf32>>
      %6 = stablehlo.get_tuple_element %pair[1]
        : (tuple<tensor<4x3xf32>, tensor<3xf32>>) -> tensor<3xf32>"""
    kinds = {
        "%0": "4x4xf32", "%1": "4xf32", "%2": "4x4xf32", "%3": "2x4x3xf32", "%4": "3x3xf32",
        "%5": "4x3xf32", "%6": "3xf32",
    }  # fmt: skip
    _assert_agrees(_module({k: f"tensor<{v}>" for k, v in kinds.items()}, body), X, S)


@pytest.mark.slow
def test_batch_norms():
    attributes = "{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"
    body = f"""
      %0 = "stablehlo.batch_norm_inference"(%x, %s, %s, %s, %s) {attributes} : (tensor<4x3xf32>,
        tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<4x3xf32>
      %1, %2, %3 = "stablehlo.batch_norm_training"(%x, %s, %s) {attributes} : (tensor<4x3xf32>,
        tensor<3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)
      %4, %5, %6 = "stablehlo.batch_norm_grad"(%x, %s, %s, %s, %x) {attributes} :
        (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<4x3xf32>)
        -> (tensor<4x3xf32>, tensor<3xf32>, tensor<3xf32>)"""
    kinds = {f"%{i}": f"tensor<{'4x' if i in (0, 1, 4) else ''}3xf32>" for i in range(7)}
    # XLA takes the variance as a difference of moments, which loses digits.
    _assert_agrees(_module(kinds, body), X, S, rtol=2e-5)


def test_one_device_needs_no_communication():
    groups = "replica_groups = dense<[[0]]> : tensor<1x1xi64>"
    adds = """({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %sum = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %sum : tensor<f32>
      })"""
    body = f"""
      %0 = stablehlo.partition_id : tensor<ui32>
      %1 = stablehlo.replica_id : tensor<ui32>
      %2 = "stablehlo.all_reduce"(%x) {adds} {{{groups}}} : (tensor<4x3xf32>) -> tensor<4x3xf32>
      %3 = "stablehlo.all_gather"(%x) {{all_gather_dim = 1 : i64, {groups}}}
        : (tensor<4x3xf32>) -> tensor<4x3xf32>
      %4 = "stablehlo.reduce_scatter"(%x) {adds} {{scatter_dimension = 0 : i64, {groups}}}
        : (tensor<4x3xf32>) -> tensor<4x3xf32>
      %5 = "stablehlo.all_to_all"(%x) {{split_dimension = 1 : i64, concat_dimension = 0 : i64,
        split_count = 1 : i64, {groups}}} : (tensor<4x3xf32>) -> tensor<4x3xf32>
      %6 = "stablehlo.collective_permute"(%x) {{source_target_pairs = dense<[[0, 0]]> :
        tensor<1x2xi64>}} : (tensor<4x3xf32>) -> tensor<4x3xf32>"""
    kinds = {f"%{i}": "tensor<ui32>" if i < 2 else "tensor<4x3xf32>" for i in range(7)}
    _assert_agrees(_module(kinds, body), X, S)
    with pytest.raises(UnsupportedOpError, match="collective_permute"):
        import_stablehlo(_module(kinds, body.replace("[[0, 0]]", "[[0, 1]]")))


def test_recent_chlo_operations():
    body = """
      %init = stablehlo.constant dense<0.0> : tensor<3xf32>
      %0, %1 = chlo.scan(%x) inits(%init) dimension=0 {
      ^bb0(%a: tensor<3xf32>, %b: tensor<3xf32>):
        %sum = stablehlo.add %a, %b : tensor<3xf32>
        stablehlo.return %sum, %sum : tensor<3xf32>, tensor<3xf32>
      } : (tensor<4x3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>)
      %n = stablehlo.constant dense<[2000000000, -2000000000, 7]> : tensor<3xi32>
      %2 = "chlo.mulhi"(%n, %n) : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
      %3 = chlo.square %x : tensor<4x3xf32> -> tensor<4x3xf32>
      %4 = chlo.is_inf %x : tensor<4x3xf32> -> tensor<4x3xi1>
      %5 = chlo.next_after %s, %init : tensor<3xf32>, tensor<3xf32> -> tensor<3xf32>"""
    kinds = {
        "%0": "4x3xf32", "%1": "3xf32", "%2": "3xi32", "%3": "4x3xf32", "%4": "4x3xi1",
        "%5": "3xf32",
    }  # fmt: skip
    _assert_agrees(_module({k: f"tensor<{v}>" for k, v in kinds.items()}, body), X, S)


def test_modules_without_arguments_and_checks_without_results():
    text = """
      func.func private @inputs() -> (tensor<3xbf16>, tensor<0x3xf32>) {
        %0 = stablehlo.constant dense<[1.0, 2.5, -3.0]> : tensor<3xbf16>
        %1 = stablehlo.constant dense<> : tensor<0x3xf32>
        return %0, %1 : tensor<3xbf16>, tensor<0x3xf32>
      }
      func.func public @main() -> (tensor<3xbf16>, tensor<0x3xf32>, tensor<9000xbf16>) {
        %0:2 = call @inputs() : () -> (tensor<3xbf16>, tensor<0x3xf32>)
        %1 = stablehlo.add %0#0, %0#0 : tensor<3xbf16>
        %2 = stablehlo.add %0#1, %0#1 : tensor<0x3xf32>
        %3 = stablehlo.constant dense<1.5> : tensor<9000xbf16>
        stablehlo.custom_call @check.expect_close(%1, %0#0) {has_side_effect = true}
          : (tensor<3xbf16>, tensor<3xbf16>) -> ()
        return %1, %2, %3 : tensor<3xbf16>, tensor<0x3xf32>, tensor<9000xbf16>
      }"""
    doubled, empty, splat = run(import_stablehlo(text))
    np.testing.assert_array_equal(doubled, np.array([2, 5, -6], ml_dtypes.bfloat16))
    assert empty.shape == (0, 3)
    np.testing.assert_array_equal(splat, np.full(9000, 1.5, ml_dtypes.bfloat16))
