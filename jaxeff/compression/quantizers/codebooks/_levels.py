"""`Levels`: a fixed set of values, times a scale: NF4, and integers that share an exponent.

A value becomes the nearest of scale v for the values v. The gradient is straight-through; that of
the scale is the one of the product.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    Tensor,
    at_least_float32,
    keep_positive,
    lookup_levels,
    nearest,
    straight_through,
)
from jaxeff.compression.quantizers.codebooks._scales import ScaledValues, Scaling
from jaxeff.core import Choice, Number, register_setting, static


@register_setting
@dataclass(frozen=True)
class Levels(ScaledValues):
    """Values and their scale: `Levels((-1.0, 0.0, 0.5, 1.0))`.

    Attributes:
        values: The values, in increasing order.
        scale: Factor of the values, positive; learnt by its gradient. Open: by `scaling`.
        scaling: Choice of an open scale, as `Floating` has it.
        per: Part with its own scale: the output "channel" of a weight, or the "tensor".

    Raises:
        TypeError, ValueError: There are fewer than two values, they aren't increasing or aren't
            finite, the scaling is unknown, or the scale isn't positive.

    References:
        Dettmers et al., "QLoRA", arXiv:2305.14314 (NF4).
    """

    values: tuple[float, ...] = static()
    scale: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    scaling: Scaling = static("real")
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        given = self.values
        if not isinstance(given, tuple) or not all(isinstance(v, float | int) for v in given):
            raise TypeError(f"Levels.values must be a tuple of numbers, not {given!r}.")
        apart = all(a < b for a, b in itertools.pairwise(given))
        if len(given) < 2 or not apart or not max(map(abs, given)) < float("inf"):
            raise ValueError(
                f"Levels.values must be two finite numbers or more, in increasing order: {given!r}."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest of the scaled values."""
        own = self.start(lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        levels = jnp.asarray(self.values, value.dtype)
        scale = jnp.ones((), value.dtype) if own.scale is None else own.scale
        scale = keep_positive(tensor.fitted("Levels.scale", scale, value))
        unit = value / scale
        codes = nearest(lax.stop_gradient(unit), levels)
        y = straight_through(unit, lookup_levels(levels, codes)) * scale
        return jnp.where(jnp.isnan(x), x, y.astype(x.dtype))

    @property
    def most(self) -> float:
        """The largest value of either sign."""
        return float(max(map(abs, self.values)))

    @property
    def width(self) -> int:
        """Bits of one code."""
        return (len(self.values) - 1).bit_length()
