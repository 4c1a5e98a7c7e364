"""What ONNX's operators compute between the elements of a grid: resizing."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxeff_export.onnx_files._operators import Call, Value, axes_of, bounded, integers, known


def _cubic(t: np.ndarray, a: float) -> np.ndarray:
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def _source(call: Call, n: int, scale: float, count: int, roi: tuple[float, float]) -> np.ndarray:
    """Returns where each element of the result lies in the input."""
    x, length = np.arange(count, dtype=np.float64), scale * n
    mode = call.get("coordinate_transformation_mode", "asymmetric")
    if mode == "align_corners":
        return x * (n - 1) / (length - 1) if length != 1 else x * 0
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        width = (roi[1] - roi[0]) * (n - 1)
        return (x * width / (length - 1) if length != 1 else x * 0 + width / 2) + roi[0] * (n - 1)
    if mode == "pytorch_half_pixel" and length == 1:
        return x * 0 - 0.5
    if mode == "half_pixel_symmetric":
        return n / 2 * (1 - count / length) + (x + 0.5) / scale - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (x + 0.5) / scale - 0.5
    raise call.refused(f"has the coordinate_transformation_mode {mode!r}")


def _mixing(call: Call, at: np.ndarray, n: int, scale: float) -> np.ndarray:
    """Returns the weight of each element of the input in each of the result, [result, input]."""
    mode = call["mode"]
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
    axes = axes_of(call, x) or tuple(range(x.ndim))
    region = None
    if roi is not None and np.size(roi):
        region = known(call, roi, "the region").reshape(2, -1)
    if scales is not None and np.size(scales):
        factors = [float(s) for s in known(call, scales, "the scales")]
        want = [math.floor(x.shape[a] * s) for a, s in zip(axes, factors, strict=True)]
    else:
        want = integers(call, sizes, "the sizes")
        factors = [w / x.shape[a] for a, w in zip(axes, want, strict=True)]
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(factors) if policy == "not_larger" else max(factors)
            factors = [one] * len(axes)
            want = [math.floor(x.shape[a] * one + 0.5) for a in axes]
    bounded(call, [w for w in want])
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
    if not jnp.issubdtype(x.dtype, jnp.floating):
        y = jnp.round(y)
    return y.astype(x.dtype)


SAMPLING_OPERATORS: dict[str, Callable[..., Any]] = {"Resize": _resize, "Upsample": _resize}
