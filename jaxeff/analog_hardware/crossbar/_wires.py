"""`Wires`: an array whose column wires have a resistance, on which voltage is lost (IR drop).

```python
import jax

from jaxeff.analog_hardware import Crossbar, Wires, analog
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
array = Crossbar(gain=0.004, model=Wires(resistance=1e-4))
logits = analog(f, {"fc*:linear": array})(jax.random.key(0), params, x.clip(0))
```

A column is a ladder: from every cell a segment of wire leads to the next one and at last to the
amplifier, which holds its end at zero volts. Current of a cell that is far from it raises the
voltage of the wire for all, so that cells give less than they should. Kirchhoff's law at the
nodes, `(u[k-1] - u[k]) / r + (u[k+1] - u[k]) / r + g[k] (v[k] - u[k]) = 0`, is solved exactly. It
is linear in the inputs, so that one solution per column gives the weights that the array seems to
have, for all inputs.

Sharp edges:
    The wires of the rows have none: their drivers can be at both ends, and inputs that are lengths
    of pulses don't depend on a voltage's size alone.

Reference:
    Chen, "A comprehensive crossbar array model with solutions for line resistance and nonlinear
    device characteristics", IEEE Transactions on Electron Devices 60 (2013).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import Count, NonNegative, Setting, register_setting, static


@register_setting
@dataclass(frozen=True)
class Wires(Setting):
    """An ideal array but for the resistance of its column wires.

    Attributes:
        resistance: Resistance of a segment of wire between two rows, times the conductance of a
            cell with the largest weight; without unit. A wire of 1 ohm with cells of 25
            microsiemens has 2.5e-5.
        noise: Standard deviation of the read-out, in counts.
        weight_bits: Width of a weight's magnitude, as the crossbar has it.

    Raises:
        ValueError: A number is negative, NaN or infinite.
    """

    resistance: NonNegative = 1e-5
    noise: NonNegative = 0.0
    weight_bits: Annotated[int, Count(1, 11)] = static(6)

    # Counts are voltages, which a converter truncates.
    rounding = "floor"

    def counts(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"], gain: Any
    ) -> Float[Array, "p c"]:
        """Computes the read-outs of the weights that the array seems to have, times the gain."""
        return (inputs @ self.effective(weights)) * jnp.asarray(gain, inputs.dtype)

    def variance(
        self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]
    ) -> Float[Array, "p c"]:
        """Returns the squared level."""
        del weights
        return jnp.full((1, 1), jnp.asarray(self.noise, inputs.dtype) ** 2)

    def effective(self, weights: Float[Array, "r c"]) -> Float[Array, "r c"]:
        """Computes the weight codes that the array seems to have; each sign has a column."""
        top = 2**self.weight_bits - 1
        # Each sign has a column of its own, with less current and so less loss than both had.
        codes = jnp.stack([jnp.maximum(weights, 0), jnp.maximum(-weights, 0)])
        seen = codes * _shares(codes / top, self.resistance)
        return seen[0] - seen[1]


def _shares(conductances: Float[Array, "... r c"], resistance: Any) -> Float[Array, "... r c"]:
    """Computes the share of each cell's current that reaches the end of its column.

    By reciprocity it is the voltage that the cell's node has if the column's end is raised by one
    volt while all inputs are at zero. Walking from the far end, the part of the column behind a
    node is one conductance to ground: parallel and serial conductances, no equations left.
    """

    def toward(behind: Array, cell: Array) -> tuple[Array, Array]:
        # Seen from the next node: this node's cell beside all behind it, then a segment of wire.
        below = 1 / (1 + resistance * (behind + cell))
        return (behind + cell) * below, below

    rows = jnp.moveaxis(conductances, -2, 0)
    # The voltage of a node over that of the next one is 1 / (1 + r G), G to ground behind it.
    ratios = jax.lax.scan(toward, jnp.zeros_like(rows[0]), rows)[1]
    # From the end, whose voltage is one, backwards.
    return jnp.moveaxis(jnp.cumprod(ratios[::-1], axis=0)[::-1], 0, -2)
