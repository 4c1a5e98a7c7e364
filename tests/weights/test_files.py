"""Every format gives the same tensors; damaged and hostile files give a clear error."""

import json
import pickle
import struct
import tempfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import jaxeff
from jaxeff.weights import WeightsError

PARAMS = {"fc": {"kernel": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)}}
TENSORS = {
    "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.arange(2, dtype=np.float32),
}


def write_npz(path):
    np.savez(path, **TENSORS)


def write_safetensors(path):
    save_file(TENSORS, path)


def write_gguf(path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "test")
    for name, array in TENSORS.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_onnx(path):
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    x, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, d)) for n, d in ("x3", "y2")
    )
    nodes = [helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], transB=1)]
    initializers = [numpy_helper.from_array(a, n) for n, a in TENSORS.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    onnx.save(helper.make_model(graph), path)


WRITERS = {
    "npz": write_npz,
    "safetensors": write_safetensors,
    "gguf": write_gguf,
    "onnx": write_onnx,
}


@pytest.mark.parametrize("ending", WRITERS)
def test_formats(ending, tmp_path):
    path = tmp_path / f"model.{ending}"
    WRITERS[ending](path)
    loaded, _ = jaxeff.load_weights(PARAMS, path)
    np.testing.assert_array_equal(loaded["fc"]["kernel"], TENSORS["fc.weight"].T)
    np.testing.assert_array_equal(loaded["fc"]["bias"], TENSORS["fc.bias"])


@pytest.mark.parametrize("ending", WRITERS)
def test_truncated_files(ending, tmp_path):
    path = tmp_path / f"model.{ending}"
    WRITERS[ending](path)
    whole = path.read_bytes()
    for size in (0, 1, 7, 20, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError, match=r"model\."):
            jaxeff.load_weights(PARAMS, path)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=64), st.integers(0, 200))
def test_changed_bytes_never_crash(noise, place):
    whole = save(TENSORS)
    changed = whole[:place] + noise + whole[place + len(noise) :]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.safetensors"
        with open(path, "wb") as file:
            file.write(changed)
        try:
            loaded, _ = jaxeff.load_weights(PARAMS, path)
        except WeightsError:
            return
        assert loaded["fc"]["kernel"].shape == (3, 2)


def test_a_header_that_promises_too_much(tmp_path):
    path = tmp_path / "model.safetensors"
    header = {"fc.weight": {"dtype": "F32", "shape": [2**40, 2], "data_offsets": [0, 2**43]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))
    with pytest.raises(WeightsError, match="damaged"):
        jaxeff.load_weights(PARAMS, path)
    path.write_bytes(struct.pack("<Q", 2**62) + text)
    with pytest.raises(WeightsError, match="damaged"):
        jaxeff.load_weights(PARAMS, path)


def test_no_pickle_is_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    for ending in ("pt", "bin", "npz", "safetensors"):
        path = tmp_path / f"model.{ending}"
        path.write_bytes(pickle.dumps(Trap()))
        with pytest.raises(WeightsError, match=r"pickle|damaged"):
            jaxeff.load_weights(PARAMS, path)
    np.savez(tmp_path / "objects.npz", x=np.array([Trap()], dtype=object))
    (tmp_path / "sprung").unlink(missing_ok=True)
    with pytest.raises(WeightsError, match="damaged"):
        jaxeff.load_weights(PARAMS, tmp_path / "objects.npz")
    assert not (tmp_path / "sprung").exists()


def test_shards_and_short_floats(tmp_path):
    for name, array in TENSORS.items():
        short = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [0, 2 * array.size]}
        text = json.dumps({name: short}).encode()
        body = array.astype(ml_dtypes.bfloat16).tobytes()
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    shards = sorted(tmp_path.glob("*.safetensors"))
    loaded, _ = jaxeff.load_weights(PARAMS, shards)
    assert loaded["fc"]["kernel"].dtype == np.float32
    np.testing.assert_array_equal(loaded["fc"]["kernel"], TENSORS["fc.weight"].T)
    with pytest.raises(WeightsError, match=r"is in .* and in a file before it"):
        jaxeff.load_weights(PARAMS, [*shards, shards[0]])


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        jaxeff.load_weights(PARAMS, tmp_path / "none.npz")
    (tmp_path / "model.txt").write_text("weights")
    with pytest.raises(WeightsError, match="must end in one of"):
        jaxeff.load_weights(PARAMS, tmp_path / "model.txt")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(WeightsError, match="a folder"):
        jaxeff.load_weights(PARAMS, tmp_path / "folder.npz")
    with pytest.raises(TypeError, match="source must be a file of weights"):
        jaxeff.load_weights(PARAMS, 3)
    with pytest.raises(WeightsError, match="holds no real numbers"):
        jaxeff.load_weights(PARAMS, TENSORS | {"fc.bias": np.array(["a", "b"])})


def test_quantized_and_reordered_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    writer = gguf.GGUFWriter(path, "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.0.attn_q.weight", gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    params = {"attn": {"q": {"kernel": np.zeros((32, 2))}}}
    with pytest.raises(WeightsError, match="rotary pairs side by side"):
        jaxeff.load_weights(params, path)
    rules = {"attn/q/kernel": ("blk.0.attn_q.weight", np.transpose)}
    loaded, _ = jaxeff.load_weights(params, path, rules)
    # A step of eight bits: the largest of 32 numbers over 127.
    assert np.abs(loaded["attn"]["q"]["kernel"] - weight.T).max() <= 0.5 / 127 + 1e-3
