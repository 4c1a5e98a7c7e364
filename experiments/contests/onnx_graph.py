"""Networks as ONNX graphs: the hand-written forward passes of `experiments.beyond.transforms`.

`_Deterministic` and `_Moments` give the layers their ONNX operators. Moments use ONNX's own `Erf`
and the textbook's raw moments, as someone writing this graph would: spelled in additions and
multiplications, as jaxeff has it for compilers that fuse, it would take a runtime that doesn't
fuse several times as long. Images are in ONNX's order, channels before height and width. `started`
has ONNX Runtime run a graph.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from experiments.contests import forward_passes

OPSET = 18
Pair = tuple[str, str]


class _Deterministic:
    """Layers as ONNX operators; values are names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Adds an operator; inputs that aren't names become constants."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [output], **attributes))
        return output

    def constant(self, value: Any) -> str:
        """Adds a constant: float32, or integers as they are."""
        array = np.asarray(value)
        if not np.issubdtype(array.dtype, np.integer):
            array = array.astype(np.float32)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def convolve(self, x: str, kernel: Any, bias: Any, stride: int, padding: Any) -> str:
        """Convolution with a kernel in JAX's order."""
        inputs = (x, np.transpose(kernel, (3, 2, 0, 1)), *(() if bias is None else (bias,)))
        where: dict[str, Any]
        if isinstance(padding, str):
            where = {"auto_pad": {"SAME": "SAME_UPPER", "VALID": "VALID"}[padding]}
        else:
            where = {"pads": [before for before, _ in padding] + [after for _, after in padding]}
        return self.node("Conv", *inputs, strides=[stride, stride], **where)

    def multiply(self, x: str, kernel: Any, bias: Any) -> str:
        return self.node("Gemm", x, kernel, *(() if bias is None else (bias,)))

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Any:
        return self.convolve(x, params["kernel"], params["bias"], stride, padding)

    def dense(self, params: Any, x: Any) -> Any:
        return self.multiply(x, params["kernel"], params["bias"])

    def relu(self, x: Any) -> Any:
        return self.node("Relu", x)

    def relu_max_pool(self, x: Any, size: int, stride: int, padding: int) -> Any:
        window = {"kernel_shape": [size, size], "strides": [stride, stride]}
        return self.node("MaxPool", self.relu(x), pads=[padding] * 4, **window)

    def flatten(self, x: Any) -> Any:
        """Everything but the batch axis in one, in JAX's order."""
        return self.node("Flatten", self.node("Transpose", x, perm=[0, 2, 3, 1]))

    def batch_norm(self, params: Any, state: Any, x: Any) -> Any:
        """Hands back its input: batch norms are folded into the layers before them."""
        return x

    def add(self, x: Any, y: Any) -> Any:
        return self.node("Add", x, y)

    def mean(self, x: Any) -> Any:
        return self.node("Flatten", self.node("GlobalAveragePool", x))


class _Moments(_Deterministic):
    """Means with variances after linear layers and pooling, with second moments after ReLU."""

    def conv(self, params: Any, x: Any, stride: int, padding: Any) -> Pair:
        op = functools.partial(self.convolve, stride=stride, padding=padding)
        return self._linear(op, params, x)

    def dense(self, params: Any, x: Any) -> Pair:
        return self._linear(self.multiply, params, x)

    def _linear(self, op: Any, params: Any, x: str | Pair) -> Pair:
        kernel, bias = params["kernel"], params["bias"]
        if isinstance(x, str):  # the network's input has no variance
            squares = self.node("Mul", x, x)
            return op(x, kernel.mean, bias.mean), op(squares, kernel.var, bias.var)
        mean, second = x
        raw = op(second, kernel.var + np.square(kernel.mean), bias.var)
        square = op(self.node("Mul", mean, mean), np.square(kernel.mean), None)
        return op(mean, kernel.mean, bias.mean), self.node("Sub", raw, square)

    def relu(self, x: Pair) -> Pair:
        """Rectified Gaussian: mean and second moment."""
        mean, var = x
        below, density = self._standardised(mean, var)
        first = self.node("Add", self.node("Mul", mean, below), density)
        square = self.node("Add", self.node("Mul", mean, mean), var)
        second = self.node("Mul", square, below)
        return first, self.node("Add", second, self.node("Mul", mean, density))

    def relu_max_pool(self, x: Pair, size: int, stride: int, padding: int) -> Pair:
        """Clark's maxima, along height, then along width; rectified afterwards, as jaxeff does."""
        if (size, stride, padding) != (2, 2, 0):
            raise NotImplementedError
        for axis in (2, 3):
            first, second = ([self._every_other(part, i, axis) for part in x] for i in (0, 1))
            x = self._maximum(first, second)
        return self.relu(x)

    def flatten(self, x: Pair) -> Pair:
        mean, second = x
        return super().flatten(mean), super().flatten(second)

    def _every_other(self, x: str, start: int, axis: int) -> str:
        return self.node("Slice", x, [start], [np.iinfo(np.int64).max], [axis], [2])

    def _maximum(self, x: Sequence[str], y: Sequence[str]) -> Pair:
        (m1, v1), (m2, v2) = x, y
        distance = self.node("Sub", m1, m2)
        above, density = self._standardised(distance, self.node("Add", v1, v2))
        mean = self.node("Add", self._mix(m1, m2, above), density)
        s1, s2 = (self.node("Add", self.node("Mul", m, m), v) for m, v in (x, y))
        third = self.node("Mul", self.node("Add", m1, m2), density)
        second = self.node("Add", self._mix(s1, s2, above), third)
        return mean, self.node("Sub", second, self.node("Mul", mean, mean))

    def _mix(self, a: str, b: str, share: str) -> str:
        difference = self.node("Mul", self.node("Sub", a, b), share)
        return self.node("Add", b, difference)

    def _standardised(self, mean: str, var: str) -> tuple[str, str]:
        """Φ(mean / std), and std φ(mean / std)."""
        std = self.node("Sqrt", self.node("Add", var, 1e-12))
        t = self.node("Mul", self.node("Div", mean, std), math.sqrt(0.5))
        below = self.node("Mul", self.node("Add", self.node("Erf", t), 1.0), 0.5)
        bell = self.node("Exp", self.node("Neg", self.node("Mul", t, t)))
        return below, self.node("Mul", self.node("Mul", bell, std), (2 * math.pi) ** -0.5)


class _Parameters(dict):  # type: ignore[type-arg]
    """Nested parameters, empty where batch norms were folded."""

    def __missing__(self, key: str) -> "_Parameters":
        return _Parameters()


def _nested(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return _Parameters({str(key): _nested(value) for key, value in tree.items()})


def build(model: str, params: Any, shape: Sequence[int], moments: bool = False) -> bytes:
    """Writes a network as an ONNX file.

    Args:
        model: `mlp`, `lenet5` or `resnet18`.
        params: Its parameters, Gaussian ones for `moments`; batch norms are folded.
        shape: Of the input, batch first, channels last.
        moments: Whether means and variances are propagated; the outputs are then both.
    """
    layers, write = _Moments() if moments else _Deterministic(), getattr(forward_passes, model)
    x = layers.node("Transpose", "x", perm=[0, 3, 1, 2]) if len(shape) == 4 else "x"
    outputs = write(layers, _nested(params), _Parameters(), x)
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    return finish(layers.nodes, layers.constants, shape, {n: (shape[0], "out") for n in names})


def finish(
    nodes: Any,
    constants: Any,
    shape: Sequence[int],
    outputs: Mapping[str, Any],
    domains: Sequence[str] = (),
) -> bytes:
    """Makes a file of operators that read `x`, by the shapes of its outputs.

    Args:
        nodes: The operators.
        constants: Their constants.
        shape: Shape of `x`.
        outputs: Shapes of the outputs.
        domains: Domains of operators beyond the standard's.
    """
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, of)
        for name, of in {"x": shape, **outputs}.items()
    ]
    graph = helper.make_graph(nodes, "network", tensors[:1], tensors[1:], constants)
    sets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(name, 1) for name in domains)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def started(model: bytes, x: Any, threads: int) -> Callable[[], list[np.ndarray]]:
    """Starts ONNX Runtime with all of its optimizations; a call hands inputs in, results out."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"x": np.asarray(x)}
    return lambda: session.run(None, feed)
