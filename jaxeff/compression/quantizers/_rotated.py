"""`Rotated`: a method applied in a basis turned by a Hadamard matrix, Q(x H) H^T.

Turned, what a few large entries hold is spread over all of them, so that none decides the step of
the others. A layer whose weights and activations are both rotated multiplies what is rounded in the
turned basis, (x H)(H^T W), for H is orthogonal.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression.numerics import BaseQuantizer, Quantizer, Tensor, at_least_float32
from jaxeff.core import Count, register_setting, static


@register_setting
@dataclass(frozen=True)
class Rotated(BaseQuantizer):
    """Another method's values in a turned basis: `LayerQuantization(Rotated(m), Rotated(n))`.

    The matrix is H = D W / sqrt(size) with random signs D and Walsh's matrix W, and acts on blocks
    of the axis that the layer sums over: the whole axis where its length is a power of two.

    Attributes:
        method: The method, whose numbers are those of the rotated array.
        size: Length of a block, a power of two that divides the axis; None for the largest.
        seed: Number that the signs are drawn by.

    Raises:
        TypeError: `method` is no quantizer.
        ValueError: At its first use: the array has no axis that a product sums over, or blocks
            don't divide it.

    References:
        Ashkboos et al., "QuaRot", arXiv:2404.00456, sections 3 and 4 (randomized Hadamard).
    """

    method: Quantizer
    size: Annotated[int | None, Count(1)] = static(None)
    seed: Annotated[int, Count(0)] = static(0)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not isinstance(self.method, Quantizer) or isinstance(self.method, type):
            raise TypeError(f"Rotated.method must be a quantizer, not {self.method!r}.")
        if self.size is not None and self.size & (self.size - 1):
            raise ValueError(f"Rotated.size must be a power of two, not {self.size}.")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values; computed in float32 at least."""
        y = self.method.quantize(self._turned(x, tensor), tensor)
        return self._turned(y, tensor, back=True).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Rotated":
        """Returns the method started from the rotated array."""
        if not hasattr(self.method, "start"):
            return self
        return replace(self, method=self.method.start(self._turned(x, tensor), tensor))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the method: signs are drawn anew."""
        inner: Any = self.method
        return inner.storage(shape, tensor)

    @property
    def width(self) -> Any:
        """Bits of one code of the method."""
        return getattr(self.method, "width", 32)

    def _turned(self, x: Array, tensor: Tensor, back: bool = False) -> Array:
        if tensor.find_summed is None or not tensor.find_summed():
            raise ValueError(
                f"{tensor.site}/{tensor.name} has no axis that a product sums over, so nothing is "
                "turned; take the method alone there."
            )
        axis = tensor.find_summed()[-1]
        length = x.shape[axis]
        # The lowest bit that is set: the largest power of two that divides the length.
        size = length & -length if self.size is None else self.size
        if length % size:
            raise ValueError(
                f"{tensor.site}/{tensor.name} sums over {length} entries, which blocks of {size} "
                "don't divide: take another size there."
            )
        last = jnp.moveaxis(at_least_float32(x), axis, -1)
        return jnp.moveaxis(turned(last, size, self.seed, back), -1, axis)


def turned(
    x: Float[Array, "*shape"], size: int, seed: int, back: bool = False
) -> Float[Array, "*shape"]:
    """Multiplies blocks of the last axis by a random Hadamard matrix, or by its transpose.

    Args:
        x: An array.
        size: Length of a block, a power of two that divides the axis.
        seed: Number that the signs are drawn by.
        back: Whether the matrix is transposed.
    """
    length = x.shape[-1]
    # Signs make the matrix another one for every seed; weights and activations draw the same.
    drawn = np.random.default_rng(seed).integers(0, 2, length) * 2 - 1
    signs = jnp.asarray(drawn.reshape((1,) * (x.ndim - 1) + (length,)), x.dtype)
    y = (x if back else x * signs).reshape(*x.shape[:-1], length // size, size)
    half = 1
    # Walsh's matrix is a product of log2(size) sparse ones: sums and differences of pairs.
    while half < size:
        pairs = y.reshape(*y.shape[:-1], size // (2 * half), 2, half)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        y = jnp.stack([left + right, left - right], -2).reshape(y.shape)
        half *= 2
    y = (y * (1 / math.sqrt(size))).reshape(x.shape)
    return y * signs if back else y
