"""`Int`: how the weights and activations of a layer are quantized.

Sharp edges:
    Activations are quantized where multiply-accumulates read them: `at="input"` acts on linear
    layers and contractions. `at="output"` acts on the result of any layer, such as a ReLU.
    Weights always use their own smallest and largest value; `range` is for activations.
    A range per sample takes the first axis of an array as the batch; an array of one axis is one
    sample. Biases stay as they are.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression.quantization import MAX_BITS
from jaxeff.settings import (
    Choice,
    Count,
    Setting,
    check_number,
    is_concrete,
    register_setting,
    static,
)

Bound = Float[Array, "..."] | float


@register_setting
@dataclass(frozen=True)
class Int(Setting):
    """Integer quantization of a layer: `Int(8)`, or `Int(4, 8)` for 4-bit weights.

    Attributes:
        bits: Bit width of the weights, 1 to 8.
        activation_bits: Bit width of the activations, 1 to 8; None for that of the weights.
        symmetric: Whether grids are centred on zero: True, False, "weights" or "activations".
        per: Weights share one range per output "channel" or per "tensor".
        activations_per: Activations share one range per "sample" or per "tensor".
        range: Range of the activations. None: their own smallest and largest value, on every call.
            A number c: [0, c], or [-c, c] where symmetric. A pair: smallest and largest value,
            extended to zero where they don't enclose it (see `jaxeff.compression.grid`); each may
            be an array with one entry per activation the layer reads.
        weights: Whether weights are quantized.
        activations: Whether activations are quantized.
        at: Which activations of a layer: those it reads ("input") or its result ("output").

    Raises:
        TypeError: A bit width isn't an integer.
        ValueError: A bit width isn't between 1 and 8, a choice is unknown, or the range is empty.
    """

    bits: Annotated[int, Count(1, MAX_BITS)] = static()
    activation_bits: Annotated[int | None, Count(1, MAX_BITS)] = static(None)
    symmetric: Annotated[bool | str, Choice(False, True, "weights", "activations")] = static(False)
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")
    activations_per: Annotated[str, Choice("sample", "tensor")] = static("sample")
    range: tuple[Bound, Bound] | Bound | None = None
    weights: bool = static(True)
    activations: bool = static(True)
    at: Annotated[str, Choice("input", "output")] = static("input")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not (self.weights or self.activations):
            raise ValueError("Int quantizes neither weights nor activations; use None instead.")
        _check_range(self.range)

    def width(self, what: str) -> int:
        """The bit width of "weights" or "activations"."""
        if what == "weights" or self.activation_bits is None:
            return self.bits
        return self.activation_bits

    def is_symmetric(self, what: str) -> bool:
        """Whether the grids of "weights" or "activations" are centred on zero."""
        return self.symmetric is True or self.symmetric == what

    def bounds(self, operand: int, count: int) -> tuple[Any, Any] | None:
        """The fixed range of one of `count` activations, or None where it is dynamic.

        Raises:
            ValueError: The range is an array with another number of entries.
        """
        if self.range is None:
            return None
        if isinstance(self.range, tuple):
            ends = tuple(jnp.asarray(b) for b in self.range)
        else:
            high = jnp.asarray(self.range)
            ends = (-high if self.is_symmetric("activations") else jnp.zeros_like(high), high)
        for end in ends:
            if end.shape not in ((), (count,)):
                raise ValueError(
                    f"Int.range has an end of shape {end.shape} where {count} activation(s) are "
                    f"quantized; it must be a scalar or have shape ({count},)."
                )
        low, high = (end[operand] if end.ndim else end for end in ends)
        return low, high


def _check_range(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, tuple):
        check_number("Int.range", value, float(np.finfo(np.float32).tiny))
        return
    if len(value) != 2:
        raise ValueError(f"Int.range must be a pair (low, high), not {value!r}.")
    check_number("Int.range[0]", value[0])
    check_number("Int.range[1]", value[1])
    if all(is_concrete(b) for b in value) and np.any(np.asarray(value[0]) > np.asarray(value[1])):
        raise ValueError(f"Int.range must be a pair (low, high) with low <= high, not {value!r}.")
