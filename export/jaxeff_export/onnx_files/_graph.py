"""A graph of ONNX in the making: nodes, constants and dtypes, and numbers on uniform grids.

Weights on grids are written as integers with steps: what `quantized` makes of parameters alone. A
product of whole numbers and steps is such a weight, wherever it comes from: it is checked number by
number, and the file's values are those of the function to the last bit.

Rounding of activations becomes `QuantizeLinear` and `DequantizeLinear`, which engines have kernels
for: `quantized` divides by the step, moves by the zero, rounds, clamps, and goes back. Sharp edge:
these operators round before the zero is added. A value in the middle of two codes goes to the even
one of two other numbers then, which may be its other neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from jaxeff.core import primitives as p
from jaxeff.program.ir import primitives as prim

_MOVES = prim.VIEWS | {p.copy_p, p.stop_gradient_p}
_WIDEST = 255


class GridWeight(NamedTuple):
    """A constant as whole numbers times steps.

    Attributes:
        values: The constant.
        codes: The whole numbers, of its shape.
        steps: The steps, of its shape.
    """

    values: np.ndarray
    codes: np.ndarray
    steps: np.ndarray

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> GridWeight:
        """Moves the elements of all three alike."""
        return GridWeight(*(move(part) for part in self))


class StoredWeight(NamedTuple):
    """What `DequantizeLinear` makes a constant of.

    Attributes:
        codes: Integers of 4 or 8 bits.
        steps: One step, of any sign; one for each entry of the axis; or one for each block along it
            and each entry of the other axes.
        zeros: The integer that stands for zero, of the shape of the steps.
        axis: The axis along which they differ; None if they don't.
        block: Entries of a block; None where a step is for the entry of an axis.
    """

    codes: np.ndarray
    steps: np.ndarray
    zeros: np.ndarray
    axis: int | None
    block: int | None = None


def grid_weight(
    eqn: Any, operands: Sequence[np.ndarray], known: Sequence[GridWeight | None]
) -> GridWeight | None:
    """Finds the whole numbers of what an equation makes of constants.

    Args:
        eqn: The equation, with one result.
        operands: The constants that it reads.
        known: The whole numbers of those, where there are.
    """
    out = eqn.outvars[0].aval
    # Biases and statistics stay in float, as `quantized` leaves them.
    if out.dtype != np.float32 or len(out.shape) < 2:
        return None
    if eqn.primitive is p.mul_p:
        return _product(out.shape, *operands)
    if eqn.primitive in _MOVES and known[0] is not None and len(operands) == 1:
        return known[0].moved(lambda part: np.asarray(eqn.primitive.bind(part, **eqn.params)))
    # Such as the straight-through estimator's sum with zero.
    if eqn.primitive is p.add_p and any(known):
        values = operands[0] + operands[1]
        same = (w for w in known if w is not None and np.array_equal(w.values, values))
        return next((w._replace(values=values) for w in same), None)
    return None


def _product(shape: tuple[int, ...], left: np.ndarray, right: np.ndarray) -> GridWeight | None:
    for codes, steps in ((left, right), (right, left)):
        # Fewer steps than numbers: else there is nothing to save.
        if codes.shape != shape or not 0 < steps.size < codes.size:
            continue
        near = np.rint(codes)
        if np.array_equal(near, codes) and np.abs(near).max() <= 2 * _WIDEST:
            return GridWeight(codes * steps, near, np.broadcast_to(steps, shape))
    return None


def stored_weight(weight: GridWeight) -> StoredWeight | None:
    """Chooses integers, steps and zeros as `DequantizeLinear` takes them.

    Returns:
        The smallest integers that hold them; None if steps differ along several axes, and not in
        blocks of one of them.
    """
    steps = weight.steps
    axes = [i for i in range(steps.ndim) if not np.array_equal(steps, _first(steps, i))]
    if len(axes) > 1:
        blocks = ((axis, _block(steps, axis)) for axis in axes)
        in_blocks = (_in_blocks(weight, axis, block) for axis, block in blocks if block > 1)
        return next(filter(None, in_blocks), None)
    # Channels may share a step and have zeros of their own. ONNX Runtime's kernels take them along
    # the axis of results alone: the last of a product's weights, the first of a convolution's.
    places = range(steps.ndim) if steps.ndim > 2 else reversed(range(steps.ndim))
    tried: list[int | None] = [*axes] or [None, *places]
    return next(filter(None, (_along(weight, axis) for axis in tried)), None)


def _along(weight: GridWeight, axis: int | None) -> StoredWeight | None:
    rows, steps = (
        part.reshape(1, -1)
        if axis is None
        else np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)
        for part in (weight.codes, weight.steps)
    )
    # A row for each entry of the axis: the zero goes into the integers, as the codes of one row
    # span no more than its bits while those of all rows may.
    integer_rows = _integers(rows)
    if integer_rows is None:
        return None
    kind, zeros = integer_rows
    shape = [-1 if i == axis else 1 for i in range(weight.codes.ndim)]
    integers = _cast(weight.codes + zeros.reshape(shape), kind)
    each = () if axis is None else (-1,)
    numbers = np.array(steps[:, 0].reshape(each), np.float32)
    return StoredWeight(integers, numbers, _cast(zeros.reshape(each), kind), axis)


def _block(steps: np.ndarray, axis: int) -> int:
    """Finds the length of the blocks along an axis within which steps are equal."""
    rows = np.moveaxis(steps, axis, 0).reshape(steps.shape[axis], -1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    return math.gcd(len(rows), *changes.tolist())


def _in_blocks(weight: GridWeight, axis: int, block: int) -> StoredWeight | None:
    shape = weight.codes.shape
    apart = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    codes, steps = (part.reshape(apart) for part in (weight.codes, weight.steps))
    # A full grid of four bits has its sixteenth value above zero in some blocks, where two's
    # complement has none: these change the sign of codes and step.
    flip = np.where(codes.max(axis + 1, keepdims=True) == 8, -1, 1)
    if (codes * flip).min() >= -8 and (codes * flip).max() <= 7:
        codes, steps = codes * flip, steps * flip
    integer_rows = _integers(np.moveaxis(codes, axis + 1, -1).reshape(-1, block))
    if integer_rows is None:
        return None
    kind, zeros = integer_rows
    numbers = np.ascontiguousarray(np.take(steps, 0, axis + 1), np.float32)
    zeros = zeros.reshape(numbers.shape)
    integers = (codes + np.expand_dims(zeros, axis + 1)).reshape(shape)
    return StoredWeight(_cast(integers, kind), numbers, _cast(zeros, kind), axis, block)


def _integers(rows: np.ndarray) -> tuple[Any, np.ndarray] | None:
    """Finds the smallest integers that hold rows of codes, and what is added to each row."""
    low, high = rows.min(1), rows.max(1)
    none, below = np.zeros_like(low), np.clip(-low, 0, None)
    for kind, zeros, first, last in (
        (ml_dtypes.int4, none, -8, 7),
        (ml_dtypes.uint4, below, 0, 15),
        (np.int8, none, -128, 127),
        (np.uint8, below, 0, _WIDEST),
    ):
        # The zero is an integer of the same kind, which codes that are all below it are far from.
        if (low + zeros).min() >= first and max((high + zeros).max(), zeros.max()) <= last:
            return kind, zeros
    return None


def _cast(numbers: np.ndarray, kind: Any) -> np.ndarray:
    return numbers.astype(np.int32).astype(kind)


def _first(array: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(np.take(array, [0], axis), array.shape)


_VERSIONS = {18: 9, 21: 10}  # operator sets, and the version of the format that came with them

Value = str | np.ndarray
"""The name of a tensor, or a constant that is known already."""
Kind = tuple[Any, tuple[int, ...]]
"""A dtype and a shape."""


class OnnxError(ValueError):
    """A function has what ONNX, or this export to it, can't express; the message names it."""


class OnnxGraph:
    """Nodes and constants, in order.

    Attributes:
        nodes: What was emitted.
        constants: Tensors with values, by name.
        on_grids: The whole numbers and steps of constants on a grid, by their `id`.
        numbers: Values whose NaN reaches what the equation that is written is for without it.
        quant: Whether grids are written as QONNX's `Quant`, and NaN isn't looked after.
    """

    def __init__(self, quant: bool = False) -> None:
        """Starts an empty graph."""
        self.quant = quant
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.on_grids: dict[int, GridWeight] = {}
        self._known: dict[int, tuple[str, np.ndarray]] = {}
        self._outside: list[list[Any]] = []
        self.numbers: set[str] = set()
        self._makers: dict[str, Any] = {}
        self._in_blocks = False
        self._count = 0

    @property
    def versions(self) -> tuple[int, int]:
        """The operator set and the version of the format: newer for 4 bits, and for blocks."""
        few = any(a.dtype in (ml_dtypes.int4, ml_dtypes.uint4) for a in self.constants.values())
        opset = 21 if few or self._in_blocks else 18
        return opset, _VERSIONS[opset]

    def name(self, value: Value) -> str:
        """Returns the name of a value; a constant becomes a tensor of the file, once."""
        if isinstance(value, str):
            return value
        if id(value) not in self._known:  # held, so that no other array gets its id
            self._known[id(value)] = self._written(value), value
        return self._known[id(value)][0]

    def _written(self, value: np.ndarray) -> str:
        weight = self.on_grids.get(id(value))
        if weight is not None and self.quant:
            here = self.nodes
            self.nodes = [*self._outside, here][0]
            name = _quant_of_weight(self, weight)
            self.nodes = here
            return name
        if weight is not None and (parts := stored_weight(weight)) is not None:
            codes, steps, zeros, axis, block = parts
            along = {} if axis is None else {"axis": axis}
            along |= {} if block is None else {"block_size": block}
            self._in_blocks |= block is not None
            # A constant is read by any graph inside this one: it is made where all can read it.
            here = self.nodes
            self.nodes = [*self._outside, here][0]
            name = self.emit("DequantizeLinear", [codes, steps, zeros], **along)
            self.nodes = here
            return name
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _moved(self, value: np.ndarray, move: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Moves the elements of a constant, and those of its whole numbers."""
        if id(value) not in self.on_grids:
            return move(value)
        weight = self.on_grids[id(value)].moved(move)
        self.on_grids[id(weight.values)] = weight
        return weight.values

    def emit(self, op: str, inputs: Sequence[Value], **attributes: Any) -> str:
        """Adds a node with one result and returns the result's name."""
        return self.emit_all(op, inputs, 1, **attributes)[0]

    def emit_all(
        self, op: str, inputs: Sequence[Value], results: int, **attributes: Any
    ) -> list[str]:
        """Adds a node with some results and returns their names."""
        import onnx  # optional

        outputs = [f"v{self._count + 1 + i}" for i in range(results)]
        self._count += results
        names = [self.name(value) for value in inputs]
        node = onnx.helper.make_node(op, names, outputs, **attributes)
        self.nodes.append(node)
        self._makers |= dict.fromkeys(outputs, node)
        return outputs

    def is_number(self, value: Value) -> bool:
        """Returns whether a value is no NaN for sure (of a grid), or it doesn't matter."""
        if self.quant or (isinstance(value, str) and value in self.numbers):
            return True
        node = self._makers.get(value) if isinstance(value, str) else None
        if node is None:
            return not isinstance(value, str) and not np.isnan(value).any()
        if node.op_type in ("Reshape", "Transpose", "Relu", "MaxPool"):
            return self.is_number(node.input[0])
        return bool(node.op_type == "DequantizeLinear")

    def inside(
        self,
        inputs: Sequence[Kind],
        results: Sequence[Kind],
        write: Callable[[list[str]], Sequence[Value]],
    ) -> Any:
        """Makes the graph that a node holds, such as the body of a loop.

        `inputs` and `results` are dtypes and shapes; `write` emits its nodes for the names of its
        inputs, and returns its results.
        """
        import onnx  # optional

        arguments = [f"v{self._count + 1 + i}" for i in range(len(inputs))]
        self._count += len(inputs)
        self._outside.append(self.nodes)
        self.nodes = []
        # Results are made inside, also those that are inputs, constants or come from outside.
        outputs = [self.emit("Identity", [value]) for value in write(arguments)]
        nodes, self.nodes = self.nodes, self._outside.pop()
        info = onnx.helper.make_tensor_value_info
        return onnx.helper.make_graph(
            nodes,
            f"inside{self._count}",
            [
                info(n, tensor_type(dtype), s)
                for n, (dtype, s) in zip(arguments, inputs, strict=True)
            ],
            [
                info(n, tensor_type(dtype), s)
                for n, (dtype, s) in zip(outputs, results, strict=True)
            ],
        )

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Permutes axes; of a constant at once."""
        if list(order) == list(range(len(order))):
            return value
        if not isinstance(value, str):
            return self._moved(value, lambda a: np.ascontiguousarray(a.transpose(order)))
        return self.emit("Transpose", [value], perm=list(order))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Changes a shape; of a constant at once."""
        if not isinstance(value, str):
            return self._moved(value, lambda a: a.reshape(shape))
        return self.emit("Reshape", [value, integers(shape)])

    def cast(self, value: Value, dtype: Any) -> Value:
        """Converts to a dtype; a constant at once."""
        if not isinstance(value, str):
            return value.astype(dtype)
        return self.emit("Cast", [value], to=tensor_type(dtype))


def integers(values: Iterable[int]) -> np.ndarray:
    """Makes the constant that operators take shapes and axes by."""
    return np.array(list(values), np.int64)


def is_float(dtype: Any) -> bool:
    """Returns whether a dtype has NaN and infinities."""
    return bool(jax.numpy.issubdtype(dtype, np.floating))


def tensor_type(dtype: Any) -> int:
    """Finds ONNX's number of a dtype."""
    import onnx  # optional

    kinds = onnx.TensorProto
    types = {
        "float64": kinds.DOUBLE, "float32": kinds.FLOAT, "float16": kinds.FLOAT16,
        "int64": kinds.INT64, "int32": kinds.INT32, "int16": kinds.INT16, "int8": kinds.INT8,
        "uint64": kinds.UINT64, "uint32": kinds.UINT32, "uint16": kinds.UINT16,
        "uint8": kinds.UINT8, "bool": kinds.BOOL, np.dtype(ml_dtypes.bfloat16).name: kinds.BFLOAT16,
    }  # fmt: skip
    # A random key has a dtype of JAX alone.
    name = str(dtype) if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).name
    if name not in types:
        raise OnnxError(f"to_onnx: an array of dtype {name} can't be written.")
    return types[name]


_HALF, _LAST = 128, 255


class _Rounding(NamedTuple):
    source: str
    step: float
    zero: float
    low: float
    high: float


def fuse_roundings(graph: OnnxGraph, results: Sequence[str]) -> None:
    """Replaces roundings to grids of at most 8 bits, and drops what nobody reads any more."""
    nodes, graph.nodes = graph.nodes, []
    makers = {node.output[0]: node for node in nodes}
    same: dict[str, str] = {}
    for node in nodes:
        # What a replaced rounding made is read from its successor from here on.
        for reader in with_inner(node):
            reader.input[:] = [same.get(name, name) for name in reader.input]
        rounding = _rounding(graph, makers, node)
        if rounding is not None and (fused := _emit(graph, rounding)) is not None:
            same[node.output[0]] = fused
        elif (other := _straight_through(makers, same, node)) is not None:
            same[node.output[0]] = other
        else:
            graph.nodes.append(node)
    graph.nodes = needed_nodes(graph.nodes, results)
    needed = {*results, *_names_read(graph.nodes)}
    graph.constants = {n: a for n, a in graph.constants.items() if n in needed}


def needed_nodes(nodes: Sequence[Any], results: Iterable[str]) -> list[Any]:
    """Returns the nodes that results are made of, in their order."""
    needed = {*results}
    kept = []
    # From the results backwards: a node comes after all that it reads.
    for node in reversed(nodes):
        if needed & {*node.output}:
            needed |= _names_read([node])
            kept.append(node)
    return kept[::-1]


def _names_read(nodes: Iterable[Any]) -> set[str]:
    return {name for node in nodes for reader in with_inner(node) for name in reader.input}


def with_inner(node: Any) -> Iterator[Any]:
    """Yields a node and those of the graphs that it holds, which read names from outside too."""
    yield node
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from with_inner(inner)


def _rounding(graph: OnnxGraph, makers: Mapping[str, Any], node: Any) -> _Rounding | None:
    """Reads `(clamp(round(x / step - zero), low, high) + zero) * step`, from its end."""
    numbers: list[float] = []
    for op in ("Mul", "Add", "Min", "Max", "Round", "Sub", "Div"):
        if node is None or node.op_type != op:
            return None
        names = list(node.input)
        if op != "Round":
            constant = [name for name in names if name in graph.constants]
            if len(constant) != 1 or (op in ("Sub", "Div") and constant[0] != names[1]):
                return None
            array = graph.constants[constant[0]]
            if array.size != 1 or array.dtype != np.float32:
                return None
            numbers.append(float(array.item()))
            names.remove(constant[0])
        source, node = names[0], makers.get(names[0])
    step, zero, high, low, moved, divisor = numbers
    # A symmetric grid of one bit lies between whole numbers: no integer stands for its zero.
    if (step, zero) != (divisor, moved) or zero != round(zero):
        return None
    return _Rounding(source, step, zero, low, high)


QONNX = "qonnx.custom_op.general"
"""The domain of QONNX's operators (Pappalardo et al., "QONNX: representing arbitrary-precision
quantized neural networks", arXiv:2206.07527)."""
_MOST_QUANT_BITS = 16


def _quant(
    graph: OnnxGraph, x: Value, step: np.ndarray, zero: float, ends: tuple[float, float]
) -> str | None:
    """Emits `Quant` on a grid of whole numbers from one end to another; None if there is none."""
    for bits in range(1, _MOST_QUANT_BITS + 1):
        for signed in (0, 1) if bits > 1 else (0,):
            top = 2 ** (bits - signed) - 1
            for narrow in (0, 1):
                grid = (narrow - top - 1, top) if signed else (0, top - narrow)
                if grid != ends:
                    continue
                numbers = [np.asarray(zero, np.float32), np.asarray(bits, np.float32)]
                return graph.emit(
                    "Quant", [x, step, *numbers], domain=QONNX,
                    signed=signed, narrow=narrow, rounding_mode="ROUND",
                )  # fmt: skip
    return None


def _quant_of_weight(graph: OnnxGraph, weight: GridWeight) -> str:
    """Emits `Quant` of a constant on a grid, of as few bits as its whole numbers need."""
    steps = weight.steps
    for axis in range(steps.ndim):
        if np.array_equal(steps, _first(steps, axis)):
            steps = np.take(steps, [0], axis)
    codes = weight.codes
    bits = max(2, *(int(n).bit_length() + 1 for n in (codes.max(), -codes.min() - 1)))
    top = 2 ** (bits - 1) - 1
    lowest = -top if codes.min() >= -top else -top - 1
    steps = np.ascontiguousarray(steps, np.float32)
    # Divided by its steps and rounded, each value is its whole number again.
    name = _quant(graph, np.array(weight.values), steps, 0, (lowest, top))
    if name is None:
        raise OnnxError(
            f"to_qonnx: a weight has codes of {bits} bits; Quant is written up to "
            f"{_MOST_QUANT_BITS}: give it fewer."
        )
    return name


def _emit(graph: OnnxGraph, r: _Rounding) -> str | None:
    if graph.quant:
        scale = np.asarray(r.step, np.float32)
        return _quant(graph, r.source, scale, -r.zero, (r.low, r.high))
    # Unsigned, as `integer` has them: engines on x86 multiply unsigned by signed codes.
    low, high, zero = (number + _HALF for number in (r.low, r.high, -r.zero))
    if min(low, zero) < 0 or max(high, zero) > _LAST:
        return None
    x, step = r.source, np.float32(r.step)
    # The operator clamps to what 8 bits hold; fewer bits, or symmetric ones, end before.
    if (low, high) != (0, _LAST):
        ends = [np.asarray((end + r.zero) * step, np.float32) for end in (r.low, r.high)]
        x = graph.emit("Clip", [x, *ends])
    grid: list[Value] = [np.asarray(step), np.asarray(zero).astype(np.uint8)]
    codes = graph.emit("QuantizeLinear", [x, *grid])
    return graph.emit("DequantizeLinear", [codes, *grid])


def _straight_through(makers: Mapping[str, Any], same: Mapping[str, str], node: Any) -> str | None:
    """Returns the rounded values of `rounded + (x - x)`, whose second term is a gradient's."""
    if node.op_type != "Add":
        return None
    rounded, rest = node.input
    maker = makers.get(rest)
    if rounded not in same.values() or maker is None or maker.op_type != "Sub":
        return None
    return rounded if maker.input[0] == maker.input[1] else None
