"""`Stochastic`: rounding to one of the two neighbours on a grid, at random, right on average.

With v = x / step - zero the code is floor(v), or one more with probability v - floor(v) (Gupta et
al., section 3), clipped to the grid's ends; the gradient passes straight through. Within the grid
the mean of the value is x; its variance is step^2 p (1 - p) with p = v - floor(v), on average over
p step^2 / 6, twice the squared error of rounding to the nearest.

Sharp edge: a grid that isn't symmetric has its ends moved by up to half a step to hold zero
(`jaxeff.compression.numerics`), and there values beyond an end are rounded to it, always.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.compression.numerics import Tensor, grid, straight_through, value_range, wide_dtype
from jaxeff.compression.quantizers.uniform._uniform import Ranged, Uniform
from jaxeff.core import register_setting


@register_setting
@dataclass(frozen=True)
class Stochastic(Ranged):
    """Stochastic rounding on a uniform grid: `Stochastic(8)`, in `quantized(..., keyed=True)`.

    Its fields are those of `Uniform`.

    References:
        Gupta et al., "Deep Learning with Limited Numerical Precision", arXiv:1502.02551. Höhfeld
        and Fahlman, "Probabilistic rounding in neural network learning with limited precision",
        Neurocomputing 4 (1992).
    """

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Draws one of the two neighbours of every value."""
        key = tensor.random("Stochastic")
        low, high = value_range(x, tensor.axes(self.per)) if self.range is None else self.range
        to = grid(self.bits, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype), self.symmetric)
        at = jax.lax.stop_gradient(x).astype(wide_dtype(x)) / to.step - to.zero
        down = jnp.floor(at)
        # Not floor(at + uniform), whose sum is rounded: that of a value on the grid stays itself.
        up = jax.random.uniform(key, at.shape, at.dtype) < at - down
        codes = jnp.clip(down + up.astype(at.dtype), to.lower, to.upper)
        return straight_through(x, ((codes + to.zero) * to.step).astype(x.dtype))

    def deterministic(self) -> Uniform:
        """Returns the nearest values of the same grid."""
        return Uniform(self.bits, self.symmetric, self.range, self.per)

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts codes, and step and zero of each range."""
        return super().storage(shape, tensor) + 64 * tensor.count(shape, self.per)
