"""`LSQ`: a step that is learnt by its gradient; with an offset, LSQ+.

With v = clip((x - offset) / step, -Qn, Qp) the value is round(v) * step + offset, and rounding
passes gradients through. Inside the range the step's gradient is round(v) - v, outside it is the
code of the end (Esser et al., eq. 3); that of x is one inside and zero outside (eq. 5). The
offset's is zero inside and one outside (Bhalgat et al., eq. 6).
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Grid,
    Tensor,
    code_range,
    infer_sign,
    keep_positive,
    kept_axes,
    ranges,
    round_through,
    safe_scale,
)
from jaxeff.core import (
    Choice,
    Number,
    Width,
    is_concrete,
    register_setting,
    static,
    static_number,
    widened,
)

_STARTS = 64


@register_setting
@dataclass(frozen=True)
class LSQ(BaseQuantizer):
    """Learned step size quantization: `LSQ(4)`.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced. One signed bit has the codes -1 and 0.
        step: Distance of neighbouring values, positive. Open: 2 <|x|> / sqrt(Qp) (section 2.1).
        signed: Whether codes reach below zero. Open: for weights they do, for activations if one is
            negative.
        offset: The value of code zero; learnt where `asymmetric`. Open: the smallest value for
            unsigned codes (LSQ+, section 3).
        asymmetric: Whether there is an offset (LSQ+). Codes are then unsigned for activations.
        per: Part with its own step: the output "channel" of a weight, or the "tensor".
        initial: Start of an open step: the "mean" magnitude, as in the paper, or the least
            squared "error" of the array among steps that clip it less and less, which a short
            training on of activations needs.
        scaled: Whether the gradients of step and offset are divided by sqrt(n Qp), n the values
            that share the step (section 2.2).
        narrow: Whether weights go without the lowest code, which has no counterpart above zero:
            `integer` computes with such codes alone. It takes two bits or more: without its lowest
            code one bit has zero alone.

    Raises:
        TypeError, ValueError: `bits` or `step` is out of bounds, or one bit is `narrow`.

    References:
        Esser et al., "Learned Step Size Quantization", arXiv:1902.08153. Bhalgat et al., "LSQ+",
        arXiv:2004.09576.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    signed: bool | Array | None = static_number(None)
    offset: Float[Array, "..."] | float | None = None
    asymmetric: bool = static(False)
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")
    initial: Annotated[str, Choice("mean", "error")] = static("mean")
    scaled: bool = static(True)
    narrow: bool = static(False)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        # A traced width can't be told; searches over widths sweep such ones.
        if self.narrow and is_concrete(self.bits) and np.any(np.asarray(self.bits) == 1):
            raise ValueError(
                "LSQ.narrow leaves one bit the code 0 alone, so that all weights were zero: take "
                "two bits or more, or narrow=False."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values of the grid, with the gradients above."""
        own = self.start(jax.lax.stop_gradient(x), tensor)
        lower, upper = own.ends(x.dtype, tensor.role)
        step = jnp.asarray(own.step, x.dtype)
        if self.scaled:
            # g = 1 / sqrt(N Qp): keeps the ratio of update to value of a step near that of
            # the weights (Esser et al., section 2.2).
            shared = x.size // max(step.size, 1)
            scale = jax.lax.rsqrt(shared * jnp.maximum(upper, 1))
            step = _scaled(step, scale)
        offset: Any = 0.0
        if own.offset is not None:
            offset = jnp.asarray(own.offset, x.dtype)
            offset = _scaled(offset, scale) if self.scaled else offset
        # A step that training brought to zero or below stays a step.
        step = keep_positive(step)
        codes = round_through(jnp.clip((x - offset) / step, lower, upper))
        return codes * step + offset

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LSQ":
        """Computes open step, sign and offset from an array."""
        if self.step is not None and self.signed is not None:
            return self
        axes, shape = kept_axes(x, tensor.axes(self.per))
        signed = self.signed
        if signed is None:
            # With an offset, codes of activations start at zero, whatever the values are.
            unsigned = self.asymmetric and tensor.role == "activation"
            signed = False if unsigned else infer_sign(x, tensor)
        known = replace(self, signed=signed)
        lower, upper = known.ends(x.dtype, tensor.role)
        offset: Any = self.offset
        if self.asymmetric and offset is None:
            bottom = jnp.min(x, axes).reshape(shape)
            offset = bottom if signed is False else jnp.zeros_like(bottom)
        step: Any = self.step
        # LSQ+: codes span from the smallest to the largest value.
        if step is None and self.asymmetric and signed is False:
            top = jnp.max(x, axes).reshape(shape)
            step = (top - offset) / (upper - lower)
        elif step is None and self.initial == "error":
            step = _least_error(x, axes, shape, lower, upper)
        elif step is None:
            mean = jnp.mean(jnp.abs(x), axes).reshape(shape)
            step = 2 * mean / jnp.sqrt(jnp.maximum(upper, 1))
        # An array of zeros has no scale, and any step is right for it.
        step = safe_scale(jnp.asarray(step)).astype(x.dtype)
        return replace(known, step=step, offset=offset)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the codes, and of steps and offsets in float32."""
        each = 64 if self.asymmetric else 32
        return math.prod(shape) * self.bits + ranges(shape, tensor.axes(self.per)) * each

    def ends(self, dtype: Any, role: str) -> tuple[Array, Array]:
        """Returns the lowest and the highest code, once the sign is known."""
        lower, upper = code_range(self.bits, self.signed, dtype)
        return (jnp.maximum(lower, -upper) if self.narrow and role == "weight" else lower), upper

    def grid(self, dtype: Any) -> Grid:
        """Returns the values that weights take, once step and sign are known."""
        step = jnp.asarray(self.step, dtype)
        lower, upper = (jnp.broadcast_to(end, step.shape) for end in self.ends(dtype, "weight"))
        offset = jnp.asarray(0.0 if self.offset is None else self.offset, dtype)
        return Grid(step, jnp.broadcast_to(offset / step, step.shape), lower, upper)


def _least_error(
    x: Array, axes: tuple[int, ...], shape: tuple[int, ...], lower: Any, upper: Any
) -> Array:
    """Searches for the step of least squared error, among `_STARTS` even parts of the widest."""
    # The step at which nothing is clipped; smaller ones clip more and round finer.
    below = jnp.where(lower < 0, x / jnp.minimum(lower, -1), jnp.zeros_like(x))
    above = jnp.maximum(x, 0) / jnp.maximum(upper, 1)
    widest = jnp.max(jnp.maximum(below, above), axes).reshape(shape)

    def error(factor: Array) -> Array:
        step = keep_positive(widest * factor)
        value = jnp.clip(jnp.round(x / step), lower, upper) * step
        return jnp.sum(jnp.square(widened(x - value)), axes).reshape(shape)

    factors = jnp.arange(1, _STARTS + 1, dtype=x.dtype) / _STARTS
    errors = jax.lax.map(error, factors)
    return widest * factors[jnp.argmin(errors, axis=0)]


def _scaled(value: Array, scale: Array) -> Array:
    """Multiplies the gradient of a value."""
    fixed = jax.lax.stop_gradient(value)
    return fixed + scale * (value - fixed)
