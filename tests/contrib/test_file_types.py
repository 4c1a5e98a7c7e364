"""Magika from ONNX files: a stand-in of its graph under ONNX Runtime, damaged and foreign files."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.contrib import Magika, file_tokens, load_magika
from jaxeff.weights import WeightsError, packaged_file

onnx = pytest.importorskip("onnx")

TYPES = ["c", "python", "shell"]
ROOT = "jax2tf_get_logits_"
NET = f"{ROOT}/pjit_get_logits_/MagikaV2"
TABLE, HEAD = f"{ROOT}/Const:0", f"{ROOT}/Const_24:0"
CONFIG = {
    "beg_size": 1024, "mid_size": 0, "end_size": 1024, "padding_token": 256,
    "target_labels_space": TYPES,
}  # fmt: skip


def tensors():
    """Random weights under the published names, in the published shapes but for the types."""
    rng = np.random.default_rng(0)
    shapes = {
        f"{ROOT}/Const:0": (257, 64), f"{NET}/Dense_0/Reshape:0": (1, 1, 64),
        f"{NET}/LayerNorm_0/Reshape_2:0": (1, 512, 1),
        f"{NET}/LayerNorm_0/Reshape_3:0": (1, 512, 1),
        f"{NET}/Conv_0/transpose_3:0": (512, 256, 5, 1), "const_fold_opt__209": (1, 512, 1),
        f"{NET}/LayerNorm_1/Reshape_2:0": (1, 512), f"{NET}/LayerNorm_1/Reshape_3:0": (1, 512),
        f"{ROOT}/Const_24:0": (512, len(TYPES)), f"{NET}/Dense_1/Reshape:0": (1, len(TYPES)),
    }  # fmt: skip
    return {
        name: (rng.normal(size=shape) / max(shape[0], 9) ** 0.5).astype("f4")
        for name, shape in shapes.items()
    }


def graph(found):
    """The published graph in operations of its own: features of groups, then over positions."""
    node, nodes = onnx.helper.make_node, []
    table, shift, s1, b1, kernel, bias, s2, b2, head, last = found

    def add(kind, *inputs, **attributes):
        nodes.append(node(kind, list(inputs), [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def gelu(x):
        cube = add("Mul", x, add("Mul", x, add("Mul", x, "c3")))
        inner = add("Mul", add("Add", x, cube), "root")
        return add("Mul", add("Mul", x, "half"), add("Add", add("Tanh", inner), "one"))

    def norm(x, scale, shift):
        centred = add("Sub", x, add("ReduceMean", x, axes=[1]))
        spread = add("ReduceMean", add("Mul", centred, centred), axes=[1])
        unit = add("Div", centred, add("Sqrt", add("Add", spread, "epsilon")))
        return add("Add", add("Mul", unit, scale), shift)

    x = gelu(add("Add", add("Gather", table, "bytes", axis=0), shift))
    x = norm(add("Reshape", x, "groups"), s1, b1)
    x = add("Unsqueeze", add("Transpose", x, perm=[0, 2, 1]), "last")
    x = add("Squeeze", add("Conv", x, kernel), "last")
    x = add("ReduceMax", gelu(add("Add", x, bias)), axes=[2], keepdims=0)
    x = add("Add", add("MatMul", norm(x, s2, b2), head), last)
    nodes.append(node("Softmax", [x], ["target_label"]))
    return nodes


def write(folder, **changes):
    found = tensors() | changes.pop("tensors", {})
    constants = {
        "c3": 0.044715, "root": (2 / np.pi) ** 0.5, "half": 0.5, "one": 1.0, "epsilon": 1e-6
    }  # fmt: skip
    rest = {name: np.float32(value) for name, value in constants.items()}
    rest |= {"groups": np.array([-1, 512, 256]), "last": np.array([3])}
    kinds = onnx.TensorProto
    arrays = {name: a for name, a in (found | rest).items() if a is not None}
    given = onnx.helper.make_tensor_value_info("bytes", kinds.INT32, ("n", 2048))
    result = onnx.helper.make_tensor_value_info("target_label", kinds.FLOAT, ("n", len(TYPES)))
    onnx_graph = onnx.helper.make_graph(
        graph(list(found)), "g", [given], [result],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 15)]
    path = folder / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx_graph, opset_imports=opsets, ir_version=8), path)
    (folder / "config.min.json").write_text(json.dumps(CONFIG | changes))
    return path


@pytest.mark.slow
def test_a_stand_in_computes_what_onnx_runtime_does(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    path = write(tmp_path)
    f, params, labels, pairs = load_magika(path)
    assert labels == tuple(TYPES)
    assert len(pairs.rows) == 10
    tokens = np.random.default_rng(1).integers(0, 257, (2, 2048)).astype(np.int32)
    ours = jax.jit(lambda p, t: jax.nn.softmax(f(p, t)))(params, tokens)
    (theirs,) = onnxruntime.InferenceSession(path).run(None, {"bytes": tokens})
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    # Moved by one byte it is another file: the weights do matter.
    (other,) = onnxruntime.InferenceSession(path).run(None, {"bytes": np.roll(tokens, 1, 1)})
    assert np.abs(other / theirs - 1).max() > 1e-2


def test_tokens_of_files():
    short = file_tokens(b" \n#!/bin/sh\n")
    assert short.dtype == np.int32
    assert bytes(short[:9].tolist()) == b"#!/bin/sh"
    assert (short[10:2037] == 256).all()
    assert bytes(short[-11:].tolist()) == b" \n#!/bin/sh"
    assert (file_tokens(b"") == 256).all()
    # Blanks are looked for in the first and the last 4096 bytes alone.
    long = file_tokens(b" " * 5000 + bytes(range(200)) * 10 + b"\n" * 10)
    assert (long[:1024] == 256).all()
    assert list(long[-3:]) == [197, 198, 199]
    with pytest.raises(TypeError, match="content"):
        file_tokens("#!/bin/sh")


def test_sizes():
    small = nnx.eval_shape(lambda: Magika(3, 32, width=4, channels=8, rngs=nnx.Rngs(0)))
    f, params = jaxeff.functional(small)
    tokens = jax.ShapeDtypeStruct((2, 32), jnp.int32)
    assert jax.eval_shape(f, params, tokens).shape == (2, 3)
    assert params["conv"]["kernel"].shape == (5, 16, 8)
    assert params["norm1"]["scale"].shape == (8,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensors": {"const_fold_opt__209": None}}, "asks for 'const_fold_opt__209'"),
        ({"tensors": {HEAD: np.ones((512, 4), "f4")}}, r"\[512, 4\].*not \[512, 3\]"),
        ({"tensors": {HEAD: np.ones((512, 3, 2), "f4")}}, r"shape \[512, 3, 2\]"),
        ({"tensors": {TABLE: np.full((257, 64), np.nan, "f4")}}, "aren't finite"),
        ({"tensors": {TABLE: np.ones((257, 64), np.int8)}}, "codes of a quantized model"),
        ({"mid_size": 8}, "mid_size is 8, not 0"),
        ({"target_labels_space": ["c", "c", "d"]}, "doesn't name its types"),
        ({"target_labels_space": [1, 2, 3]}, "doesn't name its types"),
        ({"target_labels_space": "abc"}, "doesn't name its types"),
    ],
)
def test_other_models_are_refused(tmp_path, changes, words):
    with pytest.raises(WeightsError, match=words):
        load_magika(write(tmp_path, **changes))


def test_damaged_and_missing_files(tmp_path):
    path = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsError, match="is damaged"):
        load_magika(path)
    for text in ("{", "[]", "[" * 100_000, "{}"):
        (tmp_path / "config.min.json").write_text(text)
        with pytest.raises(WeightsError, match="damaged, or of another model"):
            load_magika(path)
    (tmp_path / "config.min.json").unlink()
    with pytest.raises(FileNotFoundError, match="names the types"):
        load_magika(path)


@pytest.mark.slow
def test_the_published_weights_are_its_own():
    try:
        path = packaged_file("magika", "models/standard_v3_3/model.onnx")
    except FileNotFoundError:
        pytest.skip("magika isn't installed")
    onnxruntime = pytest.importorskip("onnxruntime")
    texts = [__file__, json.__file__, onnx.__file__]
    tokens = np.stack([file_tokens(Path(text).read_bytes()) for text in texts])
    f, params, labels, _ = load_magika()
    ours = jax.jit(lambda p, t: jax.nn.softmax(f(p, t)))(params, tokens)
    (theirs,) = onnxruntime.InferenceSession(path).run(None, {"bytes": tokens})
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    print(f"relative error {error:.2g}")
    assert error < 1e-3
    assert [labels[i] for i in ours.argmax(-1)] == ["python"] * 3
