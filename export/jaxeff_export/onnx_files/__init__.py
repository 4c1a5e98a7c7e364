"""ONNX files: a function as operators that other runtimes have."""

from jaxeff_export.onnx_files._graph import OnnxError
from jaxeff_export.onnx_files._to_onnx import OnnxFile, to_onnx

__all__ = ["OnnxError", "OnnxFile", "to_onnx"]
