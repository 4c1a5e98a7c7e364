"""Products on ggml, the tensor library of llama.cpp, as the package xllamacpp brings it.

Weights lie in rows, as in a GGUF file; the layouts that llama.cpp makes of some formats when it
loads them aren't used, and the package's binary is of AVX2. Blocks are of 32 weights.
"""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import xllamacpp

TYPES = {"float32": 0, "int8": 8, "int4 g32": 2}
"""Numbers of ggml's F32, Q8_0 and Q4_0."""
_MEMORY = 1 << 27
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class _Memory(ctypes.Structure):
    """Where ggml keeps tensors: here, in memory of its own."""

    _fields_ = (("size", ctypes.c_size_t), ("buffer", _POINTER), ("no_alloc", ctypes.c_bool))


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ggml_cpu_init": (None,),
    "ggml_init": (_POINTER, _Memory),
    "ggml_new_tensor_2d": (_POINTER, _POINTER, _INT, _LONG, _LONG),
    "ggml_get_data": (_POINTER, _POINTER),
    "ggml_quantize_chunk": (
        ctypes.c_size_t, _INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER,
    ),
    "ggml_mul_mat": (_POINTER, _POINTER, _POINTER, _POINTER),
    "ggml_new_graph": (_POINTER, _POINTER),
    "ggml_build_forward_expand": (None, _POINTER, _POINTER),
    "ggml_graph_compute_with_ctx": (_INT, _POINTER, _POINTER, _INT),
}  # fmt: skip


def calls(params: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Returns a call for every format."""
    ggml = _library()
    ggml["ggml_cpu_init"]()
    w = np.ascontiguousarray(np.asarray(params["w"], np.float32).T)
    return {form: _product(ggml, w, np.asarray(x, np.float32), n) for form, n in TYPES.items()}


def _library() -> dict[str, Any]:
    (file,) = pathlib.Path(xllamacpp.__file__).parent.glob("*.so")
    library, functions = ctypes.CDLL(str(file)), {}
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def _product(ggml: dict[str, Any], w: np.ndarray, x: np.ndarray, kind: int) -> Callable[[], Any]:
    # The context lives as long as the process: a call may come at any time.
    context = ggml["ggml_init"](_Memory(_MEMORY, None, False))
    (outputs, depth), rows = w.shape, len(x)
    weights = ggml["ggml_new_tensor_2d"](context, kind, depth, outputs)
    data = ggml["ggml_new_tensor_2d"](context, 0, depth, rows)
    at = ggml["ggml_get_data"](weights)
    if kind == TYPES["float32"]:
        ctypes.memmove(at, w.ctypes.data, w.nbytes)
    else:
        ggml["ggml_quantize_chunk"](kind, w.ctypes.data, at, 0, outputs, depth, None)
    ctypes.memmove(ggml["ggml_get_data"](data), x.ctypes.data, x.nbytes)
    graph = ggml["ggml_new_graph"](context)
    ggml["ggml_build_forward_expand"](graph, ggml["ggml_mul_mat"](context, weights, data))
    return lambda: ggml["ggml_graph_compute_with_ctx"](context, graph, 1)
