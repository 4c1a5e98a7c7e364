"""ONNX files: a function as operators that other runtimes have, and such files as functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff_export.onnx_files._gathers import fill_of as fill_of
from jaxeff_export.onnx_files._graph import GridWeight as GridWeight
from jaxeff_export.onnx_files._graph import OnnxError as OnnxError
from jaxeff_export.onnx_files._graph import StoredWeight as StoredWeight
from jaxeff_export.onnx_files._graph import grid_weight as grid_weight
from jaxeff_export.onnx_files._graph import stored_weight as stored_weight
from jaxeff_export.onnx_files._names import WeightPaths as WeightPaths
from jaxeff_export.onnx_files._names import paths_of as paths_of
from jaxeff_export.onnx_files._names import scope_of as scope_of
from jaxeff_export.onnx_files._names import settings_by_site as settings_by_site
from jaxeff_export.onnx_files._to_onnx import CALLS as CALLS
from jaxeff_export.onnx_files._to_onnx import LONGEST as LONGEST
from jaxeff_export.onnx_files._to_onnx import OnnxFile as OnnxFile
from jaxeff_export.onnx_files._to_onnx import softmax_parts as softmax_parts
from jaxeff_export.onnx_files._to_onnx import to_onnx as to_onnx
from jaxeff_export.onnx_files._to_onnx import to_qonnx as to_qonnx
from jaxeff_export.targets import require_extra

if TYPE_CHECKING:
    from jaxeff_export.onnx_files._reader import from_onnx as from_onnx
    from jaxeff_export.onnx_files._reader import read_onnx_model as read_onnx_model


def __getattr__(name: str) -> Any:
    if name not in ("from_onnx", "read_onnx_model"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The reader builds on the package onnx, which is optional.
    require_extra("onnx", "from_onnx")
    return getattr(import_module(f"{__name__}._reader"), name)
