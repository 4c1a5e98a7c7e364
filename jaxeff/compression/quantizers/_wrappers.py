"""Methods around a method: `Rotated` by a Hadamard matrix, `Scaled`, `Switched` on or off."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics


@core.register_setting
class Rotated(numerics.BaseQuantizer):
    """Another method's values in a turned basis: `LayerQuantization(Rotated(m), Rotated(n))`.

    Turned, what a few large entries hold is spread over all of them, so that none decides the step
    of the others. A layer whose weights and activations are both rotated multiplies what is rounded
    in the turned basis, (x H)(H^T W), for H is orthogonal.

    The matrix is H = D W / sqrt(size) with random signs D and Walsh's matrix W, and acts on blocks
    of the axis that the layer sums over: the whole axis where its length is a power of two.

    Attributes:
        method: The method, whose numbers are those of the rotated array.
        size: Length of a block, a power of two that divides the axis; None for the largest.
        seed: Number that the signs are drawn by.

    Raises:
        TypeError: `method` is no quantizer.
        ValueError: At its first use: the array has no axis that a product sums over, or blocks
            don't divide it.

    References:
        Ashkboos et al., "QuaRot", arXiv:2404.00456, sections 3 and 4 (randomized Hadamard).
    """

    method: numerics.Quantizer
    size: Annotated[int | None, core.Count(1)] = core.static(None)
    seed: Annotated[int, core.Count(0)] = core.static(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.method, numerics.Quantizer) or isinstance(self.method, type):
            raise TypeError(f"Rotated.method must be a quantizer, not {self.method!r}.")
        if self.size is not None and self.size & (self.size - 1):
            raise ValueError(f"Rotated.size must be a power of two, not {self.size}.")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest values; computed in float32 at least."""
        y = self.method.quantize(self._turned(x, tensor), tensor)
        return self._turned(y, tensor, back=True).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Rotated":
        """Returns the method started from the rotated array."""
        if not hasattr(self.method, "start"):
            return self
        return replace(self, method=self.method.start(self._turned(x, tensor), tensor))

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts the bits of the method: signs are drawn anew."""
        inner: Any = self.method
        return inner.storage(shape, tensor)

    @property
    def width(self) -> Any:
        """Bits of one code of the method."""
        return getattr(self.method, "width", 32)

    def _turned(self, x: Array, tensor: numerics.Tensor, back: bool = False) -> Array:
        if tensor.find_summed is None or not tensor.find_summed():
            raise ValueError(
                f"{tensor.site}/{tensor.name} has no axis that a product sums over, so nothing is "
                "turned; take the method alone there."
            )
        axis = tensor.find_summed()[-1]
        length = x.shape[axis]
        # The lowest bit that is set: the largest power of two that divides the length.
        size = length & -length if self.size is None else self.size
        if length % size:
            raise ValueError(
                f"{tensor.site}/{tensor.name} sums over {length} entries, which blocks of {size} "
                "don't divide: take another size there."
            )
        last = jnp.moveaxis(numerics.at_least_float32(x), axis, -1)
        return jnp.moveaxis(turned(last, size, self.seed, back), -1, axis)


def turned(
    x: Float[Array, "*shape"], size: int, seed: int, back: bool = False
) -> Float[Array, "*shape"]:
    """Multiplies blocks of the last axis by a random Hadamard matrix, or by its transpose.

    Args:
        x: An array.
        size: Length of a block, a power of two that divides the axis.
        seed: Number that the signs are drawn by.
        back: Whether the matrix is transposed.
    """
    length = x.shape[-1]
    # Signs make the matrix another one for every seed; weights and activations draw the same.
    drawn = np.random.default_rng(seed).integers(0, 2, length) * 2 - 1
    signs = jnp.asarray(drawn.reshape((1,) * (x.ndim - 1) + (length,)), x.dtype)
    y = (x if back else x * signs).reshape(*x.shape[:-1], length // size, size)
    half = 1
    # Walsh's matrix is a product of log2(size) sparse ones: sums and differences of pairs.
    while half < size:
        pairs = y.reshape(*y.shape[:-1], size // (2 * half), 2, half)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        y = jnp.stack([left + right, left - right], -2).reshape(y.shape)
        half *= 2
    y = (y * (1 / math.sqrt(size))).reshape(x.shape)
    return y * signs if back else y


@core.register_setting
class Scaled(numerics.BaseQuantizer):
    """Another method's values of an array times a scale, divided by it again.

    AWQ protects inputs of a layer that are large by a scale of their weights; where the scale can't
    move into the layer before, it is kept here.

    Attributes:
        method: The method, whose numbers are those of the scaled array.
        scale: Positive; broadcasts against the array.

    Raises:
        TypeError: `method` is no quantizer.
        ValueError: A scale isn't positive; or, at its first use, doesn't broadcast.

    References:
        Lin et al., "AWQ", arXiv:2306.00978, eq. 2.
    """

    method: numerics.Quantizer
    scale: core.Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.method, numerics.Quantizer) or isinstance(self.method, type):
            raise TypeError(f"Scaled.method must be a quantizer, not {self.method!r}.")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest values; computed in float32 at least."""
        scaled, scale = self._scaled(x, tensor)
        return (self.method.quantize(scaled, tensor) / scale).astype(x.dtype)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Scaled":
        """Returns the method started from the scaled array."""
        if not hasattr(self.method, "start"):
            return self
        return replace(self, method=self.method.start(self._scaled(x, tensor)[0], tensor))

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts the bits of the method, and 32 for each scale."""
        inner: Any = self.method
        return inner.storage(shape, tensor) + 32 * jnp.size(self.scale)

    @property
    def width(self) -> Any:
        """Bits of one code of the method."""
        return getattr(self.method, "width", 32)

    def by_entry(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> list[Array]:
        """Repeats the scale, and the numbers of a method by group, for every entry of an array."""
        method: Any = self.method
        scale = core.with_leading_axes(jnp.asarray(self.scale), shape)
        return [jnp.broadcast_to(scale, shape), *method.by_entry(shape, tensor)]

    def with_numbers(self, numbers: Sequence[Array]) -> "Scaled":
        """Returns the method for some entries, with their numbers of those of `by_entry`."""
        scale, *rest = numbers
        method: Any = self.method
        return Scaled(method.with_numbers(rest), scale)

    def _scaled(self, x: Array, tensor: numerics.Tensor) -> tuple[Array, Array]:
        core.check_broadcasts(f"Scaled.scale at {tensor.site!r}", self.scale, x.shape)
        dtype = numerics.wide_dtype(x)
        scale = core.with_leading_axes(jnp.asarray(self.scale, dtype), x.shape)
        return x.astype(dtype) * scale, scale


@core.register_setting
class Switched(numerics.BaseQuantizer):
    """A method and whether it acts: `Switched(Uniform(bits), bits <= 16)`.

    A spec says with None that a layer is left alone, which decides what is compiled. In a policy,
    an array, that has to be a number too: one program then evaluates policies that quantize a layer
    and policies that don't.

    Attributes:
        method: The method.
        on: Whether it acts; an array may be traced. Where it is zero, values and their gradients
            are those of no quantization.
    """

    method: numerics.Quantizer
    on: bool | Array = core.static_number(True)

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Quantizes by the method, or returns the values unchanged."""
        if isinstance(self.on, bool):
            return self.method.quantize(x, tensor) if self.on else x
        # Both are computed: a traced number can't decide what is compiled.
        return jnp.where(self._is_on(), self.method.quantize(x, tensor), x)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Switched":
        """Computes the open numbers of its method."""
        started = getattr(self.method, "start", None)
        return self if started is None else replace(self, method=started(x, tensor))

    def deterministic(self) -> "Switched":
        """Returns the same with its method's form that draws nothing."""
        form = getattr(self.method, "deterministic", None)
        return self if form is None else replace(self, method=form())

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts the bits by the method, or in float32."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.storage(shape, tensor), 32 * math.prod(shape))

    @property
    def width(self) -> Any:
        """That of the method, or 32."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.width, 32)

    def penalty(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> Any:
        """Returns the penalty of the method where it acts."""
        method: Any = self.method
        return jnp.where(self._is_on(), method.penalty(x, tensor), 0.0)

    def _is_on(self) -> Array:
        return jnp.asarray(self.on, bool)
