"""What ONNX's operators of shapes, indices and sequences compute, and what lies between elements.

From known shapes these make known shapes: of NumPy arrays, NumPy arrays.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff_export.onnx_files import _operators as operators
from jaxeff_export.onnx_files._operators import Call, Value

# -------------------------------------------------------------------------------------- shapes


def _shape(call: Call, x: Value) -> Value:
    return np.asarray(np.shape(x)[call.get("start", 0) : call.get("end")], np.int64)


def _reshape(call: Call, x: Value, shape: Value = None) -> Value:
    sizes = call["shape"] if shape is None else operators.integers(call, shape, "the shape")
    if not call.get("allowzero"):
        sizes = [np.shape(x)[i] if size == 0 else size for i, size in enumerate(sizes)]
    return operators.module_of(x).reshape(x, sizes)


def _flatten(call: Call, x: Value) -> Value:
    axis = call["axis"]
    rows = math.prod(np.shape(x)[:axis])
    return operators.module_of(x).reshape(x, (rows, math.prod(np.shape(x)[axis:])))


def _squeeze(call: Call, x: Value, axes: Value = None) -> Value:
    return operators.module_of(x).squeeze(x, operators.axes_of(call, x, axes))


def _unsqueeze(call: Call, x: Value, axes: Value = None) -> Value:
    numbers = call["axes"] if axes is None else operators.integers(call, axes, "the axes")
    return operators.module_of(x).expand_dims(x, tuple(numbers))


def _transpose(call: Call, x: Value) -> Value:
    return operators.module_of(x).transpose(x, call.get("perm"))


def _concat(call: Call, *values: Value) -> Value:
    xp = operators.module_of(*values)
    return xp.concatenate([xp.asarray(v) for v in values], call["axis"])


def _split(call: Call, x: Value, sizes: Value = None) -> Any:
    axis = call["axis"]
    length = np.shape(x)[axis]
    parts = call.get("split") if sizes is None else operators.integers(call, sizes, "the sizes")
    if parts is None:
        count = call.get("num_outputs") or len(call.wanted)
        step = -(-length // count)
        parts = [min(step, length - i * step) for i in range(count)]
    if sum(parts) != length or min(parts) < 0:
        raise call.refused(f"splits {length} into {parts}")
    cuts = np.cumsum([0, *parts])
    index = (slice(None),) * (axis % np.ndim(x))
    return tuple(x[(*index, slice(a, b))] for a, b in itertools.pairwise(cuts))


def _slice(
    call: Call, x: Value, starts: Value = None, ends: Value = None, axes: Value = None,
    steps: Value = None,
) -> Value:  # fmt: skip
    begin = call["starts"] if starts is None else operators.integers(call, starts, "the starts")
    end = call["ends"] if ends is None else operators.integers(call, ends, "the ends")
    over = operators.axes_of(call, x, axes) or tuple(range(len(begin)))
    by = [1] * len(begin) if steps is None else operators.integers(call, steps, "the steps")
    index = [slice(None)] * np.ndim(x)
    for axis, a, b, step in zip(over, begin, end, by, strict=True):
        length = np.shape(x)[axis]
        if step < 0:  # the end before the first element is -length - 1, and Python's None
            b = None if b < -length else b
        index[axis] = slice(a, b, step)
    return x[tuple(index)]


def _expand(call: Call, x: Value, shape: Value) -> Value:
    xp = operators.module_of(x)
    want = operators.integers(call, shape, "the shape")
    sizes = operators.bounded(call, np.broadcast_shapes(np.shape(x), tuple(want)))
    return (
        xp.broadcast_to(operators.aligned(x, np.empty((1,) * len(sizes)))[1][0], sizes)
        if want
        else x
    )


def _tile(call: Call, x: Value, repeats: Value) -> Value:
    times = operators.integers(call, repeats, "the repeats")
    operators.bounded(call, [n * t for n, t in zip(np.shape(x), times, strict=True)])
    return operators.module_of(x).tile(x, times)


def _pad(call: Call, x: Value, pads: Value = None, fill: Value = None, axes: Value = None) -> Value:
    widths = call["pads"] if pads is None else operators.integers(call, pads, "the pads")
    over = (operators.axes_of(call, x, axes) if axes is not None else None) or tuple(
        range(np.ndim(x))
    )
    if len(widths) != 2 * len(over):
        raise call.refused(f"has {len(widths)} pads of {len(over)} axes")
    before, after = [0] * np.ndim(x), [0] * np.ndim(x)
    for axis, a, b in zip(over, widths, widths[len(widths) // 2 :], strict=False):
        before[axis], after[axis] = a, b
    sizes = [n + a + b for n, a, b in zip(np.shape(x), before, after, strict=True)]
    operators.bounded(call, sizes)
    x = jnp.asarray(x)
    mode = call["mode"]
    if mode == "constant":
        value = call.get("value", 0) if fill is None else jnp.reshape(fill, ())
        edges = [(a, b, 0) for a, b in zip(before, after, strict=True)]
        return jax.lax.pad(x, jnp.asarray(value, x.dtype), edges)
    cut = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for a, n, b in zip(before, x.shape, after, strict=True)
    )
    wide = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    return jnp.pad(x[cut], wide, mode=mode)


def _range(call: Call, start: Value, limit: Value, step: Value) -> Value:
    parts = [operators.known(call, v, "its limits").reshape(()) for v in (start, limit, step)]
    count = max(math.ceil((parts[1].item() - parts[0].item()) / parts[2].item()), 0)
    operators.bounded(call, [count])
    # Multiplied, not added up: as the definition has it.
    return (parts[0] + np.arange(count).astype(parts[0].dtype) * parts[2]).astype(parts[0].dtype)


def _constant_of_shape(call: Call, shape: Value) -> Value:
    value = call.get("value", np.zeros(1, np.float32))
    return np.full(
        operators.bounded(call, operators.integers(call, shape, "the shape")),
        value.reshape(()),
        value.dtype,
    )


def _eye(call: Call, x: Value) -> Value:
    dtype = operators.dtype_of(call, call["dtype"]) if call.get("dtype") else x.dtype
    return operators.module_of(x).eye(*np.shape(x), k=call["k"], dtype=dtype)


def _trilu(call: Call, x: Value, k: Value = None) -> Value:
    diagonal = 0 if k is None else operators.known(call, k, "the diagonal").item()
    xp = operators.module_of(x)
    rows, columns = np.shape(x)[-2:]
    keep = np.tri(rows, columns, diagonal if not call["upper"] else diagonal - 1, dtype=bool)
    keep = (~keep if call["upper"] else keep).reshape((1,) * (np.ndim(x) - 2) + keep.shape)
    return xp.where(keep, x, xp.zeros_like(x))


def _one_hot(call: Call, indices: Value, depth: Value, values: Value) -> Value:
    count, axis = operators.known(call, depth, "the depth").item(), call["axis"]
    count = int(count)
    operators.bounded(call, [*np.shape(indices), count])
    indices, values = jnp.asarray(indices), jnp.asarray(values)
    indices = jnp.where(indices < 0, indices + count, indices).astype(np.int32)
    hot = jax.nn.one_hot(indices, count, dtype=bool, axis=axis)
    return jnp.where(hot, values[1], values[0])


def _block_order(call: Call, x: Value) -> Value:
    """Moves channels into space, or back."""
    size, x = call["blocksize"], jnp.asarray(x)
    n, c, h, w = x.shape
    if call.operator == "SpaceToDepth":
        x = x.reshape(n, c, h // size, size, w // size, size)
        if call.get("mode", "DCR") == "CRD":
            return x.transpose(0, 1, 3, 5, 2, 4).reshape(n, c * size**2, h // size, w // size)
        return x.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * size**2, h // size, w // size)
    if call.get("mode") == "CRD":
        x = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        x = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // size**2, h * size, w * size)


# ------------------------------------------------------------------------------------- indices


def _gather(call: Call, x: Value, indices: Value) -> Value:
    axis = call["axis"]
    operators.inside(call, indices, np.shape(x)[axis], axis)
    if operators.is_static(x) and operators.is_static(indices):
        return np.take(x, indices, axis)
    if operators.is_static(indices) and indices.ndim == 0:
        return jax.lax.index_in_dim(jnp.asarray(x), int(indices), axis, keepdims=False)
    return jnp.take(jnp.asarray(x), jnp.asarray(indices), axis)


def _gather_elements(call: Call, x: Value, indices: Value) -> Value:
    return jnp.asarray(x)[_elements(call, x, indices)]


def _elements(call: Call, x: Value, indices: Value) -> tuple[Any, ...]:
    """Indexes an element for each index: along one axis by it, along others by where it is."""
    axis = call["axis"] % np.ndim(x)
    operators.inside(call, indices, np.shape(x)[axis], axis)
    for other, (count, length) in enumerate(zip(np.shape(indices), np.shape(x), strict=True)):
        if other != axis:
            operators.inside(call, np.arange(count), length, other)
    indices = jnp.asarray(indices)
    grid = list(np.indices(indices.shape, sparse=True))
    grid[axis] = jnp.where(indices < 0, indices + np.shape(x)[axis], indices)
    return tuple(grid)


def _gather_nd(call: Call, x: Value, indices: Value) -> Value:
    batch = call.get("batch_dims", 0)
    _inside_all(call, x, indices, batch)
    x, indices = jnp.asarray(x), jnp.asarray(indices)

    def gather(x: Any, indices: Any) -> Any:
        return x[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(batch):
        gather = jax.vmap(gather)
    return gather(x, indices)


def _inside_all(call: Call, x: Value, indices: Value, first: int = 0) -> None:
    """Refuses known rows of indices, one for each axis from the first, outside the array."""
    if operators.is_known(indices):
        for i in range(np.shape(indices)[-1]):
            axis = first + i
            operators.inside(call, np.asarray(indices)[..., i], np.shape(x)[axis], axis)


_UPDATES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


def _scatter_elements(call: Call, x: Value, indices: Value, updates: Value) -> Value:
    at = jnp.asarray(x).at[_elements(call, x, indices)]
    return getattr(at, _UPDATES[call.get("reduction", "none")])(jnp.asarray(updates))


def _scatter_nd(call: Call, x: Value, indices: Value, updates: Value) -> Value:
    _inside_all(call, x, indices)
    x, indices = jnp.asarray(x), jnp.asarray(indices)
    at = x.at[tuple(jnp.moveaxis(indices, -1, 0))]
    return getattr(at, _UPDATES[call.get("reduction", "none")])(jnp.asarray(updates))


def _tensor_scatter(call: Call, past: Value, update: Value, where: Value = None) -> Value:
    past, update, axis = jnp.asarray(past), jnp.asarray(update), call["axis"]
    moved, rows = jnp.moveaxis(past, axis, 1), jnp.moveaxis(update, axis, 1)
    start = jnp.zeros(past.shape[0], operators.int64()) if where is None else jnp.asarray(where)
    at = start[:, None] + np.arange(rows.shape[1])
    if call["mode"] == "circular":
        at = at % moved.shape[1]
    elif where is not None:
        operators.inside(call, where, moved.shape[1] - rows.shape[1] + 1, axis, 0)
    batch = np.arange(past.shape[0])[:, None]
    return jnp.moveaxis(moved.at[batch, at].set(rows), 1, axis)


def _reverse_sequence(call: Call, x: Value, lengths: Value) -> Value:
    time, batch = call["time_axis"], call["batch_axis"]
    operators.inside(call, lengths, np.shape(x)[time] + 1, time, 0)
    x, lengths = jnp.asarray(x), jnp.asarray(lengths)
    moved = jnp.moveaxis(x, (batch, time), (0, 1))
    steps = np.arange(moved.shape[1])[None]
    back = jnp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    rows = moved[np.arange(moved.shape[0])[:, None], back]
    return jnp.moveaxis(rows, (0, 1), (batch, time))


def _compress(call: Call, x: Value, condition: Value) -> Value:
    kept = np.flatnonzero(operators.known(call, condition, "what is kept"))
    axis = call.get("axis")
    x, axis = (jnp.ravel(jnp.asarray(x)), 0) if axis is None else (jnp.asarray(x), axis)
    # As in runtimes: what the condition says of places behind the last one is not read.
    return jnp.take(x, kept[kept < x.shape[axis]], axis)


def _nonzero(call: Call, x: Value) -> Value:
    return np.asarray(np.nonzero(operators.known(call, x, "what is not zero")), np.int64)


def _unique(call: Call, x: Value) -> Any:
    x, axis = operators.known(call, x, "what is unique"), call.get("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    order = np.arange(len(first)) if call["sorted"] else np.argsort(first)
    values = values[order] if axis is None else np.take(values, order, axis)
    back = np.argsort(order)[inverse]
    return (values, *(a.astype(np.int64) for a in (first[order], back, counts[order])))


# ----------------------------------------------------------------------------------- sequences


def _position(call: Call, sequence: list[Value], position: Value, default: int) -> int:
    i = default if position is None else operators.known(call, position, "the position").item()
    if not -len(sequence) <= i <= len(sequence):
        raise call.refused(f"is at {i} of a sequence of {len(sequence)}")
    return i + len(sequence) if i < 0 else i


def _inserted(call: Call, sequence: list[Value], x: Value, position: Value = None) -> Any:
    i = _position(call, sequence, position, len(sequence))
    return ([*sequence[:i], x, *sequence[i:]],)


def _erased(call: Call, sequence: list[Value], position: Value = None) -> Any:
    i = _position(call, sequence, position, len(sequence) - 1)
    return ([*sequence[:i], *sequence[i + 1 :]],)


def _split_to_sequence(call: Call, x: Value, sizes: Value = None) -> Any:
    axis = call["axis"] % np.ndim(x)
    length = np.shape(x)[axis]
    lengths = np.asarray(1) if sizes is None else operators.known(call, sizes, "the sizes")
    cuts = (
        [*range(int(lengths), length, int(lengths))]
        if lengths.ndim == 0
        else np.cumsum(lengths)[:-1]
    )
    parts = operators.module_of(x).split(x, cuts, axis)
    if sizes is None and not call["keepdims"]:
        parts = [operators.module_of(x).squeeze(part, axis) for part in parts]
    return ([*parts],)


def _concat_sequence(call: Call, sequence: list[Value]) -> Value:
    xp = operators.module_of(*sequence)
    return (xp.stack if call["new_axis"] else xp.concatenate)(sequence, call["axis"])


def _optional_element(call: Call, x: Value) -> Any:
    if x is None:
        raise call.refused("reads an optional value that isn't there")
    return (x,)


# ------------------------------------------------------------------------------------ resizing


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def _source(call: Call, n: int, scale: float, count: int, roi: tuple[float, float]) -> np.ndarray:
    """Returns where each element of the result lies in the input, in the floats of runtimes."""
    x, step = np.arange(count, dtype=np.float32), np.float32(scale)
    # A whole length, but for a scale's rounding.
    length = count if abs(scale * n - count) < 1e-6 * count else scale * n
    mode = call.get("coordinate_transformation_mode", "asymmetric")
    if mode == "align_corners":
        return x * (n - 1) / (length - 1) if length != 1 else x * 0
    if mode == "asymmetric":
        return (x.astype(np.float64) / scale).astype(np.float32)
    if mode == "tf_crop_and_resize":
        width = (roi[1] - roi[0]) * (n - 1)
        return (x * width / (length - 1) if length != 1 else x * 0 + width / 2) + roi[0] * (n - 1)
    if mode == "pytorch_half_pixel" and count == 1:
        return x * 0
    if mode == "half_pixel_symmetric":
        shift = np.float32(n / 2) * (1 - np.float32(count) / (step * np.float32(n)))
        return shift + (x + 0.5) / step - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / step - 0.5
    raise call.refused(f"has the coordinate_transformation_mode {mode!r}")


def _mixing(call: Call, at: np.ndarray, n: int, scale: float) -> np.ndarray:
    """Returns the weight of each element of the input in each of the result, [result, input]."""
    mode, at = call["mode"], at.astype(np.float64)
    narrow = min(scale, 1.0) if call.get("antialias") else 1.0
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(at - 0.5), "round_prefer_ceil": np.floor(at + 0.5),
            "floor": np.floor(at), "ceil": np.ceil(at),
        }[call.get("nearest_mode", "floor")]  # fmt: skip
        return np.eye(n)[np.clip(rounded, 0, n - 1).astype(int)]
    radius = math.ceil((2 if mode == "cubic" else 1) / narrow)
    taps = np.floor(at)[:, None].astype(int) + np.arange(-radius, radius + 2)
    distance = (taps - at[:, None]) * narrow
    if mode == "cubic":
        weights = _cubic(distance, call.get("cubic_coeff_a", -0.75))
    else:
        weights = np.clip(1 - np.abs(distance), 0, None)
    if call.get("exclude_outside"):
        weights = np.where((taps < 0) | (taps >= n), 0, weights)
    weights /= weights.sum(1, keepdims=True)
    matrix = np.zeros((len(at), n))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(taps, 0, n - 1)), weights)
    return matrix


def _resize(
    call: Call, x: Value, roi: Value = None, scales: Value = None, sizes: Value = None
) -> Value:
    x = jnp.asarray(x)
    if call.operator == "Upsample" or call.opset < 11:  # scales come second, or as an attribute
        scales, roi = (roi if roi is not None else np.asarray(call["scales"])), None
    axes = operators.axes_of(call, x) or tuple(range(x.ndim))
    region = None
    if roi is not None and np.size(roi):
        region = operators.known(call, roi, "the region").reshape(2, -1)
    if scales is not None and np.size(scales):
        steps = operators.known(call, scales, "the scales").astype(np.float32)
        # In floats of 32 bits, as 1.4 times 5 is 7 there and nowhere else.
        want = [math.floor(np.float32(x.shape[a]) * s) for a, s in zip(axes, steps, strict=True)]
        factors = [float(s) for s in steps]
    else:
        want = operators.integers(call, sizes, "the sizes")
        factors = [w / x.shape[a] for a, w in zip(axes, want, strict=True)]
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(factors) if policy == "not_larger" else max(factors)
            factors = [one] * len(axes)
            want = [math.floor(x.shape[a] * one + 0.5) for a in axes]
    operators.bounded(call, want)
    y = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(np.float32)
    outside: Any = None
    for i, (axis, count, scale) in enumerate(zip(axes, want, factors, strict=True)):
        n = x.shape[axis]
        ends = (0.0, 1.0) if region is None else (float(region[0, i]), float(region[1, i]))
        crop = call.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if count == n and scale == 1 and not (crop and ends != (0, 1)):
            continue
        at = _source(call, n, scale, count, ends)
        matrix = _mixing(call, at, n, scale)
        if call["mode"] == "nearest":
            y = jnp.take(y, matrix.argmax(1), axis)
        else:
            y = jnp.moveaxis(jnp.tensordot(y, matrix.astype(y.dtype), (axis, 1)), -1, axis)
        if crop:
            beyond = ((at < 0) | (at > n - 1)).reshape(
                [-1 if a == axis else 1 for a in range(x.ndim)]
            )
            outside = beyond if outside is None else outside | beyond
    if outside is not None:
        y = jnp.where(outside, jnp.asarray(call["extrapolation_value"], y.dtype), y)
    if call["mode"] != "nearest" and not jnp.issubdtype(x.dtype, jnp.floating):
        y = jnp.trunc(y)
    return y.astype(x.dtype)


TENSOR_OPERATORS: dict[str, Callable[..., Any]] = {
    "Identity": lambda call, x: (x,), "Shape": _shape,
    "Size": lambda call, x: np.asarray(math.prod(np.shape(x)), np.int64),
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze,
    "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice,
    "Expand": _expand, "Tile": _tile, "Pad": _pad, "Range": _range,
    "ConstantOfShape": _constant_of_shape, "EyeLike": _eye, "Trilu": _trilu, "OneHot": _one_hot,
    "DepthToSpace": _block_order, "SpaceToDepth": _block_order,
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "Scatter": _scatter_elements, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter, "ReverseSequence": _reverse_sequence,
    "Compress": _compress, "NonZero": _nonzero, "Unique": _unique,
    "SequenceConstruct": lambda call, *values: ([*values],),
    "SequenceEmpty": lambda call: ([],),
    "SequenceAt": lambda call, s, i: (s[operators.known(call, i, "the position").item()],),
    "SequenceLength": lambda call, s: np.asarray(len(s), np.int64),
    "SequenceInsert": _inserted, "SequenceErase": _erased,
    "SplitToSequence": _split_to_sequence, "ConcatFromSequence": _concat_sequence,
    "Resize": _resize, "Upsample": _resize,
    "Optional": lambda call, x=None: (x,), "OptionalGetElement": _optional_element,
    "OptionalHasElement": lambda call, x=None: np.asarray(x is not None),
}  # fmt: skip
