"""`Scaled`: a method applied to an array times a scale, Q(x s) / s.

AWQ protects inputs of a layer that are large by a scale of their weights; where the scale can't
move into the layer before, it is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import BaseQuantizer, Quantizer, Tensor, wide_dtype
from jaxeff.compression.quantizers.uniform import Grouped
from jaxeff.core import Positive, check_broadcasts, register_setting, with_leading_axes


@register_setting
@dataclass(frozen=True)
class Scaled(BaseQuantizer):
    """Another method's values of an array times a scale, divided by it again.

    Attributes:
        method: The method, whose numbers are those of the scaled array.
        scale: Positive; broadcasts against the array.

    Raises:
        TypeError: `method` is no quantizer.
        ValueError: A scale isn't positive; or, at its first use, doesn't broadcast.

    References:
        Lin et al., "AWQ", arXiv:2306.00978, eq. 2.
    """

    method: Quantizer
    scale: Positive

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not isinstance(self.method, Quantizer) or isinstance(self.method, type):
            raise TypeError(f"Scaled.method must be a quantizer, not {self.method!r}.")

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest values; computed in float32 at least."""
        scaled, scale = self._scaled(x, tensor)
        return (self.method.quantize(scaled, tensor) / scale).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Scaled":
        """Returns the method started from the scaled array."""
        if not hasattr(self.method, "start"):
            return self
        return replace(self, method=self.method.start(self._scaled(x, tensor)[0], tensor))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of the method, and 32 for each scale."""
        inner: Any = self.method
        return inner.storage(shape, tensor) + 32 * jnp.size(self.scale)

    @property
    def width(self) -> Any:
        """Bits of one code of the method."""
        return getattr(self.method, "width", 32)

    def by_entry(self, shape: tuple[int, ...], tensor: Tensor) -> list[Array]:
        """Repeats the scale, and the numbers of a method by group, for every entry of an array."""
        # Only methods by group have numbers that differ from input to input.
        inner = self.method.by_entry(shape, tensor) if isinstance(self.method, Grouped) else []
        scale = with_leading_axes(jnp.asarray(self.scale), shape)
        return [jnp.broadcast_to(scale, shape), *inner]

    def with_numbers(self, numbers: Sequence[Array]) -> "Scaled":
        """Returns the method for some entries, with their numbers of those of `by_entry`."""
        scale, *rest = numbers
        method: Any = self.method
        return Scaled(method.with_numbers(rest) if isinstance(method, Grouped) else method, scale)

    def _scaled(self, x: Array, tensor: Tensor) -> tuple[Array, Array]:
        check_broadcasts(f"Scaled.scale at {tensor.site!r}", self.scale, x.shape)
        dtype = wide_dtype(x)
        scale = with_leading_axes(jnp.asarray(self.scale, dtype), x.shape)
        return x.astype(dtype) * scale, scale
