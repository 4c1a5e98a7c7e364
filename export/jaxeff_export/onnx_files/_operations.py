"""Equations as nodes of ONNX: pointwise ones, products, reductions, windows, shapes and sorting.

Sharp edges: what ONNX has no operator for is put together (`erfc` as one minus `erf`, `log1p` as
the logarithm of a sum), which is as exact as its parts where the result is compared with 1, not
with 0. `TopK` takes equal entries in their own order, as JAX does, but to it zeros of both signs
are equal; where NaN stands in the order is the engine's affair.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxeff.core import primitives as p
from jaxeff.core import stack_p, tile_p
from jaxeff_export.onnx_files._graph import OnnxError, OnnxGraph, Value, integers, is_float

Rule = Callable[[OnnxGraph, Any, list[Value]], Value]

ONE_TO_ONE: dict[Any, str] = {
    p.abs_p: "Abs", p.acos_p: "Acos", p.acosh_p: "Acosh", p.add_p: "Add", p.add_jaxvals_p: "Add",
    p.asin_p: "Asin", p.asinh_p: "Asinh", p.atan_p: "Atan", p.atanh_p: "Atanh", p.ceil_p: "Ceil",
    p.cos_p: "Cos", p.cosh_p: "Cosh", p.div_p: "Div", p.eq_p: "Equal",
    p.erf_p: "Erf", p.exp_p: "Exp", p.floor_p: "Floor", p.ge_p: "GreaterOrEqual",
    p.gt_p: "Greater", p.le_p: "LessOrEqual", p.log_p: "Log", p.logistic_p: "Sigmoid",
    p.lt_p: "Less", p.max_p: "Max", p.min_p: "Min", p.mul_p: "Mul", p.neg_p: "Neg", p.pow_p: "Pow",
    p.sin_p: "Sin", p.sinh_p: "Sinh", p.sqrt_p: "Sqrt", p.sub_p: "Sub",
    p.tan_p: "Tan", p.tanh_p: "Tanh",
}  # fmt: skip
"""Operations that ONNX has as they are."""

_LOGICAL = {p.and_p: "And", p.or_p: "Or", p.xor_p: "Xor", p.not_p: "Not"}


def _one(eqn: Any) -> np.ndarray:
    return np.ones((), eqn.outvars[0].aval.dtype)


def _logical(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    dtype = eqn.outvars[0].aval.dtype
    if dtype != np.bool_:
        raise OnnxError(f"to_onnx: `{eqn.primitive}` of {dtype} has no operator in ONNX.")
    return g.emit(_LOGICAL[eqn.primitive], values)


def _round(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    if eqn.params["rounding_method"] is jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return g.emit("Round", values)
    size, one = g.emit("Abs", values), _one(eqn)
    below = g.emit("Floor", [size])
    # The difference is exact; a sum with a half would round, just below it and beyond 2^23.
    up = g.emit("GreaterOrEqual", [g.emit("Sub", [size, below]), one / 2])
    size = g.emit("Where", [up, g.emit("Add", [below, one]), below])
    return g.emit("Mul", [g.emit("Sign", values), size])


def _select(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    which, *cases = values
    if eqn.invars[0].aval.dtype != np.bool_ or len(cases) != 2:
        raise OnnxError("to_onnx: `select_n` among more than two cases has no operator in ONNX.")
    return g.emit("Where", [which, cases[1], cases[0]])


def _remainder(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    # With the sign of the dividend, as in C; the other kind has the divisor's.
    return g.emit("Mod", values, fmod=1)


def _exp2(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Pow", [2 * _one(eqn), *values])


def _is_finite(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    return g.emit("Not", [g.emit("Or", [g.emit("IsInf", values), g.emit("IsNaN", values)])])


def _convert(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    """Writes a conversion with XLA's results where `Cast` has none.

    Of floats beyond an integer dtype XLA gives its end, of NaN zero; those are undefined in ONNX,
    and ONNX Runtime gives 255 for an unsigned -1. Everything else is alike: integers wrap.
    """
    source, target = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    (x,) = values
    if not (is_float(source) and np.issubdtype(target, np.integer)):
        return g.cast(x, target)
    if source.itemsize < 4:
        source = np.dtype(np.float32)  # exact, and wide enough for both ends
        x = g.cast(x, source)
    ends = np.iinfo(target)
    low, high = np.array(ends.min, source), np.array(ends.max, source)
    exact = int(high) == ends.max
    within = high if exact else np.nextafter(high, source.type(0))
    x = g.emit("Where", [g.emit("IsNaN", [x]), np.zeros((), source), x])
    y = g.cast(g.emit("Min", [g.emit("Max", [x, low]), within]), target)
    if exact:
        return y
    # The largest float of the dtype's range is below the largest integer.
    beyond, most = g.emit("GreaterOrEqual", [x, high]), np.array(ends.max, target)
    if ends.min < 0:
        return g.emit("Where", [beyond, most, y])
    # ONNX Runtime has no `Where` of uint64.
    return g.emit("Max", [y, g.emit("Mul", [g.cast(beyond, target), most])])


def _with_nan(
    g: OnnxGraph, dtype: Any, x: Value, y: Value, total: Callable[[Value], Value]
) -> Value:
    """Has an extreme be NaN where one of its entries is: ONNX Runtime may pass NaN over.

    `total` adds up what the extreme is taken of: zeros, for what is a number is cut to zero.
    """
    if not is_float(dtype) or g.is_number(x):
        return y
    zero = np.zeros((), dtype)
    return g.emit("Add", [y, total(g.emit("Min", [g.emit("Max", [x, zero]), zero]))])


def _integer_pow(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    power = eqn.params["y"]
    if power == 2:
        return g.emit("Mul", [*values, *values])
    if power > 0 and not is_float(eqn.outvars[0].aval.dtype):
        # By squares: `Pow` goes by way of floats, which neither wrap nor are exact.
        factors, square = [], values[0]
        while power:
            if power % 2:
                factors.append(square)
            power //= 2
            square = g.emit("Mul", [square, square]) if power else square
        return functools.reduce(lambda a, b: g.emit("Mul", [a, b]), factors)
    return g.emit("Pow", [*values, np.asarray(eqn.params["y"], eqn.outvars[0].aval.dtype)])


def _sign(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    (x,), y = values, g.emit("Sign", values)
    if not is_float(eqn.outvars[0].aval.dtype) or g.is_number(x):
        return y
    return g.emit("Where", [g.emit("IsNaN", [x]), x, y])  # of halves it would be zero


def _clamp(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    low, x, high = values
    return g.emit("Min", [g.emit("Max", [x, low]), high])


ELEMENTWISE: dict[Any, Rule] = {
    **{one: lambda g, eqn, values: g.emit(ONE_TO_ONE[eqn.primitive], values) for one in ONE_TO_ONE},
    **dict.fromkeys(_LOGICAL, _logical),
    p.clamp_p: _clamp,
    p.convert_element_type_p: _convert,
    p.erfc_p: lambda g, eqn, values: g.emit("Sub", [_one(eqn), g.emit("Erf", values)]),
    p.exp2_p: _exp2,
    p.expm1_p: lambda g, eqn, values: g.emit("Sub", [g.emit("Exp", values), _one(eqn)]),
    p.integer_pow_p: _integer_pow,
    p.is_finite_p: _is_finite,
    p.log1p_p: lambda g, eqn, values: g.emit("Log", [g.emit("Add", [*values, _one(eqn)])]),
    p.ne_p: lambda g, eqn, values: g.emit("Not", [g.emit("Equal", values)]),
    p.rem_p: _remainder,
    p.round_p: _round,
    p.rsqrt_p: lambda g, eqn, values: g.emit("Reciprocal", [g.emit("Sqrt", values)]),
    p.select_n_p: _select,
    p.sign_p: _sign,
    p.square_p: lambda g, eqn, values: g.emit("Mul", [*values, *values]),
}
"""How each pointwise operation is written."""


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
    spread = [*before, (n - 1) * apart + 1, *after]
    axes = [integers([number]) for number in (0, spread[axis], axis)]
    return g.emit("Slice", [x, *axes]), spread


def _reduction(op: str) -> Rule:
    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        if not eqn.params["axes"]:
            return values[0]  # in ONNX no axes are all

        def reduced(value: Value, op: str = "ReduceSum") -> Value:
            return g.emit(op, [value, integers(eqn.params["axes"])], keepdims=0)

        y = reduced(values[0], op)
        if op in ("ReduceMax", "ReduceMin"):
            return _with_nan(g, eqn.outvars[0].aval.dtype, values[0], y, reduced)
        return y

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
    (x,) = values
    op = "ArgMax" if eqn.primitive is p.argmax_p else "ArgMin"
    y = g.emit(op, [x], axis=axis, keepdims=0)
    if is_float(eqn.invars[0].aval.dtype) and not g.is_number(x):
        # The first NaN, where there is one.
        nan = g.cast(g.emit("IsNaN", [x]), np.uint8)
        some = g.cast(g.emit("ReduceMax", [nan, integers([axis])], keepdims=0), np.bool_)
        y = g.emit("Where", [some, g.emit("ArgMax", [nan], axis=axis, keepdims=0), y])
    return g.cast(y, eqn.outvars[0].aval.dtype)


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
    out = eqn.outvars[0].aval

    def mean(value: Value) -> Value:
        return g.emit("AveragePool", [value], count_include_pad=1, **attributes)

    def total_in_kernel(value: Value) -> Value:
        # ONNX Runtime averages no float64.
        return g.cast(mean(g.cast(value, np.float32)), out.dtype)

    if eqn.primitive is p.reduce_window_max_p:
        total = total_in_kernel if out.dtype == np.float64 else mean
        y = _with_nan(g, out.dtype, x, g.emit("MaxPool", [x], **attributes), total)
    else:
        y = g.emit("Mul", [mean(x), np.asarray(math.prod(size), out.dtype)])
    return g.transpose(
        g.reshape(y, [out.shape[i] for i in order]), [int(i) for i in np.argsort(order)]
    )


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
    x, between = values
    shape = list(eqn.invars[0].aval.shape)
    low, high, inner = (
        list(numbers) for numbers in zip(*eqn.params["padding_config"], strict=True)
    )
    for axis, count in enumerate(inner):
        if count == 0 or shape[axis] < 2:
            continue
        # ONNX pads edges only: each element becomes a row, the row gets its padding behind it, and
        # what follows the last element is cut off by the edge's padding below.
        x = g.emit("Unsqueeze", [x, integers([axis + 1])])
        edges = [0] * (2 * len(shape) + 2)
        edges[len(shape) + 1 + axis + 1] = count
        x = g.emit("Pad", [x, integers(edges), between])
        shape[axis] *= count + 1
        x = g.reshape(x, shape)
        high[axis] -= count
    # `Pad` of less than zero cuts.
    return g.emit("Pad", [x, integers([*low, *high]), between])


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


def sorted_values(g: OnnxGraph, eqn: Any, values: list[Value]) -> list[Value]:
    """Sorts arrays along an axis by the first of them."""
    axis, n = eqn.params["dimension"], eqn.invars[0].aval.shape[eqn.params["dimension"]]
    if eqn.params["num_keys"] != 1:
        raise OnnxError("to_onnx: `sort` by more than one key has no operator in ONNX.")
    in_order, places = _ranked(g, eqn.invars[0].aval, values[0], axis, n, largest=False)
    # What goes with the key follows its places.
    others = [g.emit("GatherElements", [value, places], axis=axis) for value in values[1:]]
    return [in_order, *others]


def largest(g: OnnxGraph, eqn: Any, values: list[Value]) -> list[Value]:
    """Takes the largest entries of an axis, and says where they were."""
    q = eqn.params
    in_order, places = _ranked(g, eqn.invars[0].aval, values[0], q["axis"], q["k"], largest=True)
    return [in_order, g.cast(places, eqn.outvars[1].aval.dtype)]


def _ranked(
    g: OnnxGraph, aval: Any, value: Value, axis: int, k: int, *, largest: bool
) -> tuple[Value, Value]:
    # The operator takes neither booleans nor small integers; an int32 holds them all.
    small = aval.dtype.kind in "biu" and aval.dtype.itemsize < 4
    keys = g.cast(value, np.int32) if small else value
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    in_order, places = g.emit_all("TopK", [keys, integers([k])], 2, **attributes)
    return (g.cast(in_order, aval.dtype) if small else in_order), places


def _running_sum(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
    axis = np.asarray(eqn.params["axis"], np.int64)
    return g.emit("CumSum", [values[0], axis], reverse=int(eqn.params["reverse"]))


def _running(op: str) -> Rule:
    """Running products and extremes, which ONNX lacks: each step joins twice as many entries."""

    def rule(g: OnnxGraph, eqn: Any, values: list[Value]) -> Value:
        axis, reverse = eqn.params["axis"], eqn.params["reverse"]
        shape, x, apart = eqn.invars[0].aval.shape, values[0], 1
        while apart < shape[axis]:
            # Entries that have a neighbour so far away take it; the others are done.
            done, rest = ((-apart, None), (0, -apart)) if reverse else ((0, apart), (apart, None))
            far = (apart, None) if reverse else (0, -apart)
            joined = g.emit(op, [_part(g, x, axis, *rest), _part(g, x, axis, *far)])
            kept = _part(g, x, axis, *done)
            x = g.emit("Concat", [joined, kept] if reverse else [kept, joined], axis=axis)
            apart *= 2
        return x

    return rule


def _part(g: OnnxGraph, x: Value, axis: int, start: int, end: int | None) -> Value:
    last = np.iinfo(np.int64).max if end is None else end
    return g.emit("Slice", [x, *(integers([number]) for number in (start, last, axis))])


RUNNING: dict[Any, Rule] = {
    p.cummax_p: _running("Max"),
    p.cummin_p: _running("Min"),
    p.cumprod_p: _running("Mul"),
    p.cumsum_p: _running_sum,
}
"""How running results are written."""
