"""The protocol of models of a crossbar's analog part, and the simplest one, a linear one.

A model gives the read-out of one tile in counts of its converter: the mean of what a column holds
before conversion, and the variance of its noise. Any frozen dataclass that is a pytree and has the
two methods will do; `jaxeff.analog_hardware.WhiteBox` is one that is fitted to a chip.

```python
import jax

from jaxeff.analog_hardware import Crossbar, Linear, analog
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
array = Crossbar(gain=0.004, model=Linear(noise=2.0))
logits = analog(f, {"fc*:linear": array})(jax.random.key(0), params, x.clip(0))
```
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import NonNegative, Setting, register_setting


@runtime_checkable
class TileModel(Protocol):
    """A model of the analog part of one tile.

    It may have an attribute `rounding`: "nearest" (the default), for means that were fitted to
    converted values, or "floor", for voltages.
    """

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes the mean read-out, for input codes and signed weight codes.

        Args:
            inputs: Codes from 0 on, `[vectors, rows]`; fewer rows than the array has are its first.
            weights: Signed codes, `[rows, columns]`; the first rows and columns of the array.
            gain: The crossbar's counts per product of codes; a fitted model has its own.
        """
        ...

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Computes the variance of the read-out's noise in squared counts; it may broadcast."""
        ...


@register_setting
@dataclass(frozen=True)
class Linear(Setting):
    """An ideal array, `gain * inputs @ weights`, with Gaussian noise of one level.

    Attributes:
        noise: Standard deviation of the read-out, in counts.

    Raises:
        ValueError: The level is negative, NaN or infinite.
    """

    noise: NonNegative = 0.0

    # Its counts are voltages, which a converter truncates.
    rounding = "floor"

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes products of codes times the gain; codes are whole, so sums are exact."""
        return (inputs @ weights) * jnp.asarray(gain, inputs.dtype)

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Returns the squared level."""
        del weights
        return jnp.full((1, 1), jnp.asarray(self.noise, inputs.dtype) ** 2)
