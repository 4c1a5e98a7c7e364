"""`PowersOfTwo`: zero and plus or minus powers of two, so that products are shifts.

The values are {0} and ±2^k for top - count < k <= top. A magnitude takes the nearest: from
3/4 2^k to 3/2 2^k it is 2^k (Zhou et al., eq. 4), or, rounded in its exponent as by Miyashita et
al., from 2^(k-1/2) to 2^(k+1/2). Below half the smallest power it is zero. The largest is
top = floor(log2(4/3 max|x|)) (Zhou et al., eq. 2). Gradients pass straight through.

With b bits, one of the codes is zero and 2^(b-1) - 1 are powers of each sign, or 2^b - 1 where
there is no sign.

Sharp edges:
    A value in the middle between two belongs to the larger one, as in equation 4.
    Powers end where the dtype does: float16 has none below 2^-14.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Bits,
    Tensor,
    infer_sign,
    largest_magnitude,
    power_of_two,
    straight_through,
)
from jaxeff.core import Choice, Number, Width, register_setting, static, static_number


@register_setting
@dataclass(frozen=True)
class PowersOfTwo(BaseQuantizer):
    """Zero and powers of two: `PowersOfTwo(4)`.

    Attributes:
        bits: Bit width, 2 to 8; an array may be traced.
        top: Exponent of the largest power, a whole number; has no gradient. Open: by the largest
            magnitude.
        signed: Whether there are negative values. Open: for weights there are, for activations if
            one is negative.
        nearest: Whether a magnitude is rounded by "value" or by "exponent".
        per: Part with its own exponent: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: `bits` is out of bounds or not whole, or `top` not finite.

    References:
        Miyashita et al., "Convolutional Neural Networks using Logarithmic Data Representation",
        arXiv:1603.01025. Zhou et al., "Incremental Network Quantization", arXiv:1702.03044.
    """

    bits: Annotated[Bits, Width(2, 8)] = static_number()
    top: Annotated[Float[Array, "..."] | float | None, Number()] = None
    signed: bool | Array | None = static_number(None)
    nearest: Annotated[str, Choice("value", "exponent")] = static("value")
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values, with a gradient of one."""
        fixed = lax.stop_gradient(x)
        own = self.start(fixed, tensor)
        top = tensor.fitted("PowersOfTwo.top", own.top, x)
        half = power_of_two(self.bits, x.dtype) / 2
        signed = jnp.asarray(own.signed).astype(bool)
        # One code is zero; the others are powers, of each sign if there are two.
        count = jnp.where(signed, half, 2 * half) - 1
        y = nearest_powers(fixed, lax.stop_gradient(top), count, self.nearest == "exponent")
        # Without a sign, negative values become zero.
        keep = (y >= 0) | signed | jnp.isnan(y)
        return straight_through(x, jnp.where(keep, y, jnp.zeros_like(y)))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "PowersOfTwo":
        """Computes an open largest exponent and sign from an array."""
        signed = self.signed
        if signed is None:
            signed = infer_sign(x, tensor)
        top = top_exponent(x, tensor.axes(self.per)) if self.top is None else self.top
        return replace(self, top=top, signed=signed)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and 8 bits for each exponent."""
        return super().storage(shape, tensor) + 8 * tensor.count(shape, self.per)


def top_exponent(x: Float[Array, "*shape"], keep: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Computes the exponent of the power of two nearest to the largest magnitude; 0 for zeros.

    It is floor(log2(4/3 max|x|)), exactly.

    Args:
        x: Any array.
        keep: Axes whose entries have exponents of their own.
    """
    largest = largest_magnitude(x, keep)
    fraction, exponent = jnp.frexp(largest)  # largest = fraction 2^exponent, fraction in [1/2, 1)
    # 4/3 fraction 2^e reaches 2^e from a fraction of 3/4 on.
    top = jnp.where(fraction < 0.75, exponent - 1, exponent)
    return jnp.where(largest > 0, top, 0).astype(x.dtype)


def nearest_powers(
    x: Float[Array, "*shape"], top: Any, count: Any, by_exponent: bool = False
) -> Float[Array, "*shape"]:
    """Rounds to zero or plus or minus the nearest power of two; without a gradient.

    Args:
        x: Values.
        top: The largest exponent; broadcasts against `x`.
        count: Number of exponents; broadcasts against `x`.
        by_exponent: Whether exponents are rounded, and not magnitudes.
    """
    size = jnp.abs(x)
    fraction, _ = jnp.frexp(size)
    normal = fraction > 0
    # A quotient of a number and its fraction is a power of two exactly; `exp2` may not be.
    above = size / jnp.where(normal, fraction, jnp.ones_like(fraction))
    # Between 2^(e-1) and 2^e: 3/4 2^e in value, 2^(e-1/2) in the exponent.
    middle = np.sqrt(0.5) if by_exponent else 0.75
    power = jnp.where(fraction >= middle, above, above / 2)
    smallest = _power(top + 1 - count, x.dtype)
    power = jnp.clip(power, smallest, _power(top, x.dtype))
    value = jnp.where(normal & (size >= smallest / 2), jnp.copysign(power, x), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, value)


def _power(exponent: Any, dtype: Any) -> Array:
    """Computes 2^exponent exactly, for the exponents of a dtype without subnormals."""
    info = jnp.finfo(dtype)
    low, high = int(info.minexp), int(info.maxexp) - 1
    table = jnp.asarray(np.ldexp(1.0, np.arange(low, high + 1)), dtype)
    index = jnp.clip(jnp.round(exponent), low, high).astype(jnp.int32) - low
    return table[index]
