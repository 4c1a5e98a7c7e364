"""Follows axes: which axis of a tensor each axis of a value computed from it is.

A value's *axes* are a tuple with one entry per axis: the axis of the tensor that it lies along, or
None where it lies along none (a broadcast one, one of size 1, another operand's).
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from jaxeff.core import primitives as p

Axes: TypeAlias = tuple[int | None, ...]

MOVES = {p.transpose_p, p.squeeze_p, p.broadcast_in_dim_p, p.reshape_p}


def moved(eqn: Any, axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Returns the axes after an operation that only moves, adds or drops axes.

    Args:
        eqn: An equation of one operand.
        axes: The operand's axes.
        shape: The operand's shape.

    Returns:
        The axes of its result; None for any other operation, and for a reshape that joins or
        splits axes.
    """
    after = tuple(eqn.outvars[0].aval.shape)
    if eqn.primitive is p.transpose_p:
        return tuple(axes[i] for i in eqn.params["permutation"])
    if eqn.primitive is p.squeeze_p:
        return dropped(axes, eqn.params["dimensions"])
    if eqn.primitive is p.broadcast_in_dim_p:
        result: list[int | None] = [None] * len(after)
        for source, target in enumerate(eqn.params["broadcast_dimensions"]):
            # A repeated axis lies along none of the tensor's.
            if shape[source] == after[target]:
                result[target] = axes[source]
        return tuple(result)
    if eqn.primitive is p.reshape_p:
        # Axes of size one may come and go; a merged or split axis has no single counterpart.
        if [n for n in shape if n != 1] != [n for n in after if n != 1]:
            return None
        left = iter([a for a, n in zip(axes, shape, strict=True) if n != 1])
        return tuple(None if n == 1 else next(left) for n in after)
    return None


def dropped(axes: Axes, dimensions: Sequence[int]) -> Axes:
    """Returns the axes that are left when some dimensions of a value are reduced or squeezed."""
    return tuple(a for i, a in enumerate(axes) if i not in dimensions)


def united(*operands: Axes) -> Axes:
    """Returns a pointwise result's axes: for each the first that an operand knows."""
    return tuple(
        next((a for a in along if a is not None), None) for along in zip(*operands, strict=True)
    )


def crosses(axes: Axes, result: Axes) -> bool:
    """Returns whether an operand lies along another axis than the pointwise result it goes into.

    An axis that the result has twice (`x[:, None] - x.max(1)[None, :]`) is crossed too.
    """
    known = [a for a in result if a is not None]
    twice = len(set(known)) < len(known)
    return twice or any(a not in (None, b) for a, b in zip(axes, result, strict=True))


def extent(shape: Sequence[int], dimensions: Sequence[int]) -> int:
    """Returns the number of entries along some dimensions."""
    return math.prod(shape[i] for i in dimensions)
