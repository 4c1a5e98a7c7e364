"""Axes that are the same, cut, or split: the equations between expressions of dimensions.

`unify` states that two axes lose the same indices. It binds dimensions to one another or to finer
expressions until both sides are one. An axis that can't be aligned (a cut through a product between
its factors' boundaries) is *held*: none of its indices may be removed, with a reason.
"""

from __future__ import annotations

import itertools

import numpy as np

from jaxeff.pruning.dependencies._dimensions import (
    Axis,
    AxisProduct,
    Concatenation,
    Dimension,
    dimensions,
    fresh,
    hold,
    resolve,
)
from jaxeff.pruning.dependencies._errors import STACKED


def unify(one: Axis, other: Axis, reason: str) -> None:
    """Equates two axes: they lose the same indices.

    Args:
        one: An axis.
        other: Another of the same size.
        reason: The reason that holds both where they can't be aligned.
    """
    one, other = resolve(one), resolve(other)
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

    Returns:
        One axis per size, or None where a new axis would begin inside an index of an old one; then
        nothing is removed from any of them.
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
        result.append(resolve(AxisProduct(tuple(taken))))
    return result if not rest else None


def cut(axis: Axis, start: int, stop: int) -> Axis | None:
    """Cuts out the indices `start` to `stop`; None where a product can't be cut there."""
    axis = resolve(axis)
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
        found: list[Axis] = []
        begin = 0
        for part in axis.parts:
            low, high = max(start - begin, 0), min(stop - begin, part.size)
            if low < high:
                piece = cut(part, low, high)
                if piece is None:
                    return None
                found.append(piece)
            begin += part.size
        return resolve(Concatenation(tuple(found)))
    if not axis.parts:
        return axis
    # Row-major: a range of a product is a range of its first factor times all of the
    # others, if both ends are multiples of their size.
    first, *others = axis.parts
    stride = AxisProduct(tuple(others)).size
    if start % stride or stop % stride:
        return None
    piece = cut(first, start // stride, stop // stride)
    return None if piece is None else resolve(AxisProduct((piece, *others)))


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
    axis = resolve(axis)
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
    axis = resolve(axis)
    return axis.parts if isinstance(axis, AxisProduct) else (axis,)


def _bounds(axis: Axis) -> list[int]:
    """Returns where the parts of a concatenation begin, but for the first."""
    if not isinstance(axis, Concatenation):
        return []
    return [int(n) for n in np.cumsum([part.size for part in axis.parts])[:-1]]


def _give_up(reason: str, *axes: Axis) -> None:
    for axis in axes:
        hold(axis, reason)
