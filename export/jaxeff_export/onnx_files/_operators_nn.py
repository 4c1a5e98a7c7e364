"""What ONNX's operators of layers compute: products, windows, norms, recurrences, grids, resizing.

Inputs stay channels first, as ONNX has them: [batch, channels, *positions].
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxeff_export.onnx_files import _operators as operators
from jaxeff_export.onnx_files._operators import Call, Value

# ------------------------------------------------------------------------------------ products


def _matmul(call: Call, a: Value, b: Value) -> Value:
    return jnp.matmul(jnp.asarray(a), jnp.asarray(b))


def _gemm(call: Call, a: Value, b: Value, c: Value = None) -> Value:
    a, b = jnp.asarray(a), jnp.asarray(b)
    a = a.T if call["transA"] else a
    b = b.T if call["transB"] else b
    y = a @ b
    if call["alpha"] != 1:
        y = jnp.asarray(call["alpha"], y.dtype) * y
    if c is not None and call["beta"]:
        c = jnp.asarray(c)
        c = c if call["beta"] == 1 else jnp.asarray(call["beta"], c.dtype) * c
        y = y + c.reshape((1,) * (2 - c.ndim) + c.shape)
    return y


def _einsum(call: Call, *values: Value) -> Value:
    return jnp.einsum(call["equation"].replace(" ", ""), *map(jnp.asarray, values))


def _centered(x: Value, zero: Value, axis: int | None = None) -> Any:
    """Returns integers minus their zero point, in 32 bits."""
    x = jnp.asarray(x).astype(np.int32)
    if zero is None:
        return x
    zero = jnp.asarray(zero).astype(np.int32)
    return x - _along(zero, x, axis) if axis is not None else x - zero


def _along(values: Any, x: Any, axis: int) -> Any:
    """Shapes one number for each index of an axis so that it stands along that axis."""
    if (values.ndim == 1 and values.size > 1) or values.ndim == 1 == x.ndim:
        return values.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    return values.reshape((1,) * (x.ndim - values.ndim) + values.shape) if values.size > 1 else (
        values.reshape((1,) * x.ndim)
    )  # fmt: skip


def _matmul_integer(call: Call, a: Value, b: Value, za: Value = None, zb: Value = None) -> Value:
    return jnp.matmul(_centered(a, za, -2), _centered(b, zb, -1))


def _requantized(y: Any, scale: Any, zero: Value) -> Any:
    """Rounds an accumulator to codes: scaled in float32, halves to even, then clipped."""
    zero = jnp.asarray(zero)
    return _codes(jnp.round(y.astype(np.float32) * scale), zero, zero.dtype)


def _codes(rounded: Any, zero: Any, dtype: Any) -> Any:
    limits = ml_dtypes.iinfo(dtype)
    y = rounded + zero.astype(rounded.dtype)
    return jnp.clip(y, int(limits.min), int(limits.max)).astype(np.int32).astype(dtype)


# 9 parameters: the inputs of ONNX's operator, in its order.
def _qlinear_matmul(
    call: Call, a: Value, sa: Value, za: Value, b: Value, sb: Value, zb: Value, sy: Value, zy: Value
) -> Value:
    y = jnp.matmul(_centered(a, za, -2), _centered(b, zb, -1))
    sa, sb, sy = (jnp.asarray(s).astype(np.float32) for s in (sa, sb, sy))
    scale = _along(sa, y, -2) * _along(sb, y, -1) / _along(sy, y, -2)
    zy = jnp.asarray(zy)
    return _requantized(y, scale, _along(zy, y, -2))


# ------------------------------------------------------------------------------------- windows


def _spread(call: Call, name: str, rank: int, default: int = 1) -> list[int]:
    values = call.get(name) or [default] * rank
    if len(values) != rank or any(v < 1 for v in values):
        raise call.refused(f"has {name} {values} for {rank} axes")
    return values


def _edges(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Returns how far each axis is padded at both ends."""
    mode, rank = call.get("auto_pad", "NOTSET"), len(sizes)
    if mode == "VALID":
        return [(0, 0)] * rank
    if mode in ("", "NOTSET"):
        pads = call.get("pads") or [0] * (2 * rank)
        return [*zip(pads[:rank], pads[rank:], strict=True)]
    edges = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        few, many = total // 2, total - total // 2
        edges.append((few, many) if mode == "SAME_UPPER" else (many, few))
    return edges


def _conv(call: Call, x: Value, w: Value, b: Value = None) -> Value:
    x, w = jnp.asarray(x), jnp.asarray(w)
    rank = x.ndim - 2
    if [*(call.get("kernel_shape") or w.shape[2:])] != [*w.shape[2:]]:
        raise call.refused(f"has a kernel of {call['kernel_shape']}, and weights of {w.shape}")
    strides, dilations = _spread(call, "strides", rank), _spread(call, "dilations", rank)
    y = lax.conv_general_dilated(
        x,
        w,
        strides,
        _edges(call, x.shape[2:], w.shape[2:], strides, dilations),
        rhs_dilation=dilations,
        feature_group_count=call["group"],
    )
    return y if b is None else y + _along(jnp.asarray(b), y, 1)


def _conv_transpose(call: Call, x: Value, w: Value, b: Value = None) -> Value:
    x, w = jnp.asarray(x), jnp.asarray(w)
    rank, groups, kernel = x.ndim - 2, call["group"], w.shape[2:]
    strides, dilations = _spread(call, "strides", rank), _spread(call, "dilations", rank)
    extra = call.get("output_padding") or [0] * rank
    mode, want = call.get("auto_pad", "NOTSET"), call.get("output_shape")
    if want is None and mode.startswith("SAME"):
        want = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    pads = call.get("pads") or [0] * (2 * rank)
    padding = []
    for i in range(rank):
        reach = (kernel[i] - 1) * dilations[i]
        first, last = pads[i], pads[i + rank]
        if want is not None:
            total = strides[i] * (x.shape[i + 2] - 1) + extra[i] + reach + 1 - want[-rank:][i]
            if total < 0 and call.get("output_shape") is None:
                raise call.refused(
                    f"has auto_pad {mode} and strides beyond its kernel, which runtimes read "
                    "differently: give pads or output_shape"
                )
            few, many = total // 2, total - total // 2
            first, last = (few, many) if mode == "SAME_UPPER" else (many, few)
        padding.append((reach - first, reach - last + extra[i]))
    # [in, out/groups, ...] -> [out, in/groups, ...], mirrored.
    w = jnp.flip(w, range(2, w.ndim))
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    w = jnp.swapaxes(w, 1, 2).reshape(-1, w.shape[1], *kernel)
    y = lax.conv_general_dilated(
        x,
        w,
        (1,) * rank,
        padding,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        feature_group_count=groups,
    )
    return y if b is None else y + _along(jnp.asarray(b), y, 1)


def _conv_integer(call: Call, x: Value, w: Value, zx: Value = None, zw: Value = None) -> Value:
    return _conv(call, _centered(x, zx), _centered(w, zw, 0))


# 10 parameters: the inputs of ONNX's operator, in its order.
def _qlinear_conv(
    call: Call, x: Value, sx: Value, zx: Value, w: Value, sw: Value, zw: Value, sy: Value,
    zy: Value, b: Value = None,
) -> Value:  # fmt: skip
    y = _conv(call, _centered(x, zx), _centered(w, zw, 0), b)
    scale = jnp.asarray(sx) * jnp.asarray(sw) / jnp.asarray(sy)
    return _requantized(y, _along(scale, y, 1), zy)


def _windows(call: Call, x: Any) -> tuple[list[int], list[int], list[int], Any, Any]:
    """Returns kernel, strides, dilations, the padding asked for, and with what ceil_mode adds."""
    rank = x.ndim - 2
    kernel = call["kernel_shape"]
    if len(kernel) != rank:
        raise call.refused(f"has a kernel of {len(kernel)} axes for {rank}")
    strides, dilations = _spread(call, "strides", rank), _spread(call, "dilations", rank)
    edges = _edges(call, x.shape[2:], kernel, strides, dilations)
    for size, k, dilation, (a, b) in zip(x.shape[2:], kernel, dilations, edges, strict=True):
        if (k - 1) * dilation + 1 > size + a + b:
            raise call.refused(f"has a kernel of {kernel} for positions {x.shape[2:]}")
    if not call.get("ceil_mode"):
        return kernel, strides, dilations, edges, edges
    wide = []
    for size, k, stride, dilation, (a, b) in zip(
        x.shape[2:], kernel, strides, dilations, edges, strict=True
    ):
        reach = (k - 1) * dilation + 1
        count = -(-(size + a + b - reach) // stride) + 1
        if (count - 1) * stride >= size + a:  # a window that would start behind the input
            count -= 1
        wide.append((a, max((count - 1) * stride + reach - size - a, b)))
    return kernel, strides, dilations, edges, wide


def _reduced_windows(x: Any, first: Any, function: Any, kernel: Any, strides: Any, dilations: Any,
                     edges: Any) -> Any:  # fmt: skip
    return lax.reduce_window(
        x,
        first,
        function,
        (1, 1, *kernel),
        (1, 1, *strides),
        ((0, 0), (0, 0), *edges),
        window_dilation=(1, 1, *dilations),
    )


def _max_pool(call: Call, x: Value) -> Any:
    x = jnp.asarray(x)
    kernel, strides, dilations, _, edges = _windows(call, x)
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.floating) else int(ml_dtypes.iinfo(x.dtype).min)
    first = np.asarray(lowest, x.dtype)
    y = _reduced_windows(x, first, lax.max, kernel, strides, dilations, edges)
    if len(call.wanted) < 2 or not call.wanted[1]:
        return y
    if call["storage_order"] and x.ndim == 4:
        places = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:][::-1]).T
    else:
        places = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    taps, where = [], []
    padded = lax.pad(x, jnp.asarray(first), [(0, 0, 0)] * 2 + [(a, b, 0) for a, b in edges])
    places = np.pad(places, edges)
    for tap in itertools.product(*map(range, kernel)):
        index = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, y.shape[2:], strides, strict=True)
        )
        taps.append(padded[(slice(None), slice(None), *index)])
        where.append(places[index])
    best = jnp.argmax(jnp.stack(taps), 0)
    positions = jnp.broadcast_to(jnp.asarray(np.stack(where))[:, None, None], (len(taps), *y.shape))
    at = jnp.take_along_axis(positions, best[None], 0)[0]
    offset = np.arange(x.shape[0] * x.shape[1]) * math.prod(x.shape[2:])
    return y, at + offset.reshape(x.shape[0], x.shape[1], *(1,) * (x.ndim - 2)).astype(at.dtype)


def _average_pool(call: Call, x: Value) -> Value:
    x = jnp.asarray(x)
    kernel, strides, dilations, edges, wide = _windows(call, x)
    y = _reduced_windows(x, np.asarray(0, x.dtype), lax.add, kernel, strides, dilations, wide)
    counted: Any = np.ones((), np.int64)
    for size, k, stride, dilation, (a, b), n in zip(
        x.shape[2:], kernel, strides, dilations, edges, y.shape[2:], strict=True
    ):
        at = np.arange(n)[:, None] * stride - a + np.arange(k) * dilation
        low, high = (-a, size + b) if call.get("count_include_pad") else (0, size)
        counted = counted[..., None] * ((at >= low) & (at < high)).sum(1)
    if (counted == counted.flat[0]).all():
        return y / np.asarray(counted.flat[0], y.dtype)
    return y / counted[None, None].astype(y.dtype)


def _norm_pool(call: Call, x: Value) -> Value:
    x, p = jnp.asarray(x), call["p"]
    kernel, strides, dilations, _, edges = _windows(call, x)
    powers = jnp.abs(x) ** p
    first = np.asarray(0, x.dtype)
    y = _reduced_windows(powers, first, lax.add, kernel, strides, dilations, edges)
    return y ** (1 / p)


def _global_pool(call: Call, x: Value) -> Value:
    x = jnp.asarray(x)
    axes = tuple(range(2, x.ndim))
    if call.operator == "GlobalMaxPool":
        return x.max(axes, keepdims=True)
    if call.operator == "GlobalLpPool":
        return (jnp.abs(x) ** call["p"]).sum(axes, keepdims=True) ** (1 / call["p"])
    return x.mean(axes, keepdims=True)


def _max_unpool(call: Call, x: Value, places: Value, shape: Value = None) -> Value:
    x = jnp.asarray(x)
    rank, kernel = x.ndim - 2, call["kernel_shape"]
    strides, pads = _spread(call, "strides", rank), call.get("pads") or [0] * (2 * rank)
    natural = [
        (n - 1) * s + k - a - b
        for n, s, k, a, b in zip(
            x.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
        )
    ]
    natural = [*x.shape[:2], *natural]
    sizes = natural if shape is None else operators.integers(call, shape, "the shape")
    operators.bounded(call, sizes)
    operators.inside(call, places, math.prod(natural), "of all entries", 0)
    # The places are of the natural shape, and the array around it has the larger one.
    flat = jnp.zeros(math.prod(natural), x.dtype).at[jnp.ravel(jnp.asarray(places))].set(x.ravel())
    edges = [(0, b - a, 0) for a, b in zip(natural, sizes, strict=True)]
    return lax.pad(flat.reshape(natural), jnp.zeros((), x.dtype), edges)


def _columns_to_image(call: Call, x: Value, image: Value, block: Value) -> Value:
    x = jnp.asarray(x)
    size, kernel = (operators.integers(call, v, "the shapes") for v in (image, block))
    rank = len(size)
    strides, dilations = _spread(call, "strides", rank), _spread(call, "dilations", rank)
    pads = call.get("pads") or [0] * (2 * rank)
    full = [n + a + b for n, a, b in zip(size, pads[:rank], pads[rank:], strict=True)]
    operators.bounded(call, [*x.shape[:2], *full])
    counts = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(full, kernel, dilations, strides, strict=True)
    ]
    channels = x.shape[1] // math.prod(kernel)
    x = x.reshape(x.shape[0], channels, math.prod(kernel), *counts)
    y = jnp.zeros((x.shape[0], channels, *full), x.dtype)
    for i, tap in enumerate(itertools.product(*map(range, kernel))):
        index = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, counts, strides, strict=True)
        )
        y = y.at[(slice(None), slice(None), *index)].add(x[:, :, i])
    cut = tuple(slice(a, a + n) for a, n in zip(pads, size, strict=False))
    return y[(slice(None), slice(None), *cut)]


# --------------------------------------------------------------------------------------- norms


def _batch_norm(call: Call, x: Value, scale: Value, b: Value, mean: Value, var: Value) -> Value:
    if call.get("training_mode") or any(call.wanted[1:]):
        raise call.refused("is in training mode; export the model for inference")
    x = jnp.asarray(x)
    scale, b, mean, var = (_along(jnp.asarray(v), x, 1) for v in (scale, b, mean, var))
    factor = lax.rsqrt(var + jnp.asarray(call["epsilon"], var.dtype)) * scale
    return ((x - mean) * factor.astype(x.dtype) + b.astype(x.dtype)).astype(x.dtype)


def _standardized(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any, Any]:
    mean = x.mean(axes, keepdims=True)
    centered = x - mean
    scale = lax.rsqrt((centered * centered).mean(axes, keepdims=True) + epsilon)
    return centered * scale, mean, scale


def _instance_norm(call: Call, x: Value, scale: Value, b: Value) -> Value:
    x = jnp.asarray(x)
    y = _standardized(x, tuple(range(2, x.ndim)), call["epsilon"])[0]
    return y * _along(jnp.asarray(scale), x, 1) + _along(jnp.asarray(b), x, 1)


def _group_norm(call: Call, x: Value, scale: Value, b: Value) -> Value:
    x, scale, b, groups = jnp.asarray(x), jnp.asarray(scale), jnp.asarray(b), call["num_groups"]
    grouped = x.reshape(x.shape[0], groups, -1)
    y = _standardized(grouped, (2,), call["epsilon"])[0].reshape(x.shape)
    if call.opset < 21:  # a scale for each group
        scale, b = (jnp.repeat(v, x.shape[1] // groups) for v in (scale, b))
    return y * _along(scale, x, 1) + _along(b, x, 1)


def _layer_norm(call: Call, x: Value, scale: Value, b: Value = None) -> Any:
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    axes = tuple(range(call["axis"] % x.ndim, x.ndim))
    wide = x.astype(operators.dtype_of(call, call.get("stash_type", 1)))
    y, mean, deviation = _standardized(wide, axes, call["epsilon"])
    y = y.astype(x.dtype) * scale.reshape((1,) * (x.ndim - scale.ndim) + scale.shape)
    if b is not None:
        b = jnp.asarray(b)
        y = y + b.reshape((1,) * (x.ndim - b.ndim) + b.shape)
    return y, mean, deviation


def _rms_norm(call: Call, x: Value, scale: Value) -> Value:
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    axes = tuple(range(call["axis"] % x.ndim, x.ndim))
    wide = x.astype(operators.dtype_of(call, call.get("stash_type", 1)))
    y = wide * lax.rsqrt((wide * wide).mean(axes, keepdims=True) + call["epsilon"])
    scale = scale.reshape((1,) * (x.ndim - scale.ndim) + scale.shape)
    return (y.astype(scale.dtype) * scale).astype(scale.dtype)


def _lp_norm(call: Call, x: Value) -> Value:
    x, axis = jnp.asarray(x), call["axis"]
    norm = jnp.abs(x).sum(axis, keepdims=True) if call["p"] == 1 else (
        jnp.sqrt((x * x).sum(axis, keepdims=True)))  # fmt: skip
    return jnp.where(norm == 0, jnp.zeros_like(x), x / jnp.where(norm == 0, 1, norm))


def _response_norm(call: Call, x: Value) -> Value:
    x, size = jnp.asarray(x), call["size"]
    edges = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)]
    window = (1, size, *(1,) * (x.ndim - 2))
    total = lax.reduce_window(x * x, np.asarray(0, x.dtype), lax.add, window, (1,) * x.ndim, edges)
    return x / (call["bias"] + call["alpha"] / size * total) ** call["beta"]


# -------------------------------------------------------------------------------- quantization


def _blocks(call: Call, v: Any, x: Any) -> Any:
    """Shapes scales or zero points: one, one for each index of an axis, or for each block of it."""
    axis, size = call.get("axis", 1), call.get("block_size", 0)
    if v.ndim == x.ndim and size:
        counts = [-(-n // size) if i == axis % x.ndim else n for i, n in enumerate(x.shape)]
        if [*v.shape] != counts:
            raise call.refused(f"has steps or zeros of {v.shape} for blocks of {size} of {x.shape}")
        return lax.slice_in_dim(
            jnp.repeat(v, size, axis % x.ndim), 0, x.shape[axis % x.ndim], axis=axis % x.ndim
        )
    return _along(v, x, axis) if v.ndim else v


def _dequantize(call: Call, x: Value, scale: Value, zero: Value = None) -> Value:
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    y = x.astype(np.float32 if floating else np.int32)
    if zero is not None:
        y = y - _blocks(call, jnp.asarray(zero).astype(y.dtype), x)
    kind = call.get("output_dtype", 0)
    y = y.astype(np.float32) * _blocks(call, scale.astype(np.float32), x)
    return y.astype(operators.dtype_of(call, kind) if kind else scale.dtype)


def _quantize(call: Call, x: Value, scale: Value, zero: Value = None) -> Value:
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    kind = call.get("output_dtype", 0)
    dtype: Any = (
        zero.dtype
        if zero is not None
        else operators.dtype_of(call, kind)
        if kind
        else np.dtype("u1")
    )
    precision = call.get("precision", 0)
    wide = operators.dtype_of(call, precision) if precision else np.float32
    step = jnp.broadcast_to(_blocks(call, scale.astype(wide), x), x.shape)
    # Of what is repeated XLA takes the reciprocal, whose rounding moves halves.
    y = x.astype(wide) / lax.optimization_barrier(step)
    if jnp.issubdtype(dtype, jnp.floating):
        return operators.converted(call, y, dtype, bool(call.get("saturate", 1)))
    offset = jnp.zeros((), dtype) if zero is None else _blocks(call, jnp.asarray(zero), x)
    return _codes(jnp.round(y).astype(np.float32), offset.astype(np.int32), dtype)


NN_OPERATORS: dict[str, Callable[..., Any]] = {
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul, "Conv": _conv, "ConvTranspose": _conv_transpose,
    "ConvInteger": _conv_integer, "QLinearConv": _qlinear_conv,
    "MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _norm_pool,
    "GlobalAveragePool": _global_pool, "GlobalMaxPool": _global_pool, "GlobalLpPool": _global_pool,
    "MaxUnpool": _max_unpool, "Col2Im": _columns_to_image,
    "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm, "LpNormalization": _lp_norm, "LRN": _response_norm,
    "DequantizeLinear": _dequantize, "QuantizeLinear": _quantize,
}  # fmt: skip
