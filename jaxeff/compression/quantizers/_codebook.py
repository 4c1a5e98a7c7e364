"""Learnt values: `Codebook` (k-means), and how many bits their codes take."""

import functools
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import numerics


def code_lengths(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Computes the length of each symbol's code in a Huffman code.

    Args:
        counts: Number of occurrences of each symbol.

    Returns:
        Whole numbers of bits, of the shape of `counts`; 0 for what doesn't occur, and for a symbol
        that is the only one.

    Raises:
        ValueError: A count is negative or not finite, or there is none above zero.
    """
    numbers = _checked(counts)
    lengths = np.zeros(numbers.shape, int)
    order = itertools.count()  # decides between equal counts, so that members aren't compared
    heap = [(float(n), next(order), [i]) for i, n in enumerate(numbers) if n > 0]
    heapq.heapify(heap)
    # Joining the two rarest groups lengthens the code of each member by one bit.
    while len(heap) > 1:
        (n, _, members), (m, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[members + others] += 1
        heapq.heappush(heap, (n + m, next(order), members + others))
    return lengths


def mean_length(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the bits per symbol of a Huffman code: from the entropy to one bit above it."""
    numbers = _checked(counts)
    return float(np.sum(code_lengths(numbers) * numbers) / np.sum(numbers))


def entropy(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the entropy of the symbols in bits, which no code gets below."""
    numbers = _checked(counts)
    shares = numbers[numbers > 0] / np.sum(numbers)
    # The zero added turns the -0.0 of a single symbol into 0.
    return float(-np.sum(shares * np.log2(shares))) + 0.0


def _checked(counts: Any) -> np.ndarray:
    numbers = np.asarray(counts, np.float64).ravel()
    if not (np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers > 0).any()):
        raise ValueError(f"counts must be at least zero, and one of them above, but are {counts}.")
    return numbers


TURNS = 300
"""The most turns of k-means, as elsewhere."""
STILL = 1e-4
"""It ends when no value moves by more than this share of their mean distance."""


@core.register_setting
class Codebook(numerics.BaseQuantizer):
    """Shared values: `Codebook(4)` has 16.

    The codebook minimises the sum of squared distances to the nearest of its 2^b values (Han et
    al., eq. 2). It starts from values evenly spaced between the smallest and the largest (linear
    initialisation, section 3.2) and takes turns (Lloyd): members are those that are nearest, the
    shared value is their mean. Then the values are trained, the gradient of each being the sum over
    its members (eq. 3).

    Indices can be stored by a Huffman code, the frequent ones shorter (section 4).

    Sharp edges:
        Once weights have a codebook they have no gradient, so that members stay: learn the spec.
        With `reassign`, and for activations, gradients pass straight through.
        A value without members stays where it is.

    Attributes:
        bits: Bit width of an index, 1 to 8.
        values: The codebook along its last axis; the other axes are of size one, or those that
            have a codebook of their own. Open: by k-means.
        per: Part with its own codebook: the output "channel" of a weight, or the "tensor".
        coding: Storage of indices: with "fixed" lengths, or by a "huffman" code.
        length: Bits of an index by the Huffman code of the array that it started from, on average;
            has no gradient. Open: `bits`.
        reassign: Whether weights are trained too, and may change their shared value.

    Raises:
        TypeError, ValueError: A number is out of bounds, or there is another number of values.

    References:
        Han et al., "Deep Compression", arXiv:1510.00149.
    """

    bits: Annotated[int, core.Count(1, 8)] = core.static()
    values: Annotated[Float[Array, "... values"] | None, core.Number()] = None
    per: Annotated[str, core.Choice("channel", "tensor")] = core.static("tensor")
    coding: Annotated[str, core.Choice("fixed", "huffman")] = core.static("fixed")
    length: Annotated[Float[Array, ""] | float | None, core.Number(0)] = None
    reassign: bool = core.static(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_entries(2**self.bits, "values")

    def quantize(
        self, x: Float[Array, "*shape"], tensor: numerics.Tensor
    ) -> Float[Array, "*shape"]:
        """Returns the nearest values of the codebook.

        Raises:
            ValueError: The codebook is larger than what it stands for.
        """
        # Assignments have no gradient; a shared value gets the sum of its members' (Han et
        # al., section 3.3), through `lookup_levels`.
        fixed = jax.lax.stop_gradient(x)
        values = self.values if self.values is not None else self._k_means(fixed, tensor)
        tensor.fitted("Codebook.values", values[..., 0], x)
        levels = jnp.sort(jnp.asarray(values, x.dtype), axis=-1)
        y = numerics.lookup_levels(levels, numerics.nearest(fixed, jax.lax.stop_gradient(levels)))
        through = self.reassign or self.values is None or tensor.role == "activation"
        return y + ((x if through else fixed) - fixed)

    def start(self, x: Float[Array, "*shape"], tensor: numerics.Tensor) -> "Codebook":
        """Computes an open codebook from an array, and the length of its indices."""
        values = self.values
        if values is None:
            values = self._k_means(x, tensor).astype(x.dtype)
        started = replace(self, values=values)
        if self.coding == "huffman" and self.length is None and core.is_concrete(x):
            started = replace(started, length=started._length(x, tensor))
        return started

    def storage(self, shape: tuple[int, ...], tensor: numerics.Tensor) -> Any:
        """Counts indices, and for each shared value a float and the 8-bit length of its code."""
        entries = 2**self.bits * tensor.count(shape, self.per)
        coded = self.coding == "huffman"
        indices = super().storage(shape, tensor)
        if coded and self.length is not None:
            indices = indices / self.bits * self.length
        return indices + entries * (40 if coded else 32)

    def _k_means(self, x: Array, tensor: numerics.Tensor) -> Array:
        axes, shape = numerics.kept_axes(x, tensor.axes(self.per))
        members = x.size // tensor.count(x.shape, self.per)
        if members < 2**self.bits:
            raise ValueError(
                f"{tensor.site}/{tensor.name} has {members} value(s) for a codebook of "
                f"{2**self.bits}: take fewer bits there, "
                + ('per="tensor", ' if self.per == "channel" and shape else "")
                + "or leave the layer alone (None)."
            )
        return _lloyd(x, 2**self.bits, axes, shape)

    def _length(self, x: Array, tensor: numerics.Tensor) -> Array:
        levels = jnp.sort(jnp.asarray(self.values, x.dtype), axis=-1)
        _, shape = numerics.kept_axes(x, tensor.axes(self.per))
        levels = jnp.broadcast_to(levels, (*shape, 2**self.bits))
        counts, _ = numerics.sums(x, numerics.nearest(x, levels), 2**self.bits, shape)
        # Every codebook has a code of its own, and all have equally many members.
        lengths = [mean_length(row) for row in counts.reshape(-1, 2**self.bits)]
        return jnp.asarray(sum(lengths) / len(lengths), x.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _lloyd(x: Array, count: int, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Computes shared values by k-means, from evenly spaced ones."""
    wide = numerics.at_least_float32(x)
    low, high = (end(wide, axes).reshape(shape)[..., None] for end in (jnp.min, jnp.max))
    # Linear initialization: large weights, few but important, get shared values too (Han et
    # al., section 3.2).
    parts = jnp.arange(count, dtype=wide.dtype) / (count - 1)
    first = low + (high - low) * parts.reshape((1,) * len(shape) + (count,))

    still = STILL * (high - low) / count

    def turn(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        levels, _, turns = carry
        codes = numerics.nearest(wide, levels)
        # Sums of distances, which are small, lose less to rounding than sums of values.
        counts, totals = numerics.sums(
            wide - numerics.lookup_levels(levels, codes), codes, count, shape
        )
        # An empty cluster stays where it is.
        moved = levels + totals / jnp.maximum(counts, 1)
        return moved, jnp.any(jnp.abs(moved - levels) > still), turns + 1

    def goes_on(carry: tuple[Array, Array, Array]) -> Array:
        return carry[1] & (carry[2] < TURNS)

    levels, _, _ = jax.lax.while_loop(goes_on, turn, (first, jnp.array(True), jnp.array(0)))
    return levels
