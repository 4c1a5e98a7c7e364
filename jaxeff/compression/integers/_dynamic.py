"""Products of activations whose range is measured in every call.

Two passes over the activations come first, for the range and for the codes, and the steps are
arrays. So the result goes through memory as int32 and nothing is folded into it but the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.integers._grids import HALF_TO_EVEN, levels, width
from jaxeff.compression.integers._kernels import Kernel
from jaxeff.compression.integers._operators import biased, finer_units
from jaxeff.compression.numerics import Tensor, grid, value_range
from jaxeff.compression.quantizers import Uniform


def ranged_by_itself(
    kernel: Kernel,
    call: Callable[..., Array],
    weights: Callable[[], tuple[Array, Array]],
    site: str,
    bias_of: Callable[[], Array],
    put: Callable[[str, Callable[[], Array]], Array],
    weight_bits: int,
    quantizer: Uniform,
    tensor: Tensor,
    x: Float[Array, "*shape"],
) -> Float[Array, "*result"]:
    """Computes a linear layer whose activations are quantized by their own range.

    Args:
        kernel: How its products are computed.
        call: The kernel's operator, under the name of the layer.
        weights: Function that returns codes of the weights and their steps.
        site: The layer's.
        bias_of: Function that returns what is added to each output.
        put: Keeps what depends on parameters alone.
        weight_bits: Width of the weights' codes.
        quantizer: The activations' grid, of no range.
        tensor: Description of the activations for their grid.
        x: The activations.
    """
    bits = width(quantizer, site)
    low, high = value_range(x, tensor.axes(quantizer.per))
    to = grid(bits, low.astype(jnp.float32), high.astype(jnp.float32), quantizer.symmetric)
    half = 2 ** (bits - 1)
    attributes: dict[str, Any] = {}
    if kernel.window:
        attributes = {"padding": (0, 0, 0, 0), "input_zero": 0}
    # Padded as values: a code of zero per sample is no number that a kernel could pad with.
    x = kernel.padded(kernel.lay_input(x.astype(jnp.float32)))
    of_x = jax.tree.map(lambda v: kernel.lay_scale(v, x.shape[-1]), to)
    nearest = lax.round(x / of_x.step, HALF_TO_EVEN)
    u = jnp.clip(nearest - of_x.zero, of_x.lower, of_x.upper) + half
    w = put("codes", lambda: weights()[0])
    steps = put("steps", lambda: weights()[1])
    bias = put("bias", bias_of)
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

    step, offset = (kernel.lay_scale(v, acc.shape[-1]) for v in (to.step, to.zero))
    zero = (half - offset).astype(jnp.int32)
    finer = finer_units(kernel.depth, bits, levels(weight_bits))
    # One unit of the accumulator as a number; spare bits of int32 make the bias finer.
    unit = step * along(steps) / 2**finer
    # sum (u - zero) w = sum u w - zero sum w, with a zero that only this call knows.
    products = (acc - zero * along(sums)) << finer
    return kernel.lay_result(biased(products, along(bias), unit))
