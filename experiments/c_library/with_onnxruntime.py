"""ONNX Runtime by its C interface: `OrtApi::Run` of the shared library in its package.

The package has no headers. Functions are found by their places in `OrtApi`, which later versions
only append to.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from experiments.c_library.calling import Repeater, address, aligned
from experiments.c_library.subjects import Case
from experiments.contests.onnx_graph import build
from experiments.integer.with_onnxruntime import models
from experiments.timing import Meter

_VERSION = 18  # of the interface: an old one, of which every release since has a copy
_PLACES = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "CreateSessionFromArray": 8,
    "Run": 9,
    "CreateSessionOptions": 10,
    "SetIntraOpNumThreads": 24,
    "SetInterOpNumThreads": 25,
    "CreateTensorWithDataAsOrtValue": 49,
    "CreateCpuMemoryInfo": 69,
}
_ERRORS_ONLY, _DEVICE_ALLOCATOR, _DEFAULT_MEMORY, _FLOAT32 = 3, 0, 0, 1


class _Base(ctypes.Structure):
    """`OrtApiBase`."""

    _fields_ = (("GetApi", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),)


def meters(case: Case, repeater: Repeater) -> Iterator[tuple[str, Meter, list[np.ndarray]]]:
    """Arithmetic, meter and results of each form of a network."""
    net = case.net
    if case.method == "moments":
        graphs = {"float32": build(net.model, case.params, net.x.shape, moments=True)}
    else:
        graphs = models(net)
    for arithmetic, graph in graphs.items():
        yield (arithmetic, *_started(graph, case, repeater))


def _started(graph: bytes, case: Case, repeater: Repeater) -> tuple[Meter, list[np.ndarray]]:
    api = _Api()
    environment = api.made("CreateEnv", _ERRORS_ONLY, b"jaxeff")
    options = api.made("CreateSessionOptions")
    api.call("SetIntraOpNumThreads", options, 1)
    api.call("SetInterOpNumThreads", options, 1)
    held = ctypes.create_string_buffer(graph, len(graph))
    size = ctypes.c_size_t(len(graph))
    session = api.made("CreateSessionFromArray", environment, held, size, options)
    memory = api.made("CreateCpuMemoryInfo", _DEVICE_ALLOCATOR, _DEFAULT_MEMORY)

    def value(array: np.ndarray) -> ctypes.c_void_p:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        sizes = (ctypes.c_size_t(array.nbytes), shape, ctypes.c_size_t(array.ndim))
        where = (memory, address(array), *sizes, _FLOAT32)
        return api.made("CreateTensorWithDataAsOrtValue", *where)

    outputs = [aligned(np.zeros_like(y)) for y in case.expected("float32")]
    x = aligned(np.asarray(case.net.x))
    names = [o.name.encode() for o in onnx.load_from_string(graph).graph.output]
    given, taken = (ctypes.c_void_p * 1)(value(x)), (ctypes.c_void_p * len(outputs))()
    taken[:] = [value(y).value for y in outputs]
    read, written = (ctypes.c_char_p * 1)(b"x"), (ctypes.c_char_p * len(names))(*names)
    run = api.function("Run")
    arguments = (session, 0, read, given, 1, written, len(names), taken)
    meter = repeater.meter(run, *arguments, keep=(held, x, outputs))
    meter(1)
    return meter, [y.copy() for y in outputs]


class _Api:
    """The table of functions."""

    def __init__(self) -> None:
        folder = Path(onnxruntime.__file__).parent / "capi"
        (file,) = (f for f in folder.glob("libonnxruntime.so*"))
        entry = ctypes.CDLL(str(file)).OrtGetApiBase
        entry.restype = ctypes.POINTER(_Base)
        table = entry().contents.GetApi(_VERSION)
        self._table = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))

    def function(self, name: str) -> Any:
        """A function, which returns NULL or a status."""
        kind = ctypes.CFUNCTYPE(ctypes.c_void_p)
        return ctypes.cast(self._table[_PLACES[name]] or 0, kind)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.

        Raises:
            RuntimeError: with what its status says.
        """
        status = self.function(name)(*arguments)
        if status:
            says = self.function("GetErrorMessage")(ctypes.c_void_p(status))
            raise RuntimeError(f"ONNX Runtime: {name}: {ctypes.string_at(says).decode()}")

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function makes."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle
