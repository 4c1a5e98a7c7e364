"""ONNX Runtime in float32, and in int8: QDQ, static ranges of the same batch, per channel."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from experiments.beyond.integer.subjects import Subject
from experiments.contests.onnx_graph import build, finish, started


class _Batch(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: np.ndarray):
        self._left = [{"x": x}]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def calls(net: Subject, threads: int) -> dict[str, Callable[[], Any]]:
    """Starts the network in both, and a graph that hands back an example: `dispatch`."""
    first = numpy_helper.from_array(np.array(0), "first")
    take = helper.make_node("Gather", ["x", "first"], ["y"])
    nothing = finish([take], [first], net.x.shape, {"y": net.x.shape[1:]})
    sessions = {**models(net), "dispatch": nothing}
    return {name: started(model, net.x, threads) for name, model in sessions.items()}


def models(net: Subject) -> dict[str, bytes]:
    """Writes the network in both, as ONNX files are."""
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        plain.write_bytes(build(net.model, net.params, net.x.shape))
        quantize_static(
            plain, small, _Batch(np.asarray(net.x)), quant_format=QuantFormat.QDQ,
            per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )  # fmt: skip
        return {"float32": plain.read_bytes(), "int8": small.read_bytes()}
