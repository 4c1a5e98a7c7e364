"""What LiteRT's operators compute that aren't layers: elementwise ones, shapes, reductions.

Integers on a grid arrive as the floats that they stand for, and results leave as floats; the reader
rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxeff_export.litert_files._calls import OperatorCall, Value, relu6, relu_one


def _unary(function: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda call, x: function(jnp.asarray(x))


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda call, a, b: call.activated(function(jnp.asarray(a), jnp.asarray(b)))


def _div(a: Any, b: Any) -> Any:
    # Integers are divided as in C, towards zero.
    return a / b if jnp.issubdtype(a.dtype, jnp.floating) else lax.div(*jnp.broadcast_arrays(a, b))


def _gelu(call: OperatorCall, x: Value) -> Value:
    return jax.nn.gelu(jnp.asarray(x), approximate=bool(call["approximate"]))


def _leaky_relu(call: OperatorCall, x: Value) -> Value:
    x = jnp.asarray(x)
    return jnp.where(x >= 0, x, x * np.float32(call["alpha"]))


def _prelu(call: OperatorCall, x: Value, alpha: Value) -> Value:
    x = jnp.asarray(x)
    return jnp.where(x >= 0, x, x * jnp.asarray(alpha))


def _softmax(call: OperatorCall, x: Value) -> Value:
    return jax.nn.softmax(jnp.asarray(x) * np.float32(call["beta"]), -1)


def _cast(call: OperatorCall, x: Value) -> Value:
    return jnp.asarray(x).astype(call.dtypes[0])


def _select(call: OperatorCall, which: Value, a: Value, b: Value) -> Value:
    which, a = jnp.asarray(which), jnp.asarray(a)
    if call.name == "SELECT" and which.ndim == 1 and a.ndim > 1:  # one for each row
        which = which.reshape(-1, *(1,) * (a.ndim - 1))
    return jnp.where(which, a, jnp.asarray(b))


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(call: OperatorCall, x: Value, axes: Value) -> Value:
        x = jnp.asarray(x)
        return function(x, axis=call.axes(axes, x.ndim), keepdims=bool(call["keep"]))

    return rule


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(call: OperatorCall, x: Value, axis: Value) -> Value:
        x = jnp.asarray(x)
        (one,) = call.axes(axis, x.ndim)
        return function(x, axis=one).astype(call.dtypes[0])

    return rule


def _l2_normalization(call: OperatorCall, x: Value) -> Value:
    x = jnp.asarray(x)
    size = jnp.sqrt(jnp.sum(x * x, -1, keepdims=True))
    return call.activated(x / jnp.maximum(size, np.float32(1e-6)))


def _cumsum(call: OperatorCall, x: Value, axis: Value) -> Value:
    x = jnp.asarray(x)
    (one,) = call.axes(axis, x.ndim)
    total = lax.cumsum(x, one, reverse=bool(call["reverse"]))
    return total - x if call["exclusive"] else total


# -------------------------------------------------------------------------------------- shapes


def _reshape(call: OperatorCall, x: Value, shape: Value = None) -> Value:
    sizes = [*call["shape"]] if shape is None else call.integers(shape, "its shape")
    x = jnp.asarray(x)
    # Old files have a scalar's shape as a zero.
    return x.reshape(() if sizes == [0] and x.size == 1 else [int(n) for n in sizes])


def _squeeze(call: OperatorCall, x: Value) -> Value:
    x = jnp.asarray(x)
    axes = [int(axis) for axis in call["axes"]]
    return jnp.squeeze(x, tuple(axes) if axes else None)


def _expand_dims(call: OperatorCall, x: Value, axis: Value) -> Value:
    return jnp.expand_dims(jnp.asarray(x), call.number(axis, "its axis"))


def _transpose(call: OperatorCall, x: Value, order: Value) -> Value:
    return jnp.transpose(jnp.asarray(x), call.integers(order, "its order"))


def _concatenation(call: OperatorCall, *values: Value) -> Value:
    return call.activated(jnp.concatenate([jnp.asarray(v) for v in values], call["axis"]))


def _edges(call: OperatorCall, x: Any, edges: Value) -> list[tuple[int, int]]:
    numbers = call.integers(edges, "what it pads by")
    if len(numbers) != 2 * x.ndim or min(numbers, default=0) < 0:
        raise call.refused(f"pads {x.ndim} axes by {numbers}")
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    call.bounded([n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True)])
    return pairs


def _pad(call: OperatorCall, x: Value, edges: Value, value: Value = None) -> Value:
    x = jnp.asarray(x)
    value = jnp.zeros((), x.dtype) if value is None else jnp.asarray(value).reshape(())
    return lax.pad(x, value.astype(x.dtype), [(a, b, 0) for a, b in _edges(call, x, edges)])


def _mirror_pad(call: OperatorCall, x: Value, edges: Value) -> Value:
    x = jnp.asarray(x)
    return jnp.pad(x, _edges(call, x, edges), "symmetric" if call["mode"] else "reflect")


def _slice(call: OperatorCall, x: Value, begin: Value, size: Value) -> Value:
    x = jnp.asarray(x)
    starts, sizes = call.integers(begin, "its begin"), call.integers(size, "its size")
    ends = [
        n if count == -1 else start + count
        for n, start, count in zip(x.shape, starts, sizes, strict=True)
    ]
    return lax.slice(x, starts, ends)


def _strided_slice(call: OperatorCall, x: Value, begin: Value, end: Value, strides: Value) -> Value:
    starts, ends, steps = (call.integers(v, "its bounds") for v in (begin, end, strides))
    places: list[Any] = []
    for i, (start, stop, step) in enumerate(zip(starts, ends, steps, strict=True)):
        if call["ellipsis"] >> i & 1:
            places.append(Ellipsis)
        elif call["new"] >> i & 1:
            places.append(None)
        elif call["shrink"] >> i & 1:
            places.append(start)
        else:
            stop = start + stop if call["relative"] else stop
            bounds = (
                None if call["begin"] >> i & 1 else start,
                None if call["end"] >> i & 1 else stop,
            )
            places.append(slice(*bounds, step))
    # Of known numbers NumPy takes the places, of others JAX; both count as the operator does.
    return (x if isinstance(x, np.ndarray) else jnp.asarray(x))[tuple(places)]


def _split(call: OperatorCall, axis: Value, x: Value) -> Value:
    x = jnp.asarray(x)
    (one,) = call.axes(axis, x.ndim)
    return tuple(jnp.split(x, len(call.shapes), one))


def _split_v(call: OperatorCall, x: Value, sizes: Value, axis: Value) -> Value:
    x = jnp.asarray(x)
    (one,) = call.axes(axis, x.ndim)
    counts = call.integers(sizes, "its sizes")
    rest = x.shape[one] - sum(count for count in counts if count >= 0)
    counts = [rest if count < 0 else count for count in counts]
    return tuple(jnp.split(x, np.cumsum(counts)[:-1].tolist(), one))


def _pack(call: OperatorCall, *values: Value) -> Value:
    return jnp.stack([jnp.asarray(v) for v in values], call["axis"])


def _unpack(call: OperatorCall, x: Value) -> Value:
    x = jnp.asarray(x)
    parts = jnp.split(x, x.shape[call["axis"]], call["axis"])
    return tuple(jnp.squeeze(part, call["axis"]) for part in parts)


def _gather(call: OperatorCall, x: Value, places: Value) -> Value:
    x, places = jnp.asarray(x), jnp.asarray(places)
    batch, axis = call["batch_dims"] % max(places.ndim + 1, 1), call["axis"] % max(x.ndim, 1)

    def take(x: Any, places: Any) -> Any:
        return jnp.take(x, places, axis - batch, mode="clip")

    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, places)


def _gather_nd(call: OperatorCall, x: Value, places: Value) -> Value:
    places = jnp.asarray(places)
    return jnp.asarray(x)[tuple(jnp.moveaxis(places, -1, 0))]


def _one_hot(call: OperatorCall, places: Value, depth: Value, on: Value, off: Value) -> Value:
    places = jnp.asarray(places)
    count = call.number(depth, "its depth")
    call.bounded([*places.shape, count])
    hot = jax.nn.one_hot(places, count, dtype=np.bool_, axis=call["axis"])
    return jnp.where(hot, jnp.asarray(on).reshape(()), jnp.asarray(off).reshape(()))


def _fill(call: OperatorCall, shape: Value, value: Value) -> Value:
    sizes = call.bounded(call.integers(shape, "its shape"))
    return jnp.broadcast_to(jnp.asarray(value).reshape(()), sizes)


def _broadcast_to(call: OperatorCall, x: Value, shape: Value) -> Value:
    return jnp.broadcast_to(jnp.asarray(x), call.bounded(call.integers(shape, "its shape")))


def _tile(call: OperatorCall, x: Value, counts: Value) -> Value:
    x, times = jnp.asarray(x), call.integers(counts, "its counts")
    call.bounded([n * count for n, count in zip(x.shape, times, strict=True)])
    return jnp.tile(x, times)


def _range(call: OperatorCall, start: Value, stop: Value, step: Value) -> Value:
    first, last, by = (np.asarray(v).item() for v in (start, stop, step))
    call.bounded([max(math.ceil((last - first) / by), 0)])
    return np.arange(first, last, by).astype(call.dtypes[0])


def _shape(call: OperatorCall, x: Value) -> Value:
    return np.asarray(jnp.shape(x), call.dtypes[0])


def _reverse(call: OperatorCall, x: Value, axes: Value) -> Value:
    x = jnp.asarray(x)
    return lax.rev(x, call.axes(axes, x.ndim))


def _depth_to_space(call: OperatorCall, x: Value) -> Value:
    x, size = jnp.asarray(x), call["size"]
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, height, width, size, size, channels // size**2)
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * size, width * size, -1)


def _space_to_depth(call: OperatorCall, x: Value) -> Value:
    x, size = jnp.asarray(x), call["size"]
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, height // size, size, width // size, size, channels)
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // size, width // size, -1)


def _space_to_batch(call: OperatorCall, x: Value, block: Value, edges: Value) -> Value:
    x, sizes = jnp.asarray(x), call.integers(block, "its block")
    pads = call.integers(edges, "what it pads by")
    rank = len(sizes)
    full = np.asarray([0, 0, *pads, *[0] * (2 * (x.ndim - 1 - rank))])
    x = _pad(call, x, full)
    inner = [
        n for size, length in zip(sizes, x.shape[1:], strict=False) for n in (length // size, size)
    ]
    rest = x.shape[1 + rank :]
    parts = x.reshape(x.shape[0], *inner, *rest)
    order = [
        *range(2, 2 * rank + 1, 2),
        0,
        *range(1, 2 * rank, 2),
        *range(2 * rank + 1, parts.ndim),
    ]
    return parts.transpose(order).reshape(-1, *inner[::2], *rest)


def _batch_to_space(call: OperatorCall, x: Value, block: Value, crops: Value) -> Value:
    x, sizes = jnp.asarray(x), call.integers(block, "its block")
    cuts = call.integers(crops, "what it crops")
    rank, places = len(sizes), x.shape[1 : 1 + len(sizes)]
    rest = x.shape[1 + rank :]
    parts = x.reshape(*sizes, -1, *places, *rest)
    pairs = [axis for i in range(rank) for axis in (rank + 1 + i, i)]
    parts = parts.transpose(rank, *pairs, *range(2 * rank + 1, parts.ndim))
    lengths = [size * n for size, n in zip(sizes, places, strict=True)]
    y = parts.reshape(-1, *lengths, *rest)
    cut = [
        slice(low, n - high) for n, low, high in zip(lengths, cuts[::2], cuts[1::2], strict=True)
    ]
    return y[(slice(None), *cut)]


def _add_n(call: OperatorCall, *values: Value) -> Value:
    return sum(jnp.asarray(v) for v in values[1:]) + jnp.asarray(values[0])


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": jnp.add, "SUB": jnp.subtract, "MUL": jnp.multiply, "DIV": _div,
    "MINIMUM": jnp.minimum, "MAXIMUM": jnp.maximum, "POW": jnp.power,
    "SQUARED_DIFFERENCE": lambda a, b: jnp.square(a - b), "FLOOR_DIV": jnp.floor_divide,
    "FLOOR_MOD": jnp.mod, "EQUAL": jnp.equal, "NOT_EQUAL": jnp.not_equal,
    "LESS": jnp.less, "LESS_EQUAL": jnp.less_equal, "GREATER": jnp.greater,
    "GREATER_EQUAL": jnp.greater_equal, "LOGICAL_AND": jnp.logical_and,
    "LOGICAL_OR": jnp.logical_or, "ATAN2": jnp.arctan2,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "RELU": jax.nn.relu, "RELU6": relu6, "RELU_N1_TO_1": relu_one, "TANH": jnp.tanh,
    "RELU_0_TO_1": lambda x: jnp.clip(x, np.float32(0), np.float32(1)),
    "LOGISTIC": jax.nn.sigmoid, "ELU": jax.nn.elu, "EXP": jnp.exp, "LOG": jnp.log,
    "HARD_SWISH": lambda x: x * relu6(x + np.float32(3)) * np.float32(1 / 6),
    "SQRT": jnp.sqrt, "RSQRT": lax.rsqrt, "SQUARE": jnp.square, "ABS": jnp.abs,
    "NEG": jnp.negative, "SIN": jnp.sin, "COS": jnp.cos, "FLOOR": jnp.floor,
    "CEIL": jnp.ceil, "ROUND": jnp.round, "SIGN": jnp.sign, "LOGICAL_NOT": jnp.logical_not,
    "LOG_SOFTMAX": jax.nn.log_softmax, "ZEROS_LIKE": jnp.zeros_like,
    # Integers arrive as the floats that they stand for.
    "QUANTIZE": lambda x: x, "DEQUANTIZE": lambda x: x.astype(np.float32),
}  # fmt: skip
_REDUCED: dict[str, Callable[..., Any]] = {
    "MEAN": jnp.mean, "SUM": jnp.sum, "REDUCE_MAX": jnp.max, "REDUCE_MIN": jnp.min,
    "REDUCE_PROD": jnp.prod, "REDUCE_ANY": jnp.any, "REDUCE_ALL": jnp.all,
}  # fmt: skip

OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _reduced(function) for name, function in _REDUCED.items()},
    "ARG_MAX": _arg(jnp.argmax), "ARG_MIN": _arg(jnp.argmin), "GELU": _gelu,
    "LEAKY_RELU": _leaky_relu, "PRELU": _prelu, "SOFTMAX": _softmax, "CAST": _cast,
    "SELECT": _select, "SELECT_V2": _select, "L2_NORMALIZATION": _l2_normalization,
    "CUMSUM": _cumsum, "ADD_N": _add_n,
    "RESHAPE": _reshape, "SQUEEZE": _squeeze, "EXPAND_DIMS": _expand_dims,
    "TRANSPOSE": _transpose, "CONCATENATION": _concatenation, "PAD": _pad, "PADV2": _pad,
    "MIRROR_PAD": _mirror_pad, "SLICE": _slice, "STRIDED_SLICE": _strided_slice,
    "SPLIT": _split, "SPLIT_V": _split_v, "PACK": _pack, "UNPACK": _unpack, "GATHER": _gather,
    "GATHER_ND": _gather_nd, "ONE_HOT": _one_hot, "FILL": _fill, "BROADCAST_TO": _broadcast_to,
    "TILE": _tile, "RANGE": _range, "SHAPE": _shape, "REVERSE_V2": _reverse,
    "DEPTH_TO_SPACE": _depth_to_space, "SPACE_TO_DEPTH": _space_to_depth,
    "SPACE_TO_BATCH_ND": _space_to_batch, "BATCH_TO_SPACE_ND": _batch_to_space,
}  # fmt: skip
"""Rules of operators by name: a function of the call and its inputs."""
