"""Reads the tensors of a file, by its format.

Sharp edges:

- Pickles (`.pt`, `.pth`, `.bin`, `.ckpt`) are refused: reading one may run its writer's code.
- A file is read whole, before anything is matched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize

from jaxeff.store import open_regular
from jaxeff.weights._errors import WeightsError
from jaxeff.weights._gguf import read_gguf
from jaxeff.weights._onnx import read_onnx

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
        layouts: "reversed" or "as is" for those whose use in the file says how they lie.
        doubts: Why a tensor can't be taken without a rule, by name.
        origin: What error messages call the source.
    """

    arrays: dict[str, np.ndarray]
    layouts: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    origin: str = "the mapping"


def check_source(where: str, value: Any) -> None:
    """Refuses what is no path, sequence of paths or mapping of arrays.

    Raises:
        TypeError: It is something else.
    """
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
        WeightsError: A file is damaged or of a format that isn't read, or holds no numbers.
    """
    if isinstance(source, Mapping):
        return Tensors({str(name): _numbers(str(name), value) for name, value in source.items()})
    if isinstance(source, str | os.PathLike):
        return _read_file(Path(source))
    found = Tensors({}, origin=" + ".join(str(path) for path in source))
    for path in source:
        part = _read_file(Path(path))
        if twice := sorted(found.arrays.keys() & part.arrays):
            raise WeightsError(f"{twice[0]!r} is in {path} and in a file before it.")
        found.arrays.update(part.arrays)
        found.layouts.update(part.layouts)
        found.doubts.update(part.doubts)
    return found


def _read_file(path: Path) -> Tensors:
    if not path.exists():
        raise FileNotFoundError(f"there is no file of weights {path}.")
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
    # A damaged file makes each format's reader fail in its own ways: all are its damage.
    except Exception as error:
        raise WeightsError(
            f"{path} is damaged, or no {ending} file: {type(error).__name__}: {error}"
        ) from error
    if not arrays:
        raise WeightsError(f"{path} holds no tensors.")
    arrays = {name: _numbers(name, value) for name, value in arrays.items()}
    return Tensors(arrays, layouts, doubts, str(path))


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
    with np.load(file, allow_pickle=False) as opened:
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise WeightsError(f"{path} is no archive of named arrays.")
        return {name: opened[name] for name in opened.files}, {}, {}


_READERS: dict[str, Callable[[BinaryIO, Path], tuple[dict, dict, dict]]] = {
    ".safetensors": _safetensors,
    ".npz": _npz,
    ".gguf": read_gguf,
    ".onnx": read_onnx,
}
