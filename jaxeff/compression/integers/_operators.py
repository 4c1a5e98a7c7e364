"""Exact dense layers and convolutions of integer codes, exported as single operations.

A function lowered for export holds them as composites `jaxeff.q_dense` and `jaxeff.q_conv2d`, whose
decomposition is the integer arithmetic below: the artifact runs wherever StableHLO runs, and an
operator library that knows the names computes the same bits by its own kernels. `jaxeff.q_codes`
writes float32 values as codes, clamp(round(x per_step)) + zero; its attributes are `per_step`,
`zero`, `lower` and `upper`, and what is no number becomes the smallest code.

Operands of products, in order:

    x         uint8, codes of the activations, (M, K) or NHWC; a code u is (u - zero) steps
    w         int8, codes of the weights on a symmetric grid, (K, N) or HWIO
    bias      int32 (N,), with the part of the inputs' zero folded in: - zero sum_k w[k]
    scale     float32 (N,); absent where the result is "sums"
    shortcut  uint8 or float32, of the result's shape; absent without one
    factor    float32 (N,), beside a shortcut: one unit of it in units of the accumulator

With scales="fixed" the scale of codes is three arrays, int32 (N,): multiplier, shift before, shift
after; and the factor of a shortcut of codes two: multiplier and shift after (`fixed`).

Attributes:
    result            "codes" (uint8) | "whole" (int32) | "float" (float32) | "sums" (int32)
    zero, lower, upper  of codes and whole numbers: zero, and the ends of the clamp
    shortcut          "none" | "codes" | "float"
    shortcut_zero     the zero of a shortcut of codes
    scales            "fixed", if it is there: fixed-point multipliers
    finer             products count 2^finer units of the accumulator; absent for 0
    weight_bits, activation_bits  how wide the codes are, 1 to 8
    strides, padding (low, high per axis, in one list), dilation, groups, input_zero: of q_conv2d
    pool              of q_conv2d, if it is there: the largest of every such window of results
    total             of q_conv2d, if it is there: whole numbers are added over all pixels,
                      to int32 (batch, N)

With acc = bias + 2^finer sum x w, to which a shortcut s adds round(s factor), the result is acc,
acc scale, or clamp(round(acc scale) + zero). Where sums of few bits leave room in int32, `finer`
gives it to biases and shortcuts, which are whole numbers of the accumulator's units. Every step is
exact or one rounding of IEEE 754 whose result is rounded or stored at once, so no compiler can fuse
a product with a sum: the result is the same, bit for bit, on every machine.

References:
    Jacob et al., arXiv:1712.05877, eq. 4 to 7.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int8, Int32, UInt8

from jaxeff.compression.integers import fixed
from jaxeff.core import jax_internals as _compat

LIMIT = 2**29
"""Largest magnitude of bias plus shortcut in an accumulator; products may add twice it."""
FILLED = 26
"""Bits that products may fill with finer units; a bias beside them has eight times as much."""

Attribute = str | int | tuple[int, ...]


def q_codes(
    x: Float[Array, "*shape"], *, per_step: float, zero: int, lower: int, upper: int
) -> UInt8[Array, "*shape"]:
    """Writes values as codes by a product with 1 / step, which no compiler can rewrite."""

    def rule(x: Array) -> tuple[Array]:
        nearest = _nearest(x * jnp.float32(per_step))
        steps = jnp.clip(nearest, float(lower - zero), float(upper - zero))
        steps = jnp.where(jnp.isnan(x), float(lower - zero), steps)
        return ((steps.astype(jnp.int32) + zero).astype(jnp.uint8),)

    attributes = {"per_step": float(per_step), "zero": zero, "lower": lower, "upper": upper}
    (y,) = _compat.export_composite(rule, (x,), "jaxeff.q_codes", attributes)
    return y


def q_dense(
    x: UInt8[Array, "rows depth"],
    w: Int8[Array, "depth columns"],
    bias: Int32[Array, " columns"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """Computes a dense layer of codes, with the operands and attributes listed above."""
    return _call("q_dense", _products, (x, w, bias, *rest), attributes)


def q_conv2d(
    x: UInt8[Array, "batch height width channels"],
    w: Int8[Array, "rows columns depth features"],
    bias: Int32[Array, " features"],
    *rest: Array,
    **attributes: Attribute,
) -> Array:
    """Computes a convolution of codes, with the operands and attributes listed above."""
    return _call("q_conv2d", _windows, (x, w, bias, *rest), attributes)


def _call(
    name: str, sums: Any, operands: tuple[Array, ...], attributes: Mapping[str, Any]
) -> Array:
    rule = functools.partial(_pooled, sums, attributes)
    (y,) = _compat.export_composite(rule, operands, f"jaxeff.{name}", attributes)
    return y


def _pooled(sums: Any, attributes: Mapping[str, Any], *operands: Array) -> tuple[Array]:
    (y,) = _rule(sums, attributes, *operands)
    if attributes.get("total"):
        # Whole numbers: the sum is the same in any order, so a kernel may add as it goes.
        return (y.astype(jnp.int32).sum((1, 2), dtype=jnp.int32),)
    window = attributes.get("pool", (1, 1))
    if window == (1, 1):
        return (y,)
    least = -jnp.inf if y.dtype == jnp.float32 else jnp.iinfo(y.dtype).min
    sizes = (1, *window, 1)
    return (lax.reduce_window(y, jnp.asarray(least, y.dtype), lax.max, sizes, sizes, "VALID"),)


def _rule(sums: Any, attributes: Mapping[str, Any], *operands: Array) -> tuple[Array]:
    x, w, bias, *rest = operands
    acc = (sums(x, w, attributes) << attributes.get("finer", 0)) + _along(bias, x.ndim)
    scale, added = parted(attributes, rest)
    if added:
        acc = acc + _shortcut(*added, attributes)
    if attributes["result"] == "sums":
        return (acc,)
    rest = [_along(v, x.ndim) for v in scale]
    if len(rest) > 1:
        whole = fixed.multiplied(acc, *rest) + attributes["zero"]
        return (jnp.clip(whole, attributes["lower"], attributes["upper"]).astype(jnp.uint8),)
    y = acc.astype(jnp.float32) * rest[0]
    if attributes["result"] == "float":
        return (y,)
    zero, lower, upper = (attributes[name] for name in ("zero", "lower", "upper"))
    # Clamped while floating-point: a number beyond int32 has no defined conversion.
    steps = jnp.clip(_nearest(y), float(lower - zero), float(upper - zero))
    dtype = {"codes": jnp.uint8, "whole": jnp.int32}[attributes["result"]]
    return ((steps.astype(jnp.int32) + zero).astype(dtype),)


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


def finer_units(depth: int, activation_bits: int, weight_levels: int) -> int:
    """Computes by how many bits an accumulator's units may be finer than a product's.

    Args:
        depth: Products in a sum.
        activation_bits: Width of the activations' codes.
        weight_levels: The largest code of a weight.
    """
    most = depth * (2**activation_bits - 1) * weight_levels
    return max(0, FILLED - most.bit_length())


def biased(acc: Int32[Array, "*shape"], bias: Array, unit: Array) -> Float[Array, "*shape"]:
    """Adds a bias to sums in the units of an accumulator, and returns numbers.

    Args:
        acc: Sums in these units, at most 2^26.
        bias: The bias, that fits to `acc`.
        unit: The unit's value, that fits to `acc`.
    """
    # Whole units: a compiler that fused a product and a sum would round less.
    nearest = lax.round(bias / unit, lax.RoundingMethod.TO_NEAREST_EVEN)
    units = jnp.clip(nearest, float(-LIMIT), float(LIMIT))
    # A bias of more units than int32 holds beside the sums is added as the number that it is, and
    # zero to the others, which changes none of their bits. So is one without products: of zeros
    # alone the unit is any number.
    fits = (jnp.abs(units) < LIMIT) & (acc != 0)
    whole = acc + jnp.where(fits, units, 0).astype(jnp.int32)
    return whole.astype(jnp.float32) * unit + jnp.where(fits, 0, bias)


def parted(attributes: Mapping[str, Any], rest: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Splits the operands after the bias into those of the scale and of the shortcut."""
    is_fixed = attributes.get("scales") == "fixed"
    count = {"sums": 0, "codes": 3 if is_fixed else 1}.get(str(attributes["result"]), 1)
    return list(rest[:count]), list(rest[count:])


def _shortcut(shortcut: Array, factor: Array, *after: Any) -> Array:
    *shifts, attributes = after
    value = shortcut
    if attributes["shortcut"] == "codes":
        whole = shortcut.astype(jnp.int32) - attributes["shortcut_zero"]
        if shifts:
            product = whole * _along(factor, whole.ndim)
            return fixed.shifted(product, _along(shifts[0], whole.ndim))
        value = whole.astype(jnp.float32)
    units = _nearest(value * _along(factor, shortcut.ndim))
    return jnp.clip(units, float(-LIMIT), float(LIMIT)).astype(jnp.int32)


def _nearest(x: Array) -> Array:
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _along(vector: Array, rank: int) -> Array:
    return vector.reshape((1,) * (rank - 1) + vector.shape)
