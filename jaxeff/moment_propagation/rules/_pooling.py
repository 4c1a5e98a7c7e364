"""Moments of sums and maxima over sliding windows: average and max pooling.

Windows follow `lax.reduce_window`: one window size, stride, padding and dilation per axis. Sums
are exact under independence. Maxima are Clark trees, one axis after the other, so that a 2x2
window is pairs, then both, and overlapping windows share the pairs.

Sharp edges
- Overlapping windows give outputs that are correlated; the diagonal covariance forgets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.rules._arithmetic import negate
from jaxeff.moment_propagation.rules._clark import maximum
from jaxeff.moment_propagation.rules._composites import Attribute, composite
from jaxeff.moment_propagation.values import Gaussian


@dataclass(frozen=True)
class PoolingWindow:
    """A sliding window over every axis of an array, as `lax.reduce_window` takes it.

    Attributes:
        size: Window size per axis.
        strides: Stride per axis.
        padding: Entries added before and after each axis.
        base_dilation: Spacing put between input entries, per axis.
        window_dilation: Spacing between the entries of a window, per axis.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    @property
    def attributes(self) -> dict[str, Attribute] | None:
        """The attributes of its composite; None if it is dilated or cuts entries off."""
        edges = tuple(edge for edges in self.padding for edge in edges)
        if {*self.base_dilation, *self.window_dilation} - {1} or any(edge < 0 for edge in edges):
            return None
        return {"size": self.size, "strides": self.strides, "padding": edges}


def window(
    size: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Sequence[tuple[int, int]] | None = None,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> PoolingWindow:
    """Makes a `PoolingWindow` with the usual defaults: stride and dilation 1, no padding."""
    ones = (1,) * len(size)
    return PoolingWindow(
        tuple(size),
        tuple(strides or ones),
        tuple((lo, hi) for lo, hi in padding) if padding else ((0, 0),) * len(size),
        tuple(base_dilation or ones),
        tuple(window_dilation or ones),
    )


def window_sum(x: Gaussian, win: PoolingWindow) -> Gaussian:
    """Computes the moments of `lax.reduce_window` with a sum."""

    def total(value: Array) -> Array:
        return lax.reduce_window(
            value,
            np.zeros((), value.dtype),  # a concrete zero: only then a sum, with a gradient
            lax.add,
            win.size,
            win.strides,
            win.padding,
            win.base_dilation,
            win.window_dilation,
        )

    # Variances of independent entries add: the same window sum serves for both moments.
    return Gaussian(total(x.mean), total(x.var))


def window_max(x: Gaussian, win: PoolingWindow) -> Gaussian:
    """Computes the moments of `lax.reduce_window` with a maximum (max pooling)."""

    def rule(mean: Array, var: Array) -> Gaussian:
        return _window_max(Gaussian(mean, var), win)

    if win.attributes is None:
        return rule(x.mean, x.var)
    return composite("pfp_max_pool", rule, x.mean, x.var, **win.attributes)


def window_mean(x: Gaussian, win: PoolingWindow) -> Gaussian:
    """Computes the moments of average pooling: sums over windows divided by their size."""
    count = math.prod(win.size)

    def rule(mean: Array, var: Array) -> Gaussian:
        total = window_sum(Gaussian(mean, var), win)
        return Gaussian(total.mean / count, total.var / (count * count))

    if win.attributes is None:
        return rule(x.mean, x.var)
    return composite("pfp_avg_pool", rule, x.mean, x.var, **win.attributes)


def _window_max(x: Gaussian, win: PoolingWindow) -> Gaussian:
    config = [
        (lo, hi, dilation - 1)
        for (lo, hi), dilation in zip(win.padding, win.base_dilation, strict=True)
    ]
    if any(entry != (0, 0, 0) for entry in config):
        # Padding never wins, but is finite: two infinities would have no difference. A quarter of
        # the lowest number leaves room for a difference.
        zero = jnp.zeros((), x.dtype)
        lowest = jnp.asarray(jnp.finfo(x.dtype).min / 4, x.dtype)
        x = Gaussian(lax.pad(x.mean, lowest, config), lax.pad(x.var, zero, config))
    # The maximum over a window is that over its rows of those over its columns: one axis at a time,
    # overlapping windows share the pairs of the axes before.
    for axis, size in enumerate(win.size):
        x = _axis_max(x, axis, size, win.strides[axis], win.window_dilation[axis])
    return x


def _axis_max(x: Gaussian, axis: int, size: int, stride: int, dilation: int) -> Gaussian:
    """Computes the windowed maximum along one axis."""
    if size == 1 and stride == 1:
        return x
    span = (size - 1) * dilation + 1
    count = (x.shape[axis] - span) // stride + 1

    def shifted(value: Array, offset: int) -> Array:
        stop = offset + (count - 1) * stride + 1
        return lax.slice_in_dim(value, offset, stop, stride, axis)

    # One strided slice per place in the window: a tree over as many arrays, vectorised over all
    # windows.
    level = [
        Gaussian(shifted(x.mean, i * dilation), shifted(x.var, i * dilation)) for i in range(size)
    ]
    while len(level) > 1:
        paired = [
            maximum(a, b) for a, b in zip(level[: len(level) & ~1 : 2], level[1::2], strict=True)
        ]
        level = paired + (level[-1:] if len(level) % 2 else [])
    return level[0]


def window_min(x: Gaussian, win: PoolingWindow) -> Gaussian:
    """Computes the moments of `lax.reduce_window` with a minimum."""
    return negate(window_max(negate(x), win))
