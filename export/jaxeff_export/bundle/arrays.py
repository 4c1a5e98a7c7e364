"""Arrays in a file: numpy's npz without pickle, and without losing dtypes numpy has no name for."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from jaxeff_export.artifact.signature import TensorSpec, dtype_of


def pack_arrays(arrays: Sequence[np.ndarray]) -> bytes:
    """The content of an npz file of `arrays`, in order.

    Dtypes of ml_dtypes (bfloat16, float8) are stored as unsigned integers of their width; the
    reader's specs say what they were.
    """
    stored = {f"{index:05d}": _storable(np.asarray(array)) for index, array in enumerate(arrays)}
    buffer = io.BytesIO()
    # Codes take a byte each in memory, whole vectors of them, and in a file what they say.
    codes = any(array.dtype == np.int8 for array in stored.values())
    save = np.savez_compressed if codes else np.savez
    save(buffer, allow_pickle=False, **stored)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack_arrays(data: bytes, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """The arrays of `pack_arrays`, checked against their specs.

    Raises:
      ValueError: if the content is no npz file, or an array is missing or another than `specs` say.
    """
    arrays: list[np.ndarray] = []
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            for index, spec in enumerate(specs):
                array = archive[f"{index:05d}"]
                dtype = dtype_of(spec.dtype)
                if array.dtype != dtype:
                    if array.dtype != _stand_in(dtype):
                        raise ValueError(f"{spec.name} has dtype {array.dtype}, not {spec.dtype}")
                    array = array.view(dtype)
                if not spec.admits(array.shape):
                    raise ValueError(f"{spec.name} has shape {array.shape}, not {spec.shape}")
                arrays.append(array)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError) as error:
        raise ValueError(f"it is no readable npz file ({error})") from error
    return arrays


def _storable(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biufc" else array.view(_stand_in(array.dtype))


def _stand_in(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"u{dtype.itemsize}")
