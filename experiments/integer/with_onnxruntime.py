"""ONNX Runtime in float32, and in int8: QDQ, static ranges of the same batch, per channel."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from experiments.integer.subjects import Subject
from experiments.latency.engines.onnx_graph import OPSET, Deterministic
from experiments.transforms import networks


class _Layers(Deterministic):
    """The hand-written networks' layers, with folded batch norms."""

    def convolve(self, x: str, kernel: Any, bias: Any, stride: int, padding: Any) -> str:
        if isinstance(padding, str):
            return super().convolve(x, kernel, bias, stride, padding)
        (top, bottom), (left, right) = padding
        inputs = (x, np.transpose(kernel, (3, 2, 0, 1)), bias)
        pads = [top, left, bottom, right]
        return self.node("Conv", *inputs, pads=pads, strides=[stride, stride])

    def batch_norm(self, params: Any, state: Any, x: Any) -> Any:
        return x

    def add(self, x: Any, y: Any) -> Any:
        return self.node("Add", x, y)

    def mean(self, x: Any) -> Any:
        return self.node("Flatten", self.node("GlobalAveragePool", x))


class _Parameters(dict):  # type: ignore[type-arg]
    """Nested parameters without those that were folded."""

    def __missing__(self, key: str) -> "_Parameters":
        return _Parameters()


class _Batch(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: np.ndarray):
        self._left = [{"x": x}]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def calls(net: Subject, threads: int) -> dict[str, Callable[[], Any]]:
    """Calls of the network in both, and of a graph that hands back an example: `dispatch`."""
    feed = {"x": np.asarray(net.x)}
    found = {name: _call(model, feed, threads) for name, model in models(net).items()}
    nothing = helper.make_graph(
        [helper.make_node("Gather", ["x", "first"], ["y"])],
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, net.x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, net.x.shape[1:])],
        [numpy_helper.from_array(np.array(0), "first")],
    )
    made = helper.make_model(nothing, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return {**found, "dispatch": _call(made.SerializeToString(), feed, threads)}


def models(net: Subject) -> dict[str, bytes]:
    """The network in both, as ONNX files are."""
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(_graph(net), plain)
        quantize_static(
            plain,
            small,
            _Batch(np.asarray(net.x)),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )
        return {"float32": plain.read_bytes(), "int8": small.read_bytes()}


def _call(model: bytes, feed: Any, threads: int) -> Callable[[], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


def _graph(net: Subject) -> onnx.ModelProto:
    layers = _Layers()
    x = layers.node("Transpose", "x", perm=[0, 3, 1, 2]) if net.x.ndim == 4 else "x"
    params = _nested(net.params)
    write = {"mlp": networks.mlp, "lenet5": networks.lenet5, "resnet18": networks.resnet18}
    y = write[net.model](layers, params, _Parameters(), x)
    graph = helper.make_graph(
        layers.nodes,
        net.model,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, net.x.shape)],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, (net.x.shape[0], "out"))],
        layers.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def _nested(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return _Parameters({str(key): _nested(value) for key, value in tree.items()})
