"""`PACT`: a clipping level that is learnt.

With n = 2^bits - 1 the value is round(clip(x, 0, alpha) n / alpha) alpha / n (Choi et al., eq. 1
and 2). Its derivative with respect to alpha is zero for x < alpha and one for x >= alpha (eq. 3),
that with respect to x one inside the range and zero outside. What pulls alpha down is a penalty
decay * alpha^2 (section 3).

Codes with a sign, for weights, are ours: clip(x, -alpha, alpha), n = 2^(bits-1) - 1, and the
derivative at the lower end is minus one.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Tensor,
    at_least_float32,
    code_range,
    infer_sign,
    keep_positive,
    start_scale,
    straight_through,
    wide_dtype,
)
from jaxeff.core import Choice, Number, Width, register_setting, static, static_number


@register_setting
@dataclass(frozen=True)
class PACT(BaseQuantizer):
    """Parameterized clipping activation: `PACT(4)`.

    Attributes:
        bits: Bit width, 1 to 16, with a sign 2 to 16; an array may be traced, and one bit with a
            sign counts as two there.
        alpha: Value at which values are clipped, positive. Open: the largest magnitude; of an array
            of zeros one.
        signed: Whether codes reach below zero. Open: for weights they do, for activations if one is
            negative.
        decay: The penalty's factor (`jaxeff.compression.penalty`). A plain number isn't learnt.
        per: Part with its own alpha: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds, or one bit has a sign.

    References:
        Choi et al., "PACT: Parameterized Clipping Activation for Quantized Neural Networks",
        arXiv:1805.06085.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    alpha: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    decay: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(1e-4)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        alpha = own._level(value, tensor)
        lower, upper = code_range(self.bits, own.signed, value.dtype)
        # The range is symmetric: one bit with a sign has the codes -1, 0 and 1.
        n, least = jnp.maximum(upper, 1), jnp.sign(lower)
        # The gradient to alpha is one exactly where values are clipped (Choi et al.,
        # section 3), so the clip is written by `where`: `jnp.clip` would split it at ties.
        inside = (value >= least * alpha) & (value < alpha)
        clipped = jnp.where(inside, value, jnp.where(value < alpha, least * alpha, alpha))
        fixed = lax.stop_gradient(clipped)
        # A product: compilers make one of a division by a constant, and move values by an ulp.
        step = lax.stop_gradient(alpha) * (1 / n)
        codes = lax.round(fixed / step, lax.RoundingMethod.TO_NEAREST_EVEN)
        return straight_through(clipped, codes * step).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "PACT":
        """Computes open clipping level and sign from an array."""
        signed, alpha = self.signed, self.alpha
        if signed is None:
            signed = infer_sign(x, tensor)
        if signed is True and isinstance(self.bits, int) and self.bits == 1:
            raise ValueError(
                f"PACT at {tensor.site}/{tensor.name} has negative values to quantize, and one bit "
                "for them: give it 2 or more, or signed=False."
            )
        if self.signed is not None and alpha is not None:
            return self
        if alpha is None:
            alpha = start_scale(x, tensor, self.per)
        return replace(self, signed=signed, alpha=alpha)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and a float for each clipping level."""
        return super().storage(shape, tensor) + 32 * tensor.count(shape, self.per)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the squares of the clipping levels."""
        own = self.start(lax.stop_gradient(x), tensor)
        alpha = jnp.asarray(own.alpha, wide_dtype(x))
        return jnp.asarray(self.decay, alpha.dtype) * jnp.sum(alpha * alpha)

    def _level(self, x: Array, tensor: Tensor) -> Array:
        alpha = tensor.fitted("PACT.alpha", self.alpha, x)
        # A level that training brought to zero or below stays a level.
        return keep_positive(alpha, 2.0**MAX_BITS)
