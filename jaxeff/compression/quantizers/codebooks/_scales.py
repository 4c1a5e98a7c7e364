"""Scales of value sets: how the largest magnitude of some values is brought to that of a format."""

from dataclasses import replace
from typing import Annotated, Any, Self

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import BaseQuantizer, Tensor, at_least_float32, magnitude
from jaxeff.core import Choice

Scaling = Annotated[str, Choice("none", "real", "power_of_two", "shared_exponent", "e4m3")]
"""How an open scale is chosen; `open_scale` has the choices."""


class ScaledValues(BaseQuantizer):
    """A fixed set of values times a scale; subclasses have the fields below, and a `width`."""

    scale: Any
    scaling: str
    per: str

    @property
    def most(self) -> float:
        """The largest value."""
        raise NotImplementedError

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Self:
        """Computes an open scale from an array, if there is to be one."""
        if self.scale is not None or self.scaling == "none":
            return self
        top = magnitude(at_least_float32(x), tensor, self.per)
        scale = open_scale(self.scaling, top, self.most)
        return replace(self, scale=scale)  # type: ignore[type-var]

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and for each scale a float or eight bits."""
        scaled = self.scale is not None or self.scaling != "none"
        bits = 32 if self.scaling in ("none", "real") else 8
        return super().storage(shape, tensor) + bits * tensor.count(shape, self.per) * int(scaled)


def open_scale(
    scaling: str, top: Float[Array, "*numbers"], most: float
) -> Float[Array, "*numbers"]:
    """Computes the scales of a format from the largest magnitudes of what shares them.

    Args:
        scaling: "real": the largest magnitude becomes the format's largest value. "power_of_two":
            the smallest power of two that keeps it below. "shared_exponent": the power of two that
            brings its exponent to the format's (values that then exceed the format saturate).
            "e4m3": as "real", rounded to 8-bit floats in units that bring the largest scale of all
            to the largest of these.
        top: Largest magnitudes.
        most: Largest value of the format.

    References:
        Rouhani et al., "OCP Microscaling Formats (MX) Specification", 2023, section 6.3
        (shared exponents). NVIDIA, "Pretraining Large Language Models with NVFP4",
        arXiv:2509.25149 (two levels of scales).
    """
    limit, power = np.frexp(most)
    if scaling == "real":
        scale = top * (1 / most)
    elif scaling == "e4m3":
        scale = _two_levels(top * (1 / most))
    else:
        fraction, exponent = jnp.frexp(top)
        exponent = exponent - int(power)
        if scaling == "power_of_two":
            # The smallest power of two with top / scale <= most, whose fraction is `limit`.
            exponent = exponent + (fraction > float(limit)).astype(exponent.dtype)
        scale = jnp.ldexp(jnp.ones_like(top), exponent)
    # An array of zeros has no scale, and any is right for it.
    return jnp.where(top > 0, scale, jnp.ones_like(scale))


def _two_levels(scale: Array) -> Array:
    """Rounds scales to three bits of mantissa, subnormals of e4m3 included."""
    info = jnp.finfo(jnp.float8_e4m3fn)
    unit = jnp.max(scale) * (1 / float(info.max))
    unit = jnp.where(unit > 0, unit, jnp.ones_like(unit))
    relative = scale / unit
    exponent = jnp.maximum(jnp.frexp(relative)[1] - 1, int(info.minexp)) - int(info.nmant)
    whole: Any = lax.round(jnp.ldexp(relative, -exponent), lax.RoundingMethod.TO_NEAREST_EVEN)
    # A scale of zero would lose values that are small beside the largest of the array.
    return jnp.maximum(jnp.ldexp(whole, exponent), float(info.smallest_subnormal)) * unit
