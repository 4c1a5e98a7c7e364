"""Products, reductions, windows and shapes as nodes of ONNX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxeff.core import primitives as p
from jaxeff.core import stack_p, tile_p
from jaxeff_export.onnx_files._elementwise import Rule
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value, integers


def _dot(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    ((left, right), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
    out = eqn.outvars[0].aval
    operands = []
    for value, var, summed, batch, first in (
        (values[0], eqn.invars[0], left, left_batch, True),
        (values[1], eqn.invars[1], right, right_batch, False),
    ):
        shape = var.aval.shape
        free = [i for i in range(len(shape)) if i not in (*summed, *batch)]
        order = [*batch, *free, *summed] if first else [*batch, *summed, *free]
        sizes = [math.prod(shape[i] for i in axes) for axes in (batch, free, summed)]
        # Three axes always: batch, rows and columns, as MatMul takes them.
        flat = [sizes[0], sizes[1], sizes[2]] if first else [sizes[0], sizes[2], sizes[1]]
        flat = flat if batch else flat[1:]
        value = value if var.aval.dtype == out.dtype else g.cast(value, out.dtype)
        operands.append(g.reshape(g.transpose(value, order), flat))
    return g.reshape(g.emit("MatMul", operands), out.shape)


def _convolution(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    q = eqn.params
    numbers = q["dimension_numbers"]
    pads = q["padding"]
    if q["batch_group_count"] != 1:
        raise OnnxError("to_onnx: a batch-grouped convolution isn't written yet.")
    if any(n < 0 for pair in pads for n in pair):
        raise OnnxError("to_onnx: a convolution with negative padding has no operator in ONNX.")
    image = g.transpose(values[0], numbers.lhs_spec)
    shape = [eqn.invars[0].aval.shape[axis] for axis in numbers.lhs_spec]
    for axis, apart in enumerate(q["lhs_dilation"], 2):
        if apart != 1:
            zero = np.zeros((), eqn.invars[0].aval.dtype)
            image, shape = _spread(g, image, shape, axis, apart, zero)
    y = g.emit(
        "Conv",
        [image, g.transpose(values[1], numbers.rhs_spec)],
        strides=list(q["window_strides"]),
        dilations=list(q["rhs_dilation"]),
        pads=[a for a, _ in pads] + [b for _, b in pads],
        group=q["feature_group_count"],
    )
    return g.transpose(y, [int(i) for i in np.argsort(numbers.out_spec)])


def _spread(
    g: OnnxGraph, x: Value, shape: list[int], axis: int, apart: int, zero: np.ndarray
) -> tuple[Value, list[int]]:
    """Puts zeros between the entries of an axis, as a transposed convolution has them."""
    before, n, after = shape[:axis], shape[axis], shape[axis + 1 :]
    ends = [0] * (len(shape) + 1)
    after_each = [*ends[: axis + 1], apart - 1, *ends[axis + 2 :]]
    x = g.emit("Pad", [g.reshape(x, [*before, n, 1, *after]), integers([*ends, *after_each]), zero])
    x = g.reshape(x, [*before, n * apart, *after])
    made = [*before, (n - 1) * apart + 1, *after]
    axes = [integers([number]) for number in (0, made[axis], axis)]
    return g.emit("Slice", [x, *axes]), made


def _reduction(op: str) -> Rule:
    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        if not eqn.params["axes"]:
            return values[0]  # in ONNX no axes are all
        return g.emit(op, [values[0], integers(eqn.params["axes"])], keepdims=0)

    return rule


def _logical_reduction(op: str) -> Rule:
    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        if eqn.outvars[0].aval.dtype != np.bool_:
            raise OnnxError(f"to_onnx: `{eqn.primitive}` of integers has no operator in ONNX.")
        # The extremes of zeros and ones, as no reduction takes booleans.
        y = g.emit(op, [g.cast(values[0], np.int32), integers(eqn.params["axes"])], keepdims=0)
        return g.cast(y, np.bool_)

    return rule


def _tile(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Tile", [values[0], integers(eqn.params["reps"])])


def _arg_max(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    (axis,) = eqn.params["axes"]
    op = "ArgMax" if eqn.primitive is p.argmax_p else "ArgMin"
    return g.cast(g.emit(op, values, axis=axis, keepdims=0), eqn.outvars[0].aval.dtype)


def _window(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    q, shape = eqn.params, eqn.invars[0].aval.shape
    size, strides, pads = q["window_dimensions"], q["window_strides"], q["padding"]
    if any(n != 1 for n in (*q["base_dilation"], *q["window_dilation"])):
        raise OnnxError("to_onnx: a pooling with dilation isn't written yet.")
    moved = [i for i in range(len(shape)) if size[i] != 1 or strides[i] != 1 or any(pads[i])]
    if not moved:  # each window is one entry
        return values[0]
    kept = [i for i in range(len(shape)) if i not in moved]
    order = [*kept, *moved]
    flat = [math.prod(shape[i] for i in kept), 1, *(shape[i] for i in moved)]
    x = g.reshape(g.transpose(values[0], order), flat)
    attributes: dict[str, Any] = {
        "kernel_shape": [size[i] for i in moved],
        "strides": [strides[i] for i in moved],
        "pads": [pads[i][0] for i in moved] + [pads[i][1] for i in moved],
    }
    if eqn.primitive is p.reduce_window_max_p:
        y = g.emit("MaxPool", [x], **attributes)
    else:
        mean = g.emit("AveragePool", [x], count_include_pad=1, **attributes)
        y = g.emit("Mul", [mean, np.asarray(math.prod(size), eqn.outvars[0].aval.dtype)])
    out = eqn.outvars[0].aval.shape
    return g.transpose(g.reshape(y, [out[i] for i in order]), [int(i) for i in np.argsort(order)])


def _to_shape(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    if eqn.primitive is p.reshape_p and eqn.params["dimensions"] is not None:
        raise OnnxError("to_onnx: `reshape` with an order of axes isn't written.")
    return g.reshape(values[0], eqn.outvars[0].aval.shape)


def _broadcast(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    shape = eqn.params["shape"]
    ones = [1] * len(shape)
    for axis, n in zip(eqn.params["broadcast_dimensions"], eqn.invars[0].aval.shape, strict=True):
        ones[axis] = n
    return g.emit("Expand", [g.reshape(values[0], ones), integers(shape)])


def _slice(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    q = eqn.params
    starts, ends = q["start_indices"], q["limit_indices"]
    axes, steps = range(len(starts)), q["strides"] or [1] * len(starts)
    return g.emit("Slice", [values[0], *map(integers, (starts, ends, axes, steps))])


def split_value(g: OnnxGraph, eqn: Any, values: list[Value]) -> list[Value]:
    """Cuts an array into parts along an axis."""
    axis, start, parts = eqn.params["axis"], 0, list[Value]()
    for size in eqn.params["sizes"]:
        ends = [integers([number]) for number in (start, start + size, axis)]
        parts.append(g.emit("Slice", [values[0], *ends]))
        start += size
    return parts


def _reverse(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    axes = eqn.params["dimensions"]
    start, end, step = [-1] * len(axes), [-(2**62)] * len(axes), [-1] * len(axes)
    return g.emit("Slice", [values[0], *map(integers, (start, end, axes, step))])


def _pad(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    low, high, inner = zip(*eqn.params["padding_config"], strict=True)
    if any(inner) or min(*low, *high, 0) < 0:
        raise OnnxError("to_onnx: `pad` between elements or by less than zero isn't written yet.")
    return g.emit("Pad", [values[0], integers([*low, *high]), values[1]])


def _stack(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    axis = eqn.params["axis"]
    each = [g.emit("Unsqueeze", [value, integers([axis])]) for value in values]
    return g.emit("Concat", each, axis=axis)


def _concatenate(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Concat", values, axis=eqn.params["dimension"])


TENSORS: dict[Any, Rule] = {
    p.argmax_p: _arg_max,
    p.argmin_p: _arg_max,
    p.broadcast_in_dim_p: _broadcast,
    p.concatenate_p: _concatenate,
    p.conv_general_dilated_p: _convolution,
    p.dot_general_p: _dot,
    p.pad_p: _pad,
    p.reduce_and_p: _logical_reduction("ReduceMin"),
    p.reduce_max_p: _reduction("ReduceMax"),
    p.reduce_min_p: _reduction("ReduceMin"),
    p.reduce_or_p: _logical_reduction("ReduceMax"),
    p.reduce_prod_p: _reduction("ReduceProd"),
    p.reduce_sum_p: _reduction("ReduceSum"),
    p.reduce_window_max_p: _window,
    p.reduce_window_sum_p: _window,
    p.reshape_p: _to_shape,
    p.rev_p: _reverse,
    p.slice_p: _slice,
    p.squeeze_p: _to_shape,
    stack_p: _stack,
    tile_p: _tile,
    p.transpose_p: lambda g, eqn, values: g.transpose(values[0], eqn.params["permutation"]),
}
"""How each operation on whole tensors is written."""
