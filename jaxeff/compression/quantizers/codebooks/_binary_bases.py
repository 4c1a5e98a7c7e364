"""`BinaryBases`: several binary arrays with a scale each, as in ABC-Net.

Weights are W ~ sum_i scale_i B_i with B_i = sign(W - mean(W) + shift_i std(W)) and shifts that are
evenly spaced from -1 to 1; the scales solve min |W - sum_i scale_i B_i|^2 (section 3.1). Scales are
constants to the gradient of W, and signs pass gradients straight through: dC/dW = sum_i scale_i
dC/dy.

Activations are R ~ sum_i scale_i A_i with A_i = 2 [clip(R + shift_i, 0, 1) >= 1/2] - 1; scales and
shifts are learnt, with dA_i/dR = dA_i/dshift_i = [0 <= R + shift_i <= 1] (section 3.2).

Sharp edges:
    Shifts are ordered, so n bases have n + 1 values, not 2^n.
    The scales of weights follow them on every call, until `init` makes them numbers to learn.
    An array with a single value is kept, up to rounding.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxeff.compression.numerics import (
    BaseQuantizer,
    Tensor,
    at_least_float32,
    kept_axes,
    least_squares,
    straight_through,
)
from jaxeff.core import Choice, Count, Number, register_setting, static

MAX_BASES = 8


@register_setting
@dataclass(frozen=True)
class BinaryBases(BaseQuantizer):
    """Several binary bases: `BinaryBases(3)`.

    Attributes:
        bases: Number of bases, 1 to 8.
        shifts: One for each. Open: for weights evenly spaced from -1 to 1, in standard deviations;
            for activations such that the thresholds 1/2 - shift divide their range evenly.
        scales: One for each, along the last axis, the others being of size one or those that have
            scales of their own. Open: those of least squares.
        per: Part with its own scales: the output "channel" of a weight, or the "tensor".
        follow: Whether the scales of weights stay open in `init`, and so follow the weights as in
            the paper; else they are learnt by their own gradient.

    Raises:
        TypeError, ValueError: The number of bases is no integer between 1 and 8, or there is
            another number of shifts or scales.

    References:
        Lin et al., "Towards Accurate Binary Convolutional Neural Network", arXiv:1711.11294.
    """

    bases: Annotated[int, Count(1, MAX_BASES)] = static(3)
    shifts: Annotated[Float[Array, " bases"] | None, Number()] = None
    scales: Annotated[Float[Array, "... bases"] | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor")] = static("tensor")
    follow: bool = static(False)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        for name in ("shifts", "scales"):
            value = getattr(self, name)
            if value is not None and np.shape(value)[-1:] != (self.bases,):
                raise ValueError(
                    f"BinaryBases.{name} has shape {np.shape(value)}; its last axis must have one "
                    f"entry for each of the {self.bases} bases."
                )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the sum of the bases, with the gradients above."""
        fixed = lax.stop_gradient(x)
        shifts = self._shifts(fixed, tensor) if self.shifts is None else self.shifts
        shifts = jnp.asarray(shifts, x.dtype)
        scales = self.scales
        if scales is None:
            # Section 3.1: scales are constants to the gradient of W.
            known = replace(self, shifts=lax.stop_gradient(shifts))
            scales = known._scales(fixed, tensor)
        scales = jnp.asarray(scales, x.dtype)
        y: Any = jnp.zeros_like(x)
        for i in range(self.bases):
            basis = self._basis(x, shifts[..., i], tensor)
            y = y + basis * tensor.fitted("BinaryBases.scales", scales[..., i], x)
        return y

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "BinaryBases":
        """Computes open shifts and scales from an array."""
        started = self
        if self.shifts is None:
            started = replace(started, shifts=self._shifts(x, tensor))
        if self.scales is None and not (self.follow and tensor.role == "weight"):
            started = replace(started, scales=started._scales(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts a bit for each basis of a value, and a float for each scale."""
        scales = self.bases * tensor.count(shape, self.per)
        return super().storage(shape, tensor) + 32 * scales

    @property
    def width(self) -> int:
        """A bit for each basis."""
        return self.bases

    def _basis(self, x: Array, shift: Array, tensor: Tensor) -> Array:
        """Computes one of the binary arrays, -1 and +1."""
        one = jnp.ones_like(x)
        if tensor.role == "weight":
            fixed = lax.stop_gradient(x)
            axes, shape = kept_axes(x, tensor.axes(self.per))
            # B_i = sign(W - mean(W) + shift_i std(W)), whose statistics have no gradient either.
            mean = jnp.mean(fixed, axes).reshape(shape)
            moved = x - mean + shift * jnp.std(fixed, axes).reshape(shape)
            return straight_through(moved, jnp.where(moved >= 0, one, jnp.where(moved < 0, -1, x)))
        moved = x + shift
        # Section 3.2: the derivative is one within [0, 1] of the shifted value, zero outside.
        bounded = jnp.where((moved >= 0) & (moved <= 1), moved, 0)
        signs = jnp.where(moved >= 0.5, one, jnp.where(moved < 0.5, -1, x))
        return straight_through(bounded, signs)

    def _shifts(self, x: Array, tensor: Tensor) -> Array:
        steps = np.linspace(-1.0, 1.0, self.bases) if self.bases > 1 else np.zeros(1)
        if tensor.role == "weight":
            return jnp.asarray(steps, x.dtype)
        # Thresholds 1/2 - shift at even parts of the range: every basis splits the values.
        parts = jnp.asarray(np.arange(1, self.bases + 1) / (self.bases + 1), x.dtype)
        low, high = jnp.min(x), jnp.max(x)
        return 0.5 - (low + (high - low) * parts)

    def _scales(self, x: Array, tensor: Tensor) -> Array:
        wide = at_least_float32(x)
        shifts = jnp.asarray(self.shifts, x.dtype)
        signs = [self._basis(x, shifts[..., i], tensor) for i in range(self.bases)]
        bases = [b.astype(wide.dtype) for b in signs]
        axes, shape = kept_axes(x, tensor.axes(self.per))

        def mean(values: Array) -> Array:
            return jnp.mean(values, axes).reshape(shape)

        # Normal equations of min |W - sum_i scale_i B_i|^2; means keep large arrays in range.
        right = jnp.stack([mean(wide * b) for b in bases], -1)
        rows = [jnp.stack([mean(a * b) for a in bases], -1) for b in bases]
        return least_squares(jnp.stack(rows, -2), right).astype(x.dtype)
