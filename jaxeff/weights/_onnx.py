"""Tensors of ONNX files, with how they lie where the graph says so.

Sharp edges:

- Tensors in other files ("external data") aren't read: a file from elsewhere would name the paths.
- Exporters fold constants: a tensor of a fused or transposed layer has no name of the model's.
"""

from __future__ import annotations

from collections import Counter
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
    named = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                named.append((node.output[0], attribute.t))
    # Bytes that are no UTF-8 come as they are.
    if unnamed := [name for name, _ in named if not isinstance(name, str)]:
        raise ValueError(f"the name {unnamed[0]!r} is no text")
    # Texts are labels and patterns, no weights.
    tensors = {n: t for n, t in named if t.data_type != onnx.TensorProto.STRING}
    if twice := [n for n, count in Counter(n for n, _ in named).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")
    external = [n for n, t in tensors.items() if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise ValueError(f"{external[0]!r} is in another file; save the model with all data inside")
    return {n: numpy_helper.to_array(t) for n, t in tensors.items()}, _layouts(graph.node), {}


def _layouts(nodes: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in (node for node in nodes if len(node.input) > 1):
        if node.op_type == "MatMul":
            found[node.input[1]] = "as is"
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            found[node.input[1]] = "reversed" if transposed else "as is"
        elif node.op_type == "Conv":
            found[node.input[1]] = "reversed"
        elif node.op_type == "ConvTranspose":
            found[node.input[1]] = "transposed"  # "reversed" or "mirrored", as the layer has it
    return found
