"""ONNX files compute what JAX computes, in ONNX Runtime; what can't be written is named."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import MissingExtraError, OnnxError, to_onnx

import jaxeff
from jaxeff import Gaussian, Int
from jaxeff.compression import calibrate
from jaxeff.nn import MLP, LeNet5, ResNet8, SmallCNN, TransformerEncoder, small_classifier

MODELS = {
    "mlp": (lambda: MLP((3, 8, 2), rngs=nnx.Rngs(0)), (2, 3)),
    "small": (lambda: SmallCNN(rngs=nnx.Rngs(0)), (2, 28, 28, 1)),
    "lenet": (lambda: LeNet5(rngs=nnx.Rngs(0)), (2, 28, 28, 1)),
    "resnet": (lambda: ResNet8(rngs=nnx.Rngs(0)), (2, 32, 32, 3)),
    "encoder": (lambda: TransformerEncoder(rngs=nnx.Rngs(0)), (2, 8, 8)),
}


def assert_same(path, fn, *args):
    """Holds the file against JAX: to a few roundings of the largest result."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    file = to_onnx(fn, args, path)
    options = onnxruntime.SessionOptions()
    # Else it rounds activations beside weights of integers by itself.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    # Else its products of bytes saturate in 16 bits on processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options)
    inputs = dict(zip(file.inputs, map(np.asarray, jax.tree.leaves(args[1:])), strict=True))
    outputs = session.run(list(file.outputs), inputs)
    for ours, want in zip(outputs, jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert ours.dtype == want.dtype
        np.testing.assert_allclose(ours, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["plain", "quantized", "moments"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, transform, tmp_path):
    build, shape = MODELS[name]
    model = build()
    model.eval()
    f, params = jaxeff.functional(model)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    if transform == "quantized":
        f = jaxeff.quantized(f, {"*:linear": Int(8, symmetric=False)})
    if transform == "moments":
        f, means = jaxeff.moments(f, method="diagonal"), params
        params = jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, 1e-3)), means)
    assert_same(tmp_path / "net.onnx", f, params, x)


W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
FUNCTIONS = {
    "products": lambda w, x: jnp.einsum("bij,bkj->bik", x @ w, x @ w),
    "pooling": lambda w, x: nnx.avg_pool(x[..., None], (2, 3), (1, 2), "SAME")[..., 0] + w[0, 0],
    "windows of one": lambda w, x: (
        nnx.max_pool(x[..., None], (1, 1), (1, 1), "SAME")[..., 0] + w[0, 0]
    ),
    "shapes": lambda w, x: jnp.pad(jnp.flip(x, 1), ((0, 0), (1, 2), (0, 0))).swapaxes(0, 2)[::2],
    "choices": lambda w, x: jnp.where((x > 0) & ~(x > 1), jnp.round(3 * x), jnp.clip(x, -1, 0)),
    "reductions": lambda w, x: (
        jax.lax.reduce_sum_p.bind(x * w[0, 0], axes=(), out_sharding=None),
        x.max(),
        x.sum((0, 2)),
    ),
    "integers": lambda w, x: (jnp.argmax(x @ w, -1), jnp.stack([x, x], 1).astype(jnp.int32)),
    "functions": lambda w, x: jax.nn.softplus(x) + jax.nn.gelu(x) + jax.lax.erfc(x) + x**3,
    "rows": lambda w, x: (
        w[x.astype(int)],
        jnp.take(x, (x[:, 0] > 0).astype(int), axis=1),
        jnp.take(w, x[..., 0].astype(int) * 2, axis=1, mode="fill", fill_value=7),
        jnp.take(w, x.astype(int) * 9, axis=0, mode="clip"),
        jax.lax.dynamic_index_in_dim(x, 1, 1) + w[0, 0],
    ),
    "sums": lambda w, x: (
        jax.ops.segment_sum(x, (x[:, 0, 0] > 0).astype(int) * 5 + 1, 3),
        w.at[x[0].astype(int)[:, 0]].add(1.0),
    ),
    "loops": lambda w, x: (
        jax.lax.scan(lambda c, row: (c + row @ w, (c, row * 2)), x[:, 0] @ w, x.swapaxes(0, 1)),
        jax.lax.scan(lambda c, row: (c + 1, row + c), 0.0, x, reverse=True),
    ),
    "updates": lambda w, x: (
        jax.lax.dynamic_update_slice(x, x[:1, :2, :2] * w[0, 0], (x[0, 0, 0].astype(int), 2, 9)),
        jax.lax.dynamic_update_slice(x, 2 * x, (1, 1, 1)),
        jax.lax.dynamic_update_slice(w, x[0, :1], (1, x[0, 0, 0].astype(int) + 1)),
    ),
    "parts": lambda w, x: jnp.split(x, [1, 3], 1),
    "transposed": lambda w, x: (
        jax.lax.conv_transpose(x, w[None].repeat(2, 0), (3,), "SAME"),
        jax.lax.conv_transpose(x[..., None], w.reshape(3, 2, 1, 2), (2, 3), "VALID"),
    ),
    "orders": lambda w, x: (
        jax.lax.top_k(jnp.abs(jnp.round(x)), 2),
        jax.lax.sort((jnp.round(2 * x), x), dimension=1, num_keys=1),
        jnp.sort(x > 0, axis=0),
        jnp.argsort(x, 2, descending=True),
    ),
    "running": lambda w, x: [
        running(x + w[0, 0], axis, reverse)
        for running in (jax.lax.cumsum, jax.lax.cummax, jax.lax.cummin, jax.lax.cumprod)
        for axis, reverse in ((1, False), (1, True), (0, False))
    ],
    "more": lambda w, x: (
        jnp.tile(x, (2, 1, 3)),
        jax.lax.rem(3 * x, x[:, ::-1]),
        (x > 0).any(1),
        (x > -1).all((0, 2)),
        jnp.exp2(x) + jnp.sinh(x) * jnp.cosh(x) + jnp.arcsinh(x),
        jnp.arccosh(1 + x**2) + jnp.arctanh(jnp.tanh(x)),
    ),
    "constants": lambda w, x: {"a": w + 1, "b": x},
    "pairs": lambda w, x: (
        w[whole(x)[:, 0], whole(x, 3)[:, 1]],
        x[:, whole(x)[0], whole(x)[1]],
        x.at[whole(x, 2)[0], whole(x, 3)[1]].get(mode="fill", fill_value=5),
        jnp.take_along_axis(x, whole(x, 3)[:, :2], 1),
        (x > 0)[whole(x, 2)[0, 0], whole(x, 2)[1, 0]],
    ),
    "windows": lambda w, x: (
        jax.vmap(lambda r, i: jax.lax.dynamic_slice(r, (i, 1), (2, 2)))(x, whole(x, 2)[:, 0, 0]),
        jax.vmap(lambda i: jax.lax.dynamic_slice(x, (0, i, 0), (2, 3, 2)))(whole(x, 2)[0, :, 0]),
        jax.vmap(lambda r, i: jax.lax.dynamic_update_slice(r, r[:2, :2] * 3, (i, 0)))(
            x, whole(x, 2)[:, 0, 0]
        ),
    ),
    "writes": lambda w, x: (
        x.at[:, jnp.array([4, 0])].set(x[:, :2] * w[0, 0]),
        (2 * x).at[:].set(x),
        x.at[:, :].add(w[0, 0]),
        (2 * x).at[:].max(x),
        x.at[1, whole(x, 4)[0, 0], 1].set(9.0),
        w.at[whole(x, 3)[0, :, 0], whole(x, 3)[1, :, 1]].add(x[0, :, 0]),
        x.at[..., whole(x, 3)[0, 0]].mul(2.0),
        x.at[whole(x, 2)[0, :, 0]].min(0.0).at[whole(x, 2)[0, :, 0]].max(-0.5),
        jax.vmap(lambda r, i: jax.ops.segment_sum(r, i, 4))(x, whole(x, 3)[:, :, 0]),
    ),
    "branches": lambda w, x: (
        jax.lax.cond(x[0, 0, 0] > 0, lambda: (x @ w, 1), lambda: (jnp.tanh(x @ w), 2)),
        [
            jax.lax.switch(whole(x)[0, 0, 0] + i, BRANCHES, x[..., 0] * w[0, 1])
            for i in (-1, 0, 1, 5)
        ],
    ),
    "whiles": lambda w, x: (
        jax.lax.while_loop(
            lambda c: c[1].sum() < 40,
            lambda c: (c[0] + 1, c[1] + jnp.abs(x[..., :1] @ w[:1]) + 0.1),
            (0, x @ w),
        ),
        jax.lax.while_loop(lambda c: c.sum() > 1e9, lambda c: c + w[0], x @ w),
        jax.lax.fori_loop(0, 3 + whole(x)[0, 0, 0], lambda i, c: c * i + w[0], x @ w),
    ),
    "long loops": lambda w, x: (
        jax.lax.scan(
            lambda c, i: (0.9 * c + x[0, 0] @ w, (c, i + w[0, 0])), w[0], jnp.arange(200.0)
        ),
        jax.lax.scan(
            lambda c, r: (c + r, c * 2), x[0, 0, 0], jnp.arange(300.0) + x[1, 1, 1], reverse=True
        ),
    ),
    "nested": lambda w, x: jax.lax.while_loop(
        lambda c: c.sum() < 50,
        lambda c: jax.lax.cond(
            c[0, 0, 0] > 0,
            lambda c: c + 1,
            lambda c: jax.lax.fori_loop(
                0, 2 + whole(c)[0, 0, 0] ** 2 % 2, lambda i, c: c + i, c + 1
            ),
            c,
        ),
        x @ w,
    ),
}
BRANCHES = (lambda y: y + 1, jnp.tanh, jnp.zeros_like)


def whole(x, scale=1):
    """Indices, some of which are negative or beyond the array."""
    return (x * scale).astype(int)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, tmp_path):
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype(np.float32)
    assert_same(tmp_path / "f.onnx", FUNCTIONS[name], W, x)
    if name == "branches":  # each of them
        assert_same(tmp_path / "f.onnx", FUNCTIONS[name], W, -x)


def test_a_branch_reads_what_is_rounded_outside(tmp_path):
    def branched(w, x):
        y = x @ w
        return y + jax.lax.cond(y[0, 0] > 0, lambda: x @ w + 1, lambda: jnp.tanh(y))

    g = jaxeff.quantized(branched, {"*": Int(8, range=(-3.0, 3.0), symmetric=False)})
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    assert_same(tmp_path / "f.onnx", g, W, x)
    assert len(nodes_of(tmp_path / "f.onnx", "QuantizeLinear")) == 1


def nodes_of(path, kind):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(path).graph
    dtypes = {t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == kind]
    return [dtypes.get(node.input[0]) for node in nodes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "stored"),
    [
        (Int(8), "INT8"),
        (Int(8, symmetric=False), "UINT8"),
        (Int(4), "INT4"),
        (Int(4, symmetric=False), "UINT4"),
        (Int(4, per="tensor", symmetric=False), "UINT4"),
    ],
)
def test_quantized_weights_are_integers(setting, stored, tmp_path):
    f, params, (x, _) = small_classifier(4)
    g = jaxeff.quantized(f, calibrate(f, params, [x], {"*:linear": setting}).spec)
    assert_same(tmp_path / "q.onnx", g, params, x)
    to_onnx(f, (params, x), tmp_path / "f.onnx")
    sizes = [(tmp_path / name).stat().st_size for name in ("q.onnx", "f.onnx")]
    weights = sum(w.size for w in jax.tree.leaves(params) if w.ndim > 1)
    saved = weights * (4 - (0.5 if "4" in stored else 1))
    # But for the names and steps of a few more nodes.
    assert saved - 2000 < sizes[1] - sizes[0] < saved
    kinds = nodes_of(tmp_path / "q.onnx", "DequantizeLinear")
    assert sorted(map(str, kinds)) == sorted(["None"] * 3 + [stored] * 3)
    assert len(nodes_of(tmp_path / "q.onnx", "QuantizeLinear")) == 3
    assert not nodes_of(tmp_path / "q.onnx", "Round")


@pytest.mark.parametrize(
    ("setting", "stored"),
    [
        ({"bits": 4}, "INT4"),
        ({"bits": 4, "steps": "int8"}, "INT4"),
        ({"bits": 4, "symmetric": False}, "UINT4"),
        ({"bits": 8, "symmetric": False}, "UINT8"),
    ],
)
def test_weights_by_group_are_integers_in_blocks(setting, stored, tmp_path):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 24)).astype(np.float32) * np.linspace(0.1, 2, 64)[:, None]
    w = w.astype(np.float32)
    spec = {"*": Int(**setting, per="group", group=16, activations=False)}
    g = jaxeff.quantized(lambda w, x: x @ w, spec)
    assert_same(tmp_path / "q.onnx", g, w, rng.normal(size=(3, 64)).astype(np.float32))
    assert nodes_of(tmp_path / "q.onnx", "DequantizeLinear") == [stored]
    size = w.size * (0.5 if "4" in stored else 1) + 4 * 24 * 4
    assert (tmp_path / "q.onnx").stat().st_size < size + 900


def test_values_between_codes_and_beyond_the_range(tmp_path):
    spec = {"*": Int(3, range=(-1.0, 2.0), symmetric=False)}
    g = jaxeff.quantized(lambda w, x: x @ w, spec)
    x = np.concatenate([np.linspace(-9, 9, 301), [0.0, 2.0]]).astype(np.float32).reshape(-1, 3)
    assert_same(tmp_path / "q.onnx", g, W, x)


@pytest.mark.parametrize("bits", [8, 9])
def test_codes_far_below_zero(bits, tmp_path):
    # They span few integers, none of which is their zero.
    w = np.linspace(-1, -0.98, 12, dtype=np.float32).reshape(3, 4)
    g = jaxeff.quantized(lambda w, x: x @ w, {"*": Int(bits, activations=False, symmetric=False)})
    for weights in (w, np.full_like(w, -1)):
        assert_same(tmp_path / "q.onnx", g, weights, W.T.copy())


def test_grids_that_no_operator_has_stay_in_float(tmp_path):
    # A range that is measured anew in every call; and a step for each row and column.
    dynamic = jaxeff.quantized(lambda w, x: x @ w, {"*": Int(8, symmetric=False)})
    assert_same(tmp_path / "d.onnx", dynamic, W, W.T.copy()[:, :3])
    assert nodes_of(tmp_path / "d.onnx", "Round")
    assert nodes_of(tmp_path / "d.onnx", "DequantizeLinear") == ["UINT8"]

    def blocks(w, x):
        return x @ (jnp.round(w * 3) * jnp.array([[1.1, 2, 3, 4]]) * (w[:, :1] + 2))

    assert_same(tmp_path / "b.onnx", blocks, W, W.T.copy())
    assert not nodes_of(tmp_path / "b.onnx", "DequantizeLinear")


@pytest.mark.parametrize(
    "config", [((0, 0, 1), (0, 0, 0)), ((1, -2, 2), (-1, 3, 1)), ((0, 9, 3), (2, 0, 0))]
)
def test_padding_between_elements_and_below_zero(config, tmp_path):
    def padded(w, x):
        return jax.lax.pad(x @ w, jnp.float32(0.5), config)

    assert_same(tmp_path / "p.onnx", padded, W, W.T.copy()[:, :3])


def window(x, start, reduce):
    return jax.lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def convolved(x):
    return jax.lax.conv_general_dilated(
        x, x[:1, :3, :3, :, None].repeat(3, -1)[0], (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip


def lowest(dtype):
    return dtype.type(-np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min)


PLACES = jnp.array([1, 7, -1, -9])
NUMBERS = {
    "convolution": convolved,
    "max pooling": lambda x: window(x, lowest(x.dtype), jax.lax.max),
    "sum pooling": lambda x: window(x, x.dtype.type(0), jax.lax.add),
    "products": lambda x: x[0, 0].T @ x[0, 0],
    "sums": lambda x: [f(x, axis=1, dtype=x.dtype) for f in (jnp.sum, jnp.prod, jnp.cumsum)],
    "extremes": lambda x: (x.max(1), x.min(2), x.argmax(1), x.argmin(2), jax.lax.cummax(x, 1)),
    "orders": lambda x: (jnp.sort(x, 1), jax.lax.top_k(x, 2)),
    "pairs": lambda x: (jnp.maximum(x, x[:, ::-1]), jnp.minimum(x, x[:, ::-1]), x + x, x * x, -x),
    "choices": lambda x: (
        jnp.where(x > 1, x, x[:, ::-1]), jnp.clip(x, 1, 3), x <= x[:, ::-1], abs(x),
    ),
    "shapes": lambda x: (jnp.pad(x, ((0, 0), (1, 2), (0, 0), (0, 0))), jnp.tile(x, (1, 2, 1, 1))),
    "powers": lambda x: x**3,
    "functions": lambda x: (jax.lax.erf(x), jnp.tan(x), jnp.sinh(x), jnp.arctan(x)),
    "more functions": lambda x: (jnp.exp(-x), jnp.tanh(x), jnp.isfinite(x), jnp.log1p(x)),
    "rows": lambda x: (
        x[0, PLACES], x[0, PLACES, PLACES[::-1]], jnp.take(x, PLACES, 1), jnp.take(x, 9, 1),
        x.at[0, PLACES].get(mode="fill"),
    ),
    "writes": lambda x: (x.at[0, PLACES].set(1), x.at[0, PLACES].add(1), x.at[0, PLACES].max(3)),
}  # fmt: skip
DTYPES = [
    "float64", "float32", "float16", "bfloat16",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (64, 32, 16, 8)),
]  # fmt: skip
NO_KERNELS = {
    "convolution": {"float64", *DTYPES[4:]},
    "max pooling": {"int64", "uint64"},
    "sum pooling": {"float64", *DTYPES[4:]},
    "functions": {"float64"},
}
"""What is refused. ONNX Runtime takes everything else, though much of it in other dtypes."""


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")
@pytest.mark.parametrize("name", NUMBERS)
def test_files_run_in_every_dtype_or_are_refused_by_name(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    fn, refused = NUMBERS[name], set()
    numbers = np.random.default_rng(0).integers(0, 5, (1, 6, 6, 2))
    with jax.enable_x64(True):
        for dtype in DTYPES:
            if "functions" in name and "int" in dtype:
                continue

            # Inputs that NumPy has, of every dtype.
            def cast(x, dtype=dtype):
                return [
                    y.astype(jnp.float32) if y.dtype == jnp.bfloat16 else y
                    for y in jax.tree.leaves(fn(x.astype(dtype)))
                ]

            path = tmp_path / f"{dtype}.onnx"
            try:
                file = to_onnx(cast, (numbers,), path, parameters=0)
            except OnnxError as error:
                words = str(error)
                assert not path.exists()
                refused.add(dtype)
            if dtype in refused:
                assert re.search(rf"has no kernel for `\w+` of {dtype}; build", words), words
                continue
            output = onnxruntime.InferenceSession(path).run(
                list(file.outputs), {file.inputs[0]: numbers}
            )
            few = {"float16": 4e-3, "bfloat16": 2e-2}.get(
                dtype, 1e-5
            )  # some units in the last place
            for ours, want in zip(output, jax.jit(cast)(numbers), strict=True):
                assert ours.dtype == want.dtype
                np.testing.assert_allclose(ours, want, rtol=few, atol=few, err_msg=dtype)
    assert refused == NO_KERNELS.get(name, set())


def test_a_file_that_cannot_be_read_back_is_not_written(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    from jaxeff_export.onnx_files import _to_onnx

    path = tmp_path / "f.onnx"
    path.write_text("before")
    # As if the table didn't know: the runtime refuses what it is handed.
    monkeypatch.setattr(_to_onnx, "_KERNELS", {})
    with jax.enable_x64(True), pytest.raises(OnnxError, match=r"ONNX Runtime refuses .* Conv"):
        to_onnx(convolved, (np.ones((1, 6, 6, 2)),), path, parameters=0)
    # Without it, the checker of the format finds a dtype that no version has.
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    pooled = lambda x: window(x, lowest(x.dtype), jax.lax.max)  # noqa: E731
    with pytest.raises(OnnxError, match=r"none of ONNX: .*int32"):
        to_onnx(pooled, (np.ones((1, 6, 6, 2), np.int32),), path, parameters=0)
    assert path.read_text() == "before"


def test_refusals_are_named(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "f.onnx"

    def drawn(w, x):
        return x @ w + jax.random.normal(jax.random.key(x[0, 0].astype(int)), (4,))

    def by_two(w, x):
        return jax.lax.sort((x @ w, x @ w), num_keys=2)

    refusals = {
        "`random_.*draw outside and hand": drawn,
        "`sort` by more": by_two,
        "`and` of int32": lambda w, x: whole(x) & 3,
        "`reduce_or` of integers": lambda w, x: jax.lax.reduce_or(whole(x), (0,)),
        "more than two cases": lambda w, x: jax.lax.select_n(whole(x) % 3, x, 2 * x, 3 * x),
        "pooling with dilation": lambda w, x: jax.lax.reduce_window(
            x, -np.inf, jax.lax.max, (1, 2), (1, 1), "VALID", window_dilation=(1, 2)
        ),
        "convolution with negative padding": lambda w, x: jax.lax.conv_general_dilated(
            x[None], w[None], (1,), [(-1, 0)], dimension_numbers=("NWC", "WIO", "NWC")
        ),
    }
    for words, fn in refusals.items():
        with pytest.raises(OnnxError, match=words):
            to_onnx(fn, (W, np.ones((2, 3), np.float32)), path)
    assert not path.exists()


def test_a_half_rounds_away_from_zero_and_nothing_else_does(tmp_path):
    """Just below a half, and where a half is no number of its own, as at 2^23 + 1."""
    x = np.float32([0.5, 1.5, 2.5, np.nextafter(np.float32(0.5), 0), 2**23 + 1, 2**22 + 0.5, 7e37])
    x = np.stack([x, -x])
    rounded = lambda _, x: jax.lax.round(x, jax.lax.RoundingMethod.AWAY_FROM_ZERO)  # noqa: E731
    file = to_onnx(rounded, (W, x), tmp_path / "f.onnx")
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "f.onnx")
    (ours,) = session.run(None, {file.inputs[0]: x})
    np.testing.assert_array_equal(ours, np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5))
    np.testing.assert_array_equal(ours, rounded(W, x))


def test_a_key_that_is_known_is_drawn_from_once(tmp_path):
    def drawn(w, x):
        return x @ w + jax.random.normal(jax.random.key(1), (4,))

    assert_same(tmp_path / "f.onnx", drawn, W, np.ones((2, 3), np.float32))


def test_the_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"jaxeff\[weights\]"):
        to_onnx(FUNCTIONS["constants"], (W, W), tmp_path / "f.onnx")
