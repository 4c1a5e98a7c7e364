"""`Switched`: a method that acts or doesn't, by a number that may be traced.

A spec says with None that a layer is left alone, which decides what is compiled. In a policy, an
array, that has to be a number too: one program then evaluates policies that quantize a layer and
policies that don't.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import BaseQuantizer, Quantizer, Tensor
from jaxeff.core import register_setting, static_number


@register_setting
@dataclass(frozen=True)
class Switched(BaseQuantizer):
    """A method and whether it acts: `Switched(Uniform(bits), bits <= 16)`.

    Attributes:
        method: The method.
        on: Whether it acts; an array may be traced. Where it is zero, values and their gradients
            are those of no quantization.
    """

    method: Quantizer
    on: bool | Array = static_number(True)

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Quantizes by the method, or returns the values unchanged."""
        if isinstance(self.on, bool):
            return self.method.quantize(x, tensor) if self.on else x
        # Both are computed: a traced number can't decide what is compiled.
        return jnp.where(self._is_on(), self.method.quantize(x, tensor), x)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "Switched":
        """Computes the open numbers of its method."""
        started = getattr(self.method, "start", None)
        return self if started is None else replace(self, method=started(x, tensor))

    def deterministic(self) -> "Switched":
        """Returns the same with its method's form that draws nothing."""
        form = getattr(self.method, "deterministic", None)
        return self if form is None else replace(self, method=form())

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits by the method, or in float32."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.storage(shape, tensor), 32 * math.prod(shape))

    @property
    def width(self) -> Any:
        """That of the method, or 32."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.width, 32)

    def penalty(self, x: Float[Array, "*shape"], tensor: Tensor) -> Any:
        """Returns the penalty of the method where it acts."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.penalty(x, tensor), 0.0)

    def _is_on(self) -> Array:
        return jnp.asarray(self.on, bool)
