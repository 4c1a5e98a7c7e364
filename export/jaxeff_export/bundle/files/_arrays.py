"""Arrays in a file: numpy's npz without pickle, and without losing dtypes numpy has no name for."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxeff_export.artifact import TensorSpec, dtype_of, max_inflated_size, require_member

_DENSE = 0.75
"""Part of an array's entries that aren't zero, above which compressing saves little."""


def pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """Makes the content of an npz file of `arrays`, in order.

    Dtypes of ml_dtypes (bfloat16, float8) are stored as unsigned integers of their width; the
    reader's specs say what they were.
    """
    stored = {f"{index:05d}": _storable(np.asarray(array)) for index, array in enumerate(arrays)}
    # Codes take a byte each in memory, whole vectors of them, and in a file what they say; zeros of
    # pruned weights take next to nothing there.
    if any(array.dtype in (np.int8, np.uint8) or _is_sparse(array) for array in stored.values()):
        data = _npz(np.savez_compressed, stored)
        if sum(array.nbytes for array in stored.values()) <= max_inflated_size(len(data)):
            return data  # otherwise nobody would read it
    return _npz(np.savez, stored)


def unpack_arrays(data: bytes, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Reads the arrays of `pack_arrays`, checked against their specs before they are inflated.

    Raises:
      ValueError: if the content is no npz file, or an array is missing or another than `specs` say.
    """
    arrays: list[np.ndarray] = []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.namelist()) != len(specs):
                raise ValueError(f"it has {len(archive.namelist())} arrays, not {len(specs)}")
            # One budget for all: many arrays of allowed size could fill memory together.
            left = max_inflated_size(len(data))
            for index, spec in enumerate(specs):
                arrays.append(_unpacked(archive, f"{index:05d}.npy", spec, left))
                left -= arrays[-1].nbytes
    except ValueError:
        raise
    except Exception as error:  # at a zip file that is none, nearly any
        raise ValueError(f"it is no readable npz file ({error})") from error
    return arrays


def _npz(save: Callable[..., None], arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpacked(archive: zipfile.ZipFile, name: str, spec: TensorSpec, most: int) -> np.ndarray:
    """Reads an array of at most `most` bytes, if its header promises what `spec` does."""
    member, dtype = require_member(archive, name), dtype_of(spec.dtype)
    # The header alone is inflated here: dtype, shape and size are checked before memory is taken
    # for them.
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # later ones have headers of any length
            raise ValueError(f"{spec.name} has a header that jaxeff does not write")
        shape, _, stored = np.lib.format.read_array_header_1_0(file)
    if stored != dtype and stored != _stand_in(dtype):
        raise ValueError(f"{spec.name} has dtype {stored}, not {spec.dtype}")
    if not spec.admits(shape) or any(size < 0 for size in shape):
        raise ValueError(f"{spec.name} has shape {shape}, not {spec.shape}")
    if math.prod(shape) * stored.itemsize > most:
        raise ValueError(f"{spec.name} is inflated to more than such a file may hold")
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # its checksum is looked at where the member ends
            raise ValueError(f"{spec.name} is followed by something else")
    return array.view(dtype)


def _is_sparse(array: np.ndarray) -> bool:
    return bool(array.size) and int(np.count_nonzero(array)) <= _DENSE * array.size


def _storable(array: np.ndarray) -> np.ndarray:
    # NumPy's own kinds; ml_dtypes' are written as integers, which any reader of npz knows.
    return array if array.dtype.kind in "biufc" else array.view(_stand_in(array.dtype))


def _stand_in(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")
