"""`LearnedBasis`: levels that are sums of a learned basis (LQ-Net).

With K bits the levels are the products of a basis v in R^K and all codes: {-1, +1}^K for weights,
{0, 1}^K for activations (Zhang et al., eq. 4 and 5); a value takes the nearest level. The basis
minimises the error |x - B v|^2 in turns (algorithm 1): codes B are those of the nearest levels;
then v = (B^T B)^-1 B^T x (eq. 8). Neither step makes the error larger.

In training the paper does one such turn per step and averages: v becomes
momentum v + (1 - momentum) v'. `LearnedBasis.update_statistics` does that for an array, and
`jaxeff.compression.update_statistics` for a model. The basis is a leaf with the gradient of its
levels, so it can be learnt by that as well.

The gradient of x is one; of activations above the largest level it is zero, as in the code of the
authors.

Sharp edges:
    Where a part of the basis isn't determined, as codes are unused, the basis moves the least.
    An array of zeros has a basis of zeros, and only zeros.
"""

import itertools
from dataclasses import dataclass, replace
from typing import Annotated

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
    lookup_levels,
    nearest,
    sums,
)
from jaxeff.core import Choice, Count, Number, register_setting, static, with_leading_axes

MAX_BITS = 8
MIDDLE = 0.6745
"""The median of |x| of a standard Gaussian: where the authors' first basis has its middle."""


@register_setting
@dataclass(frozen=True)
class LearnedBasis(BaseQuantizer):
    """Learned quantization: `LearnedBasis(2)`.

    Attributes:
        bits: Bit width, 1 to 8.
        basis: The last axis has one number for each bit; the others are of size one, or those that
            have a basis of their own. Open: by least squares.
        per: Part with its own basis: the output "channel" of a weight, or the "tensor".
        turns: Number of turns in which an open basis and its codes are computed.
        momentum: Share of the basis that stays in an update.

    Raises:
        TypeError, ValueError: A number is out of bounds, or the basis has none for some bit.

    References:
        Zhang et al., "LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep Neural
        Networks", arXiv:1807.10029.
    """

    bits: Annotated[int, Count(1, MAX_BITS)] = static()
    basis: Annotated[Float[Array, "... bits"] | None, Number()] = None
    per: Annotated[str, Choice("channel", "tensor")] = static("channel")
    turns: Annotated[int, Count(1)] = static(10)
    momentum: Annotated[float, Number(0, 1)] = static(0.9)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.basis is not None and np.shape(self.basis)[-1:] != (self.bits,):
            raise ValueError(
                f"LearnedBasis.basis has shape {np.shape(self.basis)}; its last axis must have one "
                f"entry for each of the {self.bits} bits."
            )

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the nearest levels, with the gradients above."""
        fixed = lax.stop_gradient(x)
        own = self.start(fixed, tensor)
        basis = jnp.asarray(own.basis, x.dtype)
        tensor.fitted("LearnedBasis.basis", basis[..., 0], x)
        levels, _ = self._levels(basis, tensor)
        value = lookup_levels(levels, nearest(fixed, lax.stop_gradient(levels)))
        passed = x
        if tensor.role == "activation":
            # Activations above the highest level have no gradient: they are clipped.
            last = tensor.fitted("LearnedBasis.basis", lax.stop_gradient(levels[..., -1]), x)
            passed = jnp.where(fixed > last, fixed, x)
        return value + (passed - lax.stop_gradient(passed))

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBasis":
        """Computes an open basis from an array: `turns` turns from evenly spaced levels."""
        if self.basis is not None:
            return self
        first = self._first(x, tensor)
        basis = lax.fori_loop(0, self.turns, lambda _, v: self._turn(v, x, tensor), first)
        return replace(self, basis=basis.astype(x.dtype))

    def update_statistics(self, x: Float[Array, "*shape"], tensor: Tensor) -> "LearnedBasis":
        """Averages the basis with that of one turn on another array."""
        if self.basis is None:
            return self.start(x, tensor)
        x = lax.stop_gradient(x)
        old = lax.stop_gradient(jnp.asarray(self.basis))
        wide = at_least_float32(old)
        # One turn per training step: codes change little between steps (the paper's algorithm).
        new = self._turn(wide, x, tensor)
        mixed = self.momentum * wide + (1 - self.momentum) * new
        return replace(self, basis=mixed.astype(old.dtype))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> int:
        """Counts codes, and a float for each number of a basis."""
        return super().storage(shape, tensor) + 32 * self.bits * tensor.count(shape, self.per)

    def _first(self, x: Array, tensor: Tensor) -> Array:
        """Makes a basis of powers of two, whose levels are evenly spaced."""
        axes, shape = kept_axes(x, tensor.axes(self.per))
        wide = at_least_float32(x)
        square = jnp.mean(wide**2, axes).reshape(shape)
        if tensor.role == "weight":
            unit = MIDDLE * jnp.sqrt(square) / 2 ** (self.bits - 1)
        else:  # the square of a rectified Gaussian is half its variance
            unit = 2 * MIDDLE * jnp.sqrt(2 * square) / (2**self.bits - 1)
        powers = jnp.asarray(2.0 ** np.arange(self.bits), wide.dtype)
        return unit[..., None] * with_leading_axes(powers, (*shape, self.bits))

    def _levels(self, basis: Array, tensor: Tensor) -> tuple[Array, Array]:
        """Sorts the levels, and returns which code each of them has."""
        codes = jnp.asarray(_codes(self.bits, tensor), basis.dtype)
        codes = codes.reshape((1,) * (basis.ndim - 1) + codes.shape)
        # Level of a code: the inner product of its bits with the basis.
        levels = jnp.sum(codes * basis[..., None, :], axis=-1)
        order = jnp.argsort(lax.stop_gradient(levels), axis=-1)
        return jnp.take_along_axis(levels, order, axis=-1), order

    def _turn(self, basis: Array, x: Array, tensor: Tensor) -> Array:
        """Computes the basis of least error for the codes of the nearest levels."""
        x = x.astype(basis.dtype)
        _, shape = kept_axes(x, tensor.axes(self.per))
        basis = jnp.broadcast_to(basis, (*shape, self.bits))
        levels, order = self._levels(basis, tensor)
        counts, totals = sums(x, nearest(x, levels), 2**self.bits, shape)
        chosen = jnp.asarray(_codes(self.bits, tensor), basis.dtype)[order]
        # Sums over levels are sums over values: the same codes have the same level.
        weighted = chosen * (counts / x.size)[..., None]
        gram = jnp.sum(weighted[..., :, None] * chosen[..., None, :], axis=-3)
        right = jnp.sum(chosen * (totals / x.size)[..., None], axis=-2)
        # Solved for the change of the basis: a pseudoinverse then leaves alone what the
        # data don't determine, such as a bit that no value uses.
        missing = right - jnp.sum(gram * basis[..., None, :], axis=-1)
        return basis + least_squares(gram, missing)


def _codes(bits: int, tensor: Tensor) -> np.ndarray:
    """Returns all codes, `[2^bits, bits]`."""
    ends = (-1.0, 1.0) if tensor.role == "weight" else (0.0, 1.0)
    return np.array(list(itertools.product(ends, repeat=bits)))
