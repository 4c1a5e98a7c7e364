"""Axes as expressions of dimensions, and what it means that two axes are the same.

An axis of an array is a *dimension* of so many indices, a *product* of axes (after a reshape that
merges them; the last one runs fastest) or a *concatenation*. An index of a product is kept where
its indices of all factors are kept, so a product stays rectangular whatever is removed: the same
channels of every head, or whole heads. That is what "an equal number per block" comes to.

Equations relate axes: `unify` states that two lose the same indices. It binds dimensions to one
another or to finer expressions until both sides are one. An axis that can't be aligned (a cut
through a product between its factors' boundaries) is *held*: none of its indices may be removed.
The reason is text: what forbids it, as `sort at 'fc1' [model.py:12]`, which names the primitive,
the site and the line. The way out depends on what it is.
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


def resolve_axis(axis: Axis) -> Axis:
    """Replaces bound dimensions by what they are bound to and flattens nested expressions."""
    if isinstance(axis, Dimension):
        return axis if axis.bound is None else resolve_axis(axis.bound)
    parts: list[Axis] = []
    for part in map(resolve_axis, axis.parts):
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
    axis = resolve_axis(axis)
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
    axis = resolve_axis(axis)
    if isinstance(axis, Dimension):
        return np.asarray(keep.get(axis, np.ones(axis.size, bool)))
    parts = [kept(part, keep) for part in axis.parts]
    if isinstance(axis, Concatenation):
        return np.concatenate(parts) if parts else np.ones(0, bool)
    combined = np.ones(1, bool)
    for part in parts:
        # Row-major: an index of the product stays where its indices of all factors do.
        combined = (combined[:, None] & part[None]).reshape(-1)
    return combined


def membership(axis: Axis, dimension: Dimension) -> np.ndarray:
    """Returns, for each index of an axis, the dimension's index that holds it, or -1."""
    axis = resolve_axis(axis)
    if isinstance(axis, Dimension):
        return np.arange(axis.size) if axis is dimension else np.full(axis.size, -1)
    parts = [membership(part, dimension) for part in axis.parts]
    if isinstance(axis, Concatenation):
        return np.concatenate(parts) if parts else np.zeros(0, int)
    combined = np.full(1, -1)
    for part in parts:
        # -1 is no index: the maximum takes whichever factor has one.
        combined = np.maximum(combined[:, None], part[None]).reshape(-1)
    return combined


INPUT = "an input of the function"
RESULT = "a result of the function"
RECTANGLE = "it doesn't stay rectangular"
BLOCK = "it cuts between the channels of a block"
ALONG = "the axis that it runs along"
STACKED = "the parts of a concatenation, taken as blocks by a reshape"
UNKNOWN = "no rule says which channels it reads"
MEAN = "a mean"
"""Reason of a statistic that depends on the number of channels alone."""
PLACE = ": a place, not a channel"
"""Ending of the reasons for an axis that has no channels."""

_WAYS = {
    INPUT: "Slice what goes in, and train a narrower model on it; or prune the next layer.",
    RESULT: "Leave it out, or prune the layers before it.",
    RECTANGLE: "Reshape so that axes are split where they were joined, into blocks of equal size.",
    BLOCK: "Cut at a boundary between blocks, or before the reshape that makes them.",
    ALONG: "Unroll the loop to remove a layer; channels inside of it can be removed in all layers.",
    STACKED: "Index the parts instead of reshaping their concatenation.",
    UNKNOWN: "Write it with primitives that keep channels apart, or leave its layers out.",
}
_OTHERWISE = "Leave it out, or write what holds it so that channels stay apart."


class PlanError(ValueError):
    """A plan that can't be carried out, or is of another model."""


def remedy(reason: str) -> str:
    """Returns advice, for an error message, on a reason why channels stay."""
    return next((way for part, way in _WAYS.items() if part in reason), _OTHERWISE)


def unify(one: Axis, other: Axis, reason: str) -> None:
    """Equates two axes: they lose the same indices.

    `reason` holds both where they can't be aligned.
    """
    one, other = resolve_axis(one), resolve_axis(other)
    if one.size != other.size:
        raise ValueError(f"axes of {one.size} and {other.size} indices are not the same ({reason})")
    if one is other or one.size == other.size == 0:
        return
    if isinstance(one, Dimension) or isinstance(other, Dimension):
        both = isinstance(one, Dimension) and isinstance(other, Dimension)
        # Of two dimensions the older one stays, so that what is known of it is found.
        if not isinstance(one, Dimension) or (both and one.number < other.number):  # type: ignore[union-attr]
            one, other = other, one
        _bind(one, other, reason)  # type: ignore[arg-type]
    elif isinstance(one, AxisProduct) and isinstance(other, AxisProduct):
        _align(list(one.parts), list(other.parts), reason)
    else:
        # Concatenations are refined to the common refinement of both sides' boundaries,
        # then unified piece by piece.
        bounds = sorted({*_bounds(one), *_bounds(other)})
        pieces = [
            [cut(axis, a, b) for a, b in zip([0, *bounds], [*bounds, axis.size], strict=True)]
            for axis in (one, other)
        ]
        if any(piece is None for side in pieces for piece in side):
            _give_up(reason, one, other)
            return
        for a, b in zip(*pieces, strict=True):
            unify(a, b, reason)  # type: ignore[arg-type]


def split(parts: list[Axis], sizes: list[int]) -> list[Axis] | None:
    """Returns the axes that a reshape makes, for axes in row-major order.

    Returns one axis per size, or None where a new axis would begin inside an index of an old one;
    then nothing is removed from any of them.
    """
    # The old axes as one list of factors; every new axis takes factors from the left until
    # their product is its size, and a factor that straddles a boundary is divided.
    rest = [part for axis in parts for part in _factors(axis)]
    result: list[Axis] = []
    for size in sizes:
        taken: list[Axis] = []
        missing = size
        while missing > 1:
            if not rest:
                return None
            part = rest.pop(0)
            # `missing` counts the indices that the new axis still lacks, as a factor.
            if missing % part.size == 0:
                taken.append(part)
                missing //= part.size
                continue
            halves = _divided(part, missing)
            if halves is None:
                return None
            taken.append(halves[0])
            rest.insert(0, halves[1])
            missing = 1
        result.append(resolve_axis(AxisProduct(tuple(taken))))
    return result if not rest else None


def cut(axis: Axis, start: int, stop: int) -> Axis | None:
    """Cuts out the indices `start` to `stop`; None where a product can't be cut there."""
    axis = resolve_axis(axis)
    if (start, stop) == (0, axis.size):
        return axis
    if start == stop:
        return Concatenation(())
    # Cutting a dimension binds it to its pieces: all axes that hold it are cut with it.
    if isinstance(axis, Dimension):
        ends = [0, start, stop, axis.size]
        pieces = [fresh(b - a, *axis.held) for a, b in itertools.pairwise(ends) if b > a]
        axis.bound = Concatenation(tuple(pieces))
        return pieces[1 if start else 0]
    if isinstance(axis, Concatenation):
        cuts: list[Axis] = []
        begin = 0
        for part in axis.parts:
            low, high = max(start - begin, 0), min(stop - begin, part.size)
            if low < high:
                piece = cut(part, low, high)
                if piece is None:
                    return None
                cuts.append(piece)
            begin += part.size
        return resolve_axis(Concatenation(tuple(cuts)))
    if not axis.parts:
        return axis
    # Row-major: a range of a product is a range of its first factor times all of the
    # others, if both ends are multiples of their size.
    first, *others = axis.parts
    stride = AxisProduct(tuple(others)).size
    if start % stride or stop % stride:
        return None
    piece = cut(first, start // stride, stop // stride)
    return None if piece is None else resolve_axis(AxisProduct((piece, *others)))


def _bind(dimension: Dimension, axis: Axis, reason: str) -> None:
    inside = list(dimensions(axis))
    if dimension in inside:  # an axis that would be a part of itself
        _give_up(reason, axis)
        return
    # What held the dimension holds its parts.
    for part in inside:
        part.held += [r for r in dimension.held if r not in part.held]
    if dimension.held and not inside:
        return
    dimension.bound = axis


def _align(ones: list[Axis], others: list[Axis], reason: str) -> None:
    """Unifies two products factor by factor, splitting dimensions where boundaries differ."""
    while ones and others:
        a, b = ones.pop(0), others.pop(0)
        # Unifying may have split what is left on either side: factors are read anew.
        if a.size == b.size:
            unify(a, b, reason)
            ones = [p for axis in ones for p in _factors(axis)]
            others = [p for axis in others for p in _factors(axis)]
            continue
        # The larger factor is divided so that its leading part matches the smaller one; the
        # remainder goes back to its own side.
        small, large, queue = (a, b, others) if a.size < b.size else (b, a, ones)
        halves = _divided(large, small.size)
        if halves is None:
            _give_up(reason, a, b, *ones, *others)
            return
        queue.insert(0, halves[1])
        unify(small, halves[0], reason)


def _divided(axis: Axis, leading: int) -> tuple[Axis, Axis] | None:
    """Returns a factor as a product whose first part has a given size."""
    axis = resolve_axis(axis)
    if isinstance(axis, AxisProduct) or axis.size % leading:
        return None
    if isinstance(axis, Concatenation):
        return _stacked(axis, leading)
    halves = fresh(leading, *axis.held), fresh(axis.size // leading, *axis.held)
    axis.bound = AxisProduct(halves)
    return halves


def _stacked(axis: Concatenation, count: int) -> tuple[Axis, Axis] | None:
    """Returns a concatenation as so many equal blocks, which lose the same indices from now on."""
    # Stacked blocks (the gates of an LSTM in one matrix) can only be pruned alike: a
    # product needs the same inner indices for every outer one.
    each = axis.size // count
    blocks = [cut(axis, each * i, each * (i + 1)) for i in range(count)]
    if any(block is None for block in blocks):
        return None
    for block in blocks[1:]:
        unify(blocks[0], block, STACKED)  # type: ignore[arg-type]
    # The outer factor counts blocks, none of which can go: the concatenation needs all of them.
    return fresh(count, STACKED), blocks[0]  # type: ignore[return-value]


def _factors(axis: Axis) -> tuple[Axis, ...]:
    axis = resolve_axis(axis)
    return axis.parts if isinstance(axis, AxisProduct) else (axis,)


def _bounds(axis: Axis) -> list[int]:
    """Returns where the parts of a concatenation begin, but for the first."""
    if not isinstance(axis, Concatenation):
        return []
    return [int(n) for n in np.cumsum([part.size for part in axis.parts])[:-1]]


def _give_up(reason: str, *axes: Axis) -> None:
    for axis in axes:
        hold(axis, reason)
