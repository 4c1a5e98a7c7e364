"""`ReadOut`: what a piece of hardware does to a layer's result, measured or modelled elsewhere.

`jaxeff.analog_hardware.read_out` and `jaxeff.photonics.read_out` make specs of it, which have the
noise of crossbars and of light in the variances of `jaxeff.moments`.

Sharp edge: it belongs to the batch that it was made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import NonNegative, Setting, register_setting


@register_setting
@dataclass(frozen=True)
class ReadOut(Setting):
    """Effect of hardware on one result on one batch, as noise that `jaxeff.moments` integrates.

    Attributes:
        shift: What it changes on average; of the shape of the result.
        var: The variance of its read-out, in squared units of the result.
    """

    shift: Float[Array, "*shape"]
    var: NonNegative

    def perturb(self, key: Any, x: Any) -> Any:
        """Draws a perturbed copy of `x`."""
        return x + self.shift + jnp.sqrt(self.var) * jax.random.normal(key, x.shape, x.dtype)

    def terms(self, x: Any) -> Sequence[Any]:
        """Returns the mean and the variance of the single random array."""
        zero = jnp.zeros_like(x)
        return [(zero + self.shift, zero + self.var)]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Adds the random array."""
        return x + parts[0]
