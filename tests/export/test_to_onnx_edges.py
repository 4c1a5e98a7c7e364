"""At the ends of dtypes and at NaN a file computes what JAX computes, in ONNX Runtime."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import to_onnx

import jaxeff

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.promotes("dtype", "rank")

NAN = float("nan")
FLOATS = np.array(
    [
        0, -0.6, 0.5, 3.7, -1, -3.2, 126.9, 127.5, 128, 255.9, 256, 300, -128.9, -129, 32767.5, 4e4,
        -4e4, 65535.5, 65536, 7e4, 2**31 - 128, 2**31, -(2**31), 2**32 - 256, 2**32, 1e10, -3e9,
        2**63 - 2**39, 2**63, -(2**63), 1.8e19, 2e19, -2e19, 1e-9, 65520, np.inf, -np.inf, NAN,
    ]
)  # fmt: skip
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def assert_equal(f, path, *args):
    """Holds a file against JAX entry by entry, NaN for NaN, and what is read back of it."""
    file = to_onnx(f, args, path, parameters=0)
    session = onnxruntime.InferenceSession(path)
    outputs = session.run(file.outputs, dict(zip(file.inputs, args, strict=True)))
    read, params = jaxeff.functional(path)
    for results in (outputs, jax.tree.leaves(read(params, *args))):
        for ours, want in zip(results, jax.tree.leaves(jax.jit(f)(*args)), strict=True):
            assert ours.dtype == want.dtype
            np.testing.assert_array_equal(ours, want)


def ends(dtype):
    """Lists a dtype's ends, those of the narrower ones, and what is beyond them."""
    if "int" not in dtype:
        return FLOATS
    info = jnp.iinfo(dtype)
    near = [
        s * 2**bits + d for bits in (7, 8, 15, 16, 31, 32, 53) for d in (-1, 0, 1) for s in (1, -1)
    ]
    inside = [n for n in (*near, 0, 1, info.max // 2) if info.min <= n <= info.max]
    return np.array([info.min, info.max, *inside], dtype)


@pytest.mark.parametrize("source", ["float64", "float32", "float16", "bfloat16", *INTEGERS])
def test_conversions_end_where_jax_ends(source, tmp_path):
    targets = [*INTEGERS, "bool", "float32", "float16"]
    with jax.enable_x64(True), np.errstate(over="ignore"):
        numbers = ends(source).astype(source if source != "bfloat16" else "float32")
        assert_equal(
            lambda x: [x.astype(source).astype(t) for t in targets], tmp_path / "c.onnx", numbers
        )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_powers_of_integers_wrap(dtype, tmp_path):
    with jax.enable_x64(True):
        numbers = np.concatenate([ends(dtype), np.array([3, 5, 7, 101], dtype)])
        assert_equal(
            lambda x: [jax.lax.integer_pow(x, n) for n in (1, 2, 3, 5, 10, 31)],
            tmp_path / "p.onnx", numbers,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ends_of_integers_are_in_order(dtype, tmp_path):
    """Of 32 bits without 64: the file is read back as JAX is by default."""

    def order(x):
        others = x.max(1).astype("int32"), jax.lax.argmin(x, 1, "uint32"), jnp.maximum(x, 1)
        running = jnp.cumsum(x, 1), jax.lax.cummax(x, 1), -x, x.argsort(1)
        # ONNX Runtime adds up integers of 64 bits by way of doubles.
        sums = x.sum(1) if x.dtype.itemsize < 8 else x[0]
        ordered = x.argmax(1), x.argmin(1), x.max(), x.min(0), jax.lax.top_k(x, 3)
        return *ordered, *others, *running, sums

    with jax.enable_x64(dtype.endswith("64")):
        numbers = ends(dtype)
        x = np.stack([np.roll(numbers, i) for i in (0, 3, 7)])
        assert_equal(order, tmp_path / "o.onnx", x)


def pooled(x, size, padding, of=jax.lax.max):
    least = np.array(-np.inf if of is jax.lax.max else 0, x.dtype)
    return jax.lax.reduce_window(
        x[None, :, :, None], least, of, (1, *size, 1), (1, 1, 1, 1), padding
    )


EXTREMES = {
    "arguments": lambda x: (x.argmax(0), x.argmin(1), jnp.argmax(x), jnp.argmin(x[:, ::-1], 0)),
    "reductions": lambda x: (x.max(0), x.min(1), x.max(), x.min((0, 1)), x.sum(1), x.any(0)),
    "windows": lambda x: (pooled(x, (2, 2), "VALID"), pooled(x, (3, 2), "SAME")),
    "sums of windows": lambda x: pooled(x, (2, 2), "SAME", jax.lax.add),
    "pairs": lambda x: (
        jnp.maximum(x, 0), jnp.minimum(1, x), jnp.clip(x, -1, 2), jnp.maximum(x, x[::-1]),
        jax.nn.relu6(x), jax.nn.leaky_relu(x), jnp.sign(x), x == x, x != x,
    ),
    "running": lambda x: (jax.lax.cummax(x, 1), jax.lax.cummin(x, 0)),
    "writes": lambda x: (
        x.at[jnp.array([0, 3, 0])].max(x[:3]), jnp.zeros(4).at[jnp.array([0, 1, 0, 9])].min(x[0]),
    ),
    "normalized": lambda x: jnp.isnan(jax.nn.softmax(x, 1)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", EXTREMES)
def test_nan_is_an_extreme_as_in_jax(name, dtype, tmp_path):
    x = np.array(
        [
            [1, NAN, 3, -2], [NAN, NAN, 0, 5], [2, 1, NAN, -np.inf], [4, np.inf, 6, np.inf],
            [1, 3, 3, 1],
        ],
        dtype,
    )  # fmt: skip
    assert_equal(EXTREMES[name], tmp_path / "x.onnx", x)
    assert_equal(EXTREMES[name], tmp_path / "y.onnx", np.nan_to_num(x, posinf=9, neginf=-9))
