"""Networks as LiteRT models: flat buffers, written with LiteRT's own schema.

LiteRT's converters need TensorFlow or PyTorch; the few operators of the networks that studies
compare don't. Layers are called as `experiments.transforms.networks` calls them. Images stay in
JAX's order, which is LiteRT's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from experiments.transforms import networks

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "int8": schema.TensorType.INT8,
    "int32": schema.TensorType.INT32,
}
_PADDINGS = {"SAME": schema.Padding.SAME, "VALID": schema.Padding.VALID}
_RELU = schema.ActivationFunctionType.RELU

FORWARD: dict[str, Callable[..., Any]] = {"mlp": networks.mlp, "lenet5": networks.lenet5}
"""Networks that have no other layers than these, by name."""


class Layers:
    """Layers as LiteRT operators; values are indices of tensors, float32 ones."""

    dtype = "float32"
    """Of what operators compute."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.buffers = [schema.BufferT()]  # the first one is empty, for tensors of no constant
        self.operators: list[Any] = []
        self.codes: list[int] = []

    def tensor(self, shape: Sequence[int], dtype: str, constant: np.ndarray | None = None) -> int:
        """Adds a tensor."""
        new = schema.TensorT()
        new.shape, new.name = np.array(shape, np.int32), f"t{len(self.tensors)}".encode()
        new.type = _TYPES[dtype]
        if constant is not None:
            new.buffer = len(self.buffers)
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(constant).tobytes(), np.uint8)
            self.buffers.append(buffer)
        self.tensors.append(new)
        return len(self.tensors) - 1

    def constant(self, value: Any) -> int:
        """Adds a constant, of its own dtype."""
        array = np.asarray(value)
        return self.tensor(array.shape, str(array.dtype), array)

    def shape(self, x: int) -> tuple[int, ...]:
        """Of a tensor."""
        return tuple(int(n) for n in self.tensors[x].shape)

    def operate(
        self,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        options: str,
        *,
        dtype: str | None = None,
        **values: Any,
    ) -> int:
        """Adds an operator, by the schema's names of it and of its options."""
        code = getattr(schema.BuiltinOperator, kind)
        if code not in self.codes:
            self.codes.append(code)
        new = schema.OperatorT()
        new.opcodeIndex = self.codes.index(code)
        new.inputs = np.array(inputs, np.int32)
        new.outputs = np.array([self.tensor(shape, dtype or self.dtype)], np.int32)
        new.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        new.builtinOptions = getattr(schema, f"{options}T")()
        for name, value in values.items():
            setattr(new.builtinOptions, name, value)
        self.operators.append(new)
        return int(new.outputs[0])

    def operands(self, params: Any, x: int, order: Sequence[int]) -> list[int]:
        """What a layer reads: its input, its kernel with the axes in this order, its bias."""
        kernel = np.transpose(np.asarray(params["kernel"]), order)
        return [x, self.constant(kernel), self.constant(params["bias"])]

    def moved(self, made: int, x: int) -> int:
        """A tensor of the values of another one."""
        return made

    def conv(self, params: Any, x: int, stride: int, padding: str) -> int:
        """Convolution; kernels are [output, height, width, input]."""
        height, width, _, features = params["kernel"].shape
        n, *sides = self.shape(x)[:3]
        if padding == "VALID":
            sides = [side - size + 1 for side, size in zip(sides, (height, width), strict=True)]
        return self.operate(
            "CONV_2D", self.operands(params, x, (3, 0, 1, 2)),
            (n, *(-(-side // stride) for side in sides), features), "Conv2DOptions",
            padding=_PADDINGS[padding], strideW=stride, strideH=stride,
        )  # fmt: skip

    def dense(self, params: Any, x: int) -> int:
        """Dense layer; kernels are [output, input]."""
        shape = (self.shape(x)[0], params["kernel"].shape[1])
        inputs = self.operands(params, x, (1, 0))
        return self.operate("FULLY_CONNECTED", inputs, shape, "FullyConnectedOptions")

    def relu(self, x: int) -> int:
        """Rectifier, fused into the layer before it, as LiteRT's converters do."""
        self.operators[-1].builtinOptions.fusedActivationFunction = _RELU
        return x

    def relu_max_pool(self, x: int, size: int, stride: int, padding: int) -> int:
        """Rectifier, then max pooling."""
        if padding:
            raise NotImplementedError("no network here pads its pooling")
        n, height, width, channels = self.shape(self.relu(x))
        sides = [(side - size) // stride + 1 for side in (height, width)]
        made = self.operate(
            "MAX_POOL_2D", [x], (n, *sides, channels), "Pool2DOptions",
            padding=schema.Padding.VALID, strideW=stride, strideH=stride,
            filterWidth=size, filterHeight=size,
        )  # fmt: skip
        return self.moved(made, x)

    def flatten(self, x: int) -> int:
        """Everything but the batch axis in one."""
        n, *rest = self.shape(x)
        shape = (n, math.prod(rest))
        inputs = [x, self.constant(np.array(shape, np.int32))]
        made = self.operate("RESHAPE", inputs, shape, "ReshapeOptions", newShape=list(shape))
        return self.moved(made, x)

    def model(self, x: int, result: int) -> bytes:
        """The flat buffer."""
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = np.array([x], np.int32), np.array([result], np.int32)
        made = schema.ModelT()
        made.version, made.subgraphs, made.buffers = 3, [graph], self.buffers
        made.operatorCodes = []
        for code in self.codes:
            new = schema.OperatorCodeT()
            new.builtinCode = new.deprecatedBuiltinCode = code
            made.operatorCodes.append(new)
        builder = flatbuffers.Builder(1024)
        builder.Finish(made.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def build(net: Any) -> bytes:
    """Writes a network of float32."""
    layers = Layers()
    x = layers.tensor(net.x.shape, "float32")
    return layers.model(x, FORWARD[net.model](layers, net.params, None, x))


def started(model: bytes, x: Any, threads: int) -> tuple[Callable[[], Any], np.ndarray]:
    """A call of a flat buffer by XNNPACK, and what it computed.

    The call is `invoke` alone: its input is in place, its result isn't copied.
    """
    interpreter = Interpreter(model_content=model, num_threads=threads)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.asarray(x))
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return interpreter.invoke, found
