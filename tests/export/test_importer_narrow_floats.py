"""bfloat16 and 8-bit floats through every kind of kernel, against XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from importer_oracle import export, run
from jax import lax
from jaxeff_export.importer import import_stablehlo
from tvm import relax

FLOAT8 = (
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip


def _assert_same(ours: dict, theirs: dict) -> None:
    """Equal, bit by bit, but for NaN."""
    for name, want in theirs.items():
        got, want = np.asarray(ours[name]), np.asarray(want)
        assert got.dtype == want.dtype, name
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(got, want, name)
        signed = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[signed], np.signbit(want)[signed], name)


def _results(function, module: tvm.IRModule, *args) -> dict:
    return dict(zip(sorted(jax.eval_shape(function, *args)), run(module, *args), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOAT8)
def test_operations_on_every_float8(dtype):
    kind = jnp.dtype(dtype)
    every = np.arange(256, dtype=np.uint8).view(kind)
    a, b = (side.ravel() for side in np.meshgrid(every[::5], every[::7]))

    def operations(every, a, b):
        matrix = jnp.arange(-32, 32).reshape(8, 8).astype(kind)  # sums of these are exact
        return {
            "to_bits": lax.bitcast_convert_type(every, jnp.uint8),
            "from_bits": lax.bitcast_convert_type(jnp.arange(256, dtype=jnp.uint8), kind),
            "constant": jnp.asarray(every[:60]) * every[1],
            "negative": -every,
            "sum": a + b,
            "product": a * b,
            "less": a < b,
            "larger": jnp.maximum(a, b),
            "chosen": jnp.where(a < b, a, b),
            "padded": jnp.pad(every, (2, 3)) + every[3],
            "gathered": a[jnp.arange(9) * 3] * every[7],
            "transposed": matrix.T,
            "contracted": jnp.dot(matrix, matrix, preferred_element_type=jnp.float32),
        }

    args = (every, a, b)
    module = import_stablehlo(export(operations, *args))
    _assert_same(_results(operations, module, *args), jax.jit(operations)(*args))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_movement_and_loops_around_arithmetic(dtype):
    x = (np.arange(9) - 3).astype(jnp.dtype(dtype))

    def operations(x, n):
        def square(state):
            return state[0] + 1, state[1] * state[1] + x

        return {
            "update": lax.dynamic_update_slice(x, x[3:5], (2,)) * x,
            "concatenation": jnp.concatenate([x, x + x]) * x[0],
            "pad": jnp.pad(x, 1) * x[0],
            "scan": lax.scan(lambda c, v: (v, c), x[0], x)[1] * x,
            "while": lax.while_loop(lambda s: s[0] < n, square, (jnp.int32(0), x))[1],
            "for": lax.fori_loop(0, n, lambda i, v: v.at[i].set(v[i + 1] * 2), x),
            "cond": lax.cond(n > 2, lambda v: v * 2, lambda v: v[::-1], x),
            "sort": jnp.sort(x) * x,
            "scatter": x.at[jnp.array([n, 1])].add(x[:2]) * x,
            "gather": x[jnp.array([n, 2])] * x[0],
            "window": lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "SAME") * x,
            "outer": x[:, None] @ x[None] + x,
        }

    args = (x, np.int32(3))
    module = import_stablehlo(export(operations, *args))
    want = jax.jit(operations)(*args)
    _assert_same(_results(operations, module, *args), want)
    plain = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    got = [r.numpy() for r in plain["main"](*(tvm.runtime.tensor(np.array(a)) for a in args))]
    _assert_same(dict(zip(sorted(want), got, strict=True)), want)
