"""`.tflite` files as tensors and operators: bounded, and with all of their offsets checked.

References:
    The schema of TensorFlow Lite, version 3, whose numbers of fields these are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxeff.store import InflationError, require_inflatable
from jaxeff_export.litert_files._calls import settings_of
from jaxeff_export.litert_files._flatbuffer import Flatbuffer, FlatbufferError, FlatTable
from jaxeff_export.litert_files._to_litert import LitertError

_VERSION = 3
_MOST_BYTES = 2**31

_DTYPES: dict[int, Any] = {
    0: np.float32, 1: np.float16, 2: np.int32, 3: np.uint8, 4: np.int64, 6: np.bool_, 7: np.int16,
    9: np.int8, 10: np.float64, 12: np.uint64, 15: np.uint32, 16: np.uint16, 17: ml_dtypes.int4,
    18: ml_dtypes.bfloat16, 20: ml_dtypes.uint4,
}  # fmt: skip
"""Dtypes by their number; complex numbers, texts, resources and variants are missing."""

_PACKED = (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4))
_PLACEHOLDER = 127  # in the byte that was all there was for an operator's number at first
_CUSTOM = 32

_TABLE = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL
CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST
PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN
TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK
REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR
LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS
WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
BATCH_MATMUL PLACEHOLDER CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
"""
_NAMES = tuple(_TABLE.split())
"""Operators by their number; those behind them are STABLEHLO's."""


class StoredGrid(NamedTuple):
    """Which numbers integers stand for: `(code - zero) * step`.

    Attributes:
        steps: float32, of as many axes as the tensor where there are several.
        zeros: int32, of the shape of the steps.
    """

    steps: np.ndarray
    zeros: np.ndarray

    def same_as(self, other: StoredGrid | None) -> bool:
        """Whether both have the same steps and zeros."""
        pairs = zip(self, other, strict=True) if other is not None else ()
        return other is not None and all(np.array_equal(a, b) for a, b in pairs)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """Returns the floats that codes stand for."""
        centred = codes.astype(np.int64) - self.zeros
        return np.asarray(centred.astype(np.float32) * self.steps, np.float32)


class StoredTensor(NamedTuple):
    """A value of the graph.

    Attributes:
        name: The file's name for it, which others may share.
        shape: Sizes as the file has them; -1 where it leaves one open.
        dtype: What its elements are in the file.
        grid: The floats that its integers stand for, if it says them.
        data: Place and number of a constant's bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    grid: StoredGrid | None
    data: tuple[int, int] | None


class Operator(NamedTuple):
    """A node.

    Attributes:
        name: Such as CONV_2D; of one that isn't of TensorFlow Lite, CUSTOM and its own.
        inputs: Numbers of tensors; -1 for one that is left out.
        outputs: Numbers of tensors.
        settings: Values by name; the schema's defaults where the file has none.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    settings: Mapping[str, Any]


class LitertGraph(NamedTuple):
    """What a file computes.

    Attributes:
        source: The file, as messages name it.
        content: The file's bytes.
        tensors: The values of the graph, by number.
        operators: In the order of their computation.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
    """

    source: str
    content: bytes
    tensors: tuple[StoredTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def array(self, number: int) -> np.ndarray:
        """Reads a constant as the file has it."""
        tensor = self.tensors[number]
        assert tensor.data is not None
        assert tensor.dtype is not None
        start, size = tensor.data
        raw = self.content[start : start + size]
        if tensor.dtype in _PACKED:
            # Two in a byte, the first in its low half.
            halves = np.frombuffer(raw, np.uint8)
            codes = np.stack([halves & 15, halves >> 4], -1).ravel()[: math.prod(tensor.shape)]
            signed = tensor.dtype == _PACKED[0]
            wide = np.where(codes > 7, codes.astype(np.int8) - 16, codes) if signed else codes
            return wide.astype(np.int8 if signed else np.uint8).reshape(tensor.shape)
        array = np.frombuffer(raw, tensor.dtype.newbyteorder("<")).reshape(tensor.shape)
        return array.astype(tensor.dtype)


def loaded(path: str | os.PathLike[str]) -> LitertGraph:
    """Reads and checks a file.

    Raises:
        LitertError: It is damaged or forged, or holds what isn't read.
        OSError: There is no such file.
    """
    path = Path(path)
    if path.stat().st_size >= _MOST_BYTES:
        raise LitertError(f"from_litert: {path} is larger than 2 GiB, which isn't read.")
    content = path.read_bytes()
    if content[4:8] != b"TFL3":
        raise LitertError(
            f"from_litert: {path} is no .tflite file: its bytes 4 to 8 are {content[4:8]!r}, not "
            "b'TFL3'."
        )
    try:
        return _graph(Flatbuffer(content), str(path))
    except FlatbufferError as error:
        raise LitertError(f"from_litert: {path} is damaged: {error}.") from error
    except InflationError as error:
        raise LitertError(f"from_litert: what {path} has {error}.") from error


def _graph(file: Flatbuffer, source: str) -> LitertGraph:
    model = file.root()
    if (version := model.number(0, "I")) != _VERSION:
        raise LitertError(f"from_litert: {source} has a schema of version {version}; 3 is read.")
    names = [_operator_name(code) for code in model.tables(1)]
    graphs = [*model.tables(2)]
    if not graphs:
        raise LitertError(f"from_litert: {source} has no graph.")
    main = graphs[0]
    buffers = [_bytes_of(buffer) for buffer in model.tables(4)]
    tensors = tuple(_tensor(table, buffers) for table in main.tables(0))
    # As floats: integers on a grid take four bytes each then.
    require_inflatable(
        (
            4 * math.prod(t.shape) if t.grid is not None else t.data[1]
            for t in tensors
            if t.data is not None
        ),
        len(file.content),
        "run it by LiteRT's interpreter",
    )
    count = len(tensors)
    operators = tuple(_operator(table, names, count) for table in main.tables(3))
    inputs, outputs = (_numbers(main, field, count) for field in (1, 2))
    if -1 in inputs or -1 in outputs:
        raise FlatbufferError("the graph has an input or a result that is left out")
    tensors = _with_bias_grids(tensors, operators)
    graph = LitertGraph(source, file.content, tensors, operators, inputs, outputs)
    _require_order(graph)
    return graph


def _operator_name(code: FlatTable) -> str:
    # Files from before there were more than 127 have the number in a byte.
    number = max(code.number(0, "b"), code.number(3, "i"))
    if number == _CUSTOM:
        return f"CUSTOM {code.text(1)!r}"
    if 0 <= number < len(_NAMES) and number != _PLACEHOLDER:
        return _NAMES[number]
    return f"{'STABLEHLO ' if number >= len(_NAMES) else ''}operator {number}"


def _bytes_of(buffer: FlatTable) -> tuple[int, int]:
    start, count = buffer.span(0)
    far, size = buffer.number(1, "Q"), buffer.number(2, "Q")
    if far > 1:  # behind the flatbuffer, as converters of large models put it
        buffer.file.require(far, size)
        return far, size
    return start, count


def _tensor(table: FlatTable, buffers: list[tuple[int, int]]) -> StoredTensor:
    name, shape = table.text(3), tuple(table.numbers(0, "i4").tolist())
    number, buffer = table.number(1, "b"), table.number(2, "I")
    if buffer >= len(buffers):
        raise FlatbufferError(f"{name!r} lies in buffer {buffer} of {len(buffers)}")
    if any(size < 0 for size in shape) and buffers[buffer][1]:
        raise FlatbufferError(f"{name!r} has the shape {shape}")
    if table.table(6) is not None:
        raise LitertError(f"from_litert: {name!r} is stored sparsely: store it dense.")
    if table.number(5, "B"):
        raise LitertError(f"from_litert: {name!r} is a variable of the file; none is read.")
    dtype = np.dtype(_DTYPES[number]) if number in _DTYPES else None
    data = buffers[buffer] if buffers[buffer][1] else None
    if data is not None and dtype is not None:
        bits = 4 if dtype in _PACKED else 8 * dtype.itemsize
        wanted = -(-math.prod(shape) * bits // 8)
        if data[1] != wanted:
            raise FlatbufferError(
                f"{name!r} of {dtype}{list(shape)} takes {wanted} bytes and has {data[1]}"
            )
    grid = None if dtype is None or dtype.kind == "f" else _grid(table.table(4), name, shape)
    # Sizes that are open stand in the signature alone.
    open_sizes = tuple(table.numbers(7, "i4").tolist()) or shape
    if data is None and len(open_sizes) == len(shape):
        shape = open_sizes
    return StoredTensor(name, shape, dtype, grid, data)


def _grid(table: FlatTable | None, name: str, shape: tuple[int, ...]) -> StoredGrid | None:
    if table is None:
        return None
    steps, zeros = table.numbers(2, "f4").astype(np.float32), table.numbers(3, "i8")
    if not steps.size:
        return None
    if table.number(4, "B"):
        raise LitertError(f"from_litert: {name!r} has a grid of its own kind; none is read.")
    zeros = zeros if zeros.size else np.zeros(steps.size, np.int64)
    axis = table.number(6, "i")
    per_axis = steps.size > 1 and 0 <= axis < len(shape) and shape[axis] == steps.size
    if not (np.isfinite(steps).all() and (steps >= 0).all() and np.abs(zeros).max() < 2**31):
        raise FlatbufferError(f"the steps or zeros of {name!r} aren't numbers that can be")
    if (steps.size > 1 and not per_axis) or zeros.size not in (1, steps.size):
        raise FlatbufferError(
            f"{name!r} of shape {shape} has {steps.size} steps and {zeros.size} zeros"
        )
    sizes = [-1 if i == axis else 1 for i in range(len(shape))] if steps.size > 1 else []
    zeros = np.broadcast_to(zeros, steps.shape).astype(np.int32)
    return StoredGrid(steps.reshape(sizes), zeros.reshape(sizes))


def _operator(table: FlatTable, names: list[str], count: int) -> Operator:
    code = table.number(0, "I")
    if code >= len(names):
        raise FlatbufferError(f"an operator has the code {code} of {len(names)}")
    inputs, outputs = (_numbers(table, field, count) for field in (1, 2))
    return Operator(names[code], inputs, outputs, settings_of(names[code], table.table(4)))


def _with_bias_grids(
    tensors: tuple[StoredTensor, ...], operators: tuple[Operator, ...]
) -> tuple[StoredTensor, ...]:
    """Gives biases that say no grid the one that they have by definition: of the products' sums."""
    result = [*tensors]
    for operator in operators:
        if operator.name not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            continue
        if len(operator.inputs) < 3 or -1 in operator.inputs[:3]:
            continue
        data, weight, bias = (tensors[number] for number in operator.inputs[:3])
        is_whole = bias.dtype is not None and bias.dtype.kind == "i"
        if bias.grid is None and is_whole and data.grid is not None and weight.grid is not None:
            steps = data.grid.steps.reshape(-1) * weight.grid.steps.reshape(-1)
            steps = steps if steps.size > 1 else steps.reshape(())
            grid = StoredGrid(steps.astype(np.float32), np.zeros(steps.shape, np.int32))
            result[operator.inputs[2]] = bias._replace(grid=grid)
    return tuple(result)


def _numbers(table: FlatTable, field: int, count: int) -> tuple[int, ...]:
    numbers = tuple(table.numbers(field, "i4").tolist())
    if any(not -1 <= number < count for number in numbers):
        raise FlatbufferError(f"tensor {max(numbers, key=abs)} is asked for, of {count}")
    return numbers


def _require_order(graph: LitertGraph) -> None:
    """Refuses a graph in which something is read before it is computed, or computed twice."""
    known = {i for i, tensor in enumerate(graph.tensors) if tensor.data is not None}
    known |= {*graph.inputs, -1}
    for operator in graph.operators:
        for number in operator.inputs:
            # What has no elements has no bytes either.
            if number not in known and 0 not in graph.tensors[number].shape:
                raise FlatbufferError(
                    f"{operator.name} reads {graph.tensors[number].name!r} before it is computed"
                )
        if {*operator.outputs} & known:
            raise FlatbufferError(f"{operator.name} writes what there is already")
        known |= {*operator.outputs}
    if missing := [number for number in graph.outputs if number not in known]:
        raise FlatbufferError(f"nothing computes the result {graph.tensors[missing[0]].name!r}")
