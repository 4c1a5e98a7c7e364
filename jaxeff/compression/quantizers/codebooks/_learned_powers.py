"""`LearnedPowers`: powers of two between two learnt ends, which also set the bit width.

The magnitude of the value is the nearest power of two, 2^round(log2 |x|), between q_min and q_max
(Uhlich et al., eq. 3 of its section 2), the sign that of x, and the width is that of as many codes:

```text
bits = ceil(log2(log2(q_max / q_min) + 1) + 1)
```

In this parametrization (P3 of the paper) the derivatives with respect to (q_min, q_max) are
(sign(x), 0) for |x| < q_min, (0, sign(x)) for |x| > q_max and zero between, where that with respect
to x is Q(x) / x, as rounding the logarithm passes gradients through; it is zero outside. Both ends
count as the nearest powers of two, with a derivative of one.

Sharp edge: there is no zero among the values, unless `zero` adds one for all magnitudes below
q_min / sqrt(2); zeros become +q_min.
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
    keep_ordered,
    start_scale,
    straight_through,
    wide_dtype,
)
from jaxeff.core import Choice, Count, Number, register_setting, static, static_number


@register_setting
@dataclass(frozen=True)
class LearnedPowers(LearnedBits):
    """Signed powers of two whose range, and so width, is learnt: `LearnedPowers()`.

    Attributes:
        initial: Width to start from, 2 to 6.
        minimum: The smallest magnitude, q_min; positive. Open: what the initial width gives.
        maximum: The largest magnitude, q_max; positive. Open: that of the array, one if it is zero.
        zero: Whether zero is a value, for one code more.
        price: Price of a bit in the penalty. A plain number isn't learnt.
        per: Part with its own ends: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: A number is out of bounds.
    """

    initial: Annotated[int, Count(2, 6)] = static(4)
    minimum: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    maximum: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    zero: bool = static(False)
    price: Annotated[Float[Array, "..."] | float, Number(0)] = static_number(0.0)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    beside: ClassVar[int] = 2 * 8  # the exponents of both ends

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest powers of two in range, with the gradients above."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        least = tensor.fitted("LearnedPowers.minimum", own.minimum, value)
        most = tensor.fitted("LearnedPowers.maximum", own.maximum, value)
        least, most = _ends(least, most)
        fixed = lax.stop_gradient(value)
        size = jnp.abs(fixed)
        sign = jnp.where(fixed < 0, -jnp.ones_like(fixed), 1)
        low, high = lax.stop_gradient(least), lax.stop_gradient(most)
        # 2^e <= x < 2^(e+1); the logarithm's half lies at sqrt(2) 2^e.
        power = nearest_power(jnp.clip(size, low, high))
        # Derivative Q(x) / x: rounding the logarithm passes gradients through (P3).
        between = value * (power / jnp.clip(size, low, high))
        inside = (size >= low) & (size <= high)
        smooth = jnp.where(inside, between, sign * jnp.where(size < low, least, most))
        y = straight_through(smooth, sign * power)
        if self.zero:
            # The logarithm's half below q_min, from where the next smaller power would be nearest.
            y = jnp.where(size < low * 2**-0.5, jnp.zeros_like(y), y)
        return y.astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedPowers":
        """Computes open ends of the range from an array."""
        least, most = self.minimum, self.maximum
        if least is not None and most is not None:
            return self
        if most is None:
            top = start_scale(x, tensor, self.per)
            most = nearest_power(top.astype(wide_dtype(x)))
        if least is None:
            # Powers per sign that fit the width; zero takes one code of them.
            codes = 2 ** (self.initial - 1) - int(self.zero)
            least = jnp.asarray(most) * 2.0 ** (1 - codes)
        return replace(self, minimum=least, maximum=most)

    @property
    def width(self) -> Any:
        """Bits of a code, whole numbers with a gradient; before `init` those to start from."""
        if self.minimum is None or self.maximum is None:
            return self.initial
        least, most = _ends(jnp.asarray(self.minimum), jnp.asarray(self.maximum))
        powers = [jnp.frexp(lax.stop_gradient(end))[1] for end in (least, most)]
        count = 2 * (powers[1] - powers[0] + 1) + int(self.zero)
        # ceil(log2(count)) exactly: the exponent that `frexp` has for count - 1.
        exponent = jnp.frexp((count - 1).astype(least.dtype))[1].astype(least.dtype)
        return straight_through(jnp.log2(jnp.log2(most / least) + 1) + 1, exponent)


def nearest_power(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Rounds positive numbers to powers of two, exactly at the middle of the logarithm."""
    fraction, exponent = jnp.frexp(x)
    # x = fraction 2^e with fraction in [1/2, 1), whose logarithm has its middle at 2^-1/2.
    half = jnp.ones_like(x) / 2
    return jnp.ldexp(jnp.where(fraction < 2**-0.5, half, 2 * half), exponent)


def _ends(least: Array, most: Array) -> tuple[Array, Array]:
    """Makes both ends powers of two in order, wherever training has brought them."""
    # Twice the smallest normal number: `low * 2**-0.5` is no subnormal then, which is flushed.
    least, most = (
        straight_through(end, nearest_power(lax.stop_gradient(end)))
        for end in keep_ordered(least, most, 2.0)
    )
    return least, most
