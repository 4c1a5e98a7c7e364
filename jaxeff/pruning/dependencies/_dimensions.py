"""Axes as expressions of dimensions, and what it means that two axes are the same.

An axis of an array is a *dimension* of so many indices, a *product* of axes (after a reshape that
merges them; the last one runs fastest) or a *concatenation*. An index of a product is kept where
its indices of all factors are kept, so a product stays rectangular whatever is removed: the same
channels of every head, or whole heads. That is what "an equal number per block" comes to.

Equations relate axes (`_alignment.py`). An axis that they can't align is *held*, with a reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np


@dataclass(eq=False)
class Dimension:
    """Indices without further structure. Compared by identity.

    Attributes:
        size: Number of channels.
        held: Reasons why none of them may be removed; free if there is none.
        bound: The axis that this dimension turned out to be.
        number: Number of the dimension, in order of creation.
    """

    size: int
    held: list[str] = field(default_factory=list)
    bound: Axis | None = None
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(frozen=True, eq=False)
class AxisProduct:
    """Axes merged into one, the last running fastest; of none of them, the axis of one index."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of indices."""
        return int(np.prod([part.size for part in self.parts], dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Concatenation:
    """Axes one after the other."""

    parts: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of indices."""
        return sum(part.size for part in self.parts)


Axis: TypeAlias = Dimension | AxisProduct | Concatenation
ONE = AxisProduct(())
"""The axis of a single index, which is never removed."""


def fresh(size: int, *held: str) -> Axis:
    """Returns a new axis; held for the given reasons."""
    return ONE if size == 1 else Dimension(size, list(held))


def resolve(axis: Axis) -> Axis:
    """Replaces bound dimensions by what they are bound to and flattens nested expressions."""
    if isinstance(axis, Dimension):
        return axis if axis.bound is None else resolve(axis.bound)
    parts: list[Axis] = []
    for part in map(resolve, axis.parts):
        # Flat, so that two expressions of the same structure are compared part by part.
        if type(part) is type(axis):
            parts += part.parts  # type: ignore[union-attr]
        # An empty part adds nothing to a concatenation; in a product it makes everything empty.
        elif part.size or isinstance(axis, AxisProduct):
            parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return type(axis)(tuple(parts))


def dimensions(axis: Axis) -> Iterator[Dimension]:
    """Yields the dimensions that an axis is made of."""
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        yield axis
    else:
        for part in axis.parts:
            yield from dimensions(part)


def hold(axis: Axis, reason: str) -> None:
    """Forbids to remove any index."""
    for dimension in dimensions(axis):
        if reason not in dimension.held:
            dimension.held.append(reason)


def kept_if(whole: bool, axis: Axis, size: int, reason: str) -> Axis:
    """Keeps an axis of which a part is taken whole; otherwise holds it and makes one of a size."""
    if whole:
        return axis
    hold(axis, reason)
    return fresh(size, reason)


def is_held(axis: Axis) -> bool:
    """Returns whether no index may be removed."""
    return all(dimension.held for dimension in dimensions(axis))


def kept(axis: Axis, keep: Mapping[Dimension, np.ndarray]) -> np.ndarray:
    """Returns which indices of an axis stay.

    Args:
        axis: Any axis.
        keep: Booleans for the dimensions that lose indices; all others stay whole.

    Returns:
        A boolean per index.
    """
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        return np.asarray(keep.get(axis, np.ones(axis.size, bool)))
    parts = [kept(part, keep) for part in axis.parts]
    if isinstance(axis, Concatenation):
        return np.concatenate(parts) if parts else np.ones(0, bool)
    whole = np.ones(1, bool)
    for part in parts:
        # Row-major: an index of the product stays where its indices of all factors do.
        whole = (whole[:, None] & part[None]).reshape(-1)
    return whole


def membership(axis: Axis, dimension: Dimension) -> np.ndarray:
    """Returns, for each index of an axis, the dimension's index that holds it, or -1."""
    axis = resolve(axis)
    if isinstance(axis, Dimension):
        return np.arange(axis.size) if axis is dimension else np.full(axis.size, -1)
    parts = [membership(part, dimension) for part in axis.parts]
    if isinstance(axis, Concatenation):
        return np.concatenate(parts) if parts else np.zeros(0, int)
    whole = np.full(1, -1)
    for part in parts:
        # -1 is no index: the maximum takes whichever factor has one.
        whole = np.maximum(whole[:, None], part[None]).reshape(-1)
    return whole
