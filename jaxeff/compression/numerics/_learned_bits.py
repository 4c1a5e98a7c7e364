"""`LearnedBits`: what quantizers share whose bit width follows from numbers that are learnt."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics._grid import wide_dtype
from jaxeff.compression.numerics._quantizer import BaseQuantizer, Tensor


class LearnedBits(BaseQuantizer):
    """A quantizer with a width for each part of an array, and a price for each bit.

    Subclasses are frozen dataclasses with `per` and `price` among their fields, and a `width` that
    has a gradient.

    References:
        Uhlich et al., "Mixed Precision DNNs: All you need is a good parametrization",
        arXiv:1905.11452.
    """

    per: str
    price: Any

    beside: ClassVar[int]
    """Bits of the numbers that decode the codes of one part."""

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBits":
        """Computes the open numbers from an array."""
        raise NotImplementedError

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, each channel's of its own width, and the numbers that decode them."""
        width = self.width
        mean = width if np.ndim(width) == 0 else width.mean()
        return math.prod(shape) * mean + self.beside * tensor.count(shape, self.per)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the price of its bits."""
        own = self.start(lax.stop_gradient(x), tensor)
        bits = jnp.asarray(own.storage(x.shape, tensor), wide_dtype(x))
        return jnp.asarray(self.price, bits.dtype) * bits
