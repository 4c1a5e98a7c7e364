"""Codes of nine to sixteen bits, int16: data as converters write them, and results of finer steps.

No kernel reads them: data become floats first, and the codes that layers read are made of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int16

from jaxeff.compression.integers._grids import HALF_TO_EVEN, MOST_BITS, IntegerError, width
from jaxeff.compression.numerics import grid
from jaxeff.compression.quantizers.uniform import Uniform
from jaxeff.core import is_concrete

BITS = 16


@dataclass(frozen=True)
class WideCodes:
    """Codes of data or results: the grid they lie on. A code q stands for `(q - zero) * step`.

    Attributes:
        step: Distance between the values of neighbouring codes, float32.
        zero: The code of zero.
        lower: The smallest code.
        upper: The largest.
        bits: Their width.
    """

    step: float
    zero: int
    lower: int
    upper: int
    bits: int

    @classmethod
    def of(cls, quantizer: Uniform, where: str) -> WideCodes:
        """Converts a grid to codes.

        Raises:
            IntegerError: It has more than 16 bits, or no range of two known numbers.
        """
        bits = width(quantizer, where, BITS)
        if quantizer.range is None or not all(is_concrete(end) for end in quantizer.range):
            raise IntegerError(f"{where}: give its grid a range of known numbers, (low, high).")
        low, high = (np.asarray(end, np.float32) for end in quantizer.range)
        if low.size != 1 or high.size != 1:
            raise IntegerError(f"{where}: one range for the whole array, not {low.shape}.")
        with jax.ensure_compile_time_eval():
            low_end, high_end = (jnp.asarray(end.item(), jnp.float32) for end in (low, high))
            made = grid(bits, low_end, high_end, quantizer.symmetric)
            lower, upper, zero = (int(n) for n in (made.lower, made.upper, made.zero))
            # `grid` adds its zero to a code where a header's is taken off.
            return cls(float(made.step), -zero, lower, upper, bits)

    def write(self, x: Float[Array, "*shape"]) -> Int16[Array, "*shape"]:
        """Writes values as codes; NaN becomes the smallest."""
        per_step = np.float32(1) / np.float32(self.step)
        steps = jax.lax.round(x.astype(jnp.float32) * per_step, HALF_TO_EVEN)
        # Clamped before it is a whole number: what no integer holds has no defined one.
        steps = jnp.clip(steps, self.lower - self.zero, self.upper - self.zero)
        codes = jnp.where(jnp.isnan(x), self.lower - self.zero, steps).astype(jnp.int32) + self.zero
        return codes.astype(jnp.int16)

    def read(self, codes: Int16[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads codes as values."""
        return (codes.astype(jnp.int32) - self.zero).astype(jnp.float32) * jnp.float32(self.step)


def is_wide(quantizer: Any) -> bool:
    """Tells whether a grid has more codes than a byte."""
    bits = getattr(quantizer, "bits", None)
    return isinstance(bits, int) and bits > MOST_BITS
