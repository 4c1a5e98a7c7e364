"""Users' npz files: arrays by the names of a function's inputs."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxeff.store import atomic_file
from jaxeff_export.artifact import SignatureError, TensorSpec, dtype_of


def read_arrays(paths: Sequence[Path], specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Reads one array per spec, from whichever file has one of its name.

    Raises:
      SignatureError: if a file is no npz file, or none of them has an array.
    """
    found: dict[str, np.ndarray] = {}
    for path in paths:
        try:
            # No pickle: a file of somebody else's must not run code when it is read.
            with np.load(path, allow_pickle=False) as archive:
                # Only arrays that are asked for are inflated, whatever else the file holds.
                found.update(
                    (spec.name, archive[spec.name]) for spec in specs if spec.name in archive
                )
        except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
            raise SignatureError(f"{path} is no readable npz file: {error}") from error
    if missing := [spec.name for spec in specs if spec.name not in found]:
        files = (
            f"{', '.join(map(str, paths))} has" if paths else "no npz file was given, so there is"
        )
        some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise SignatureError(f"{files} no array {missing[0]}; {len(missing)} are missing: {some}")
    return [_named(found[spec.name], spec) for spec in specs]


def require_place(path: Path) -> None:
    """Raises `OSError` where `write_arrays` could not write; asked before the work is done."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")


def write_arrays(path: Path, specs: Sequence[TensorSpec], arrays: Sequence[np.ndarray]) -> None:
    """Writes an npz file with one array per spec, whole or not at all."""
    named = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
    with atomic_file(path.absolute()) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **named)  # type: ignore[arg-type]


def _named(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Restores a dtype: NumPy's files forget names like bfloat16, but keep the bits."""
    dtype = dtype_of(spec.dtype)
    unnamed = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if unnamed else array
