"""Sound programs that the fuzzer damages: small, and together of every kind that modules have."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 4, 4, 3)
_V = np.arange(8, dtype=np.float32)


def _network(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.softmax(y.reshape(1, -1) @ jnp.ones((8, 3))), jnp.argmax(y)


def _control(v: jax.Array, n: jax.Array) -> tuple[jax.Array, ...]:
    stepped, stacked = lax.scan(lambda c, r: (c * 0.5 + r, c > 1), v[0], v)
    counted = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + 2), (0, v))
    return stepped, stacked, counted[1], lax.cond(n > 2, jnp.sin, jnp.cos, v)


def _indexing(v: jax.Array, i: jax.Array) -> tuple[jax.Array, ...]:
    window = lax.dynamic_slice(v, (i[0],), (3,))
    return v[i], v.at[i].add(1), jnp.sort(v), lax.pad(window, jnp.float32(0), [(1, -1, 2)])


def _functions(v: jax.Array) -> tuple[jax.Array, ...]:
    inner = jax.jit(lambda x: lax.erf(x) + jnp.float32(3).astype(x.dtype))
    half = v.astype(jnp.bfloat16) * jnp.asarray(np.arange(8), jnp.bfloat16)
    return inner(inner(v)), lax.lgamma(v), lax.top_k(v, 2)[1], half, jnp.cumsum(v), v.astype(int)


def _polymorphic(x: jax.Array) -> tuple[jax.Array, ...]:
    return x.reshape(x.shape[0] * 2, 2) + x.mean(), jnp.arange(x.shape[0]), jnp.pad(x, 1)


_TEXT = """module @written {
  func.func public @main(%x: tensor<2x3xf32> loc("x"), %p: tensor<i1>) -> tensor<2x3xf32> {
    %c = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
    %s = stablehlo.constant dense<"0x0000803F"> : tensor<f32>
    %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %0 = func.call @twice(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.composite "a.b" %0 {composite_attributes = {n = 3 : i32}, decomposition = @twice}
      : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = "stablehlo.if"(%p) ({
      %t = stablehlo.multiply %1, %c : tensor<2x3xf32>
      stablehlo.return %t : tensor<2x3xf32>
    }, {
      stablehlo.return %b : tensor<2x3xf32>
    }) : (tensor<i1>) -> tensor<2x3xf32>
    %3 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{replicated}"}
      : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %4 = stablehlo.dot_general %3, %x, contracting_dims = [1] x [1]
      : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
    %5 = stablehlo.slice %4 [0:2, 0:1] : (tensor<2x2xf32>) -> tensor<2x1xf32>
    %6 = stablehlo.reduce(%3 init: %s) applies stablehlo.add across dimensions = [0]
      : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %8 = chlo.broadcast_add %7, %5 : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x3xf32>
    return %8 : tensor<2x3xf32> loc("result"("f.py":3:4))
  }
  func.func private @twice(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %x, %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""


@functools.cache
def exported() -> dict[str, jax.export.Exported]:
    """JAX programs, by name."""
    calls: dict[str, tuple[Any, ...]] = {
        "network": (_network, _X, np.ones((3, 3, 3, 2), np.float32)),
        "control": (_control, _V, np.int32(5)),
        "indexing": (_indexing, _V, np.array([1, 9, -3], np.int32)),
        "functions": (_functions, _V),
    }
    programs = {name: jax.export.export(jax.jit(f))(*args) for name, (f, *args) in calls.items()}
    (batch,) = jax.export.symbolic_shape("batch")
    kind = jax.ShapeDtypeStruct((batch, 4), jnp.float32)
    return programs | {"polymorphic": jax.export.export(jax.jit(_polymorphic))(kind)}


def texts() -> dict[str, str]:
    """The programs as StableHLO text, with locations and without, and one written by hand."""
    programs = exported()
    found = {name: str(program.mlir_module()) for name, program in programs.items()}
    found["control without locations"] = _without_locations(found["control"])
    found["written"] = _TEXT
    return found


def artifacts() -> dict[str, bytes]:
    """The programs as the bytes of portable artifacts."""
    return {name: program.mlir_module_serialized for name, program in exported().items()}


def _without_locations(text: str) -> str:
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        return str(ir.Module.parse(text).operation.get_asm(enable_debug_info=False))
