"""`Stochastic`: rounding to one of the two neighbours on a grid, at random, right on average.

With v = x / step - zero the code is floor(v), or one more with probability v - floor(v) (Gupta et
al., section 3), clipped to the grid's ends; the gradient passes straight through. Within the grid
the mean of the value is x; its variance is step^2 p (1 - p) with p = v - floor(v), on average over
p step^2 / 6, twice the squared error of rounding to the nearest.

Sharp edge: a grid that isn't symmetric has its ends moved by up to half a step to hold zero
(`jaxeff.compression.numerics`), and there values beyond an end are rounded to it, always.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Tensor,
    grid,
    straight_through,
    value_range,
    wide_dtype,
)
from jaxeff.compression.quantizers.uniform._uniform import Uniform
from jaxeff.core import Choice, Width, check_number, register_setting, static, static_number


@register_setting
@dataclass(frozen=True)
class Stochastic(BaseQuantizer):
    """Stochastic rounding on a uniform grid: `Stochastic(8)`, in `quantized(..., keyed=True)`.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        symmetric: Whether the grid is centred on zero.
        range: Smallest and largest value. Open: those of the array on every call.
        per: Part with its own range: the output "channel" of a weight, the "sample" of an
            activation, or the "tensor". What an array hasn't counts as "tensor".

    Raises:
        TypeError: `bits` is neither a whole number nor an array.
        ValueError: `bits` is out of bounds or not whole, or the range holds NaN.

    References:
        Gupta et al., "Deep Learning with Limited Numerical Precision", arXiv:1502.02551. Höhfeld
        and Fahlman, "Probabilistic rounding in neural network learning with limited precision",
        Neurocomputing 4 (1992).
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    symmetric: bool = static(False)
    range: tuple[Any, Any] | None = None
    per: Annotated[str, Choice("channel", "sample", "tensor")] = static("channel")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.range is not None:
            for i, end in enumerate(self.range):
                check_number(f"Stochastic.range[{i}]", end)

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Draws one of the two neighbours of every value."""
        key = tensor.random("Stochastic")
        low, high = value_range(x, tensor.axes(self.per)) if self.range is None else self.range
        to = grid(self.bits, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype), self.symmetric)
        at = jax.lax.stop_gradient(x).astype(wide_dtype(x)) / to.step - to.zero
        down = jnp.floor(at)
        # Not floor(at + uniform), whose sum is rounded: that of a value on the grid stays itself.
        up = jax.random.uniform(key, at.shape, at.dtype) < at - down
        codes = jnp.clip(down + up.astype(at.dtype), to.lower, to.upper)
        return straight_through(x, ((codes + to.zero) * to.step).astype(x.dtype))

    def deterministic(self) -> Uniform:
        """Returns the nearest values of the same grid."""
        return Uniform(self.bits, self.symmetric, self.range, self.per)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Stochastic":
        """Fixes an open range by an array; for an activation that of the whole tensor."""
        if self.range is not None:
            return self
        keep = tensor.axes("channel") if tensor.role == "weight" and self.per == "channel" else ()
        low, high = value_range(x, keep)
        if not keep:
            low, high = jnp.reshape(low, ()), jnp.reshape(high, ())
        return Stochastic(self.bits, self.symmetric, (low, high), self.per)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and step and zero of each range."""
        return super().storage(shape, tensor) + 64 * tensor.count(shape, self.per)
