"""Packages of the extras ``export`` and ``weights``, which this package can be imported without."""

from __future__ import annotations

import importlib.util

_NAMES = {
    "flatbuffers": "flatbuffers", "litert_converter": "litert-converter", "onnx": "onnx",
    "tvm": "TVM", "typer": "typer",
}  # fmt: skip
_EXTRAS = {"litert_converter": "litert", "onnx": "weights"}  # others are of `export`


class MissingExtraError(ModuleNotFoundError):
    """A package that is needed is not installed; the message says how to install it."""


def require_extra(module: str, what: str) -> None:
    """Raises `MissingExtraError` unless a module of the extra can be imported.

    Args:
      module: ``"tvm"``, ``"flatbuffers"``, ``"litert_converter"``, ``"onnx"`` or ``"typer"``; it is
        not imported.
      what: what needs it, the sentence's subject.
    """
    # Looked for, not imported: importing TVM takes seconds.
    if importlib.util.find_spec(module) is None:
        extra = _EXTRAS.get(module, "export")
        raise MissingExtraError(
            f"{what} needs {_NAMES[module]}, which is not installed: pip install 'jaxeff[{extra}]'",
            name=module,
        )
