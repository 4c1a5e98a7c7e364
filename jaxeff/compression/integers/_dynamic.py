"""Products of activations whose range is measured in every call.

Two passes over the activations come first, for the range and for the codes, and the steps are
arrays. So the result goes through memory as int32 and nothing is folded into it but the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._grids import HALF_TO_EVEN, levels, width
from jaxeff.compression.integers._operators import LIMIT, finer_units
from jaxeff.compression.numerics import Tensor, grid, value_range
from jaxeff.compression.quantizers.uniform import Uniform
from jaxeff.program import Layer


def ranged_by_itself(
    call: Callable[..., Array],
    weights: Callable[[], tuple[Array, Array]],
    layer: Layer,
    values: Sequence[Any],
    put: Callable[[str, Callable[[], Array]], Array],
    weight_bits: int,
    quantizer: Uniform,
    tensor: Tensor,
    x: Float[Array, "*shape"],
) -> Float[Array, "*result"]:
    """Computes a linear layer whose activations are quantized by their own range.

    Args:
        call: The composite.
        weights: Function that returns codes of the weights and their steps.
        layer: The layer.
        values: Inputs of the layer.
        put: Keeps what depends on parameters alone.
        weight_bits: Width of the weights' codes.
        quantizer: The activations' grid, of no range.
        tensor: Description of the activations for their grid.
        x: The activations.
    """
    bits = width(quantizer, layer.site)
    low, high = value_range(x, tensor.axes(quantizer.per))
    to = grid(bits, low.astype(jnp.float32), high.astype(jnp.float32), quantizer.symmetric)
    half = 2 ** (bits - 1)
    attributes: dict[str, Any] = {}
    if read.is_convolution(layer):
        # Padded as values: a code of zero per sample is no number that a kernel could pad with.
        (top, bottom), (left, right) = layer.op.params["padding"]  # type: ignore[union-attr]
        x = jnp.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        attributes = {"padding": (0, 0, 0, 0), "input_zero": 0}
    nearest = lax.round(x / to.step, HALF_TO_EVEN)
    u = jnp.clip(nearest - to.zero, to.lower, to.upper) + half
    w = put("codes", lambda: weights()[0])
    steps = put("steps", lambda: weights()[1])
    bias = put("bias", lambda: read.bias_of(layer, values))
    over = tuple(range(w.ndim - 1))
    sums = put("sums", lambda: weights()[0].astype(jnp.int32).sum(over, dtype=jnp.int32))
    acc = call(
        u.astype(jnp.uint8),
        w,
        jnp.zeros(w.shape[-1:], jnp.int32),
        result="sums",
        zero=0,
        lower=0,
        upper=0,
        shortcut="none",
        shortcut_zero=0,
        weight_bits=weight_bits,
        activation_bits=bits,
        **attributes,
    )

    def along(vector: Array) -> Array:
        return vector.reshape((1,) * (acc.ndim - 1) + vector.shape)

    zero = (half - to.zero).astype(jnp.int32)
    finer = finer_units(read.depth_of(layer), bits, levels(weight_bits))
    # One unit of the accumulator as a number; spare bits of int32 make the bias finer.
    unit = to.step * along(steps) / 2**finer
    offset = jnp.clip(lax.round(along(bias) / unit, HALF_TO_EVEN), float(-LIMIT), float(LIMIT))
    # sum (u - zero) w = sum u w - zero sum w, with a zero that only this call knows.
    whole = ((acc - zero * along(sums)) << finer) + offset.astype(jnp.int32)
    return whole.astype(jnp.float32) * unit
