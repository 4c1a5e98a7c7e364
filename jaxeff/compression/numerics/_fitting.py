"""Measurements that quantizers share: the sign and magnitude of an array, and ranges of codes."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxeff.compression.numerics._grid import Bits, kept_axes, power_of_two
from jaxeff.compression.numerics._quantizer import Tensor
from jaxeff.core import is_concrete


def infer_sign(x: Float[Array, "*shape"], tensor: Tensor) -> bool | Bool[Array, ""]:
    """Decides whether codes reach below zero: for weights, and if an activation is negative.

    Args:
        x: Values to quantize.
        tensor: Description of the array; its role decides.

    Returns:
        A Python bool, or an array of shape () where `x` is traced.
    """
    # Weights have a sign even if none is negative yet: training may change that.
    signed = True if tensor.role == "weight" else jnp.any(x < 0)
    return bool(signed) if is_concrete(signed) else signed


def magnitude(x: Float[Array, "*shape"], tensor: Tensor, per: str) -> Float[Array, "..."]:
    """Computes the largest magnitude of the values that share a number.

    Args:
        x: Values to quantize.
        tensor: Description of the array, which has its channels.
        per: Part with a magnitude of its own: "channel" or "tensor".

    Returns:
        An array that broadcasts against `x`: of shape () for the tensor, else of size one along
        the axes that share a number.
    """
    return largest_magnitude(x, tensor.axes(per))


def start_scale(x: Float[Array, "*shape"], tensor: Tensor, per: str) -> Float[Array, "..."]:
    """Computes a positive scale to start from: the largest magnitude, one if that is zero.

    The arguments and the shape of the result are those of `magnitude`.
    """
    return safe_scale(magnitude(x, tensor, per))


def largest_magnitude(x: Float[Array, "*shape"], keep: Sequence[int] = ()) -> Float[Array, "..."]:
    """Computes the largest magnitude along all axes but those kept.

    Args:
        x: Values.
        keep: Axes whose entries have a magnitude each.

    Returns:
        An array that broadcasts against `x`, as of `magnitude`.
    """
    axes, shape = kept_axes(x, keep)
    return jnp.max(jnp.abs(x), axes).reshape(shape)


def safe_scale(scale: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Replaces scales that aren't positive by one.

    An array of zeros has no scale, and any is right for it.
    """
    return jnp.where(scale > 0, scale, jnp.ones_like(scale))


def keep_positive(value: Float[Array, "*shape"], factor: float = 1.0) -> Float[Array, "*shape"]:
    """Keeps a learnt number positive that training may have brought to zero or below.

    Args:
        value: Step, scale or clipping level.
        factor: Smallest result, in the dtype's smallest normal numbers.
    """
    return jnp.maximum(value, jnp.asarray(jnp.finfo(value.dtype).tiny * factor, value.dtype))


def keep_ordered(
    low: Float[Array, "..."], high: Float[Array, "..."], factor: float = 1.0
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Keeps two learnt numbers positive and in order, wherever training has brought them.

    Args:
        low: The smaller number, such as a step.
        high: The larger number, such as a maximum; it gives way.
        factor: Smallest result, in the dtype's smallest normal numbers.

    Returns:
        Both, of one shape and of the first one's dtype.
    """
    low = keep_positive(low, factor)
    low, high = jnp.broadcast_arrays(low, jnp.asarray(high, low.dtype))
    return low, jnp.where(high >= low, high, low)


def code_range(
    bits: Bits, signed: bool | Bool[Array, "..."] | None, dtype: Any
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Returns the smallest and largest code of a width.

    Args:
        bits: Bit width, 1 to 16; an array may be traced.
        signed: Whether codes reach below zero; an array may be traced.
        dtype: Dtype of the codes.

    Returns:
        -2^(b-1) and 2^(b-1) - 1 with a sign, else 0 and 2^b - 1.
    """
    half = power_of_two(bits, dtype) / 2
    zero = jnp.zeros_like(half)
    if signed is None or isinstance(signed, bool):
        return (-half, half - 1) if signed else (zero, 2 * half - 1)
    return jnp.where(signed, -half, zero), jnp.where(signed, half, 2 * half) - 1
