"""Where values are clipped before they are put on a uniform grid: `clip_range`, `Observer`."""

import functools
import itertools
import weakref
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.compression.numerics import MAX_BITS, Symmetry, fake_quantize
from jaxeff.compression.quantizers import Uniform

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

    def __add__(self, other: "Histogram") -> "Histogram":
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


METHODS = ("minmax", "percentile", "mse", "kl")
_PEAK = 0.95
_FACTORS = np.arange(1, 101) / 100


@core.validate(
    values=core.real_array(),
    bits=core.static_integer(1, 16),
    percentile=core.number(above=0, high=100),
)
def clip_range(
    values: Any,
    bits: int,
    *,
    symmetric: Symmetry = False,
    method: str = "mse",
    percentile: float = 99.9,
    counts: Any = None,
) -> tuple[float, float]:
    """Finds where to clip values before they are put on a uniform grid.

    "minmax" keeps everything. "percentile" leaves out a part at each end. "mse" takes the factor of
    smallest and largest value that minimises the squared error of the quantized values, clipped
    ones included (Banner et al., section 4, by search). "kl" takes the threshold of |x| that
    minimises the Kullback-Leibler divergence of the distribution before, its tail put into the last
    bin, from that after quantization, among the bins of a histogram (Migacz). Zeros are on every
    grid and have no part in either.

    Two things differ from Migacz. The second distribution isn't normalised again after clipping, so
    that it lacks what was clipped; and a bin counts no more than nearly all filled bins do
    (`_PEAK`), since a single value that many entries have, such as the background of images, is no
    density that a level spreads. Without them a histogram with a peak is clipped at the peak.

    ```python
    import numpy as np

    from jaxeff.compression import clip_range

    values = np.append(np.random.default_rng(0).normal(size=1000), 20.0)       # and one far out
    assert clip_range(values, 4, method="minmax")[1] == 20.0
    for method in ("percentile", "mse", "kl"):  # one value doesn't make all others coarse
        low, high = clip_range(values, 4, symmetric=True, method=method)
        assert high < 8
    ```

    Sharp edges:
        A range of no width, as that of a constant or of zeros alone, is returned as it is; the grid
        of it holds the one value exactly (`jaxeff.compression.numerics`).
        Values come as numbers with counts, so that a histogram will do: within a bin of `Histogram`
        they count as its middle. "kl" is meant for 8 bits and fewer: with more values than bins it
        clips nothing.

    Args:
        values: Numbers of any shape.
        bits: Bit width of the grid, 1 to 16.
        symmetric: Whether the grid is centred on zero, or "full", as `grid` has it.
        method: "minmax", "percentile", "mse" or "kl".
        percentile: The upper percentile, above 50; the lower one is its counterpart. Of values,
            not of counts.
        counts: Number of occurrences of each value; one if None.

    Returns:
        Smallest and largest value kept.

    Raises:
        ValueError: There are no values, one isn't finite, or an argument is out of bounds.

    References:
        Migacz, "8-bit Inference with TensorRT", GTC 2017. Banner et al., "Post training 4-bit
        quantization of convolutional networks for rapid-deployment", arXiv:1810.05723.
    """
    core.check_choice("clip_range: method", method, METHODS)
    core.check_number("clip_range: percentile", percentile, high=100, above=50)
    core.Width(1, MAX_BITS).check("clip_range: bits", bits)
    values = np.asarray(values, np.float64).reshape(-1)
    if not values.size:
        raise ValueError("clip_range needs at least one value, but there is none.")
    if not np.isfinite(values).all():
        raise ValueError("clip_range needs finite values, but one is NaN or infinite.")
    if method == "percentile":
        low, high = np.percentile(values, (100 - percentile, percentile))
        return float(low), float(high)
    known = np.ones_like(values) if counts is None else np.asarray(counts, np.float64).reshape(-1)
    return _clipped(values, known, values.min(), values.max(), bits, symmetric, method)


def clip_histogram(
    histogram: Histogram, bits: int, symmetric: Symmetry, method: str
) -> tuple[float, float]:
    """Clips the values of a histogram likewise, by the methods "minmax", "mse" and "kl"."""
    low, high = histogram.low, histogram.high
    return _clipped(histogram.middles, histogram.counts, low, high, bits, symmetric, method)


def _clipped(
    values: np.ndarray,
    counts: np.ndarray,
    low: float,
    high: float,
    bits: int,
    symmetric: Symmetry,
    method: str,
) -> tuple[float, float]:
    low, high = float(low), float(high)
    if method == "minmax" or low == high:
        return low, high
    if method == "mse":
        scale = max(abs(low), abs(high))  # so that squares neither overflow nor vanish
        ends = jnp.asarray([low / scale, high / scale], jnp.float32)
        errors = _errors(
            jnp.asarray(values / scale, jnp.float32),
            jnp.asarray(counts, jnp.float32),
            ends,
            bits,
            symmetric,
        )
        # Of equal errors the widest range.
        best = len(_FACTORS) - 1 - int(np.argmin(np.asarray(errors)[::-1]))
        return low * float(_FACTORS[best]), high * float(_FACTORS[best])
    limit = _threshold(np.abs(values), counts, low, high, bits)
    return max(low, -limit), min(high, limit)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _errors(values: Array, counts: Array, ends: Array, bits: int, symmetric: Symmetry) -> Array:
    """Computes the squared error for each factor of the range."""

    def error(factor: Array) -> Array:
        low, high = ends[0] * factor, ends[1] * factor
        rounded = fake_quantize(values, bits, low, high, symmetric)
        return jnp.sum(counts * jnp.square(values - rounded))

    return jax.lax.map(error, jnp.asarray(_FACTORS, jnp.float32))


def _threshold(sizes: np.ndarray, counts: np.ndarray, low: float, high: float, bits: int) -> float:
    """Finds the threshold of |x| with the least divergence of clipped from quantized values."""
    # Values of both signs share the codes.
    levels = 2 ** (bits - 1) if low < 0 < high else 2**bits
    largest, bins = max(abs(low), abs(high)), BINS // 2
    place = np.minimum((sizes / largest * bins).astype(int), bins - 1)
    histogram = np.bincount(place[sizes > 0], counts[sizes > 0], bins)
    # A single frequent value must not decide where to clip.
    peak = np.quantile(histogram[histogram > 0], _PEAK, method="lower")
    histogram = np.minimum(histogram, peak)
    best, lowest = bins, np.inf
    # At least a bin per level. A few million operations in all, as candidates share the bins.
    for kept in range(levels, bins + 1):
        divergence = _divergence(histogram, kept, levels)
        # Of equal divergences the widest range: thresholds are tried from below.
        if divergence <= lowest:
            best, lowest = kept, divergence
    return largest * best / bins


def _divergence(histogram: np.ndarray, kept: int, levels: int) -> float:
    inside = histogram[:kept]
    before = inside.copy()
    # P keeps the clipped tail in its last bin, Q lacks it: clipping much costs divergence.
    before[-1] += histogram[kept:].sum()
    # Q spreads a level's count evenly over its filled bins, as dequantized values can't
    # tell them apart.
    level = np.arange(kept) * levels // kept
    filled = inside > 0
    share = np.bincount(level, inside) / np.maximum(np.bincount(level, filled), 1)
    after = np.where(filled, share[level], 0)
    if not after.sum() or (after[before > 0] == 0).any():
        return np.inf
    # Not normalised again: what is clipped is missing from the second distribution.
    p, q = before[before > 0] / before.sum(), after[before > 0] / before.sum()
    return float((p * np.log(p / q)).sum())


Place = tuple[str, int]
"""A site, and the operand's number."""


class Observer:
    """Records what the activations of each place are, and turns that into ranges.

    "percentile" and "minmax" need two numbers per batch, "mse" and "kl" a histogram of all batches.
    They are recorded by callbacks, because a layer inside a loop is observed in every iteration,
    and a traced value can't be kept.

    Attributes:
        method: "minmax", "percentile", "mse" or "kl".
        number: What `observe` is told to record here by: programs outlive an observer.
    """

    def __init__(self, method: str) -> None:
        self.method, self.number = method, next(_NUMBERS)
        self._ends: dict[Place, list[tuple[float, float]]] = defaultdict(list)
        self._histograms: dict[Place, Histogram] = {}
        _OBSERVERS[self.number] = self

    def ranges(self, grids: Mapping[Place, Uniform]) -> dict[str, dict[int, tuple[float, float]]]:
        """Computes smallest and largest value kept, per site and operand, for their grids."""
        ranges: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        for place, grid in grids.items():
            ranges[place[0]][place[1]] = self._range(place, grid)
        return ranges

    def record(
        self, place: Place, low: Any, high: Any, counts: Any = None, exponent: Any = None
    ) -> None:
        """Records what `observe` computed of an array."""
        self._ends[place].append((float(low), float(high)))
        if counts is not None:
            # Borders are powers of two: histograms of batches add exactly, whatever their ranges.
            here = Histogram(np.asarray(counts, np.float64), int(exponent), float(low), float(high))
            known = self._histograms.get(place)
            self._histograms[place] = here if known is None else known + here

    def _range(self, place: Place, grid: Uniform) -> tuple[float, float]:
        seen = self._ends[place]
        if not seen:
            raise ValueError(f"The layer {place[0]!r} was never reached while calibrating.")
        both = np.array(seen)
        if not np.isfinite(both).all():
            raise ValueError(f"The layer {place[0]!r} has activations that aren't finite numbers.")
        if self.method == "percentile":
            # The mean over batches: the percentile of all values would need all of them at once.
            return float(both[:, 0].mean()), float(both[:, 1].mean())
        if place in self._histograms:
            width = known_width(place[0], grid)
            return clip_histogram(self._histograms[place], width, grid.symmetric, self.method)
        return float(both[:, 0].min()), float(both[:, 1].max())


_NUMBERS = itertools.count()
_OBSERVERS: weakref.WeakValueDictionary[int, Observer] = weakref.WeakValueDictionary()


def observe(number: Any, place: Place, x: Array, method: str, percentile: float) -> None:
    """Records an array that a grid will quantize with the observer of a number; traced.

    Args:
        number: Number of the observer, which may be traced.
        place: The site, and the operand's number.
        x: The array.
        method: The observer's.
        percentile: The upper percentile; the lower one is its counterpart.
    """
    if not x.size:
        raise ValueError(f"The layer {place[0]!r} reads an empty array while calibrating.")
    if method == "percentile":
        # On the device: only two numbers per batch and site leave it.
        both = jnp.percentile(x, jnp.array([100 - percentile, percentile], x.dtype))
        numbers: tuple[Array, ...] = both[0], both[1]
    else:
        numbers = x.min(), x.max()
        numbers += () if method == "minmax" else count(x)

    def record(number: Any, *numbers: Any) -> None:
        _OBSERVERS[int(number)].record(place, *numbers)

    io_callback(record, None, number, *numbers)


def known_width(site: str, grid: Uniform) -> int:
    """Returns the width of a grid as a Python number."""
    if isinstance(grid.bits, int):
        return grid.bits
    if not core.is_concrete(grid.bits) or np.size(grid.bits) != 1:
        raise ValueError(
            f"The range of {site!r} depends on its bit width, which must be one known number; use "
            'method="minmax" for widths that vary.'
        )
    return int(np.asarray(grid.bits).item())
