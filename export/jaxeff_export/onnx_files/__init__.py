"""ONNX files: a function as operators that other runtimes have."""

from jaxeff_export.onnx_files._gathers import fill_of
from jaxeff_export.onnx_files._graph import (
    GridWeight,
    OnnxError,
    StoredWeight,
    grid_weight,
    stored_weight,
)
from jaxeff_export.onnx_files._to_onnx import CALLS, LONGEST, OnnxFile, to_onnx

__all__ = [
    "CALLS",
    "LONGEST",
    "GridWeight",
    "OnnxError",
    "OnnxFile",
    "StoredWeight",
    "fill_of",
    "grid_weight",
    "stored_weight",
    "to_onnx",
]
