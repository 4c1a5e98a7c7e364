"""`Histogram`: counts of values over batches, in bins that fit onto each other."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

BINS = 4096


@dataclass(frozen=True)
class Histogram:
    """Counts of values that aren't zero, in bins between -2^exponent and 2^exponent.

    Powers of two make histograms of different batches fit onto each other: bins of the narrower
    one lie pairwise within bins of the wider.

    Attributes:
        counts: One per bin.
        exponent: Power of two at the outer borders, at or above the largest magnitude.
        low: Smallest value, zeros included.
        high: Largest value, zeros included.
    """

    counts: Float[np.ndarray, " bins"]
    exponent: int
    low: float
    high: float

    def __add__(self, other: Histogram) -> Histogram:
        """Adds two histograms."""
        exponent = max(self.exponent, other.exponent)
        counts = self._widened(exponent) + other._widened(exponent)
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Histogram(counts, exponent, low, high)

    @property
    def middles(self) -> Float[np.ndarray, " bins"]:
        """The middle of each bin."""
        n = len(self.counts)
        middles: np.ndarray = ((np.arange(n) + 0.5) * 2 / n - 1) * 2.0**self.exponent
        return middles

    def _widened(self, exponent: int) -> np.ndarray:
        counts, n = self.counts, len(self.counts)
        # Doubling the range merges bins in pairs and pads both ends; after log2(n)
        # doublings all are in the middle two.
        for _ in range(min(exponent - self.exponent, n.bit_length())):
            counts = np.pad(counts.reshape(-1, 2).sum(1), n // 4)
        return counts


def count(x: Float[Array, "*shape"]) -> tuple[Int[Array, " bins"], Int[Array, ""]]:
    """Computes counts and exponent of a `Histogram`, traced; NaN and infinity are in no bin."""
    x = x.reshape(-1).astype(jnp.float32)
    _, exponent = jnp.frexp(jnp.abs(x).max())
    # Scaled in two steps: the largest exponents have no reciprocal.
    half = exponent // 2
    part = jnp.ldexp(jnp.ldexp(x, -half), half - exponent)
    place = jnp.clip(jnp.floor((part + 1) * (BINS / 2)), 0, BINS - 1).astype(jnp.int32)
    counts = jnp.zeros(BINS, jnp.int32).at[place].add((x != 0).astype(jnp.int32))
    return counts, exponent.astype(jnp.int32)
