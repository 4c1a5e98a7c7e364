"""Weights on grids as integers with steps: what `quantized` makes of parameters alone.

A product of whole numbers and steps is such a weight, wherever it comes from: it is checked number
by number, and the file's values are those of the function to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxeff.core import primitives as p

_MOVES = {
    p.reshape_p, p.transpose_p, p.squeeze_p, p.broadcast_in_dim_p, p.copy_p, p.stop_gradient_p,
    p.slice_p, p.rev_p,
}  # fmt: skip
_WIDEST = 255


class Whole(NamedTuple):
    """A constant as whole numbers times steps.

    Attributes:
        values: The constant.
        codes: The whole numbers, of its shape.
        steps: The steps, of its shape.
    """

    values: np.ndarray
    codes: np.ndarray
    steps: np.ndarray

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Whole:
        """Moves the elements of all three alike."""
        return Whole(*(move(part) for part in self))


class Stored(NamedTuple):
    """What `DequantizeLinear` makes a constant of.

    Attributes:
        codes: Integers of 4 or 8 bits.
        steps: One step, of any sign; one for each entry of the axis; or one for each block along it
            and each entry of the other axes.
        zeros: The integer that stands for zero, of the shape of the steps.
        axis: The axis along which they differ; None if they don't.
        block: Entries of a block; None where a step is for the entry of an axis.
    """

    codes: np.ndarray
    steps: np.ndarray
    zeros: np.ndarray
    axis: int | None
    block: int | None = None


def whole_of(eqn: Any, given: Sequence[np.ndarray], known: Sequence[Whole | None]) -> Whole | None:
    """Finds the whole numbers of what an equation makes of constants.

    Args:
        eqn: The equation, with one result.
        given: The constants that it reads.
        known: The whole numbers of those, where there are.
    """
    out = eqn.outvars[0].aval
    # Biases and statistics stay in float, as `quantized` leaves them.
    if out.dtype != np.float32 or len(out.shape) < 2:
        return None
    if eqn.primitive is p.mul_p:
        return _product(out.shape, *given)
    if eqn.primitive in _MOVES and known[0] is not None and len(given) == 1:
        return known[0].moved(lambda part: np.asarray(eqn.primitive.bind(part, **eqn.params)))
    # Such as the straight-through estimator's sum with zero.
    if eqn.primitive is p.add_p and any(known):
        values = given[0] + given[1]
        same = (w for w in known if w is not None and np.array_equal(w.values, values))
        return next((w._replace(values=values) for w in same), None)
    return None


def _product(shape: tuple[int, ...], left: np.ndarray, right: np.ndarray) -> Whole | None:
    for codes, steps in ((left, right), (right, left)):
        # Fewer steps than numbers: else there is nothing to save.
        if codes.shape != shape or not 0 < steps.size < codes.size:
            continue
        near = np.rint(codes)
        if np.array_equal(near, codes) and np.abs(near).max() <= 2 * _WIDEST:
            return Whole(codes * steps, near, np.broadcast_to(steps, shape))
    return None


def stored(whole: Whole) -> Stored | None:
    """Chooses integers, steps and zeros as `DequantizeLinear` takes them.

    Returns:
        The smallest integers that hold them; None if steps differ along several axes, and not in
        blocks of one of them.
    """
    steps = whole.steps
    axes = [i for i in range(steps.ndim) if not np.array_equal(steps, _first(steps, i))]
    if len(axes) > 1:
        blocks = ((axis, _block(steps, axis)) for axis in axes)
        found = (_in_blocks(whole, axis, block) for axis, block in blocks if block > 1)
        return next(filter(None, found), None)
    # Channels may share a step and have zeros of their own. ONNX Runtime's kernels take them along
    # the axis of results alone: the last of a product's weights, the first of a convolution's.
    places = range(steps.ndim) if steps.ndim > 2 else reversed(range(steps.ndim))
    tried: list[int | None] = [*axes] or [None, *places]
    return next(filter(None, (_along(whole, axis) for axis in tried)), None)


def _along(whole: Whole, axis: int | None) -> Stored | None:
    rows, steps = (
        part.reshape(1, -1)
        if axis is None
        else np.moveaxis(part, axis, 0).reshape(part.shape[axis], -1)
        for part in (whole.codes, whole.steps)
    )
    # A row for each entry of the axis: the zero goes into the integers, as the codes of one row
    # span no more than its bits while those of all rows may.
    found = _integers(rows)
    if found is None:
        return None
    kind, zeros = found
    shape = [-1 if i == axis else 1 for i in range(whole.codes.ndim)]
    integers = _cast(whole.codes + zeros.reshape(shape), kind)
    each = () if axis is None else (-1,)
    numbers = np.array(steps[:, 0].reshape(each), np.float32)
    return Stored(integers, numbers, _cast(zeros.reshape(each), kind), axis)


def _block(steps: np.ndarray, axis: int) -> int:
    """Finds the length of the blocks along an axis within which steps are equal."""
    rows = np.moveaxis(steps, axis, 0).reshape(steps.shape[axis], -1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    return math.gcd(len(rows), *changes.tolist())


def _in_blocks(whole: Whole, axis: int, block: int) -> Stored | None:
    shape = whole.codes.shape
    apart = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    codes, steps = (part.reshape(apart) for part in (whole.codes, whole.steps))
    # A full grid of four bits has its sixteenth value above zero in some blocks, where two's
    # complement has none: these change the sign of codes and step.
    flip = np.where(codes.max(axis + 1, keepdims=True) == 8, -1, 1)
    if (codes * flip).min() >= -8 and (codes * flip).max() <= 7:
        codes, steps = codes * flip, steps * flip
    found = _integers(np.moveaxis(codes, axis + 1, -1).reshape(-1, block))
    if found is None:
        return None
    kind, zeros = found
    numbers = np.ascontiguousarray(np.take(steps, 0, axis + 1), np.float32)
    zeros = zeros.reshape(numbers.shape)
    integers = (codes + np.expand_dims(zeros, axis + 1)).reshape(shape)
    return Stored(_cast(integers, kind), numbers, _cast(zeros, kind), axis, block)


def _integers(rows: np.ndarray) -> tuple[Any, np.ndarray] | None:
    """Finds the smallest integers that hold rows of codes, and what is added to each row."""
    low, high = rows.min(1), rows.max(1)
    none, below = np.zeros_like(low), np.clip(-low, 0, None)
    for kind, zeros, first, last in (
        (ml_dtypes.int4, none, -8, 7),
        (ml_dtypes.uint4, below, 0, 15),
        (np.int8, none, -128, 127),
        (np.uint8, below, 0, _WIDEST),
    ):
        # The zero is an integer of the same kind, which codes that are all below it are far from.
        if (low + zeros).min() >= first and max((high + zeros).max(), zeros.max()) <= last:
            return kind, zeros
    return None


def _cast(numbers: np.ndarray, kind: Any) -> np.ndarray:
    return numbers.astype(np.int32).astype(kind)


def _first(array: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(np.take(array, [0], axis), array.shape)
