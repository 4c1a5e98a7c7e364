"""Users' functions, named ``module:function``; errors in them name file and line."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

import jaxeff
from jaxeff_export.artifact import SignatureError, argument_names, flatten_named


def example_of(module: str, function: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Calls ``module:function``, with modules of the current folder at hand.

    Raises:
      SignatureError: if that is no function with its arguments, or fails.
    """
    where = f"{module}:{function}"
    # As `python -m` does: a command's own folder is the one that Python would look in.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), function)()
        f, example = made
    # The user's module runs here, and may do anything, `sys.exit` included.
    except (Exception, SystemExit) as error:
        raise SignatureError(
            f"{where} gives no (f, (parameters, *inputs)): {_reason(error)}"
        ) from error
    if not callable(f) or not isinstance(example, tuple | list):
        raise SignatureError(f"{where} gives no (f, (parameters, *inputs)), but {type(made)}")
    return f, example


def require_call(where: str, f: Callable[..., Any], example: Sequence[Any]) -> None:
    """Raises `SignatureError` where the user's function fails on the user's own example."""
    flatten_named(example, argument_names(f, len(example)))  # names what is no array
    try:
        jax.eval_shape(f, *example)
    except Exception as error:
        raise SignatureError(
            f"the function of {where} fails on its example: {_reason(error)}"
        ) from error


def _reason(error: BaseException) -> str:
    """Describes an error with the innermost line of the user's own code, if any led to it."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # says where by itself
        return said
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame)]
    if not own:
        return said
    # The innermost is the one that failed; those around it only called it.
    last = own[-1]
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
