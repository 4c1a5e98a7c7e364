"""`Int`: how the weights and activations of a layer are quantized.

Sharp edges:
    Activations are quantized where multiply-accumulates read them: `at="input"` acts on linear
    layers and matrix products. `at="output"` acts on the result of any layer, such as a ReLU.
    Weights always use their own smallest and largest value; `range` is for activations.
    A range per sample takes the first axis of an array as the batch; an array of one axis is one
    sample. Biases stay as they are.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.compression.numerics import FULL, MAX_BITS, Bits, LayerQuantization, Quantizer
from jaxeff.compression.quantizers.uniform._grouped import Grouped
from jaxeff.compression.quantizers.uniform._uniform import Uniform
from jaxeff.core import (
    Choice,
    Setting,
    Width,
    check_number,
    is_concrete,
    register_setting,
    static,
    static_number,
)

DEFAULT_GROUP = 32
Bound = Float[Array, "..."] | float


@register_setting
@dataclass(frozen=True)
class Int(Setting):
    """Integer quantization of a layer: `Int(8)`, or `Int(4, 8)` for 4-bit weights.

    Attributes:
        bits: Bit width of the weights, 1 to 16. An array is a leaf and may be traced: a `vmap` over
            it evaluates many policies in one program.
        activation_bits: Bit width of the activations; None for that of the weights.
        symmetric: Whether grids are centred on zero: True, False, "weights" or "activations".
        per: Weights share one range per output "channel", per "tensor", or per "group" of
            neighbours along the axis that the layer sums over (`Grouped`). Symmetric grids of
            groups are "full" (`Uniform`): of four bits a group has 16 values instead of 15.
        group: Entries of a group; None for 32.
        steps: Numbers that steps of groups are stored as, as `Grouped` has them.
        activations_per: Activations share one range per "sample", per "token" (all that one product
            reads: the axis that is summed over) or per "tensor".
        range: Range of the activations. None: their own smallest and largest value, on every call.
            A number c: [0, c], or [-c, c] where symmetric. A pair: smallest and largest value,
            extended to zero where they don't enclose it (see `jaxeff.compression.grid`); each may
            be an array with one entry per activation the layer reads.
        weights: Whether weights are quantized.
        activations: Whether activations are quantized.
        at: Activations of a layer that are quantized: those it reads ("input") or its result
            ("output").

    Raises:
        TypeError: A bit width is neither an integer nor an array.
        ValueError: A bit width isn't whole or not between 1 and 16, a choice is unknown, the range
            is empty, or `group`, `steps` or "token" don't go with the rest.
    """

    bits: Annotated[Bits, Width(1, MAX_BITS)] = static_number()
    activation_bits: Annotated[Bits | None, Width(1, MAX_BITS)] = static_number(None)
    symmetric: Annotated[bool | str, Choice(False, True, "weights", "activations")] = static(False)
    per: Annotated[str, Choice("channel", "tensor", "group")] = static("channel")
    activations_per: Annotated[str, Choice("sample", "tensor", "token")] = static("sample")
    range: tuple[Bound, Bound] | Bound | None = None
    weights: bool = static(True)
    activations: bool = static(True)
    at: Annotated[str, Choice("input", "output")] = static("input")
    group: int | None = static(None)
    steps: Annotated[str, Choice("float32", "float16", "int8")] = static("float32")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.per == "group":
            self._weights()  # has the checks of groups
        elif self.group is not None or self.steps != "float32":
            raise ValueError('Int.group and Int.steps are for per="group".')
        if self.activations_per == "token" and self.at == "output":
            raise ValueError('Int.activations_per="token" is for what layers read, at="input".')
        if not (self.weights or self.activations):
            raise ValueError("Int quantizes neither weights nor activations; use None instead.")
        _check_range(self.range)

    def width(self, what: str) -> Bits:
        """Returns the bit width of "weights" or "activations"."""
        if what == "weights" or self.activation_bits is None:
            return self.bits
        return self.activation_bits

    def is_symmetric(self, what: str) -> bool:
        """Returns whether the grids of "weights" or "activations" are centred on zero."""
        return self.symmetric is True or self.symmetric == what

    def parts(self) -> LayerQuantization:
        """Returns the grids of weights and of activations.

        Raises:
            ValueError: The ends of the range are arrays of different lengths, or of several axes.
        """
        bits, symmetric = self.width("activations"), self.is_symmetric("activations")
        ranges: list[Any] = [None]
        if self.range is not None:
            if isinstance(self.range, tuple):
                low, high = (jnp.asarray(end) for end in self.range)
            else:
                high = jnp.asarray(self.range)
                low = -high if symmetric else jnp.zeros_like(high)
            counts = {end.shape[0] for end in (low, high) if end.ndim}
            if len(counts) > 1 or max(low.ndim, high.ndim) > 1:
                raise ValueError(
                    f"Int.range has ends of shapes {low.shape} and {high.shape}; each must be a "
                    "scalar, or an array with one entry per activation."
                )
            ranges = [
                tuple(end[i] if end.ndim else end for end in (low, high))
                for i in range(max(counts, default=1))
            ]
        grids = tuple(Uniform(bits, symmetric, r, self.activations_per) for r in ranges)
        # A tuple has a grid for each activation, a single grid serves any number of them.
        activations: Any = grids if _is_array(self.range) else grids[0]
        return LayerQuantization(
            self._weights() if self.weights else None,
            activations if self.activations else None,
            self.at,
        )

    def _weights(self) -> Quantizer:
        """Returns the grid of weights."""
        symmetric = self.is_symmetric("weights")
        if self.per != "group":
            return Uniform(self.bits, symmetric, None, self.per)
        size = DEFAULT_GROUP if self.group is None else self.group
        # Few values are worth one more most where a range is narrow: a group reaches its largest
        # value with codes that an integer kernel has anyway.
        return Grouped(Uniform(self.bits, FULL if symmetric else False), size, self.steps)


def _is_array(bounds: Any) -> bool:
    """Returns whether an end of a range has an entry per activation."""
    ends = bounds if isinstance(bounds, tuple) else (bounds,)
    return any(end is not None and jnp.ndim(end) > 0 for end in ends)


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
