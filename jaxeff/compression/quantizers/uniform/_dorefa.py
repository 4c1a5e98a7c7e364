"""`DoReFa`: few bits for weights, activations and the gradients that flow back.

With q_k(r) = round((2^k - 1) r) / (2^k - 1), through whose rounding gradients pass (Zhou et al.,
eq. 5), k being `bits`:

- weights are 2 q_k(tanh(w) / (2 max |tanh(w)|) + 1/2) - 1, with the gradient of that formula
  (eq. 9); for one bit they are sign(w) times the mean magnitude, with a gradient of one (eq. 7);
- activations are q_k(clip(x, 0, 1)) (eq. 11), with a gradient of one inside and zero outside;
- where `gradient_bits` g are given, the gradient dr with respect to an activation's quantized value
  becomes 2 m (q_g(dr / (2 m) + 1/2 + n) - 1/2) with m = max |dr| over an example and n uniform
  in +-1/2 / (2^g - 1) (eq. 12): rounded at random, it is right on average.

Sharp edges:
    Weights end in [-1, 1] whatever they were, so a trained network needs training or a
    normalization after each layer. There is no zero among them; zeros become 1 / (2^k - 1).
    Gradients are quantized on the way to the layers before. For the gradients with which a layer's
    own weights are updated, quantize what it returns: `LayerQuantization(..., at="output")`.
    The maximum of a gradient is that over all but the first axis, the batch.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression.numerics import (
    MAX_BITS,
    BaseQuantizer,
    Bits,
    Tensor,
    at_least_float32,
    largest_magnitude,
    power_of_two,
    safe_scale,
    straight_through,
    wide_dtype,
)
from jaxeff.core import Width, register_setting, static_number


@register_setting
@dataclass(frozen=True)
class DoReFa(BaseQuantizer):
    """DoReFa-Net: `DoReFa(1)` for weights, `DoReFa(2, gradient_bits=6)` for activations.

    Attributes:
        bits: Bit width, 1 to 16; an array may be traced.
        gradient_bits: Bit width of an activation's gradient, likewise; None leaves gradients alone.
            Needs `quantized(..., keyed=True)`.

    Raises:
        TypeError, ValueError: A width is out of bounds or not whole.

    References:
        Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low
        Bitwidth Gradients", arXiv:1606.06160.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    gradient_bits: Annotated[Bits | None, Width(1, MAX_BITS)] = static_number(None)

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the values above, of a weight or of an activation."""
        value = at_least_float32(x)
        if tensor.role == "weight":
            return self._weights(value).astype(x.dtype)
        # Written by `where`: `jnp.clip` would halve the gradient at its ends.
        inside = (value >= 0) & (value <= 1)
        clipped = jnp.where(inside, value, lax.stop_gradient(jnp.clip(value, 0, 1)))
        y = _rounded(clipped, self.bits).astype(x.dtype)
        if self.gradient_bits is None:
            return y
        steps = power_of_two(self.gradient_bits, value.dtype) - 1
        return _coarse_gradient(y, steps, tensor.random("DoReFa(gradient_bits=...)"))

    def deterministic(self) -> "DoReFa":
        """Returns the same with gradients left alone."""
        return replace(self, gradient_bits=None)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and for weights of one bit a float."""
        codes = super().storage(shape, tensor)
        if tensor.role == "activation":
            return codes
        if isinstance(self.bits, int):
            return codes + (32 if self.bits == 1 else 0)
        return codes + jnp.where(jnp.asarray(self.bits) == 1, 32, 0).astype(codes.dtype)

    def _weights(self, w: Array) -> Array:
        if isinstance(self.bits, int):
            return _binary(w) if self.bits == 1 else _squashed(w, self.bits)
        single = jnp.asarray(self.bits) == 1
        return jnp.where(single, _binary(w), _squashed(w, self.bits))


def _binary(w: Array) -> Array:
    mean = lax.stop_gradient(jnp.mean(jnp.abs(w)))
    return straight_through(w, jnp.where(w < 0, -mean, mean))


def _squashed(w: Array, bits: Bits) -> Array:
    # tanh limits the range before quantizing, so that single large weights don't set the
    # scale.
    squashed = jnp.tanh(w)
    unit = squashed / safe_scale(2 * largest_magnitude(squashed))
    return 2 * _rounded(unit + 0.5, bits) - 1


def _rounded(r: Array, bits: Bits) -> Array:
    """Computes q_k by a product: compilers make one of a division by a constant anyway."""
    steps = power_of_two(bits, r.dtype) - 1
    codes = lax.round(lax.stop_gradient(r) * steps, lax.RoundingMethod.TO_NEAREST_EVEN)
    return straight_through(r, codes * (1 / steps))


@jax.custom_vjp
def _coarse_gradient(x: Array, steps: Array, key: PRNGKeyArray) -> Array:
    """Passes values, and rounds their gradient at random to a number of steps."""
    return x


def _forward(x: Array, steps: Array, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Any]]:
    return x, (steps, key)


def _backward(kept: tuple[Array, Any], gradient: Array) -> tuple[Array, None, None]:
    steps, key = kept
    dr = gradient.astype(wide_dtype(gradient))
    # A scale per example: gradients differ by orders of magnitude between examples. Uniform
    # noise before rounding makes the coarse gradient unbiased.
    top = largest_magnitude(dr, (0,) if dr.ndim > 1 else ())
    scale = 2 * safe_scale(top)
    noise = jax.random.uniform(key, dr.shape, dr.dtype, -0.5, 0.5)
    codes = lax.round((dr / scale + 0.5) * steps + noise, lax.RoundingMethod.TO_NEAREST_EVEN)
    rounded = scale * (jnp.clip(codes, 0, steps) * (1 / steps) - 0.5)
    rounded = jnp.where(top > 0, rounded, jnp.zeros_like(rounded))
    return rounded.astype(gradient.dtype), None, None


_coarse_gradient.defvjp(_forward, _backward)
