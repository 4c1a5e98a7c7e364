"""ONNX files: a function as operators that other runtimes have, and such files as functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff_export.onnx_files._gathers import fill_of
from jaxeff_export.onnx_files._graph import (
    GridWeight,
    OnnxError,
    StoredWeight,
    grid_weight,
    stored_weight,
)
from jaxeff_export.onnx_files._to_onnx import CALLS, LONGEST, OnnxFile, to_onnx
from jaxeff_export.targets import require_extra

if TYPE_CHECKING:
    from jaxeff_export.onnx_files._reader import from_onnx as from_onnx
    from jaxeff_export.onnx_files._reader import read_onnx_model as read_onnx_model

__all__ = [
    "CALLS",
    "LONGEST",
    "GridWeight",
    "OnnxError",
    "OnnxFile",
    "StoredWeight",
    "fill_of",
    "from_onnx",
    "grid_weight",
    "read_onnx_model",
    "stored_weight",
    "to_onnx",
]


def __getattr__(name: str) -> Any:
    if name not in ("from_onnx", "read_onnx_model"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The reader builds on the package onnx, which is optional.
    require_extra("onnx", "from_onnx")
    return getattr(import_module(f"{__name__}._reader"), name)
