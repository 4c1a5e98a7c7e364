"""LiteRT files compute what JAX computes, in LiteRT's interpreter."""

import re
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import LitertError, MissingExtraError, to_litert
from jaxeff_export.litert_files._int8 import has_products
from jaxeff_export.litert_files._to_litert import evaluate_in_int8
from jaxeff_export.litert_files._to_litert import evaluate_known as write

import jaxeff
from jaxeff import Gaussian, Int
from jaxeff.compression import calibrate
from jaxeff.nn import LeNet5, ResNet8, small_classifier


def run(path, file, *xs):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
    output = interpreter.get_signature_runner()(**dict(zip(file.inputs, xs, strict=True)))
    return [output[name] for name in file.outputs]


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["plain", "moments"])
def test_models(transform, tmp_path):
    pytest.importorskip("litert_converter")
    f, params, (x, _) = small_classifier(4)
    if transform == "moments":
        params = jax.tree.map(lambda w: Gaussian(w, (0.05 * w) ** 2), params)
        f = jaxeff.moments(f, method="diagonal")
    file = to_litert(f, (params, x), tmp_path / "net.tflite")
    output = run(tmp_path / "net.tflite", file, np.asarray(x))
    for ours, want in zip(output, jax.tree.leaves(jax.jit(f)(params, x)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{}, {"symmetric": "weights"}, {"bits": 4}])
def test_quantized_weights_are_integers(setting, tmp_path):
    pytest.importorskip("litert_converter")
    rng = np.random.default_rng(0)
    params = {"in": rng.normal(size=(64, 96)), "out": rng.normal(size=(96, 64))}
    params = jax.tree.map(lambda w: w.astype(np.float32), params)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    f = lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"]  # noqa: E731
    g = jaxeff.quantized(f, {"*:linear": Int(**{"bits": 8, "activations": False, **setting})})
    file = to_litert(g, (params, x), tmp_path / "q.tflite")
    assert file.path.stat().st_size < 2 * 64 * 96 + 6000  # a byte each
    (output,) = run(file.path, file, x)
    want = jax.jit(g)(params, x)
    np.testing.assert_allclose(output, want, rtol=0, atol=2e-5 * np.abs(want).max())


def looping(w, x):
    """A recurrent cell, backwards, whose states are kept, too."""
    return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row),) * 2, x[0], x, reverse=True)


def adding(w, x):
    """Sums of rows by place, two of which are out of bounds."""
    return jax.ops.segment_sum(x[:, 0] @ w, jnp.array([2, 0, 2, -7, 9]), 4)


def taking(w, x):
    """Rows and entries, some of which are beyond the array."""
    at = jnp.array([1, 9, -1, -9])
    return x[at], x[at, 0, at], jnp.take(x, at, 0)


@pytest.mark.slow
@pytest.mark.parametrize("f", [looping, adding, taking])
def test_loops_and_sums_of_segments_are_written_in_another_way(f, tmp_path):
    pytest.importorskip("litert_converter")
    w, x = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(3, 3), (5, 2, 3)]))
    file = to_litert(f, (w, x), tmp_path / "f.tflite")
    output = run(file.path, file, np.asarray(x))
    for ours, want in zip(output, jax.tree.leaves(jax.jit(f)(w, x)), strict=True):
        np.testing.assert_allclose(ours, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "named"),
    [
        (lambda w, x: jax.lax.scan(lambda h, _: (h @ w, None), x, length=200)[0], "200 steps"),
        (lambda w, x: jax.lax.while_loop(lambda h: h.sum() < 9, lambda h: h @ w, x), "`while`"),
        (lambda w, x: x.at[jnp.arange(3), jnp.arange(3)].add(w[0]), "whole rows"),
    ],
)
def test_what_has_no_other_way_is_named(f, named, tmp_path):
    closed = jax.make_jaxpr(f)(jnp.eye(3), jnp.eye(3))
    with pytest.raises(LitertError, match=named) as refusal:
        jax.eval_shape(lambda *given: write(closed, given, lambda v, _: v), *closed.in_avals)
    assert "to_onnx" in str(refusal.value)


def transposed(pad, lhs=(2, 2), strides=(1, 1), size=3, groups=1):
    """A convolution of an input with zeros between its entries, its kernel and its input."""

    def f(w, x):
        return jax.lax.conv_general_dilated(
            x, w, strides, pad, lhs, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )  # fmt: skip

    rng = np.random.default_rng(0)
    w = rng.normal(size=(size, size, 4 // groups, 4)).astype(np.float32)
    return f, w, rng.normal(size=(2, 4, 5, 4)).astype(np.float32)


TRANSPOSED = {
    "same": transposed(((2, 1), (2, 1))),  # of windows of 3 and strides of 2
    "same, even": transposed(((2, 2), (2, 2)), size=4),
    "valid": transposed(((2, 2), (2, 2))),
    "by one axis": transposed(((1, 0), (1, 0)), (2, 1), size=2),
    "stride beyond the window": transposed(((1, 2), (1, 2)), (3, 3), size=2),
    "wide": transposed(((4, 3), (5, 3))),
    "negative": transposed(((-1, 2), (1, 0))),
    "strided": transposed(((2, 1), (1, 1)), strides=(2, 1)),
    "depthwise": transposed(((2, 1), (2, 1)), groups=4),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_are_cut_from_those_without_padding(name):
    """The converter writes those alone, and "SAME" of even sizes, at their places."""
    f, w, x = TRANSPOSED[name]
    closed = jax.make_jaxpr(f)(w, x)
    form = lambda x: write(closed, [w, x], lambda v, _: v)[0]  # noqa: E731
    np.testing.assert_allclose(jax.jit(form)(x), jax.jit(f)(w, x), rtol=1e-5, atol=1e-5)
    (inner,) = (e for e in jax.make_jaxpr(form)(x).eqns if e.primitive.name.startswith("conv_g"))
    size, lhs = w.shape[0], inner.params["lhs_dilation"]
    unpadded = tuple((size - 1, max(size, stride) - 1) for stride in lhs)
    assert inner.params["padding"] == (((2, 2), (2, 2)) if name == "same, even" else unpadded)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_are_written(name, tmp_path):
    pytest.importorskip("litert_converter")
    f, w, x = TRANSPOSED[name]
    file = to_litert(f, (w, x), tmp_path / "net.tflite")
    (output,) = run(file.path, file, x)
    np.testing.assert_allclose(output, f(w, x), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_windows_of_sixteen_bits_are_pooled(dtype, tmp_path):
    pytest.importorskip("litert_converter")
    x = jax.random.normal(jax.random.key(0), (2, 6, 6, 4), dtype)
    f = lambda w, x: nnx.max_pool(x * w, (2, 2), (2, 2)).astype(jnp.float32)  # noqa: E731
    args = jnp.asarray(1, dtype), x
    file = to_litert(f, args, tmp_path / "net.tflite")
    (output,) = run(file.path, file, np.asarray(x))
    np.testing.assert_allclose(output, f(*args), rtol=2 * jnp.finfo(dtype).eps)


@pytest.mark.slow
def test_several_arguments_and_results(tmp_path):
    pytest.importorskip("litert_converter")
    a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    file = to_litert(lambda w, p: {"b": p["a"] * w, "a": p["b"] - w}, (2.0, {"a": a, "b": b}),
                     tmp_path / "f.tflite")  # fmt: skip
    assert (file.inputs, file.outputs) == (("x0", "x1"), ("y0", "y1"))
    output = run(tmp_path / "f.tflite", file, a, b)
    np.testing.assert_array_equal(output[0], b - 2)
    np.testing.assert_array_equal(output[1], a * 2)


@pytest.mark.slow
def test_arguments_that_nothing_reads_stay(tmp_path):
    pytest.importorskip("litert_converter")
    a, b, c = (np.full(2, n, np.float32) for n in (1, 2, 3))
    file = to_litert(lambda w, a, b, c: 2 * b - c, (0, a, b, c), tmp_path / "f.tflite")
    (output,) = run(tmp_path / "f.tflite", file, a, b, c)
    np.testing.assert_array_equal(output, 2 * b - c)


@pytest.mark.slow
def test_what_the_converter_refuses_is_an_error(tmp_path):
    pytest.importorskip("litert_converter")
    with pytest.raises(LitertError, match="refuses the function"):
        to_litert(lambda w, x: jnp.linalg.qr(x)[0], (0, np.eye(3, dtype=np.float32)),
                  tmp_path / "f.tflite")  # fmt: skip
    assert not (tmp_path / "f.tflite").exists()


@pytest.mark.slow
def test_a_file_that_the_interpreter_refuses_is_not_written(tmp_path):
    pytest.importorskip("litert_converter")
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "f.tflite"
    path.write_text("before")
    with pytest.raises(LitertError, match=r"interpreter refuses what would be written.*SORT"):
        to_litert(lambda w, x: jnp.sort(x, 1), (0, np.ones((2, 3), np.int16)), path)
    assert path.read_text() == "before"


def test_the_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"jaxeff\[litert\]"):
        to_litert(lambda w, x: x, (0, np.ones(2, np.float32)), tmp_path / "f.tflite")


def integer_network(model, shape, **setting):
    """A network of integer codes with random statistics, its converted parameters, and inputs."""
    model.eval()
    f, params = jaxeff.functional(model)
    xs = jax.random.normal(jax.random.key(1), (16, *shape))
    settings = {"*:linear": Int(8, **setting)}
    g = jaxeff.integer(f, calibrate(f, params, [xs], settings).spec)
    return g, g.convert(params, xs), xs


class Separable(nnx.Module):
    """A keyword spotter in small: depthwise, pointwise, ReLU6, batch norm, a mean over places."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 8, (10, 4), (2, 2), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.pointwise = nnx.Conv(8, 16, (1, 1), rngs=rngs)
        self.logits = nnx.Linear(16, 5, rngs=rngs)
        self.logits.bias[...] = jnp.linspace(-1, 1, 5)

    def __call__(self, x):
        x = jax.nn.relu6(self.norm(self.stem(x)))
        x = jax.nn.relu(self.pointwise(jax.nn.relu6(self.depthwise(x))))
        return self.logits(x.mean((1, 2)))


NETWORKS = {
    "LeNet5": (lambda: LeNet5(rngs=nnx.Rngs(0)), (28, 28, 1)),
    "ResNet8": (lambda: ResNet8(10, 3, rngs=nnx.Rngs(0)), (16, 16, 3)),
    "separable": (lambda: Separable(nnx.Rngs(0)), (25, 10, 1)),
}


@pytest.mark.parametrize(
    "name", ["LeNet5", *(pytest.param(n, marks=pytest.mark.slow) for n in ("ResNet8", "separable"))]
)
def test_the_int8_form_is_the_integer_network(name):
    make, shape = NETWORKS[name]
    g, codes, xs = integer_network(make(), shape)
    closed = jax.make_jaxpr(g)(codes, xs)
    assert has_products(closed.jaxpr)
    known = [np.asarray(leaf) for leaf in jax.tree.leaves(codes)]
    # Without grids of its own, what remains is that a product isn't rounded before it is scaled.
    (output,) = jax.jit(lambda x: evaluate_in_int8(closed, [*known, x], lambda v: v))(xs)
    want = np.asarray(jax.jit(g)(codes, xs))
    step = (want.max() - want.min()) / 255
    np.testing.assert_allclose(output, want, rtol=0, atol=step)
    assert np.abs(output - want).mean() < step / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_products_of_integer_networks_are_int8(name, tmp_path):
    pytest.importorskip("litert_converter")
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    make, shape = NETWORKS[name]
    g, codes, xs = integer_network(make(), shape)
    data = [xs[i : i + 1] for i in range(len(xs))]
    file = to_litert(g, (codes, xs[:1]), tmp_path / "net.tflite", batches=data)
    # Reference kernels list the operators as they are written; delegates hide them.
    plain = litert.Interpreter(
        str(file.path), experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
    )
    plain.allocate_tensors()
    kinds = {tensor["index"]: tensor["dtype"] for tensor in plain.get_tensor_details()}
    for operator in plain._get_ops_details():
        assert kinds[operator["outputs"][0]] == np.int8, operator["op_name"]
    interpreter = litert.Interpreter(str(file.path))
    interpreter.allocate_tensors()
    (entry,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()
    (step, zero), (result_step, result_zero) = entry["quantization"], result["quantization"]
    for x, want in zip(data, jax.jit(g)(codes, xs), strict=True):
        q = np.clip(np.round(np.asarray(x) / step) + zero, -128, 127).astype(np.int8)
        interpreter.set_tensor(entry["index"], q)
        interpreter.invoke()
        output = interpreter.get_tensor(result["index"])[0].astype(int)
        code = np.clip(np.round(np.asarray(want) / result_step) + result_zero, -128, 127)
        # Both sides of a shortcut are rounded to codes before they are added: each of ResNet-8's
        # three may move a result by half a step more.
        assert np.abs(output - code).max() <= (2 if name == "ResNet8" else 1)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", NETWORKS)
def test_vela_takes_every_operator_to_the_npu(name, tmp_path):
    pytest.importorskip("litert_converter")
    vela = shutil.which("vela")
    if vela is None:
        pytest.skip("vela isn't on the path (pip install ethos-u-vela)")
    make, shape = NETWORKS[name]
    g, codes, xs = integer_network(make(), shape)
    data = [xs[i : i + 1] for i in range(len(xs))]
    to_litert(g, (codes, xs[:1]), tmp_path / "net.tflite", batches=data)
    command = [vela, "net.tflite", "--accelerator-config", "ethos-u55-128", "--output-dir", "out"]
    told = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert re.search(r"CPU operators = 0 \(", told), told
    assert re.search(r"NPU operators = [1-9]", told), told


def test_integer_networks_ask_for_data(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    g, codes, xs = integer_network(LeNet5(rngs=nnx.Rngs(0)), (28, 28, 1))
    path = tmp_path / "net.tflite"
    with pytest.raises(LitertError, match=r"batches=\[x, \.\.\.\]"):
        to_litert(g, (codes, xs[:1]), path)
    with pytest.raises(ValueError, match="no inputs"):
        to_litert(g, (codes, xs[:1]), path, batches=[])
    with pytest.raises(ValueError, match=r"\(2, 28, 28, 1\).*args have"):
        to_litert(g, (codes, xs[:1]), path, batches=[xs[:2]])
    with pytest.raises(ValueError, match="f has none"):
        to_litert(lambda w, x: x @ w, (np.eye(3), np.eye(3)), path, batches=[np.eye(3)])
    assert not path.exists()


def test_what_a_network_rounds_itself_stays_rounded():
    f, params, (x, _) = small_classifier(4)
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(lambda p, x: jnp.round(f(p, x)), spec)
    codes = g.convert(params, x)
    known = [np.asarray(leaf) for leaf in jax.tree.leaves(codes)]
    closed = jax.make_jaxpr(g)(codes, x)
    (output,) = jax.jit(lambda x: evaluate_in_int8(closed, [*known, x], lambda v: v))(x)
    np.testing.assert_array_equal(output, np.round(output))
    assert np.ptp(output) > 0


NAN = float("nan")
NUMBERS = np.array(
    [
        [1, NAN, 3, -2, 300], [NAN, NAN, 0, 5, -7], [2, 1, NAN, -np.inf, 3e9],
        [4, np.inf, 6, np.inf, -3e9], [1, 3, 3, 1, 0.5],
    ]
)  # fmt: skip
OF_NAN = {
    "conversions": lambda x: [x.astype(t) for t in ("int32", "int8", "uint8", "int16", "uint32")],
    "extremes": lambda x: (x.max(1), x.min(0), x.max(), jax.lax.cummax(x, 1)),
    "arguments": lambda x: (x.argmax(1), x.argmin(0)),
    "pairs": lambda x: (jnp.maximum(x, x.T), jnp.minimum(x, x.T)),
    "pairs with a number": lambda x: (jnp.maximum(x, 100), jnp.minimum(1, x), jnp.clip(x, -1, 2)),
    "functions": lambda x: (
        jax.nn.relu(x), *(g(x).astype("float32") > 0.7 for g in (jax.nn.sigmoid, jnp.exp)),
        *(jnp.isnan(g(x).astype("float32")) for g in (jax.nn.sigmoid, jnp.exp, jnp.expm1)),
    ),
}  # fmt: skip


@pytest.mark.promotes("dtype")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", OF_NAN)
def test_nan_is_what_jax_makes_of_it(name, dtype, tmp_path):
    pytest.importorskip("litert_converter")

    def f(x):
        results = jax.tree.leaves(OF_NAN[name](x.astype(dtype)))
        return [y.astype("float32") if y.dtype == jnp.float16 else y for y in results]

    with np.errstate(over="ignore"):
        x = NUMBERS.astype(dtype)
    outputs = run(tmp_path / "x.tflite", to_litert(f, (x,), tmp_path / "x.tflite", parameters=0), x)
    for output, expected in zip(outputs, jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(output, expected)


def test_what_is_one_operator_stays_one(tmp_path):
    """Softmaxes, and activations of layers, which keep NaN by themselves."""
    pytest.importorskip("litert_converter")
    path = tmp_path / "x.tflite"

    def f(w, x):
        return jax.nn.softmax(jnp.clip(jax.nn.relu(x @ w), 0, 6))

    w, x = np.ones((5, 3), np.float32), NUMBERS.astype(np.float32)
    file = to_litert(f, (w, x), path)
    interpreter = pytest.importorskip("ai_edge_litert.interpreter").Interpreter(str(path))
    named = {d["op_name"] for d in interpreter._get_ops_details()} - {"DELEGATE"}
    assert named <= {"FULLY_CONNECTED", "RELU6", "MINIMUM", "RELU_0_TO_1", "SOFTMAX"}, named
    np.testing.assert_array_equal(np.isnan(run(path, file, x)[0]), np.isnan(jax.jit(f)(w, x)))
