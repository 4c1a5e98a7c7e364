"""The protocol of sparse methods: a mask of an array's entries, as a method of `quantized`.

A sparse weight is a quantized one whose grid has a zero that many values go to. So a method here is
a quantizer with one method more, `mask`; specs, `init`, `update_statistics`, `memory` and
`jaxeff.cost` take it like any other, and `values` quantizes what is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jaxeff.compression import BaseQuantizer, LayerQuantization, Quantizer, Tensor, straight_through
from jaxeff.core import Choice, static

_POINTER = 32


@dataclass(frozen=True, kw_only=True)
class Sparse(BaseQuantizer):
    """A method that keeps some weights and sets the others to zero.

    Attributes:
        values: Quantizer of the weights that are kept; None leaves them as they are.
        gradient: "all" weights have the gradient of the masked ones (straight-through), so that
            what has been removed may come back; or those that are "kept" alone.
        stored: Format in which `storage`, and with it `memory` and `jaxeff.cost`, counts an array:
            "bitmask", a bit for every entry and the values that are kept; "csr", for every value
            kept its column in 8, 16 or 32 bits, and 32 bits per row and one more, rows being output
            channels; "dense", every entry.
    """

    values: Quantizer | None = None
    gradient: Annotated[str, Choice("all", "kept")] = static("all")
    stored: Annotated[str, Choice("bitmask", "csr", "dense")] = static("bitmask")

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.values is not None and not isinstance(self.values, Quantizer):
            raise TypeError(
                f"{type(self).__name__}.values must be a method for one array, such as Uniform(8), "
                f"not {self.values!r}."
            )

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns which entries of a weight are kept."""
        raise NotImplementedError

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns how many entries that are."""
        raise NotImplementedError

    def quantize(self, x: Float[Array, "*shape"], tensor: Tensor) -> Float[Array, "*shape"]:
        """Returns the values that are kept, and zeros."""
        self._check_role(tensor)
        # A mask is piecewise constant: all of the gradient is that of the values.
        mask = lax.stop_gradient(self.mask(lax.stop_gradient(x), tensor))
        value = x if self.values is None else self.values.quantize(x, tensor)
        sparse = jnp.where(mask, value, jnp.zeros_like(value))
        return straight_through(value, sparse) if self.gradient == "all" else sparse

    def parts(self) -> LayerQuantization:
        """Returns the method for weights alone: an activation has no weights to remove."""
        return LayerQuantization(weights=self)

    def start(self, x: Float[Array, "*shape"], tensor: Tensor) -> Quantizer:
        """Returns the method of the values started from all of an array."""
        self._check_role(tensor)
        start = getattr(self.values, "start", None)
        return self if start is None else replace(self, values=start(x, tensor))

    def storage(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of an array, in the format that `stored` says."""
        size, kept, bits = math.prod(shape), self.kept(shape, tensor), self.width
        if self.stored == "dense":
            return size * bits + self._decoding(shape, tensor)
        if self.stored == "bitmask":
            return size + kept * bits + self._decoding(shape, tensor)
        rows = max(tensor.count(shape, "channel"), 1)
        # The narrowest integer that numbers a row's entries.
        column = next(b for b in (8, 16, 32) if size // rows <= 2**b or b == 32)
        found = kept * (bits + column) + (rows + 1) * _POINTER
        return found + self._decoding(shape, tensor)

    @property
    def width(self) -> Any:
        """Bits of a value that is kept."""
        return 32 if self.values is None else getattr(self.values, "width", 32)

    def _decoding(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Counts the bits of scales and codebooks of the values."""
        storage = getattr(self.values, "storage", None)
        # What the method of values stores beyond its codes: that stays, however few codes are kept.
        return 0 if storage is None else storage(shape, tensor) - math.prod(shape) * self.width

    def _check_role(self, tensor: Tensor) -> None:
        if tensor.role == "activation":
            name = type(self).__name__
            raise ValueError(
                f"{name} removes weights, and {tensor.site}/{tensor.name} is an activation: write "
                f"{{pattern: {name}(...)}} or LayerQuantization(weights={name}(...), "
                "activations=Int(8))."
            )


__all__ = ["Sparse"]
