"""`Crossbar`: the size, the widths and the scales of an analog matrix multiplier."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.analog_hardware.crossbar._models import Linear, TileModel
from jaxeff.core import Count, Number, Positive, Setting, register_setting, static


@register_setting
@dataclass(frozen=True)
class Correction(Setting):
    """Digital correction of the counts of each column: `scale * counts + shift`.

    Attributes:
        scale: `[columns]`, without unit.
        shift: `[columns]`, in counts.
    """

    scale: Annotated[Float[Array, " columns"], Number()]
    shift: Annotated[Float[Array, " columns"], Number()]

    def apply(self, counts: Float[Array, "*batch c"]) -> Float[Array, "*batch c"]:
        """Corrects the counts of the first columns."""
        columns, axes = counts.shape[-1], (None,) * (counts.ndim - 1)
        scale, shift = (jnp.asarray(a, counts.dtype)[:columns] for a in (self.scale, self.shift))
        return counts * scale[axes] + shift[axes]


@register_setting
@dataclass(frozen=True)
class Crossbar(Setting):
    """An array of synapses that multiplies vectors of unsigned codes by a matrix of signed ones.

    Inputs are lengths of pulses, so they have no sign; a signed weight is a pair of columns, one
    for each sign, which counts as one column here. The defaults are the sizes of BrainScaleS-2
    (Klein's thesis, section 5.2) and the gain of its software mock.

    Attributes:
        rows: Inputs of the array.
        columns: Signed columns.
        input_bits: Width of an input code: 5 bits are 0 to 31.
        weight_bits: Width of a weight's magnitude: 6 bits are -63 to 63.
        output_bits: Width of the converter of each column, signed: 8 bits are -128 to 127.
        gain: Counts of the converter per product of an input and a weight code.
        sends: Number of times that a vector is sent before the read-out, which multiplies the gain.
        input_step: Value of one input code; None takes the largest input of every call.
            `jaxeff.analog_hardware.calibrate_ranges` measures it.
        weight_step: Value of one weight code; None takes the largest weight.
        sum_bits: Width of the digital sum over the tiles of a column; None is wide enough.
        signed: Whether negative inputs are sent as well, in a second pass that is subtracted.
        model: The analog part; see `jaxeff.analog_hardware.crossbar`.
        correction: A digital correction of every column, of this model or of a chip; see
            `jaxeff.analog_hardware.compensate_drift`.

    Raises:
        TypeError: A number is none, or the model has not the methods of one.
        ValueError: A number is out of bounds.
    """

    rows: Annotated[int, Count(1)] = static(128)
    columns: Annotated[int, Count(1)] = static(256)
    input_bits: Annotated[int, Count(1, 12)] = static(5)
    weight_bits: Annotated[int, Count(1, 11)] = static(6)
    output_bits: Annotated[int, Count(2, 24)] = static(8)
    gain: Positive = 0.002
    sends: Annotated[int, Count(1)] = static(1)
    input_step: Annotated[Float[Array, ""] | float | None, Number(above=0)] = None
    weight_step: Annotated[Float[Array, ""] | float | None, Number(above=0)] = None
    sum_bits: Annotated[int | None, Count(2, 30)] = static(None)
    signed: bool = static(False)
    model: Any = dataclasses.field(default_factory=Linear)
    correction: Correction | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.model, TileModel) or isinstance(self.model, type):
            raise TypeError(
                "Crossbar.model must have the methods counts(inputs, weights, gain) and "
                f"variance(inputs, weights), as Linear(noise=2.0) does; not {self.model!r}."
            )

    @property
    def input_top(self) -> int:
        """The largest input code."""
        return int(2**self.input_bits - 1)

    @property
    def weight_top(self) -> int:
        """The largest magnitude of a weight code."""
        return int(2**self.weight_bits - 1)
