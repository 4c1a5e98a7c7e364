"""`HalfQuadratic`: an affine grid whose zero is found by the half-quadratic solver, without data.

The step is that of the range. The zero z, no whole number, minimises the sum of |e|^p over the
errors e = w - s (q - z), p < 1, which a few large errors change little. With a second array m for
the errors, two problems that have closed forms take turns (Badri and Shaji, sub-problems 1 and 2):

    m <- sign(e) max(|e| - |e|^(p - 1) / beta, 0)
    z <- mean(q - (w - m) / s),        beta <- growth * beta

```python
from jaxeff.compression import Grouped, HalfQuadratic, LayerQuantization, init, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
four = LayerQuantization(Grouped(HalfQuadratic(4), 4))
spec = init(f, params, x, {"*:linear": four, "conv1": None})     # the solver runs once
logits = quantized(f, spec)(params, x)
```

Sharp edges:
    Errors count in steps, so that `beta` doesn't depend on how large weights are.
    Zero is none of the values, so that padded or pruned weights don't stay zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Tensor,
    at_least_float32,
    keep_positive,
    kept_axes,
    power_of_two,
    ranges,
    round_through,
)
from jaxeff.core import Choice, Count, Number, Width, register_setting, static, static_number

_BITS = {"float32": 32, "float16": 16}
_LEAST = {"float32": 2.0**-126, "float16": 2.0**-24}
_MOST_ZERO = 2.0**12
"""The largest zero of an open grid, which float16 still holds: values far from zero, close
together, get wider steps."""


@register_setting
@dataclass(frozen=True)
class HalfQuadratic(BaseQuantizer):
    """Half-quadratic quantization (HQQ): `Grouped(HalfQuadratic(4), 64)`.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        step: Distance of neighbouring values, positive. Open: that of the array's range.
        zero: The code, no whole number, of the value zero. Open: by the solver.
        per: Part with its own step and zero: the output "channel" of a weight, or the "tensor".
        power: The p of the error's norm.
        beta: How closely the second array follows the errors at first.
        growth: Factor of beta from turn to turn.
        turns: Turns of the solver.
        numbers: Numbers that steps and zeros are stored as: "float32" or "float16".

    Raises:
        TypeError, ValueError: A number is out of bounds.

    References:
        Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023,
        https://mobiusml.github.io/hqq_blog, sub-problems 1 and 2 of the solver.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    step: Annotated[Float[Array, "..."] | float | None, Number(above=0)] = None
    zero: Float[Array, "..."] | float | None = None
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")
    power: Annotated[float, Number(above=0, high=1)] = static(0.7)
    beta: Annotated[float, Number(above=0)] = static(10.0)
    growth: Annotated[float, Number(low=1)] = static(1.01)
    turns: Annotated[int, Count(0)] = static(20)
    numbers: Annotated[str, Choice(*_BITS)] = static("float32")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values, with straight-through gradients where none is clipped."""
        own = self.start(jax.lax.stop_gradient(x), tensor)
        value = at_least_float32(x)
        step = keep_positive(tensor.fitted("HalfQuadratic.step", own.step, value))
        zero = tensor.fitted("HalfQuadratic.zero", own.zero, value)
        # Clipped before rounding: values outside of the range have no gradient.
        codes = round_through(jnp.clip(value / step + zero, 0, self._top(value.dtype)))
        return ((codes - zero) * step).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "HalfQuadratic":
        """Computes an open step by the range, and an open zero by the solver."""
        if self.step is not None and self.zero is not None:
            return self
        value = at_least_float32(x)
        axes, shape = kept_axes(value, tensor.axes(self.per))
        low, high = (end(value, axes).reshape(shape) for end in (jnp.min, jnp.max))
        step: Any = self.step
        if step is None:
            widest = jnp.maximum(jnp.abs(low), jnp.abs(high))
            step = jnp.maximum((high - low) / self._top(value.dtype), widest / _MOST_ZERO)
            # An array of zeros has no range, and any step is right for it.
            # One that would vanish in float16 is the smallest that doesn't.
            least = _LEAST[self.numbers]
            step = self._stored(jnp.where(step > 0, jnp.maximum(step, least), jnp.ones_like(step)))
        step = keep_positive(jnp.asarray(step, value.dtype))
        zero = self.zero
        if zero is None:
            zero = self._solved(value, step, -low / step, axes, shape)
        return replace(self, step=step, zero=zero)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the codes, steps and zeros."""
        numbers = 2 * _BITS[self.numbers] * ranges(shape, tensor.axes(self.per))
        return math.prod(shape) * self.bits + numbers

    def _solved(
        self, x: Array, step: Array, zero: Array, axes: tuple[int, ...], shape: tuple[int, ...]
    ) -> Array:
        """Runs the solver, and returns the best zero that it came by."""

        def errors(zero: Array) -> tuple[Array, Array]:
            codes = jnp.clip(jnp.round(x / step + zero), 0, self._top(x.dtype))
            return codes, x / step - (codes - zero)

        def total(e: Array) -> Array:
            return jnp.sum(jnp.abs(e) ** self.power, axes).reshape(shape)

        def turn(state: tuple[Array, Array, Array], i: Array) -> tuple[Any, None]:
            best, lowest, zero = state
            codes, e = errors(zero)
            # It grows, so that m comes nearer to the errors.
            beta = self.beta * self.growth**i
            # |e|^(p - 1) is infinite at zero, where nothing is left of e anyway.
            size = jnp.maximum(jnp.abs(e), jnp.finfo(e.dtype).tiny)
            m = jnp.sign(e) * jnp.maximum(size - size ** (self.power - 1) / beta, 0)
            zero = self._stored(jnp.mean(codes - x / step + m, axes).reshape(shape))
            # Not every turn is better: codes change, which the second problem takes as fixed.
            cost = total(errors(zero)[1])
            better = cost < lowest
            return (jnp.where(better, zero, best), jnp.where(better, cost, lowest), zero), None

        zero = self._stored(zero)
        first = zero, total(errors(zero)[1]), zero
        turns = jnp.arange(self.turns, dtype=x.dtype)
        (best, _, _), _ = jax.lax.scan(turn, first, turns)
        return best

    def _stored(self, number: Array) -> Array:
        """Rounds numbers to what they are stored as; the nearest where that has no such ones."""
        kind = jnp.finfo(self.numbers)
        number = jnp.clip(number, float(kind.min), float(kind.max))
        return number.astype(self.numbers).astype(number.dtype)

    def _top(self, dtype: Any) -> Any:
        return power_of_two(self.bits, dtype) - 1
