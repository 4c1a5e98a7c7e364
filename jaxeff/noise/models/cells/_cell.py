"""Base of the models of memory cells that hold the weights of an analog array.

A weight is the difference of two conductances, one for each sign, and the largest weight takes the
largest conductance that a cell is used at. What a cell's physics does to them is said by
`PhaseChange`, `ResistiveRAM`, `ChargeTrap` and `StaticRAM`, with the constants that were published
for measured arrays, and by `ProgrammedCell`, whose numbers are yours:

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.noise import PhaseChange, noisy

f, params, (x, y) = small_classifier()
day_later = noisy(f, {"*:linear": PhaseChange(time=86_400.0)})(jax.random.key(0), params, x)
```

What was written belongs to the device: it is the same in every call and at every time, of which the
device is further along the same curve later. The noise of reading is drawn anew in every call.

A cell with few states holds a digit: `states=4, slices=3` writes a weight's magnitude as three
digits to the base 4, whose columns are added digitally with the weights 16, 4 and 1.

Sharp edges:
    Errors are constants for a gradient with respect to the weights, which passes as if there were
    none (straight through, also through the rounding to states). Gradients with respect to the time
    and to other numbers are those of the formulas.
    Cells are at weights only. The largest weight sets the scale, so a weight that grows changes all
    others' errors.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Choice, Count, Positive, static
from jaxeff.noise.models._device import Device, DeviceModel
from jaxeff.noise.models._model import Place, real_dtype

Conductances = Float[Array, "slices signs *shape"]
"""Of every slice, the pair of cells of every weight, in the unit of the model."""

Shares = Float[Array, "signs *shape"]
"""Of the largest weight, one array for each sign."""

Tops = Annotated[str, Choice("tensor", "channel")]


@dataclass(frozen=True, kw_only=True)
class MemoryCell(DeviceModel):
    """Weights in memory cells: what every kind of cell has, given by keyword.

    Attributes:
        top: Conductance (or current) that the largest weight takes, in the unit of the model.
        states: Number of states of a cell; None is continuous.
        slices: Number of cells, each a digit to the base `states`, of a weight's magnitude.
        device: The device, an integer; see `jaxeff.noise.models`.
        tops: What has one largest weight: the "tensor" or each "channel".
    """

    top: Positive = 1.0
    states: Annotated[int | None, Count(2)] = static(None)
    slices: Annotated[int, Count(1, 16)] = static(1)
    device: Device = 0
    tops: Tops = static("tensor")

    at: Place = "weights"

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            ValueError: There are several slices, but no number of states.
        """
        super().__post_init__()
        if self.slices > 1 and self.states is None:
            name = type(self).__name__
            raise ValueError(
                f"{name}(slices={self.slices}) writes digits, and needs the number of states of a "
                f"cell, as {name}(states=4, slices={self.slices}) has it."
            )

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Writes weights to the cells of one site and reads them at `time`.

        Args:
            key: For the noise of this reading.
            site: The site's number.
            x: Weights; the last axis counts channels.

        Returns:
            What is read, in the units, shape and dtype of `x`.
        """
        dtype = real_dtype(x)
        # Straight through: what cells do to a weight is a constant for its gradient.
        weights = jax.lax.stop_gradient(x.astype(jnp.float32))
        axes = tuple(range(x.ndim - 1)) if self.tops == "channel" else None
        largest = jnp.max(jnp.abs(weights), axis=axes, keepdims=True, initial=0)
        # A tensor of zeros has no scale of its own; any will do.
        scale = jnp.where(largest > 0, largest, 1)
        # A weight's sign is the choice between two cells, of which the other holds nothing.
        share = weights / scale
        pair = jnp.stack([jnp.maximum(share, 0), jnp.maximum(-share, 0)])
        digits, places = self._digits(pair)
        read = self._read(self._device_key(site), key, digits * self.top) / self.top
        pairs = jnp.tensordot(places, read, 1)
        # Added as an error, so that the exact part of a weight isn't rounded by the scaling.
        error = (pairs[0] - pairs[1]) * scale - weights
        return x + error.astype(dtype)

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads without a key of the caller's."""
        return self.perturb_site(jax.random.key(0), site, x)

    def _digits(self, share: Shares) -> tuple[Conductances, Array]:
        """Splits shares of the top into slices, and says what each slice counts for."""
        if self.states is None:
            return share[None], jnp.ones(1)
        base, largest = self.states, self.states - 1
        highest = base**self.slices - 1
        code = jnp.round(share * highest)
        powers = [base**place for place in reversed(range(self.slices))]
        # Positions of a number to the base `states`, the first one counting most. Compilers divide
        # by multiplying with a rounded reciprocal: a half keeps quotients away from whole numbers.
        digits = jnp.stack([jnp.floor((code + 0.5) / power) % base for power in powers])
        return digits / largest, jnp.asarray([power * largest / highest for power in powers])

    def _read(self, device: PRNGKeyArray, key: PRNGKeyArray, target: Conductances) -> Conductances:
        """Writes targets and reads them at `time`, in the unit of the model.

        Args:
            device: For what stays with the device.
            key: For the noise of this reading.
            target: What was asked, from 0 to `top`.
        """
        raise NotImplementedError


def programmed(key: PRNGKeyArray, target: Conductances, deviation: Conductances) -> Conductances:
    """Writes targets with Gaussian errors; no conductance is negative."""
    return jnp.maximum(target + deviation * jax.random.normal(key, target.shape), 0)


def polynomial(coefficients: tuple[float, ...], x: Any) -> Array:
    """Evaluates a polynomial, the constant first."""
    return jnp.polyval(jnp.asarray(coefficients[::-1], jnp.float32), x)


def over_time(time: Any, times: tuple[float, ...], values: Any) -> Array:
    """Interpolates what was measured at some times, linearly and constant beyond them.

    Args:
        time: Seconds, a scalar.
        times: Seconds at which was measured, rising.
        values: `[times, ...]`.
    """
    values = jnp.asarray(values, jnp.float32)
    step = jnp.interp(time, jnp.asarray(times), jnp.arange(len(times), dtype=jnp.float32))
    low = jnp.clip(jnp.floor(step), 0, len(times) - 2)
    at = low.astype(jnp.int32)
    return values[at] + (step - low) * (values[at + 1] - values[at])


DAY = 86_400.0
"""Seconds."""
