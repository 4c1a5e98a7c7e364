"""ONNX files: a function as operators that other runtimes have."""

from jaxeff_export.onnx_files._gathers import fill_of
from jaxeff_export.onnx_files._graph import OnnxError, Stored, Whole, stored, whole_of
from jaxeff_export.onnx_files._to_onnx import CALLS, LONGEST, OnnxFile, to_onnx

__all__ = [
    "CALLS",
    "LONGEST",
    "OnnxError",
    "OnnxFile",
    "Stored",
    "Whole",
    "fill_of",
    "stored",
    "to_onnx",
    "whole_of",
]
