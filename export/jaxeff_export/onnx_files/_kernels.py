"""In which dtypes ONNX Runtime computes an equation, and whether it takes a whole file.

Its processor kernels are fewer than the format allows. What has none in a dtype is computed in a
wider one that holds all its numbers, or counts modulo a power of two as it does, and is converted
back; where there is none the equation is refused by name. The table is of ONNX Runtime 1.22 to 1.32
(its `docs/OperatorKernels.md`); a test holds it against the version that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxeff.core import primitives as p
from jaxeff.core import stack_p
from jaxeff_export.onnx_files._gathers import fill_of
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value

_FLOATS = frozenset({"float64", "float32", "float16"})
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_MOST = _FLOATS | _INTEGERS | {"bool"}  # no bfloat16, which has kernels where data move alone
_MOVES = {
    p.reshape_p, p.transpose_p, p.squeeze_p, p.slice_p, p.concatenate_p, p.rev_p,
    p.convert_element_type_p, stack_p,
}  # fmt: skip

_KERNELS: dict[Any, frozenset[str]] = {
    p.conv_general_dilated_p: frozenset({"float32", "float16"}),
    p.reduce_window_sum_p: frozenset({"float32", "float16"}),
    p.reduce_window_max_p: _FLOATS,
    p.dot_general_p: _FLOATS | {"int64", "int32", "uint64", "uint32"},
    **dict.fromkeys(
        (p.reduce_sum_p, p.reduce_prod_p, p.cumsum_p, p.integer_pow_p), _FLOATS | {"int64", "int32"}
    ),
    **dict.fromkeys(
        (p.reduce_max_p, p.reduce_min_p, p.argmax_p, p.argmin_p),
        _FLOATS | {"int64", "int32", "int8", "uint8"},
    ),
    **dict.fromkeys(
        (p.max_p, p.min_p, p.clamp_p, p.cummax_p, p.cummin_p), _MOST - {"int16", "uint16", "bool"}
    ),
    **dict.fromkeys((p.sort_p, p.top_k_p), _MOST - {"uint64", "uint32"}),
    p.neg_p: _MOST - {"uint64", "uint32", "uint16", "uint8"},
    **dict.fromkeys(
        (
            p.erf_p, p.erfc_p, p.tan_p, p.sinh_p, p.cosh_p, p.asin_p, p.acos_p, p.atan_p,
            p.asinh_p, p.acosh_p, p.atanh_p,
        ),
        frozenset({"float32", "float16"}),
    ),
    p.is_finite_p: _FLOATS - {"float16"},
    **dict.fromkeys((p.select_n_p, p.gather_p), _MOST - {"int16", "uint16", "uint64", "bool"}),
    p.pad_p: _MOST - {"int16", "uint16"},
    **dict.fromkeys((p.lt_p, p.le_p, p.gt_p, p.ge_p), _MOST - {"bool"}),
    **dict.fromkeys(
        (p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p), _MOST - {"float16"}
    ),
}  # fmt: skip
"""Dtypes with a kernel, of primitives that lack some."""

_WIDER = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16"), ("int32", "float64")),
    "int32": ("float64",), "uint32": ("int64", "float64"), "uint64": ("int64",),
    "float16": ("float32",), "bfloat16": ("float32",),
}  # fmt: skip
_MODULAR = {
    p.select_n_p, p.gather_p, p.neg_p, p.reduce_sum_p, p.reduce_prod_p, p.cumsum_p,
}  # fmt: skip
"""What signed integers of as many bits compute as unsigned ones do."""


def computed_in(primitive: Any, dtype: Any) -> np.dtype:
    """Finds the dtype that an operand of a dtype is computed in.

    Raises:
        OnnxError: There is no kernel for it, nor for a wider dtype.
    """
    kernels, name = _KERNELS.get(primitive, _MOST), np.dtype(dtype).name
    if name in kernels or primitive in _MOVES:
        return np.dtype(dtype)
    for wider in _WIDER.get(name, ()):
        if wider in kernels and (name != "uint64" or primitive in _MODULAR):
            return np.dtype(wider)
    some = " or ".join(n for n in ("float32", "int32") if n in kernels)
    raise OnnxError(
        f"to_onnx: ONNX Runtime has no kernel for `{primitive}` of {name}; build the model to "
        f"compute it in {some}."
    )


def widened(
    graph: OnnxGraph,
    eqn: Any,
    given: Sequence[Value],
    write: Callable[[Any, list[Value]], list[Value]],
) -> list[Value]:
    """Writes an equation in dtypes that have kernels.

    Args:
        graph: The graph that the node is added to.
        eqn: The equation.
        given: Operands of the node.
        write: Writes an equation, or what has an equation's primitive, parameters and avals.
    """
    numbers = range(1, len(given)) if eqn.primitive is p.select_n_p else range(len(given))
    dtypes = [np.dtype(var.aval.dtype) for var in eqn.invars]
    taken = list(dtypes)
    for i in numbers:
        if not (eqn.primitive in _INDEXED and i in _INDEXED[eqn.primitive](len(given))):
            taken[i] = computed_in(eqn.primitive, dtypes[i])
    if taken == dtypes:
        return write(eqn, list(given))
    changed = {a: b for a, b in zip(dtypes, taken, strict=True) if a != b}

    def variable(var: Any, dtype: Any) -> Any:
        return SimpleNamespace(aval=SimpleNamespace(shape=var.aval.shape, dtype=dtype))

    params = dict(eqn.params)
    if eqn.primitive is p.gather_p:  # by default an extreme of the dtype, of the narrow one
        params["fill_value"] = fill_of(params["fill_value"], dtypes[0]).astype(taken[0])
    made = [changed.get(np.dtype(var.aval.dtype), var.aval.dtype) for var in eqn.outvars]
    stated = SimpleNamespace(
        primitive=eqn.primitive,
        params=params,
        invars=[variable(var, dtype) for var, dtype in zip(eqn.invars, taken, strict=True)],
        outvars=[variable(var, dtype) for var, dtype in zip(eqn.outvars, made, strict=True)],
    )
    operands = [
        value if a == b else graph.cast(value, b)
        for value, a, b in zip(given, dtypes, taken, strict=True)
    ]
    results = write(stated, operands)
    return [
        value if var.aval.dtype == dtype else graph.cast(value, var.aval.dtype)
        for value, var, dtype in zip(results, eqn.outvars, made, strict=True)
    ]


_INDEXED: dict[Any, Callable[[int], range]] = {
    p.gather_p: lambda count: range(1, 2),
    p.dynamic_slice_p: lambda count: range(1, count),
    p.dynamic_update_slice_p: lambda count: range(2, count),
    **dict.fromkeys(
        (p.scatter_p, p.scatter_add_p, p.scatter_mul_p, p.scatter_max_p, p.scatter_min_p),
        lambda count: range(1, 2),
    ),
}
"""Which operands are places, and are converted by themselves."""


def require_runnable(model: Any) -> None:
    """Reads a file back: by the format's checker, and by ONNX Runtime where that is installed.

    Args:
        model: An `onnx.ModelProto`.

    Raises:
        OnnxError: One of them refuses it; their words are quoted.
    """
    import onnx  # optional

    try:
        onnx.checker.check_model(model, full_check=True)  # shapes and dtypes too
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise OnnxError(f"to_onnx: the file would be none of ONNX: {error}") from error
    try:
        import onnxruntime  # optional
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    # Its classes derive from nothing but Exception.
    except Exception as error:
        raise OnnxError(
            f"to_onnx: ONNX Runtime refuses what would be written, and says: {error}; build the "
            "model to compute in float32 and int32."
        ) from error
