"""Small `.tflite` files, written field by field: what a converter writes, and what none would."""

import flatbuffers
import numpy as np
from jaxeff_export.litert_files._model import _NAMES

DTYPES = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7,
          "int8": 9}  # fmt: skip
OPTIONS = {
    "CONV_2D": 1, "DEPTHWISE_CONV_2D": 2, "AVERAGE_POOL_2D": 5, "MAX_POOL_2D": 5,
    "FULLY_CONNECTED": 8, "SOFTMAX": 9, "CONCATENATION": 10, "ADD": 11, "RESIZE_BILINEAR": 15,
    "RESHAPE": 17, "MUL": 21, "PAD": 22, "GATHER": 23, "TRANSPOSE": 26, "MEAN": 27, "SUM": 27,
    "REDUCE_MAX": 27, "SUB": 28, "DIV": 29, "SQUEEZE": 30, "STRIDED_SLICE": 32, "EXP": 33,
    "SPLIT": 35, "CAST": 37, "DEQUANTIZE": 38, "MAXIMUM": 39, "MINIMUM": 39, "ARG_MAX": 40,
    "PADV2": 43, "SLICE": 48, "TRANSPOSE_CONV": 49, "EXPAND_DIMS": 52, "SHAPE": 55, "PACK": 59,
    "UNPACK": 64, "RESIZE_NEAREST_NEIGHBOR": 74, "LEAKY_RELU": 75, "SQUARED_DIFFERENCE": 76,
    "MIRROR_PAD": 77, "QUANTIZE": 89, "HARD_SWISH": 91, "DEPTH_TO_SPACE": 94, "BATCH_MATMUL": 101,
    "GELU": 116,
}  # fmt: skip
"""The number of an operator's options among all kinds of them."""


class Grid:
    """Steps and zeros of a tensor, along an axis where there are several."""

    def __init__(self, steps, zeros=0, axis=0):
        self.steps, self.zeros = np.atleast_1d(np.float32(steps)), np.atleast_1d(np.int64(zeros))
        self.zeros = np.broadcast_to(self.zeros, self.steps.shape)
        self.axis = axis


class TfliteFile:
    """A graph that grows by tensors and operators."""

    def __init__(self):
        self.tensors, self.operators = [], []
        self.buffer_of = lambda place, data: 0 if data is None else place + 1

    def tensor(self, name, shape, dtype="float32", grid=None, data=None):
        """Adds a tensor, and returns its number."""
        self.tensors.append((name, shape, np.dtype(dtype).name, grid, data))
        return len(self.tensors) - 1

    def constant(self, name, array, grid=None):
        """Adds a constant."""
        array = np.asarray(array)
        return self.tensor(name, array.shape, array.dtype, grid, array.tobytes())

    def add(self, name, inputs, outputs, *fields):
        """Adds an operator; `fields` are pairs of a kind (`Int8`) and a value, in order."""
        self.operators.append((name, inputs, outputs, fields))

    def written(self, inputs, outputs):
        """Returns the bytes."""
        b = flatbuffers.Builder(1024)
        names = sorted({name for name, *_ in self.operators})
        codes = [self._code(b, name) for name in names]
        empty = _table(b, [None])
        data = [t[4] for t in self.tensors]
        buffers = [empty] + [
            empty if d is None else _table(b, [("offset", b.CreateByteVector(d))]) for d in data
        ]
        tensors = [self._tensor(b, i, *tensor) for i, tensor in enumerate(self.tensors)]
        operators = [self._operator(b, names, *operator) for operator in self.operators]
        graph = _table(b, [
            ("offset", _offsets(b, tensors)), ("offset", _numbers(b, inputs)),
            ("offset", _numbers(b, outputs)), ("offset", _offsets(b, operators)),
        ])  # fmt: skip
        model = _table(b, [
            ("Uint32", 3), ("offset", _offsets(b, codes)), ("offset", _offsets(b, [graph])),
            None, ("offset", _offsets(b, buffers)),
        ])  # fmt: skip
        b.Finish(model, b"TFL3")
        return bytes(b.Output())

    def _code(self, b, name):
        number = _NAMES.index(name) if name in _NAMES else 32
        custom = None if name in _NAMES else ("offset", b.CreateString(name))
        return _table(b, [("Int8", min(number, 127)), custom, ("Int32", 1), ("Int32", number)])

    def _tensor(self, b, place, name, shape, dtype, grid, data):
        quantization = None
        if grid is not None:
            steps, zeros = b.CreateNumpyVector(grid.steps), b.CreateNumpyVector(grid.zeros + 0)
            quantization = ("offset", _table(b, [
                None, None, ("offset", steps), ("offset", zeros), None, None, ("Int32", grid.axis),
            ]))  # fmt: skip
        buffer = self.buffer_of(place, data)
        return _table(b, [
            ("offset", _numbers(b, shape)), ("Int8", DTYPES[dtype]), ("Uint32", buffer),
            ("offset", b.CreateString(name)), quantization,
        ])  # fmt: skip

    def _operator(self, b, names, name, inputs, outputs, fields):
        fields = [
            ("offset", _numbers(b, f[1])) if f is not None and f[0] == "vector" else f
            for f in fields
        ]
        kind = OPTIONS.get(name)
        options = None if kind is None else ("offset", _table(b, fields))
        return _table(b, [
            ("Uint32", names.index(name)), ("offset", _numbers(b, inputs)),
            ("offset", _numbers(b, outputs)), None if kind is None else ("Uint8", kind), options,
        ])  # fmt: skip


def _numbers(b, numbers):
    return b.CreateNumpyVector(np.asarray(numbers, np.int32))


def _offsets(b, offsets):
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


def _table(b, fields):
    b.StartObject(len(fields))
    for slot, field in enumerate(fields):
        if field is None:
            continue
        kind, value = field
        if kind == "offset":
            b.PrependUOffsetTRelativeSlot(slot, value, 0)
        else:
            getattr(b, f"Prepend{kind}")(value)
            b.Slot(slot)
    return b.EndObject()
