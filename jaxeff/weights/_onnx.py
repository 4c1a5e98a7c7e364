"""Tensors of ONNX files, with how they lie where the graph says so.

Sharp edges:

- Tensors in other files ("external data") aren't read: a file from elsewhere would name the paths.
- Exporters fold constants: a tensor of a fused or transposed layer has no name of the model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO


def read_onnx(file: BinaryIO, path: Path) -> tuple[dict, dict, dict]:
    """Reads initializers and constants of the graph, and the layouts that its products tell.

    Raises:
        ImportError: The package `onnx` isn't there.
    """
    try:
        import onnx  # optional
    except ImportError as error:
        raise ImportError(
            "reading .onnx needs the package onnx: install jaxeff[weights]."
        ) from error
    from onnx import numpy_helper  # optional

    graph = onnx.load_model_from_string(file.read()).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    external = [n for n, t in tensors.items() if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise ValueError(f"{external[0]!r} is in another file; save the model with all data inside")
    return {n: numpy_helper.to_array(t) for n, t in tensors.items()}, _layouts(graph.node), {}


def _layouts(nodes: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "MatMul":
            found[node.input[1]] = "as is"
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            found[node.input[1]] = "reversed" if transposed else "as is"
        elif node.op_type == "Conv":
            found[node.input[1]] = "reversed"
    return found
