"""LiteRT by its C interface: `LiteRtRunCompiledModel` of the shared library in its package.

The package has no headers, so what is declared here is what its documentation says of that
library's functions. Its number of threads is its own default.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ai_edge_litert
import numpy as np

from experiments.c_library.calling import Repeater, address, aligned
from experiments.c_library.subjects import Case
from experiments.contests.litert_graph import build
from experiments.integer import with_litert
from experiments.timing import Meter

_CPU, _FLOAT32, _RANK = 1, 1, 8


class _Type(ctypes.Structure):
    """`LiteRtRankedTensorType`: an element's type, the number of axes, their lengths."""

    _fields_ = (
        ("element", ctypes.c_int32),
        ("rank", ctypes.c_uint32),
        ("dimensions", ctypes.c_int32 * _RANK),
        ("strides", ctypes.c_uint32 * _RANK),
    )


def meters(case: Case, repeater: Repeater) -> Iterator[tuple[str, Meter, list[np.ndarray]]]:
    """Arithmetic, meter and results of each form of a network."""
    if case.method != "deterministic":
        return
    models = {"float32": build(case.net), "int8": with_litert.build(case.net)}
    for arithmetic, model in models.items():
        yield (arithmetic, *_started(model, case, repeater))


def _started(model: bytes, case: Case, repeater: Repeater) -> tuple[Meter, list[np.ndarray]]:
    library = ctypes.CDLL(str(Path(ai_edge_litert.__file__).parent / "libLiteRt.so"))

    def made(name: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        _call(library, name, *arguments, ctypes.byref(handle))
        return handle

    environment = made("LiteRtCreateEnvironment", 0, None)
    held = ctypes.create_string_buffer(model, len(model))
    size = ctypes.c_size_t(len(model))
    graph = made("LiteRtCreateModelFromBuffer", environment, held, size)
    options = made("LiteRtCreateOptions")
    _call(library, "LiteRtSetOptionsHardwareAccelerators", options, _CPU)
    compiled = made("LiteRtCreateCompiledModel", environment, graph, options)

    x, y = aligned(np.asarray(case.net.x)), aligned(case.expected("float32")[0])

    def buffer(array: np.ndarray) -> ctypes.c_void_p:
        kind = _Type(_FLOAT32, array.ndim)
        kind.dimensions[: array.ndim] = array.shape
        where = (ctypes.byref(kind), address(array), ctypes.c_size_t(array.nbytes), None)
        return made("LiteRtCreateTensorBufferFromHostMemory", *where)

    given, taken = ((ctypes.c_void_p * 1)(buffer(a)) for a in (x, y))
    y[...] = 0
    run = library.LiteRtRunCompiledModel
    meter = repeater.meter(run, compiled, 0, 1, given, 1, taken, keep=(held, x, y))
    meter(1)
    return meter, [y.copy()]


def _call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    status = getattr(library, name)(*arguments)
    if status:
        raise RuntimeError(f"LiteRT: {name} returned {status}")
