"""Dense layers and convolutions of integer codes, exact, and kept whole by an export.

A function lowered for export holds them as composites `jaxeff.q_dense` and `jaxeff.q_conv2d`, whose
decomposition is the integer arithmetic below: the artifact runs wherever StableHLO runs, and an
operator library that knows the names computes the same bits by its own kernels.

Operands, in order:

    x         uint8, codes of the activations, (M, K) or NHWC; a code u is (u - zero) steps
    w         int8, codes of the weights on a symmetric grid, (K, N) or HWIO
    bias      int32 (N,), with the part of the inputs' zero folded in: - zero sum_k w[k]
    scale     float32 (N,); absent where the result is "sums"
    shortcut  uint8 or float32, of the result's shape; absent without one
    factor    float32 (N,), beside a shortcut: one unit of it in units of the accumulator

Attributes:
    result            "codes" (uint8) | "float" (float32) | "sums" (int32)
    zero, lower, upper  of a result of codes: its zero, and the ends that it is clamped to
    shortcut          "none" | "codes" | "float"
    shortcut_zero     the zero of a shortcut of codes
    weight_bits, activation_bits  how wide the codes are, 1 to 8
    strides, padding (low, high per axis, in one list), dilation, groups, input_zero: of q_conv2d

With acc = bias + sum x w, of which a shortcut s adds round(s factor), the result is acc, acc scale,
or clamp(round(acc scale) + zero). Every step is exact or one rounding of IEEE 754 whose result is
rounded or stored at once, so no compiler can fuse a product with a sum: the result is the same, bit
for bit, on every machine.

References:
    Jacob et al., arXiv:1712.05877, eq. 4 to 7.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int8, Int32, UInt8

from jaxeff import _compat

LIMIT = 2**29
"""What a bias and a shortcut may add to an accumulator, either way; products may add twice it."""

Attribute = str | int | tuple[int, ...]


def q_dense(
    x: UInt8[Array, "rows depth"],
    w: Int8[Array, "depth columns"],
    bias: Int32[Array, " columns"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """A dense layer of codes; the module says what of."""
    return _call("q_dense", _products, (x, w, bias, *rest), attributes)


def q_conv2d(
    x: UInt8[Array, "batch height width channels"],
    w: Int8[Array, "rows columns depth features"],
    bias: Int32[Array, " features"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """A convolution of codes; the module says what of."""
    return _call("q_conv2d", _windows, (x, w, bias, *rest), attributes)


def _call(
    name: str, sums: Any, operands: tuple[Array, ...], attributes: Mapping[str, Any]
) -> Array:
    rule = functools.partial(_rule, sums, attributes)
    (y,) = _compat.export_composite(rule, operands, f"jaxeff.{name}", attributes)
    return y


def _rule(sums: Any, attributes: Mapping[str, Any], *operands: Array) -> tuple[Array]:
    x, w, bias, *rest = operands
    acc = sums(x, w, attributes) + _along(bias, x.ndim)
    if attributes["shortcut"] != "none":
        *rest, shortcut, factor = rest
        acc = acc + _shortcut(shortcut, factor, attributes)
    if attributes["result"] == "sums":
        return (acc,)
    y = acc.astype(jnp.float32) * _along(rest[0], x.ndim)
    if attributes["result"] == "float":
        return (y,)
    zero, lower, upper = (attributes[name] for name in ("zero", "lower", "upper"))
    steps = jnp.clip(_nearest(y), float(lower - zero), float(upper - zero))
    return ((steps.astype(jnp.int32) + zero).astype(jnp.uint8),)


def _products(x: Array, w: Array, attributes: Mapping[str, Any]) -> Array:
    del attributes
    return jnp.matmul(x.astype(jnp.int32), w.astype(jnp.int32))


def _windows(x: Array, w: Array, attributes: Mapping[str, Any]) -> Array:
    top, bottom, left, right = attributes["padding"]
    zero = jnp.asarray(attributes["input_zero"], x.dtype)
    # The code of zero, which is not zero: so the padding is none of the convolution's.
    x = lax.pad(x, zero, ((0, 0, 0), (top, bottom, 0), (left, right, 0), (0, 0, 0)))
    return lax.conv_general_dilated(
        x.astype(jnp.int32),
        w.astype(jnp.int32),
        attributes["strides"],
        "VALID",
        rhs_dilation=attributes["dilation"],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=attributes["groups"],
    )


def _shortcut(shortcut: Array, factor: Array, attributes: Mapping[str, Any]) -> Array:
    value = shortcut
    if attributes["shortcut"] == "codes":
        value = (shortcut.astype(jnp.int32) - attributes["shortcut_zero"]).astype(jnp.float32)
    units = _nearest(value * _along(factor, shortcut.ndim))
    return jnp.clip(units, float(-LIMIT), float(LIMIT)).astype(jnp.int32)


def _nearest(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _along(vector: Array, rank: int) -> Array:
    return vector.reshape((1,) * (rank - 1) + vector.shape)
