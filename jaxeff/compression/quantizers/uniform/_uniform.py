"""`Uniform`: a uniform grid over a range that is given, or that of the array itself.

This is what `Int` does to each of a layer's arrays.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    FULL,
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Symmetry,
    Tensor,
    fake_quantize,
    ranges,
    value_range,
)
from jaxeff.core import Choice, Width, check_number, register_setting, static, static_number


@dataclass(frozen=True)
class Ranged(BaseQuantizer):
    """A method whose grid is uniform over a range, with the fields that `Uniform` lists."""

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    symmetric: Annotated[Symmetry, Choice(False, True, FULL)] = static(False)
    range: tuple[Any, Any] | None = None
    per: Annotated[str, Choice("channel", "sample", "tensor", "token")] = static("channel")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.range is not None:
            for i, end in enumerate(self.range):
                check_number(f"{type(self).__name__}.range[{i}]", end)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Self:
        """Fixes an open range by an array; for an activation that of the whole tensor."""
        if self.range is not None:
            return self
        keep = tensor.axes("channel") if tensor.role == "weight" and self.per == "channel" else ()
        low, high = value_range(x, keep)
        if not keep:
            low, high = jnp.reshape(low, ()), jnp.reshape(high, ())
        return replace(self, range=(low, high))


@register_setting
@dataclass(frozen=True)
class Uniform(Ranged):
    """A uniform grid: `(q + zero) * step`, with a straight-through gradient.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        symmetric: Whether the grid is centred on zero; "full": with all 2^b values, of which one
            more is on the side of the largest magnitude, as in llama.cpp's Q4_0.
        range: Smallest and largest value; None takes those of the array on every call.
        per: Part with its own range: the output "channel" of a weight, the "sample" of an
            activation, its "token" (what one product reads), or the "tensor". What an array hasn't
            counts as "tensor".

    Raises:
        TypeError: `bits` is neither a whole number nor an array.
        ValueError: `bits` is out of bounds or not whole, or the range holds NaN.

    References:
        Krieger et al., arXiv:2212.07818; `jaxeff.compression.numerics` has the formulas.
    """

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid."""
        covered = self.range is None
        low, high = value_range(x, tensor.axes(self.per)) if self.range is None else self.range
        return fake_quantize(x, self.bits, low, high, self.symmetric, covered)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and for each range a step in float32 and, if affine, a code for zero."""
        zero = 0 if self.symmetric else self.bits
        return math.prod(shape) * self.bits + ranges(shape, tensor.axes(self.per)) * (32 + zero)
