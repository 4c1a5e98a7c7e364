"""The grids of an integer network: codes of activations that count from a zero, codes of weights.

An activation's code u stands for `(u - zero) * step`, 0 <= u < 2^bits: the grid of
`jaxeff.compression.grid` with its codes shifted to start at 0. A weight's code stands for
`code * step`, at most 127 either way, so that two products with 8-bit codes fit 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int8, Int16, Integer, UInt8

from jaxeff.compression.integers._operators import q_codes
from jaxeff.compression.numerics import Tensor, grid, keep_positive, quantize, value_range
from jaxeff.compression.quantizers import LSQ, Uniform
from jaxeff.core import is_concrete

MOST_BITS = 8
WIDE_BITS = 16
HALF_TO_EVEN = lax.RoundingMethod.TO_NEAREST_EVEN


class IntegerError(ValueError):
    """A network, or a part of it, that integer kernels can't compute as asked."""


@dataclass(frozen=True)
class _CodeGrid:
    """Codes on a uniform grid: a code q stands for `(q - zero) * step`.

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

    @property
    def per_step(self) -> Any:
        """1 / step in float32."""
        return np.float32(1) / np.float32(self.step)

    def read(self, codes: Integer[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Reads codes as values."""
        return (codes.astype(jnp.int32) - self.zero).astype(jnp.float32) * jnp.float32(self.step)


class Codes(_CodeGrid):
    """Codes of activations, of up to eight bits: the grid they lie on and the bits they take."""

    def largest(self) -> Array:
        """Returns the largest magnitude of a value on it."""
        return jnp.float32(self.step * max(self.upper - self.zero, self.zero - self.lower))

    @classmethod
    def of(cls, quantizer: Any, tensor: Tensor) -> Codes:
        """Converts an activation's grid to codes.

        Raises:
            IntegerError: It isn't a grid of at most 8 bits with a known range around zero.
        """
        where = f"{tensor.site}/{tensor.name}"
        if isinstance(quantizer, LSQ):
            return cls._of_learned(quantizer, where)
        if not isinstance(quantizer, Uniform):
            raise IntegerError(
                f"{where}: integer kernels take uniform grids (Int, Uniform, LSQ), not "
                f"{type(quantizer).__name__}; give this site one, or None to leave it in float."
            )
        bits = width(quantizer, where)
        if quantizer.range is None:
            raise IntegerError(
                f"{where} has no range: calibrate(f, params, batches, spec) measures one and "
                "returns the spec to pass here; dynamic=True computes it anew in every call."
            )
        if not all(is_concrete(end) for end in quantizer.range):
            raise IntegerError(f"{where}: a range must be known numbers, but this one is traced.")
        low, high = (np.asarray(end, np.float32) for end in quantizer.range)
        if low.size != 1 or high.size != 1:
            raise IntegerError(
                f"{where}: activations have one range for the whole tensor, not {low.shape}."
            )
        if quantizer.symmetric and bits == 1:
            raise IntegerError(
                f"{where}: a symmetric grid of one bit has no code for zero, which padding needs; "
                "take an affine one, or two bits."
            )
        # `grid` has signed codes; activations are stored unsigned, shifted by half the
        # range.
        half = 2 ** (bits - 1)
        with jax.ensure_compile_time_eval():
            low_end, high_end = (jnp.asarray(end.item(), jnp.float32) for end in (low, high))
            made = grid(bits, low_end, high_end, quantizer.symmetric)
            numbers = (made.lower, made.upper, made.zero, made.step)
            lower, upper, zero, step = (float(number) for number in numbers)
        # With q = u - half, (q + zero) step is (u - whole) step.
        whole = int(half - zero)
        if not 0 <= whole < 2**bits:  # the one value of a range without width
            raise IntegerError(f"{where}: its range [{low}, {high}] has no code for zero.")
        return cls(step, whole, int(lower) + half, int(upper) + half, bits)

    @classmethod
    def _of_learned(cls, quantizer: LSQ, where: str) -> Codes:
        """Converts an activation's learned grid: codes from 0, or shifted by half their number."""
        bits = width(quantizer, where)
        step = learned_step(quantizer, where)
        if step.size != 1:
            raise IntegerError(f"{where}: activations have one step for the whole tensor.")
        with jax.ensure_compile_time_eval():
            ends = quantizer.ends(jnp.float32, "activation")
            lower, upper = (int(np.asarray(end).item()) for end in ends)
        # Codes of activations are stored unsigned, so the lowest one becomes zero.
        return cls(float(step.item()), -lower, 0, upper - lower, bits)

    def write(self, x: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
        """Writes values as codes; NaN becomes the smallest."""
        return q_codes(
            x.astype(jnp.float32),
            per_step=float(self.per_step),
            zero=self.zero,
            lower=self.lower,
            upper=self.upper,
        )


class WideCodes(_CodeGrid):
    """Codes of nine to sixteen bits: data as converters write them, and results of finer steps.

    No kernel reads them: data become floats first, and the codes that layers read are made of
    these.
    """

    @classmethod
    def of(cls, quantizer: Uniform, where: str) -> WideCodes:
        """Converts a grid to codes.

        Raises:
            IntegerError: It has more than 16 bits, or no range of two known numbers.
        """
        bits = width(quantizer, where, WIDE_BITS)
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
        steps = jax.lax.round(x.astype(jnp.float32) * self.per_step, HALF_TO_EVEN)
        # Clamped before it is a whole number: what no integer holds has no defined one.
        steps = jnp.clip(steps, self.lower - self.zero, self.upper - self.zero)
        codes = jnp.where(jnp.isnan(x), self.lower - self.zero, steps).astype(jnp.int32) + self.zero
        return codes.astype(jnp.int16)


def is_wide(quantizer: Any) -> bool:
    """Tells whether a grid has more codes than a byte."""
    bits = getattr(quantizer, "bits", None)
    return isinstance(bits, int) and bits > MOST_BITS


def weight_codes(
    quantizer: Any, w: Float[Array, "*shape"], tensor: Tensor
) -> tuple[Int8[Array, "*shape"], Float[Array, ...]]:
    """Computes a weight's codes and their steps, of size one along axes that share them.

    Raises:
        IntegerError: Its grid isn't symmetric, or has more than 8 bits.
    """
    where = f"{tensor.site}/{tensor.name}"
    bits = weight_bits(quantizer, where)
    if isinstance(quantizer, LSQ):
        # As LSQ rounds in training, so that the integer network is the one that was trained.
        lower, upper = quantizer.ends(jnp.float32, "weight")
        steps = keep_positive(jnp.asarray(quantizer.step, jnp.float32))
        codes = jnp.clip(jnp.round(w.astype(jnp.float32) / steps), lower, upper)
        return codes.astype(jnp.int8), steps
    if quantizer.range is None:
        low, high = value_range(w, tensor.axes(quantizer.per))
    else:
        low, high = quantizer.range
    low, high = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    to = grid(bits, low, high, quantizer.symmetric)
    codes = quantize(w.astype(jnp.float32), to)
    if reaches(quantizer, bits) > levels(bits):
        # A code more below zero is what two's complement has: where it is above, both change sign.
        flip = jnp.where(-to.lower < to.upper, -1, 1)
        return (codes * flip.astype(jnp.int8)).astype(jnp.int8), to.step * flip
    if bits == 1:  # -step/2 and step/2; zeros alone stay zeros
        codes = jnp.where(to.lower < to.upper, 2 * codes + 1, 0)
        return codes.astype(jnp.int8), to.step / 2
    return codes.astype(jnp.int8), to.step


def learned_step(quantizer: LSQ, where: str) -> np.ndarray:
    """Returns the step of a learned grid without an offset.

    Raises:
        IntegerError: It is open, has an offset, or isn't a known number.
    """
    if quantizer.step is None or quantizer.signed is None:
        raise IntegerError(
            f"{where} has no step yet: init(f, params, x, spec) finds one, and returns the spec to "
            "train and to pass here."
        )
    if quantizer.offset is not None:
        raise IntegerError(
            f"{where}: integer kernels take grids with a code for zero, and an offset that is "
            "learnt leaves none: train LSQ without asymmetric."
        )
    if not (is_concrete(quantizer.step) and is_concrete(quantizer.signed)):
        raise IntegerError(f"{where}: a step must be a known number, but this one is traced.")
    with jax.ensure_compile_time_eval():
        return np.asarray(keep_positive(jnp.asarray(quantizer.step, jnp.float32)))


def steps_of_signs(codes: Int8[Array, "*shape"], steps: Float[Array, ...]) -> Float[Array, ...]:
    """Returns the steps of codes of one bit, NaN where the weights are zeros alone.

    Kernels by bit planes take signs and nothing else, so `convert` refuses what isn't finite.
    """
    shared = tuple(axis for axis in range(codes.ndim) if steps.ndim == 0 or steps.shape[axis] == 1)
    has_signs = jnp.all(codes != 0, shared, keepdims=steps.ndim > 0)
    return jnp.where(has_signs, steps, jnp.nan)


def weight_bits(quantizer: Any, where: str) -> int:
    """Returns the width of a weight's codes.

    Raises:
        IntegerError: The quantizer isn't a symmetric uniform grid of at most 8 bits.
    """
    if isinstance(quantizer, LSQ):
        bits = width(quantizer, where)
        learned_step(quantizer, where)
        if not (quantizer.narrow and quantizer.signed and bits > 1):
            raise IntegerError(
                f"{where}: integer kernels take weights whose codes reach as far below zero as "
                f"above: train LSQ({bits}, narrow=True), of two bits or more."
            )
        return bits
    if not isinstance(quantizer, Uniform):
        raise IntegerError(
            f"{where}: integer kernels take weights on uniform grids (Int, Uniform, LSQ), not "
            f"{type(quantizer).__name__}; give this site one, or None to leave it in float."
        )
    if not quantizer.symmetric:
        raise IntegerError(
            f"{where}: integer kernels take weights on symmetric grids, as others cost a sum over "
            'the inputs for every output: take Int(bits, symmetric="weights").'
        )
    return width(quantizer, where)


def width(quantizer: Uniform | LSQ, where: str, most: int = MOST_BITS) -> int:
    """Returns the width of a grid's codes.

    Raises:
        IntegerError: It isn't known, or above `most`.
    """
    if not isinstance(quantizer.bits, int) and not is_concrete(quantizer.bits):
        raise IntegerError(f"{where}: a bit width must be a known number, but this one is traced.")
    if np.size(quantizer.bits) != 1:
        raise IntegerError(f"{where}: one bit width per array, not {np.shape(quantizer.bits)}.")
    bits = int(np.asarray(quantizer.bits).item())
    if bits > most:
        raise IntegerError(f"{where} has {bits} bits, but integer kernels take 1 to {most}.")
    return bits


def levels(bits: int) -> int:
    """Returns the largest weight code of a width, on a symmetric grid."""
    return max(1, 2 ** (bits - 1) - 1)


def reaches(quantizer: Any, bits: int) -> int:
    """Returns the largest magnitude of a weight's codes."""
    # The grid itself says so: full ones of one and of eight bits are the symmetric ones.
    symmetric = getattr(quantizer, "symmetric", True)
    with jax.ensure_compile_time_eval():
        to = grid(bits, jnp.float32(-1), jnp.float32(1), symmetric)
        return int(-to.lower)
