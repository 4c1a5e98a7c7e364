"""`Floating`: the values of a narrow floating-point format, 16, 8, 6 or 4 bits.

A value is rounded to the nearest of the format, half to even, subnormals included: with e the
exponent of x, or the format's smallest where that is larger, it is round(x / 2^(e-m)) 2^(e-m) for m
bits of mantissa. This is what a cast to the dtype of that name gives, bit for bit, but on every
machine alike and without the casts that compilers remove. Beyond the largest value values saturate,
or become what the cast gives, infinity or NaN where there is none.

With a scale the value is that of x / scale, times the scale: what fits an array into eight bits.

The gradient is straight-through, and zero beyond the largest value where values saturate.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    Tensor,
    at_least_float32,
    keep_positive,
    straight_through,
)
from jaxeff.compression.quantizers.codebooks._scales import ScaledValues, Scaling
from jaxeff.core import Choice, Number, register_setting, static

FORMATS = (
    "bfloat16", "float16",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e3m4",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
)  # fmt: skip
_NAMES = ("e4m3", "e5m2")
"""Short for the two formats of OCP and of NVIDIA's and ARM's hardware."""


@register_setting
@dataclass(frozen=True)
class Floating(ScaledValues):
    """A floating-point format: `Floating("bfloat16")`, `Floating("e4m3", scaling="power_of_two")`.

    Attributes:
        format: A dtype of `FORMATS`: those with a sign that `ml_dtypes` has. "e4m3" and "e5m2" are
            short for "float8_e4m3fn" and "float8_e5m2"; "fn" formats have no infinities, "fnuz" no
            negative zero either, and their own exponents.
        scale: Divisor of values before rounding, positive; learnt by its gradient. Open: by
            `scaling`.
        scaling: Choice of an open scale: "none" has none; "real" takes the largest magnitude to
            the format's largest value; "power_of_two" the smallest power of two that keeps it
            below, so that scaling is exact; "shared_exponent" the power of two of the MX formats,
            whose largest values saturate; "e4m3" rounds a "real" one to an 8-bit float in units of
            the array (NVFP4).
        saturate: Whether values beyond the largest become it.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: The format or scaling is unknown, or the scale isn't positive.

    References:
        Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433. Noune et al., "8-bit
        Numerical Formats for Deep Neural Networks", arXiv:2206.02915 (fnuz).
    """

    format: Annotated[str, Choice(*FORMATS, *_NAMES)] = static("bfloat16")
    scale: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    scaling: Scaling = static("none")
    saturate: bool = static(True)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the format, times the scale."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        if own.scale is None:
            return self._nearest(value).astype(x.dtype)
        scale = tensor.fitted("Floating.scale", own.scale, value)
        scale = keep_positive(scale)
        return (self._nearest(value / scale) * scale).astype(x.dtype)

    @property
    def most(self) -> float:
        """The format's largest value."""
        return float(self._info.max)

    @property
    def width(self) -> int:
        """The format's bits."""
        return int(self._info.bits)

    @property
    def _info(self) -> Any:
        return jnp.finfo(_dtype(self.format))

    def _nearest(self, x: Array) -> Array:
        info, most = self._info, self.most
        fixed = lax.stop_gradient(x)
        # The exponent e of 2^e <= |x|; that of zero is below all.
        exponent = jnp.frexp(fixed)[1] - 1
        exponent = jnp.where(fixed == 0, int(info.minexp), exponent)
        exponent = jnp.maximum(exponent, int(info.minexp)) - int(info.nmant)
        # In units of the last place: powers of two scale exactly, so `round` alone rounds.
        unit = jnp.ldexp(fixed, -exponent)
        rounded = lax.round(unit, lax.RoundingMethod.TO_NEAREST_EVEN)
        y = jnp.ldexp(rounded, exponent)
        beyond = jnp.abs(y) > most
        if self.saturate:
            # A constant there: saturated values have no gradient.
            ends = jnp.clip(fixed, -most, most)
            y = jnp.where(beyond, ends, y)
            x = jnp.where(jnp.abs(fixed) > most, ends, x)
        else:
            y = jnp.where(beyond, jnp.sign(fixed) * _overflow(self.format), y)
            x = jnp.where(jnp.isfinite(fixed), x, jnp.zeros_like(x))
        return straight_through(x, jnp.where(jnp.isnan(fixed), fixed, y))


def _dtype(name: str) -> Any:
    full = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}.get(name, name)
    return jnp.dtype(full)


def _overflow(name: str) -> float:
    """Returns what a cast makes of a value beyond the largest."""
    dtype = _dtype(name)
    with np.errstate(over="ignore"):
        return float(np.asarray(2 * float(jnp.finfo(dtype).max), np.float64).astype(dtype))
