"""What LiteRT's operators of layers compute: products, windows and resizing.

Inputs stay channels last, as the files have them: [batch, height, width, channels].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff_export.litert_files._calls import OperatorCall, Value


def _fully_connected(call: OperatorCall, x: Value, weight: Value, bias: Value = None) -> Value:
    if call["format"]:
        raise call.refused("has shuffled weights, which aren't read")
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    x = x if call["keep"] else x.reshape(-1, weight.shape[1])
    return _finished(call, x @ weight.T, bias)


def _finished(call: OperatorCall, y: Any, bias: Value) -> Any:
    return call.activated(y if bias is None else y + jnp.asarray(bias))


def _batch_matmul(call: OperatorCall, a: Value, b: Value) -> Value:
    a, b = jnp.asarray(a), jnp.asarray(b)
    a = jnp.swapaxes(a, -1, -2) if call["adj_x"] else a
    b = jnp.swapaxes(b, -1, -2) if call["adj_y"] else b
    return jnp.matmul(a, b)


def _pads(call: OperatorCall) -> str:
    return ("SAME", "VALID")[call["padding"] != 0]


def _steps(call: OperatorCall) -> tuple[int, int]:
    return call["stride_h"], call["stride_w"]


def _conv(call: OperatorCall, x: Value, weight: Value, bias: Value = None) -> Value:
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    y = lax.conv_general_dilated(
        x, weight, _steps(call), _pads(call),
        rhs_dilation=(call["dilation_h"], call["dilation_w"]),
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
        feature_group_count=x.shape[3] // weight.shape[3],
    )  # fmt: skip
    return _finished(call, y, bias)


def _depthwise(call: OperatorCall, x: Value, weight: Value, bias: Value = None) -> Value:
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    y = lax.conv_general_dilated(
        x, weight, _steps(call), _pads(call),
        rhs_dilation=(call["dilation_h"], call["dilation_w"]),
        # The kernel of each channel has one input: the axis in front.
        dimension_numbers=("NHWC", "IHWO", "NHWC"), feature_group_count=x.shape[3],
    )  # fmt: skip
    return _finished(call, y, bias)


def _transpose_conv(
    call: OperatorCall, shape: Value, weight: Value, x: Value, bias: Value = None
) -> Value:
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    sizes = call.bounded(call.integers(shape, "its shape"))[1:3]
    steps = _steps(call)
    edges = []
    for i, step in enumerate(steps):
        spread, kernel = (x.shape[1 + i] - 1) * step + 1, weight.shape[1 + i]
        # What the convolution whose gradient this is pads by.
        padded = max(spread - 1 + kernel - sizes[i], 0) if _pads(call) == "SAME" else 0
        low = kernel - 1 - padded // 2
        edges.append((low, sizes[i] + kernel - 1 - spread - low))
    y = lax.conv_general_dilated(
        x, weight[:, ::-1, ::-1], (1, 1), edges, lhs_dilation=steps,
        dimension_numbers=("NHWC", "OHWI", "NHWC"),
    )  # fmt: skip
    return _finished(call, y, bias)


def _window(call: OperatorCall, x: Value, start: float, combine: Any) -> Any:
    return lax.reduce_window(
        x, np.asarray(start, x.dtype), combine, (1, call["height"], call["width"], 1),
        (1, *_steps(call), 1), _pads(call),
    )  # fmt: skip


def _max_pool(call: OperatorCall, x: Value) -> Value:
    return call.activated(_window(call, jnp.asarray(x), -np.inf, lax.max))


def _average(call: OperatorCall, x: Any) -> Any:
    total = _window(call, x, 0, lax.add)
    if _pads(call) == "VALID":
        return total / np.float32(call["height"] * call["width"])
    # Positions outside of the input don't count.
    return total / _window(call, jnp.ones((1, *x.shape[1:3], 1), x.dtype), 0, lax.add)


def _average_pool(call: OperatorCall, x: Value) -> Value:
    return call.activated(_average(call, jnp.asarray(x)))


def _l2_pool(call: OperatorCall, x: Value) -> Value:
    x = jnp.asarray(x)
    return call.activated(jnp.sqrt(_average(call, x * x)))


def _source(call: OperatorCall, old: int, new: int, shift: float) -> np.ndarray:
    """Returns the place in the input that each of the new positions stands for."""
    aligned = call["align"] and new > 1
    scale = np.float32((old - 1) / (new - 1) if aligned else old / new)
    half = np.float32(0.5 if call["half"] else 0)
    places = (np.arange(new, dtype=np.float32) + half) * scale - half * np.float32(shift)
    return np.asarray(places, np.float32)


def _resize_bilinear(call: OperatorCall, x: Value, size: Value) -> Value:
    def between(x: jax.Array, axis: int, places: np.ndarray) -> jax.Array:
        low = np.clip(np.floor(places), 0, x.shape[axis] - 1).astype(np.int32)
        high = np.clip(np.ceil(places), 0, x.shape[axis] - 1).astype(np.int32)
        part = (places - low).reshape([-1 if i == axis else 1 for i in range(4)])
        return jnp.take(x, low, axis) * (1 - part) + jnp.take(x, high, axis) * part

    return _resized(call, x, size, 1, between)


def _resize_nearest(call: OperatorCall, x: Value, size: Value) -> Value:
    def nearest(x: jax.Array, axis: int, places: np.ndarray) -> jax.Array:
        # With aligned corners halves go up, otherwise to what lies before.
        rounded = np.floor(places + np.float32(0.5)) if call["align"] else np.floor(places)
        return jnp.take(x, np.clip(rounded, 0, x.shape[axis] - 1).astype(np.int32), axis)

    return _resized(call, x, size, 0, nearest)


def _resized(
    call: OperatorCall,
    x: Value,
    size: Value,
    shift: float,
    taken: Callable[[jax.Array, int, np.ndarray], jax.Array],
) -> jax.Array:
    """Resizes height and width, one after the other, by what is taken at places of an axis."""
    x = jnp.asarray(x)
    sizes = call.integers(size, "its size")
    call.bounded([x.shape[0], *sizes, x.shape[3]])
    for axis, new in zip((1, 2), sizes, strict=True):
        x = taken(x, axis, _source(call, x.shape[axis], new, shift))
    return x


NN_OPERATORS: dict[str, Callable[..., Any]] = {
    "CONV_2D": _conv, "DEPTHWISE_CONV_2D": _depthwise, "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _fully_connected, "BATCH_MATMUL": _batch_matmul,
    "MAX_POOL_2D": _max_pool, "AVERAGE_POOL_2D": _average_pool, "L2_POOL_2D": _l2_pool,
    "RESIZE_BILINEAR": _resize_bilinear, "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
}  # fmt: skip
"""Rules of operators by name: a function of the call and its inputs."""
