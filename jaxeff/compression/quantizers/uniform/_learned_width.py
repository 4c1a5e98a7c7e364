"""`LearnedWidth`: a step and a maximum that are learnt, from which the bit width follows.

With a sign, the value is d round(x / d) for |x| <= q_max and sign(x) q_max beyond (Uhlich et al.,
eq. 1), and the width follows from q_max = (2^(bits-1) - 1) d (eq. 2):

```text
bits = ceil(log2(q_max / d + 1) + 1)
```

In this parametrization (U3 of the paper, its best) the derivatives with respect to (d, q_max) are
((Q(x) - x) / d, 0) inside the range and (0, sign(x)) outside (eq. 3c); that with respect to x is
one inside and zero outside. The width has the derivatives of its formula, rounding passed through,
so bits are learnt by any loss in which they appear: here `price` per bit (`penalty`), or a
constraint on what all arrays take (`jaxeff.compression.memory`), as in the paper's section 3:

```text
loss + weight * max(0, memory(f, spec, params, x) - budget)^2
```

Codes without a sign need one bit less.

Sharp edges:
    A q_max between two steps counts as the nearer one, so that every value has a code.
    Steps are no powers of two as the paper has them for its hardware; `LearnedPowers` learns values
    that are.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    LearnedBits,
    Tensor,
    at_least_float32,
    infer_sign,
    keep_ordered,
    start_scale,
    straight_through,
)
from jaxeff.core import Choice, Count, Number, register_setting, static, static_number

MAX_WIDTH = 24
"""A code of more bits is none of float32's whole numbers."""


@register_setting
@dataclass(frozen=True)
class LearnedWidth(LearnedBits):
    """A uniform grid whose width is learnt: `LearnedWidth()`.

    Attributes:
        initial: Width to start from, 2 to 16.
        step: Distance of neighbouring values, d; positive. Open: what the initial width gives.
        maximum: Largest value, q_max; positive. Open: the largest magnitude, one if that is zero.
        signed: Whether there are values below zero. Open: for weights there are, for activations if
            one is negative.
        price: Price of a bit in the penalty. A plain number isn't learnt.
        per: Part with its own numbers: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds.
    """

    initial: Annotated[int, Count(2, 16)] = static(8)
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    maximum: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    price: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    beside: ClassVar[int] = 64  # step and maximum, as floats

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        step = tensor.fitted("LearnedWidth.step", own.step, value)
        maximum = tensor.fitted("LearnedWidth.maximum", own.maximum, value)
        step, maximum = _sound(step, maximum)
        least = -maximum if own.signed is True else jnp.zeros_like(maximum)
        if not isinstance(own.signed, bool):
            least = jnp.where(jnp.asarray(own.signed), -maximum, 0)
        low, high = lax.stop_gradient(least), lax.stop_gradient(maximum)
        codes = lax.round(
            jnp.clip(lax.stop_gradient(value), low, high) / lax.stop_gradient(step),
            lax.RoundingMethod.TO_NEAREST_EVEN,
        )
        # Inside, d round(x / d) has the derivative round(x / d) - x / d with respect to d.
        slope = codes - lax.stop_gradient(value / step)
        inside = value + slope * (step - lax.stop_gradient(step))
        smooth = jnp.where(value > high, maximum, jnp.where(value < low, least, inside))
        return straight_through(smooth, codes * lax.stop_gradient(step)).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedWidth":
        """Computes open step, maximum and sign from an array."""
        signed, step, maximum = self.signed, self.step, self.maximum
        if signed is not None and step is not None and maximum is not None:
            return self
        if signed is None:
            signed = infer_sign(x, tensor)
        if maximum is None:
            maximum = start_scale(x, tensor, self.per)
        if step is None:
            # Eq. 2 solved for d: q_max / (2^(bits-1) - 1), and a bit more without a sign.
            with_sign, without = (1 / (2.0 ** (self.initial - s) - 1) for s in (1, 0))
            share: Any = with_sign if signed is True else without
            if not isinstance(signed, bool):
                share = jnp.where(signed, with_sign, without)
            ends = jnp.asarray(maximum)
            step = ends * jnp.asarray(share, ends.dtype)
        return replace(self, signed=signed, step=step, maximum=maximum)

    @property
    def width(self) -> Any:
        """Bits of a code, whole numbers with a gradient; before `init` those to start from."""
        if self.step is None or self.maximum is None:
            return self.initial
        sign: Any = 1.0 if self.signed is None else self.signed
        step, maximum = _sound(jnp.asarray(self.step), jnp.asarray(self.maximum))
        count = lax.round(lax.stop_gradient(maximum / step), lax.RoundingMethod.TO_NEAREST_EVEN)
        # 2^e > count, exactly.
        exponent = jnp.frexp(count)[1].astype(step.dtype)
        smooth = jnp.log2(maximum / step + 1)
        return straight_through(smooth, exponent) + jnp.asarray(sign, step.dtype)


def _sound(step: Array, maximum: Array) -> tuple[Array, Array]:
    """Repairs a step and a maximum that training brought near zero, or past each other."""
    # At least one step, or zero would be the only value.
    step, maximum = keep_ordered(step, maximum)
    # Beyond this a code is no whole number of the dtype.
    return jnp.where(maximum > step * 2.0**MAX_WIDTH, maximum * 2.0**-MAX_WIDTH, step), maximum
