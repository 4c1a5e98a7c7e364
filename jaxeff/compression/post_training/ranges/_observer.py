"""`Observer`: the ranges of activations over batches, by one of four rules.

"percentile" and "minmax" need two numbers per batch, "mse" and "kl" a histogram of all batches.
They are recorded by callbacks, because a layer inside a loop is observed in every iteration, and a
traced value can't be kept.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array

from jaxeff.compression.post_training.ranges._clipping import clip_histogram
from jaxeff.compression.post_training.ranges._histogram import Histogram, count
from jaxeff.compression.quantizers import Uniform
from jaxeff.core import is_concrete

Place = tuple[str, int]
"""A site, and the operand's number."""


class Observer:
    """Records what the activations of each place are, and turns that into ranges.

    Attributes:
        method: "minmax", "percentile", "mse" or "kl".
        percentile: The upper percentile; the lower one is its counterpart.
    """

    def __init__(self, method: str, percentile: float) -> None:
        self.method, self.percentile = method, percentile
        self._grids: dict[Place, Uniform] = {}  # in order
        self._ends: dict[Place, list[tuple[float, float]]] = defaultdict(list)
        self._histograms: dict[Place, Histogram] = {}

    def observe(self, place: Place, grid: Uniform, x: Array) -> None:
        """Records an array that a grid will quantize; traced."""
        self._grids[place] = grid
        if not x.size:
            raise ValueError(f"The layer {place[0]!r} reads an empty array while calibrating.")
        rules: dict[str, Callable[[Array], Sequence[Array]]] = {
            "percentile": self._percentiles, "minmax": self._extremes,
        }  # fmt: skip
        found = rules.get(self.method, self._counts)(x)
        io_callback(functools.partial(self._record, place), None, *found)

    def ranges(self) -> dict[str, dict[int, tuple[float, float]]]:
        """Computes smallest and largest value kept, per site and operand."""
        ranges: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        for place, grid in self._grids.items():
            ranges[place[0]][place[1]] = self._range(place, grid)
        return ranges

    def _percentiles(self, x: Array) -> tuple[Array, Array]:
        # On the device: only two numbers per batch and site leave it.
        both = jnp.percentile(x, jnp.array([100 - self.percentile, self.percentile], x.dtype))
        return both[0], both[1]

    def _extremes(self, x: Array) -> tuple[Array, Array]:
        return x.min(), x.max()

    def _counts(self, x: Array) -> tuple[Array, Array, Array, Array]:
        return *self._extremes(x), *count(x)

    def _record(
        self, place: Place, low: Any, high: Any, counts: Any = None, exponent: Any = None
    ) -> None:
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


def known_width(site: str, grid: Uniform) -> int:
    """Returns the width of a grid as a Python number."""
    if isinstance(grid.bits, int):
        return grid.bits
    if not is_concrete(grid.bits) or np.size(grid.bits) != 1:
        raise ValueError(
            f"The range of {site!r} depends on its bit width, which must be one known number; use "
            'method="minmax" for widths that vary.'
        )
    return int(np.asarray(grid.bits).item())
