"""LiteRT files as functions: operators, grids, and files that lie."""

import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import LitertError, deploy, from_litert, to_litert
from jaxeff_export.litert_files._model import loaded
from jaxeff_export.litert_files._operators import OPERATORS
from jaxeff_export.litert_files._operators_nn import NN_OPERATORS

import jaxeff
from jaxeff.compression import calibrate
from jaxeff.nn import small_classifier
from tests.export.litert_builder import Grid, TfliteFile


def interpreted(content, *xs, kernels="BUILTIN_REF"):
    """What LiteRT's interpreter computes, where it is installed; None elsewhere."""
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        return None
    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType[kernels]
    )
    interpreter.allocate_tensors()
    for detail, x in zip(interpreter.get_input_details(), xs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def one_operator(name, xs, constants, shapes, fields=(), dtype="float32"):
    """A file of one operator, which reads inputs and then constants, or None for one left out."""
    file = TfliteFile()
    inputs = [file.tensor(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    known = [-1 if c is None else file.constant(f"c{i}", c) for i, c in enumerate(constants)]
    outputs = [file.tensor(f"y{i}", shape, dtype) for i, shape in enumerate(shapes)]
    read = [*known, *inputs] if name in ("SPLIT",) else [*inputs, *known]
    if name == "TRANSPOSE_CONV":
        read = [*known[:2], *inputs, *known[2:]]
    file.add(name, read, outputs, *fields)
    return file.written(inputs, outputs)


def ints(*numbers):
    return np.asarray(numbers, np.int32)


X = 3 * normal(2, 5, 6, 4)
POSITIVE = np.abs(X) + np.float32(0.1)
I8, I32, F, U8 = "Int8", "Int32", "Float32", "Uint8"


def pads(*pairs):
    return np.asarray(pairs, np.int32)


def relu6(x):
    return np.clip(x, 0, 6)


def windows(x, height, width, reduce):
    """Whole windows side by side, of an input that is padded with NaN behind."""
    x = np.pad(x, [(0, 0), (0, -x.shape[1] % height), (0, -x.shape[2] % width), (0, 0)],
               constant_values=np.nan)  # fmt: skip
    parts = x.reshape(x.shape[0], x.shape[1] // height, height, -1, width, x.shape[3])
    return reduce(parts, (2, 4))


UNARY = {
    "RELU": lambda x: np.maximum(x, 0), "RELU6": relu6, "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1),
    "TANH": np.tanh, "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(x)), "HARD_SWISH": lambda x: x * relu6(x + 3) / 6,
    "ABS": np.abs, "NEG": np.negative, "EXP": np.exp, "FLOOR": np.floor, "CEIL": np.ceil,
    "SQUARE": np.square, "SIN": np.sin, "COS": np.cos, "ROUND": np.round, "SIGN": np.sign,
}  # fmt: skip
POSITIVE_UNARY = {"SQRT": np.sqrt, "RSQRT": lambda x: 1 / np.sqrt(x), "LOG": np.log}
BINARY = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide,
    "MINIMUM": np.minimum, "MAXIMUM": np.maximum, "SQUARED_DIFFERENCE": lambda a, b: (a - b) ** 2,
}  # fmt: skip
W = normal(8, 3, 3, 4, seed=1)
GELU = [0.8413447, -0.1586553]


def convolved(x, w, strides, padding, dilation=(1, 1), groups=1):
    """The definition, by loops over the kernel."""
    h, v = (np.asarray(w.shape[1:3]) - 1) * dilation + 1
    outs = [
        -(-n // s) if padding == "SAME" else (n - k) // s + 1
        for n, k, s in zip(x.shape[1:3], (h, v), strides, strict=True)
    ]
    needed = [
        max((o - 1) * s + k - n, 0)
        for o, s, k, n in zip(outs, strides, (h, v), x.shape[1:3], strict=True)
    ]
    x = np.pad(x, [(0, 0), *[(n // 2, n - n // 2) for n in needed], (0, 0)])
    y = np.zeros((x.shape[0], *outs, w.shape[0]), np.float64)
    per = w.shape[0] // groups
    for g in range(groups):
        of_group = x[..., g * w.shape[3] : (g + 1) * w.shape[3]]
        for i in range(w.shape[1]):
            for j in range(w.shape[2]):
                a, b = i * dilation[0], j * dilation[1]
                part = of_group[:, a :: strides[0], b :: strides[1]][:, : outs[0], : outs[1]]
                y[..., g * per : (g + 1) * per] += part @ w[g * per : (g + 1) * per, i, j].T
    return y.astype(np.float32)


def conv_fields(padding, stride, activation=0, dilation=1):
    return [(I8, padding), (I32, stride), (I32, stride), (I8, activation), (I32, dilation),
            (I32, dilation)]  # fmt: skip


def depthwise(x, w, *args):
    """Depthwise kernels are [1, height, width, channels x multiplier]."""
    return convolved(x, w.transpose(3, 1, 2, 0), *args, groups=x.shape[3])


D = normal(1, 3, 3, 8, seed=2)
B = normal(8, seed=3)
POOL = [(I8, 0), (I32, 2), (I32, 2), (I32, 2), (I32, 2), (I8, 0)]
CASES = {
    **{n: (n, [X], [], f(X)) for n, f in UNARY.items()},
    **{n: (n, [POSITIVE], [], f(POSITIVE)) for n, f in POSITIVE_UNARY.items()},
    **{n: (n, [X, POSITIVE], [], f(X, POSITIVE)) for n, f in BINARY.items()},
    "ADD of a constant, RELU": ("ADD", [X], [B[:4]], np.maximum(X + B[:4], 0), [(I8, 1)]),
    "MUL, RELU6": ("MUL", [X], [B[:4]], relu6(X * B[:4]), [(I8, 3)]),
    "GELU": ("GELU", [np.float32([1, -1])], [], np.float32(GELU), [(U8, 0)]),
    "LEAKY_RELU": ("LEAKY_RELU", [X], [], np.where(X > 0, X, X * np.float32(0.2)), [(F, 0.2)]),
    "PRELU": ("PRELU", [X], [B[:4].reshape(1, 1, 4)], np.where(X > 0, X, X * B[:4])),
    "SOFTMAX": ("SOFTMAX", [X], [], np.asarray(jax.nn.softmax(X)), [(F, 1.0)]),
    "MEAN": ("MEAN", [X], [ints(1, 2)], X.mean((1, 2)), [(U8, 0)]),
    "SUM": ("SUM", [X], [ints(-1)], X.sum(-1, keepdims=True), [(U8, 1)]),
    "REDUCE_MAX": ("REDUCE_MAX", [X], [ints(1)], X.max(1), [(U8, 0)]),
    "ARG_MAX": ("ARG_MAX", [X], [ints(3)], X.argmax(3).astype(np.int32), [(I8, 2)]),
    "RESHAPE": ("RESHAPE", [X], [ints(2, -1)], X.reshape(2, -1)),
    "RESHAPE by its options": ("RESHAPE", [X], [], X.reshape(2, -1), [("vector", [2, 120])]),
    "SQUEEZE": ("SQUEEZE", [X[:1]], [], X[0], [("vector", [0])]),
    "EXPAND_DIMS": ("EXPAND_DIMS", [X[0]], [ints(1)], X[0][:, None]),
    "CONCATENATION": (
        "CONCATENATION", [X, POSITIVE], [], np.concatenate([X, POSITIVE], 2), [(I32, 2), (I8, 0)],
    ),
    "PAD": ("PAD", [X], [pads((0, 0), (1, 2), (0, 1), (0, 0))],
            np.pad(X, [(0, 0), (1, 2), (0, 1), (0, 0)])),
    "PADV2": ("PADV2", [X], [pads((0, 0), (1, 2), (0, 1), (0, 0)), np.float32([7])],
              np.pad(X, [(0, 0), (1, 2), (0, 1), (0, 0)], constant_values=7)),
    "MIRROR_PAD": ("MIRROR_PAD", [X], [pads((0, 0), (1, 2), (0, 1), (0, 0))],
                   np.pad(X, [(0, 0), (1, 2), (0, 1), (0, 0)], mode="reflect"), [(I8, 0)]),
    "TRANSPOSE": ("TRANSPOSE", [X], [ints(0, 3, 1, 2)], X.transpose(0, 3, 1, 2)),
    "STRIDED_SLICE": (
        "STRIDED_SLICE", [X], [ints(0, 1, 0, 2), ints(2, 4, 0, 3), ints(1, 2, 2, 1)],
        X[:, 1:4:2, ::2, 2], [(I32, 0), (I32, 4), (I32, 0), (I32, 0), (I32, 8)],
    ),
    "SLICE": ("SLICE", [X], [ints(0, 1, 2, 0), ints(-1, 3, 2, 4)], X[:, 1:4, 2:4]),
    "SPLIT": ("SPLIT", [X], [ints(3)], tuple(np.split(X, 2, 3)), [(I32, 2)]),
    "PACK": ("PACK", [X, POSITIVE], [], np.stack([X, POSITIVE], 1), [(I32, 2), (I32, 1)]),
    "UNPACK": ("UNPACK", [X], [], (X[0], X[1]), [(I32, 2), (I32, 0)]),
    "GATHER": ("GATHER", [X], [ints(3, 0, 3)], X[:, :, [3, 0, 3]], [(I32, 2), (I32, 0)]),
    "BATCH_MATMUL": ("BATCH_MATMUL", [X, POSITIVE], [], X @ POSITIVE.swapaxes(2, 3),
                     [(U8, 0), (U8, 1)]),
    "CAST": ("CAST", [X], [], X.astype(np.int32)),
    "DEPTH_TO_SPACE": (
        "DEPTH_TO_SPACE", [X], [], X.reshape(2, 5, 6, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(
            2, 10, 12, 1), [(I32, 2)],
    ),
    "CONV_2D": ("CONV_2D", [X], [W, B], convolved(X, W, (2, 2), "SAME") + B, conv_fields(0, 2)),
    "CONV_2D, RELU6": ("CONV_2D", [X], [W, B],
                       relu6(convolved(X, W, (1, 1), "VALID") + B), conv_fields(1, 1, 3)),
    "CONV_2D, dilated": ("CONV_2D", [X], [W, 0 * B],
                         convolved(X, W, (1, 1), "VALID", (2, 2)), conv_fields(1, 1, 0, 2)),
    "DEPTHWISE_CONV_2D": (
        "DEPTHWISE_CONV_2D", [X], [D, B], np.maximum(depthwise(X, D, (1, 1), "SAME") + B, 0),
        [(I8, 0), (I32, 1), (I32, 1), (I32, 2), (I8, 1)],
    ),
    "FULLY_CONNECTED": (
        "FULLY_CONNECTED", [X[0, 0]], [W[:, 0, 0], B], X[0, 0] @ W[:, 0, 0].T + B,
        [(I8, 0), (I8, 0), (U8, 0)],
    ),
    "AVERAGE_POOL_2D": ("AVERAGE_POOL_2D", [X], [], windows(X, 2, 2, np.nanmean), POOL),
    "MAX_POOL_2D": ("MAX_POOL_2D", [X], [], windows(X, 2, 2, np.nanmax), POOL),
    "RESIZE_NEAREST_NEIGHBOR": (
        "RESIZE_NEAREST_NEIGHBOR", [X], [ints(10, 12)], X.repeat(2, 1).repeat(2, 2),
        [(U8, 0), (U8, 0)],
    ),
    "RESIZE_BILINEAR": (
        "RESIZE_BILINEAR", [np.float32([0, 1]).reshape(1, 1, 2, 1)], [ints(1, 4)],
        np.float32([0, 0.25, 0.75, 1]).reshape(1, 1, 4, 1), [None, None, (U8, 0), (U8, 1)],
    ),
    "RESIZE_BILINEAR, aligned": (
        "RESIZE_BILINEAR", [np.float32([0, 1]).reshape(1, 1, 2, 1)], [ints(1, 3)],
        np.float32([0, 0.5, 1]).reshape(1, 1, 3, 1), [None, None, (U8, 1), (U8, 0)],
    ),
}  # fmt: skip
# What a transposed convolution is: the gradient of a convolution.
CASES["TRANSPOSE_CONV"] = (
    "TRANSPOSE_CONV", [X], [ints(2, 10, 12, 8), W],
    np.asarray(jax.vjp(
        lambda y: jax.lax.conv_general_dilated(
            y, W, (2, 2), "SAME", dimension_numbers=("NHWC", "IHWO", "NHWC")),
        jnp.zeros((2, 10, 12, 8)))[1](jnp.asarray(X))[0]),
    [(I8, 0), (I32, 2), (I32, 2), (I8, 0)],
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_operators_are_what_they_are_defined_as(case, tmp_path):
    name, xs, constants, want, *fields = CASES[case]
    wants = want if isinstance(want, tuple) else (want,)
    content = one_operator(
        name, xs, constants, [w.shape for w in wants], *fields, dtype=wants[0].dtype
    )
    (tmp_path / "net.tflite").write_bytes(content)
    f, params = jaxeff.functional(tmp_path / "net.tflite")
    results = jax.jit(f)(params, *xs)
    results = results if isinstance(results, tuple) else (results,)
    for result, want in zip(results, wants, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)
    # There are no reference kernels of some.
    theirs = interpreted(content, *xs, kernels="BUILTIN_WITHOUT_DEFAULT_DELEGATES")
    for result, other in zip(results, theirs or results, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5, atol=1e-5)


def multiplied(sums, scale):
    """Scales whole numbers as XNNPACK does: in float32, rounded once, halves to even."""
    return np.rint(sums.astype(np.float32) * scale.astype(np.float32)).astype(np.int64)


STEPS = {"x": 0.0317, "h": 0.0213, "d": 0.0391, "y": 0.0523}
ZEROS = {"x": -7, "h": -128, "d": -128, "y": 11}


def quantized_file(first_dtype="int8"):
    """Convolution and ReLU, depthwise and ReLU6, the largest of windows, and a layer of rows."""
    rng = np.random.default_rng(0)
    grids = {name: Grid(STEPS[name], ZEROS[name]) for name in STEPS}
    weights = {
        "conv": (rng.integers(-127, 128, (8, 3, 3, 3)), rng.uniform(0.002, 0.004, 8), 0),
        "depth": (rng.integers(-127, 128, (1, 3, 3, 8)), rng.uniform(0.002, 0.006, 8), 3),
        "fc": (rng.integers(-127, 128, (5, 32)), np.asarray([0.003]), 0),
    }
    file = TfliteFile()
    x = file.tensor("x", (16, 8, 8, 3), "int8", grids["x"])
    h = file.tensor("h", (16, 4, 4, 8), "int8", grids["h"])
    d = file.tensor("d", (16, 4, 4, 8), "int8", grids["d"])
    m = file.tensor("m", (16, 2, 2, 8), "int8", grids["d"])
    r = file.tensor("r", (16, 32), "int8", grids["d"])
    y = file.tensor("y", (16, 5), "int8", grids["y"])
    constants = {}
    for (name, (codes, steps, axis)), source in zip(weights.items(), "xhd", strict=True):
        bias = rng.integers(-2000, 2000, codes.shape[axis]).astype(np.int32)
        steps = steps.astype(np.float32)
        sums = np.float32(STEPS[source]) * steps
        constants[name] = (
            file.constant(f"{name}/weight", codes.astype(np.int8), Grid(steps, 0, axis)),
            file.constant(f"{name}/bias", bias, Grid(sums)),
        )
    file.add("CONV_2D", [x, *constants["conv"]], [h], *conv_fields(0, 2, 1))
    file.add("DEPTHWISE_CONV_2D", [h, *constants["depth"]], [d],
             (I8, 0), (I32, 1), (I32, 1), (I32, 1), (I8, 3))  # fmt: skip
    file.add("MAX_POOL_2D", [d], [m], *POOL)
    file.add("RESHAPE", [m, file.constant("shape", ints(-1, 32))], [r])
    file.add("FULLY_CONNECTED", [r, *constants["fc"]], [y], (I8, 0), (I8, 0), (U8, 0))
    return file, [x], [y], weights


def by_the_kernels(file, weights, codes):
    """What LiteRT's kernels compute, in integers."""
    data = {name: np.frombuffer(raw, dtype).reshape(shape) if raw else None
            for name, shape, dtype, _, raw in file.tensors}  # fmt: skip

    def product(name, source, result, sums, ends=(-128, 127)):
        scale = np.float64(np.float32(STEPS[source])) * weights[name][1].astype(np.float32)
        y = multiplied(sums + data[f"{name}/bias"], scale / np.float32(STEPS[result]))
        return np.clip(y + ZEROS[result], *ends)

    def centred(x, source):
        return x.astype(np.int64) - ZEROS[source]

    w = {name: codes for name, (codes, _, _) in weights.items()}
    h = product("conv", "x", "h", convolved(centred(codes, "x"), w["conv"], (2, 2), "SAME"))
    six = round(6 / STEPS["d"]) + ZEROS["d"]
    d = depthwise(centred(h, "h"), w["depth"], (1, 1), "SAME")
    m = windows(product("depth", "h", "d", d, (-128, six)).astype(np.float32), 2, 2, np.max)
    return product("fc", "d", "y", centred(m.reshape(16, -1), "d") @ w["fc"].T)


@pytest.fixture
def quantized(tmp_path):
    file, inputs, outputs, weights = quantized_file()
    path = tmp_path / "q.tflite"
    path.write_bytes(file.written(inputs, outputs))
    codes = np.random.default_rng(3).integers(-128, 128, (16, 8, 8, 3)).astype(np.int8)
    exact = by_the_kernels(file, weights, codes)
    theirs = interpreted(path.read_bytes(), codes, kernels="AUTO")
    if theirs is not None:
        np.testing.assert_array_equal(theirs[0], exact)
        # The reference kernels round twice.
        (twice,) = interpreted(path.read_bytes(), codes)
        apart = np.abs(twice - exact)
        assert apart.max() <= 1
        assert np.mean(apart > 0) < 0.03
    x = (codes.astype(np.float32) - ZEROS["x"]) * np.float32(STEPS["x"])
    return path, codes, x, exact


def codes_of(y):
    return np.rint(np.asarray(y) / np.float32(STEPS["y"])).astype(int) + ZEROS["y"]


def test_a_quantized_file_is_what_the_kernels_compute(quantized):
    path, codes, x, exact = quantized
    assert len(np.unique(exact)) > 20  # not at the ends of the grid
    f, params = jaxeff.functional(path)
    assert jax.tree.map(jnp.shape, params) == {
        "conv": {"weight": (8, 3, 3, 3), "bias": (8,)},
        "depth": {"weight": (1, 3, 3, 8), "bias": (8,)},
        "fc": {"weight": (5, 32), "bias": (5,)},
    }
    for inputs in (codes, x):
        np.testing.assert_array_equal(codes_of(jax.jit(f)(params, inputs)), exact)


def test_grids_are_settings_and_integers_are_the_files(quantized):
    path, _, x, exact = quantized
    f, params, spec = from_litert(path, grids=True)
    assert list(spec) == ["conv", "depth", "fc"]
    assert [spec[n].activations.step for n in spec] == [np.float32(STEPS[n]) for n in "xhd"]
    np.testing.assert_array_equal(codes_of(jaxeff.quantized(f, spec)(params, x)), exact)
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    np.testing.assert_array_equal(codes_of(jax.jit(g)(codes, x)), exact)
    # Between products codes stay codes: only the result is rounded in the function.
    assert len([s for s in jaxeff.sites(f, params, x) if "elementwise" in s]) == 1
    stored = np.abs(np.asarray(codes.named()["fc/codes"])).sum()
    weights = quantized_file()[3]
    assert stored == np.abs(weights["fc"][0]).sum()


def test_weights_go_back_into_the_file(quantized, tmp_path):
    path, _, x, _ = quantized
    f, params = jaxeff.functional(path)
    assert jaxeff.restore(path, params) == path.read_bytes()
    params["fc"]["weight"] = -params["fc"]["weight"]
    (tmp_path / "after.tflite").write_bytes(jaxeff.restore(path, params))
    g, after = jaxeff.functional(tmp_path / "after.tflite")
    np.testing.assert_array_equal(g(after, x), f(params, x))
    params["fc"]["weight"] = params["fc"]["weight"][:2]
    with pytest.raises(ValueError, match=r"'fc/weight' has the shape \(5, 32\)"):
        jaxeff.restore(path, params)


def test_what_isnt_read_is_refused_by_name_all_at_once(tmp_path):
    file = TfliteFile()
    x = file.tensor("x", (2, 3))
    a, b, c = (file.tensor(name, (2, 3)) for name in "abc")
    file.add("SVDF", [x], [a])
    file.add("RELU", [a], [b])
    file.add("TFLite_Detection_PostProcess", [b], [c])
    (tmp_path / "net.tflite").write_bytes(file.written([x], [c]))
    with pytest.raises(LitertError, match="CUSTOM 'TFLite_Detection_PostProcess', SVDF"):
        jaxeff.functional(tmp_path / "net.tflite")


def test_files_without_grids_have_none_to_return(tmp_path):
    (tmp_path / "net.tflite").write_bytes(one_operator("RELU", [X], [], [X.shape]))
    with pytest.raises(LitertError, match="has none: take from_litert"):
        from_litert(tmp_path / "net.tflite", grids=True)
    f, params = jaxeff.functional(tmp_path / "net.tflite")
    with pytest.raises(TypeError, match=r"takes 1 inputs in order, \['x0'\]"):
        f(params, X, X)
    with pytest.raises(ValueError, match=r"'x0' has the shape \(2, 5, 6, 4\)"):
        f(params, X[0])


def test_operators_that_are_listed_have_a_rule():
    asked = """CONV_2D DEPTHWISE_CONV_2D FULLY_CONNECTED ADD SUB MUL DIV AVERAGE_POOL_2D MAX_POOL_2D
        MEAN SUM REDUCE_MAX SOFTMAX LOGISTIC TANH RELU RELU6 RELU_N1_TO_1 LEAKY_RELU PRELU ELU
        HARD_SWISH GELU RESHAPE SQUEEZE EXPAND_DIMS CONCATENATION PAD PADV2 MIRROR_PAD TRANSPOSE
        STRIDED_SLICE SLICE SPLIT PACK UNPACK GATHER RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR
        QUANTIZE DEQUANTIZE TRANSPOSE_CONV BATCH_MATMUL RSQRT SQRT EXP LOG SQUARED_DIFFERENCE
        MINIMUM MAXIMUM ARG_MAX"""
    assert {*asked.split()} <= {*OPERATORS, *NN_OPERATORS}


@pytest.mark.parametrize("zero", [-7, 8])
def test_averages_of_codes_round_halves_away_from_zero(zero, tmp_path):
    file, grid = TfliteFile(), Grid(0.03, zero)
    x, y = (file.tensor(n, (8, s, s, 4), "int8", grid) for n, s in (("x", 8), ("y", 4)))
    file.add("AVERAGE_POOL_2D", [x], [y], *POOL)
    path = tmp_path / "net.tflite"
    path.write_bytes(file.written([x], [y]))
    codes = np.random.default_rng(0).integers(-128, 128, (8, 8, 8, 4)).astype(np.int8)
    mean = windows(codes.astype(np.float32), 2, 2, np.mean)
    exact = np.sign(mean) * np.floor(np.abs(mean) + 0.5)
    f, params = jaxeff.functional(path)
    codes_of_f = np.rint(f(params, codes) / np.float32(0.03)) + zero
    np.testing.assert_array_equal(codes_of_f, exact)
    for kernels in ("AUTO", "BUILTIN_REF"):
        for theirs in interpreted(path.read_bytes(), codes, kernels=kernels) or ():
            np.testing.assert_array_equal(theirs, exact)


@pytest.mark.slow
@pytest.mark.process
def test_the_compiled_library_has_the_files_bits(quantized, tmp_path):
    path, _, x, exact = quantized
    f, params, spec = from_litert(path, grids=True)
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    bundle = deploy(g, (codes, x), path=tmp_path / "b")
    np.testing.assert_array_equal(codes_of(bundle.run(x)), exact)


# ------------------------------------------------------------------------- files that lie


def small_file():
    file, inputs, outputs, _ = quantized_file()
    return file.written(inputs, outputs)


def refused(content, path, *match):
    path.write_bytes(content)
    with pytest.raises(LitertError, match=match[0] if match else None):
        jaxeff.functional(path)


def test_shortened_files_are_refused(tmp_path):
    content = small_file()
    for size in [*range(0, 400, 7), *range(400, len(content) - 1, 97)]:
        refused(content[:size], tmp_path / "net.tflite")


def test_forged_numbers_end_in_an_error_or_a_model(tmp_path):
    content = small_file()
    rng = np.random.default_rng(0)
    path = tmp_path / "net.tflite"
    wrong = 0
    for _ in range(300):
        forged = bytearray(content)
        at = int(rng.integers(0, len(content) // 4)) * 4
        value = int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 4, at, len(content)]))
        forged[at : at + 4] = struct.pack("<I", value)
        path.write_bytes(forged)
        try:
            jaxeff.functional(path)
        except LitertError:
            wrong += 1
    assert wrong > 50


def test_graphs_that_read_in_circles_are_refused(tmp_path):
    file = TfliteFile()
    x, a, b = (file.tensor(name, (2, 3)) for name in "xab")
    file.add("ADD", [x, b], [a], (I8, 0))
    file.add("RELU", [a], [b])
    refused(file.written([x], [b]), tmp_path / "net.tflite", "ADD reads 'b' before it is computed")
    file = TfliteFile()
    x, a = (file.tensor(name, (2, 3)) for name in "xa")
    file.add("RELU", [x], [a])
    file.add("RELU", [a], [a])
    refused(file.written([x], [a]), tmp_path / "net.tflite", "writes what there is already")
    file.operators.clear()
    file.add("RELU", [7], [a])
    refused(file.written([x], [a]), tmp_path / "net.tflite", "tensor 7 is asked for, of 2")
    refused(
        file.written([x], [1])[:8].replace(b"TFL3", b"TFL2"), tmp_path / "net.tflite", "no .tfl"
    )


def test_shapes_beyond_the_bytes_are_refused(tmp_path):
    file = TfliteFile()
    x, y = (file.tensor(name, (2, 3)) for name in "xy")
    w = file.tensor("w", (2**20, 2**20), "float32", None, bytes(24))
    file.add("ADD", [x, w], [y], (I8, 0))
    refused(file.written([x], [y]), tmp_path / "net.tflite", re.escape("takes 4398046511104 bytes"))


def test_tensors_that_share_bytes_are_within_the_budget(tmp_path):
    file = TfliteFile()
    x = file.tensor("x", (1,))
    raw = bytes(4 << 20)
    first = file.tensor("w", (1 << 20,), "float32", None, raw)
    y = file.tensor("y", (1 << 20,))
    file.add("ADD", [x, first], [y], (I8, 0))
    content = bytearray(file.written([x], [y]))
    assert len(content) < 5 << 20
    # 100 tensors of 4 MiB each, of a file of as many bytes as one has.
    for i in range(100):
        file.tensors.append((f"w{i}", (1 << 20,), "float32", None, raw))
    shared = written_with_one_buffer(file, [x], [y])
    refused(shared, tmp_path / "net.tflite", "more than the [0-9,]+ that a file of")


def written_with_one_buffer(file, inputs, outputs):
    """Writes a file in which all constants lie in the first one's buffer."""
    kept = [t[4] for t in file.tensors]
    first = next(i for i, raw in enumerate(kept) if raw is not None)
    file.buffer_of = lambda place, data: 0 if data is None else first + 1
    file.tensors = [
        (*t[:4], raw if i == first else (None if raw is None else b"")) for i, (t, raw) in
        enumerate(zip(file.tensors, kept, strict=True))
    ]  # fmt: skip
    return file.written(inputs, outputs)


def test_an_operator_makes_no_array_far_beyond_its_file(tmp_path):
    content = one_operator("PAD", [X], [pads((0, 2**30), (0, 2**30), (0, 0), (0, 0))], [X.shape])
    (tmp_path / "net.tflite").write_bytes(content)
    f, params = jaxeff.functional(tmp_path / "net.tflite")
    with pytest.raises(LitertError, match="elements are made"):
        f(params, X)


# -------------------------------------------------------------------------------- there and back


@pytest.mark.slow
def test_what_to_litert_writes_comes_back_with_its_values(tmp_path):
    pytest.importorskip("litert_converter")
    f, params, (x, _) = small_classifier(4)
    to_litert(f, (params, x), tmp_path / "net.tflite")
    g, weights = jaxeff.functional(tmp_path / "net.tflite")
    np.testing.assert_allclose(jax.jit(g)(weights, x), f(params, x), atol=1e-5)
    sizes = [sorted(w.size for w in jax.tree.leaves(tree)) for tree in (weights, params)]
    assert {*sizes[0]} <= {*sizes[1]}


@pytest.mark.slow
def test_int8_files_of_to_litert_come_back_with_their_codes(tmp_path):
    pytest.importorskip("litert_converter")
    f, params, (x, _) = small_classifier(4)
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(8, symmetric="weights")}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    path = tmp_path / "q.tflite"
    to_litert(g, (codes, x), path, batches=[x])
    h, weights = jaxeff.functional(path)
    graph = loaded(path)
    grids = [graph.tensors[i].grid for i in (*graph.inputs, *graph.outputs)]
    codes = np.clip(np.rint(x / grids[0].steps) + grids[0].zeros, -128, 127).astype(np.int8)
    (theirs,) = interpreted(path.read_bytes(), codes)
    apart = np.abs(np.rint((h(weights, codes) - grids[1].values(theirs)) / grids[1].steps))
    assert apart.max() <= 1
    assert np.mean(apart > 0) <= 0.05
