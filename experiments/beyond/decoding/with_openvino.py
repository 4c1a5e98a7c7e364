"""Products on OpenVINO, on one thread.

Weights of int8 are dequantized in the file, which OpenVINO turns into a product with weights in
int8 and activations of 8 bits by group, as it does with `MatMulNBits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
from onnx import helper, numpy_helper

from experiments.beyond.decoding import with_onnxruntime
from experiments.contests.onnx_graph import finish

_SET_UP = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def calls(params: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Returns a call for every format."""
    files = with_onnxruntime.files(params, x) | {"int8": _dequantized(params, x)}
    core, data = openvino.Core(), np.asarray(x)
    calls: dict[str, Callable[[], Any]] = {}
    for form, file in files.items():
        # No path of weights: the file has them.
        request = core.compile_model(core.read_model(file, b""), "CPU", _SET_UP)
        request = request.create_infer_request()
        request.infer([data])
        calls[form] = request.infer
    return calls


def _dequantized(params: Any, x: Any) -> bytes:
    w = np.asarray(params["w"], np.float32)
    step = np.abs(w).max(0) / 127
    tensors = [
        numpy_helper.from_array(np.rint(w / step).astype(np.int8), "codes"),
        numpy_helper.from_array(step, "steps"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "steps"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return finish(nodes, tensors, x.shape, {"y": (x.shape[0], w.shape[1])})
