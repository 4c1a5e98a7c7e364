"""Grids of a quantized ONNX file: weights as what their integers stand for, roundings as settings.

Quantizers write a network with pairs of `QuantizeLinear` and `DequantizeLinear` around what a
runtime computes with integers: ONNX Runtime's stores weights as integers, AIMET's rounds stored
floats, Brevitas' clamps between the two. `without_pairs` takes the pairs that products read out of
the graph and returns their grids as a spec.

Sharp edge: pairs that no product reads stay, where the file has them: a result that is rounded
before it is added to another isn't what it is without, and a spec rounds what layers read.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from jaxeff.compression import LSQ, LayerQuantization
from jaxeff_export.onnx_files._graph import OnnxError, StoredWeight, needed_nodes, with_inner
from jaxeff_export.onnx_files._loading import array_of

_BITS = {
    np.dtype(kind): bits
    for kind, bits in (
        (ml_dtypes.int4, 4), (ml_dtypes.uint4, 4), (np.int8, 8), (np.uint8, 8), (np.int16, 16),
        (np.uint16, 16), (np.int32, 32),
    )
}  # fmt: skip
VENDOR = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
_MOST_BITS = 8  # of codes that integer kernels take
_MOVES = {"MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity"}
"""Operators that move elements or take the largest: rounding before or after them is the same."""


def known_arrays(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Returns the initializers and the constants of a graph by name."""
    arrays = {tensor.name: array_of(tensor) for tensor in graph.initializer}
    for node in graph.node:
        value = next((a for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None:
            arrays[node.output[0]] = array_of(value.t)
    return arrays


def stored_weights(
    graph: onnx.GraphProto, arrays: Mapping[str, np.ndarray]
) -> dict[str, tuple[str, StoredWeight]]:
    """Finds what `DequantizeLinear` makes of integers of the file.

    Returns the name of the integers and themselves, by the name of the result.
    """
    weights = {}
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx"):
            weight = _stored(node, arrays)
            if weight is not None and weight.codes.ndim:
                weights[node.output[0]] = node.input[0], weight
    return weights


def _stored(node: Any, arrays: Mapping[str, np.ndarray]) -> StoredWeight | None:
    names = [name for name in node.input if name]
    if not all(name in arrays for name in names) or arrays[names[0]].dtype not in _BITS:
        return None
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if options.get("output_dtype") or arrays[names[1]].dtype != np.float32:
        return None
    codes, steps = arrays[names[0]], arrays[names[1]]
    zeros = arrays[names[2]] if len(names) > 2 else np.zeros_like(steps, codes.dtype)
    axis = None if steps.size == 1 else options.get("axis", 1) % max(codes.ndim, 1)
    return StoredWeight(codes, steps, zeros, axis, options.get("block_size") or None)


def _spread(numbers: np.ndarray, weight: StoredWeight) -> np.ndarray:
    """Shapes steps or zeros so that they stand beside the codes."""
    axis, block, shape = weight.axis, weight.block, weight.codes.shape
    if axis is None:
        return numbers.reshape((1,) * len(shape))
    if block is not None:
        return np.take(np.repeat(numbers, block, axis), range(shape[axis]), axis)
    return numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def dequantized(weight: StoredWeight) -> np.ndarray:
    """Returns the floats that integers stand for."""
    values = _centred(weight).astype(np.float32) * _spread(weight.steps, weight)
    return np.asarray(values, np.float32)


def _centred(weight: StoredWeight) -> np.ndarray:
    zeros = _spread(weight.zeros, weight).astype(np.int64)
    return np.asarray(weight.codes.astype(np.int64) - zeros)


def requantized(values: np.ndarray, weight: StoredWeight) -> np.ndarray:
    """Returns the integers nearest to floats, on the grid of stored ones."""
    if values.shape != weight.codes.shape:
        raise ValueError(
            f"restore: a weight that the file has as integers of shape {weight.codes.shape} can't "
            f"become {values.shape}: their grids are those of its channels. Prune the float model."
        )
    codes = np.rint(values / _spread(weight.steps, weight)) + _spread(weight.zeros, weight).astype(
        np.float64
    )
    kind = weight.codes.dtype
    ends = ml_dtypes.iinfo(kind)
    return np.clip(codes, int(ends.min), int(ends.max)).astype(np.int64).astype(kind)


class _RoundingPair(NamedTuple):
    """A pair: what it rounds, and the grid."""

    source: str
    step: np.ndarray
    zero: np.ndarray
    lower: int
    upper: int
    axis: int

    def same_grid(self, other: "_RoundingPair") -> bool:
        return _equal(self[1:5], other[1:5])


def _equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class _QuantizedGraph:
    """A graph, who makes each of its values and who reads it."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.arrays = known_arrays(graph)
        self.stored = stored_weights(graph, self.arrays)
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[Any]] = defaultdict(list)
        for node in graph.node:
            for reader in with_inner(node):
                for name in reader.input:
                    # What a graph inside a node reads, that node reads.
                    self.readers[name].append(node)
        self.results = {value.name for value in graph.output}

    def rounding(self, name: str) -> _RoundingPair | None:
        """Returns the pair that makes a value, if one does."""
        last = self.makers.get(name)
        if last is None or last.op_type != "DequantizeLinear":
            return None
        first = self.makers.get(last.input[0])
        clamp: tuple[int, ...] = ()
        if first is not None and first.op_type == "Clip" and len(first.input) == 3:
            if not all(n in self.arrays for n in first.input[1:]):
                return None
            clamp = tuple(int(self.arrays[n].item()) for n in first.input[1:])
            first = self.makers.get(first.input[0])
        if first is None or first.op_type != "QuantizeLinear":
            return None
        grid, back = self._grid(first), self._grid(last)
        if grid is None or back is None or not _equal(grid, back):
            return None
        step, zero, axis = grid
        ends = ml_dtypes.iinfo(zero.dtype)
        lower, upper = clamp or (int(ends.min), int(ends.max))
        return _RoundingPair(first.input[0], step, zero, lower, upper, axis)

    def _grid(self, node: Any) -> tuple[np.ndarray, np.ndarray, int] | None:
        names = [name for name in node.input if name][1:]
        options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        known = all(name in self.arrays for name in names)
        if not known or options.get("block_size") or options.get("output_dtype"):
            return None
        step = self.arrays[names[0]]
        # Without a zero point codes are unsigned bytes.
        zero = self.arrays[names[1]] if len(names) > 1 else np.zeros_like(step, np.uint8)
        if step.dtype != np.float32 or zero.dtype not in _BITS:
            return None
        return step, zero, options.get("axis", 1)


_ONE_INPUT = {
    "QLinearSigmoid": "Sigmoid", "QLinearLeakyRelu": "LeakyRelu",
    "QLinearAveragePool": "AveragePool", "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearReduceMean": "ReduceMean", "QLinearSoftmax": "Softmax",
}  # fmt: skip
_TWO_INPUTS = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_AXES = 13
"""The first operator set whose grids have an axis."""


def with_pairs(model: onnx.ModelProto, domains: Sequence[str]) -> onnx.ModelProto:
    """Writes operators of integers (QOperator files) as pairs around those of floats.

    ONNX Runtime's own are defined by that, `QLinearConv` and its like up to the rounding of values
    between two codes. What has an unknown grid stays.
    """
    if not any(n.op_type.startswith(("QLinear", "QGemm")) for n in model.graph.node):
        return model
    file = _QuantizedGraph(model.graph)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 1))
    nodes = []
    for node in model.graph.node:
        paired = None
        if node.domain in domains:
            paired = _PairedNode(file, node, opset).nodes()
        nodes += [node] if paired is None else paired
    if len(nodes) != len(model.graph.node):
        nodes = [copy.deepcopy(node) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return model


class _PairedNode:
    """The nodes that stand for one of integers; `file` is its graph."""

    def __init__(self, file: _QuantizedGraph, node: Any, opset: int) -> None:
        self._file, self._node, self._opset = file, node, opset
        self._before: list[Any] = []
        self._options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self._names = [*node.input]

    def nodes(self) -> list[Any] | None:
        """Returns them; None where the node isn't of integers, or its grid isn't known."""
        operator, names = self._node.op_type, self._names
        if operator in ("QLinearConv", "QLinearMatMul", "QGemm"):
            return self._product()
        if operator in _TWO_INPUTS:
            inputs = [self._floats(*names[i : i + 3]) for i in (0, 3)]
            return self._around(_TWO_INPUTS[operator], inputs, names[6:8])
        if operator == "QLinearConcat":
            inputs = [self._floats(*names[i : i + 3]) for i in range(2, len(names), 3)]
            return self._around("Concat", inputs, names[:2])
        if operator in _ONE_INPUT:
            last, version = self._options.pop("channels_last", 0), self._options.pop("opset", 13)
            if last or (operator == "QLinearSoftmax" and version < _AXES):
                return None
            return self._around(_ONE_INPUT[operator], [self._floats(*names[:3])], names[3:5])
        return None

    def _product(self) -> list[Any] | None:
        gemm, names = self._node.op_type == "QGemm", self._names
        arrays = self._file.arrays
        if not {names[1], names[4]} <= {*arrays} or arrays[names[1]].size != 1:
            return None
        step = arrays[names[4]]
        bias, grid = (names[6:7], names[7:9]) if gemm else (names[8:9], names[6:8])
        axis = 0 if self._node.op_type == "QLinearConv" or self._options.get("transB") else 1
        if step.size > 1 and (self._opset < _AXES or step.ndim != 1):
            return None
        inputs = [self._floats(*names[:3]), self._floats(names[3], names[4], names[5], axis)]
        if any(bias):
            steps = arrays[names[1]].reshape(()) * np.float32(self._options.get("alpha", 1)) * step
            tensor = numpy_helper.from_array(
                np.asarray(steps, np.float32), f"{self._node.output[0]}/bias_steps"
            )
            self._file.graph.initializer.append(tensor)
            inputs.append(self._floats(bias[0], tensor.name, "", 0))
        plain = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul", "QGemm": "Gemm"}
        return self._around(plain[self._node.op_type], inputs, grid)

    def _floats(self, codes: str, step: str, zero: str = "", axis: int | None = None) -> str:
        """Emits what makes floats of codes, and returns their name."""
        name = f"{self._node.output[0]}/floats{len(self._before)}"
        several = step in self._file.arrays and self._file.arrays[step].size > 1
        reads = [codes, step, *([zero] if zero else [])]
        node = helper.make_node("DequantizeLinear", reads, [name])
        if axis is not None and several:
            node.attribute.append(helper.make_attribute("axis", axis))
        self._before.append(node)
        return name

    def _around(self, operator: str, inputs: Sequence[str], grid: Sequence[str]) -> list[Any]:
        """Returns the operator of floats between its pairs; without a grid it has no last one."""
        end, name = self._node.output[0], self._node.name
        grid = [each for each in grid if each]
        result = f"{end}/floats" if grid else end
        middle = helper.make_node(operator, inputs, [result], name)
        for key, value in self._options.items():
            middle.attribute.append(helper.make_attribute(key, value))
        last = [helper.make_node("QuantizeLinear", [result, *grid], [end])] if grid else []
        return [*self._before, middle, *last]


def without_pairs(
    model: onnx.ModelProto,
) -> tuple[onnx.ModelProto, list[tuple[str, LayerQuantization]]]:
    """Takes the pairs that products read out of a model.

    Returns it, and for each product, in order, the initializer that is its weight, and its grids.
    """
    model = copy.deepcopy(model)
    file = _QuantizedGraph(model.graph)
    products = [(node, of) for node in model.graph.node if (of := _product(file, node))]
    if not products:
        raise OnnxError(
            "from_onnx: grids=True is for files in which products read QuantizeLinear and "
            "DequantizeLinear pairs of at most 8 bits, and weights of such grids around zero; this "
            "one has none: take from_onnx(model)."
        )
    for node, product in products:
        node.input[0], node.input[1] = product.source, product.reads
    _drop_repeated(file)
    nodes = needed_nodes(model.graph.node, file.results)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model, [(product.weight, product.setting) for _, product in products]


class _QuantizedProduct(NamedTuple):
    """A product without its pairs: its grids, what it reads then, and its weight's initializer."""

    setting: LayerQuantization
    source: str
    reads: str
    weight: str


def _product(file: _QuantizedGraph, node: Any) -> _QuantizedProduct | None:
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    plain = options.get("alpha", 1) == options.get("beta", 1) == 1 and not options.get("transA")
    if node.op_type not in ("Conv", "Gemm", "MatMul") or not plain:
        return None
    rounding = file.rounding(node.input[0])
    if rounding is None or (of_data := _of_data(rounding)) is None:
        return None
    name = node.input[1]
    if name in file.stored:
        weight, stored = file.stored[name]
        if stored.block is not None:
            return None
        reads, bits, codes = name, _BITS[stored.codes.dtype], _centred(stored)
        step = _spread(stored.steps, stored)
    else:
        pair = file.rounding(name)
        if pair is None or pair.source not in file.arrays:
            return None
        reads = weight = pair.source
        bits = _BITS[pair.zero.dtype]
        values = file.arrays[weight]
        beside = StoredWeight(values, pair.step, pair.zero, pair.axis % values.ndim)
        beside = beside._replace(axis=None) if pair.step.size == 1 else beside
        step, zero = (_spread(n, beside) for n in (pair.step, pair.zero))
        codes = np.clip(np.rint(values / step) + zero, pair.lower, pair.upper) - zero
    largest = int(np.abs(codes).max(initial=0))
    # A grid of fewer bits would do for codes that happen to be small; the file's width is kept.
    bits = max(bits, largest.bit_length() + 1)
    if bits > _MOST_BITS or (step <= 0).any():
        return None
    if options.get("transB"):
        step = np.swapaxes(step, 0, 1)
    of_weight = LSQ(
        bits, step=jnp.asarray(step) if step.size > 1 else step.item(), signed=True, narrow=True
    )
    return _QuantizedProduct(LayerQuantization(of_weight, of_data), rounding.source, reads, weight)


def _of_data(rounding: _RoundingPair) -> LSQ | None:
    """Returns the grid of what a product reads; None of one for each channel, or a narrow one."""
    if rounding.step.size != 1 or rounding.zero.size != 1:
        return None
    step, zero = rounding.step.reshape(()), int(rounding.zero.item())
    signed = rounding.lower < 0
    bits = (rounding.upper - rounding.lower).bit_length()
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if bits > _MOST_BITS or (rounding.lower, rounding.upper) != ends or step <= 0:
        return None
    offset = np.float32(-zero) * step if zero else None
    return LSQ(
        bits, step=float(step), signed=signed, asymmetric=zero != 0,
        offset=None if offset is None else float(offset),
    )  # fmt: skip


def _drop_repeated(file: _QuantizedGraph) -> None:
    """Takes out pairs after which elements are only moved until they are rounded the same again."""
    for node in file.graph.node:
        name = node.output[0] if node.output else ""
        r = file.rounding(name)
        # The next pair's grid may be of channels, which a move would put elsewhere.
        if r is None or r.step.size != 1:
            continue
        if all(_repeats(file, end, r) for end in _ends(file, name)):
            for reader in file.readers[name]:
                reader.input[:] = [r.source if n == name else n for n in reader.input]


def _ends(file: _QuantizedGraph, name: str) -> Iterator[Any]:
    """Yields the nodes that read a value after moves alone; None where it leaves the graph."""
    if name in file.results:
        yield None
    for node in file.readers[name]:
        # Of a reshape's inputs only the first is moved.
        if node.op_type in _MOVES and node.input[0] == name:
            yield from _ends(file, node.output[0])
        else:
            yield node


def _repeats(file: _QuantizedGraph, node: Any, rounding: _RoundingPair) -> bool:
    """Tells whether a node rounds to a grid, and nothing but its pair reads it."""
    if node is None or node.op_type != "QuantizeLinear":
        return False
    pairs = [file.rounding(d.output[0]) for d in file.readers[node.output[0]]]
    return bool(pairs) and all(p is not None and p.same_grid(rounding) for p in pairs)
