"""What commands are given: arrays in npz files, and functions named ``module:function``.

Arrays go by the names of a function's inputs; errors in users' functions name file and line.
"""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxeff
from jaxeff.store import InflationError, atomic_file, open_regular, read_npz
from jaxeff_export import artifact


def read_arrays(paths: Sequence[Path], specs: Sequence[artifact.TensorSpec]) -> list[np.ndarray]:
    """Reads one array per spec, from whichever file has one of its name."""
    by_name: dict[str, np.ndarray] = {}
    for path in paths:
        try:
            # Only arrays that are asked for are inflated, whatever else the file holds.
            with open_regular(path) as (file, _):
                by_name |= read_npz(file, {spec.name for spec in specs})
        except InflationError as error:
            raise artifact.SignatureError(f"{path} {error}, in Python") from error
        except (OSError, ValueError) as error:
            raise artifact.SignatureError(f"{path} is no readable npz file: {error}") from error
    if missing := [spec.name for spec in specs if spec.name not in by_name]:
        files = (
            f"{', '.join(map(str, paths))} has" if paths else "no npz file was given, so there is"
        )
        some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise artifact.SignatureError(
            f"{files} no array {missing[0]}; {len(missing)} are missing: {some}"
        )
    return [_named(by_name[spec.name], spec) for spec in specs]


def read_labels(path: Path) -> np.ndarray | None:
    """Reads `labels` of an npz file that `read_arrays` has read; None where there are none."""
    with open_regular(path) as (file, _):
        return read_npz(file, {"labels"}).get("labels")


def require_place(path: Path) -> None:
    """Raises `OSError` where `write_arrays` could not write; asked before the work is done."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")


def write_arrays(
    path: Path, specs: Sequence[artifact.TensorSpec], arrays: Sequence[np.ndarray]
) -> None:
    """Writes an npz file with one array per spec, whole or not at all."""
    named = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
    with atomic_file(path.absolute()) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **named)  # type: ignore[arg-type]


def _named(array: np.ndarray, spec: artifact.TensorSpec) -> np.ndarray:
    """Restores a dtype: NumPy's files forget names like bfloat16, but keep the bits."""
    dtype = artifact.dtype_of(spec.dtype)
    unnamed = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if unnamed else array


def example_of(module: str, function: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Calls ``module:function``, with modules of the current folder at hand."""
    where = f"{module}:{function}"
    # As `python -m` does: a command's own folder is the one that Python would look in.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        returned = getattr(importlib.import_module(module), function)()
        f, example = returned
    # The user's module runs here, and may do anything, `sys.exit` included.
    except (Exception, SystemExit) as error:
        raise artifact.SignatureError(
            f"{where} gives no (f, (parameters, *inputs)): {_reason(error)}"
        ) from error
    if not callable(f) or not isinstance(example, tuple | list):
        raise artifact.SignatureError(
            f"{where} gives no (f, (parameters, *inputs)), but {type(returned)}"
        )
    return f, example


def require_call(where: str, f: Callable[..., Any], example: Sequence[Any]) -> None:
    """Raises `SignatureError` where the user's function fails on the user's own example."""
    artifact.flatten_named(
        example, artifact.argument_names(f, len(example))
    )  # names what is no array
    try:
        jax.eval_shape(f, *example)
    except Exception as error:
        raise artifact.SignatureError(
            f"the function of {where} fails on its example: {_reason(error)}"
        ) from error


def _reason(error: BaseException) -> str:
    """Describes an error with the innermost line of the user's own code, if any led to it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # says where by itself
        return said
    of_user = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    if not of_user:
        return said
    # The innermost is the one that failed; those around it only called it.
    last = of_user[-1]
    file = Path(last.filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}, line {last.lineno}, in {last.name}: {said}"


def _is_users(frame: traceback.FrameSummary) -> bool:
    """Tells whether a frame is neither of Python, nor of a package installed, nor of this one."""
    file = Path(frame.filename).absolute()
    return file.is_file() and not any(file.is_relative_to(folder) for folder in _OTHERS)


_OTHERS = (
    *(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(str(jaxeff.__file__)).parent,
    Path(__file__).parents[1],
)
