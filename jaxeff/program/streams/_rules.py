"""What operations do to values over time.

Convolutions and pooling need as many frames of before as their window is longer than their stride.
What sums or reduces over time needs the window of its operand, and computes on it what it always
did: the bits are the same, and nothing before it is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxeff.core import JaxprEqn
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program.ir import primitives as prim
from jaxeff.program.streams._windows import (
    RepeatedValue,
    StreamedValue,
    StreamError,
    Value,
    WholeWindow,
    Windows,
    array_of,
)

Rule = Callable[[JaxprEqn, Sequence[Value], Windows], Sequence[Value]]


def refuse(eqn: JaxprEqn, why: str) -> StreamError:
    """Makes an error that names the operation and where it stands."""
    scope = str(eqn.source_info.name_stack) or _compat.source_line(eqn)
    return StreamError(f"streaming: {eqn.primitive.name} ({scope}) {why}")


def elementwise(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """All operands at the same times; those without an axis of time are repeated."""
    streams = [v for v in values if isinstance(v, StreamedValue)]
    first = streams[0]
    if any((v.axis, v.length, v.hop) != (first.axis, first.length, first.hop) for v in streams):
        raise refuse(eqn, "joins values of other times; make their windows and strides the same")
    frames = first.value.shape[first.axis]
    given = []
    for v in values:
        if isinstance(v, RepeatedValue) and first.axis in v.axes:
            given.append(v.at(first, frames))
        elif isinstance(v, StreamedValue):
            given.append(v.value)
        elif array_of(v).ndim and array_of(v).shape[first.axis] != 1:
            raise refuse(eqn, "reads numbers that differ along time; make them the same at all")
        else:
            given.append(array_of(v))
    return [first.like(y) for y in _compat.bind(eqn, *given)]


def convolution(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A convolution over time, or beside it."""
    x, kernel = values
    of = eqn.params
    numbers = of["dimension_numbers"]
    if not isinstance(x, StreamedValue) or isinstance(kernel, StreamedValue):
        raise refuse(eqn, "has a kernel of data; only its input may be a stream")
    if x.axis == numbers.lhs_spec[1]:
        return whole_window(eqn, values, windows)
    if x.axis == numbers.lhs_spec[0]:  # frames are a batch
        return [x.like(_bind(eqn, x.value, array_of(kernel)), numbers.out_spec[0])]
    place = numbers.lhs_spec[2:].index(x.axis)
    size = array_of(kernel).shape[numbers.rhs_spec[2:][place]]
    window = (size - 1) * of["rhs_dilation"][place] + 1
    if of["lhs_dilation"][place] != 1:
        raise refuse(eqn, "is a transposed convolution over time")
    return _windowed(
        eqn, x, [array_of(kernel)], windows, window, of["window_strides"][place],
        of["padding"][place], numbers.out_spec[2:][place],
    )  # fmt: skip


def pooling(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Sums and maxima over windows."""
    x, *rest = values
    of = eqn.params
    if of["base_dilation"][x.axis] != 1:
        raise refuse(eqn, "is dilated over time")
    window = (of["window_dimensions"][x.axis] - 1) * of["window_dilation"][x.axis] + 1
    return _windowed(
        eqn, x, [array_of(v) for v in rest], windows, window, of["window_strides"][x.axis],
        of["padding"][x.axis], x.axis,
    )  # fmt: skip


def _windowed(
    eqn: JaxprEqn,
    x: StreamedValue,
    rest: Sequence[Any],
    windows: Windows,
    window: int,
    stride: int,
    padding: tuple[int, int],
    axis: int,
) -> Sequence[Value]:
    if tuple(padding) != (0, 0):
        raise refuse(
            eqn, "is padded over time, so that its first frames differ from those of a stream; "
            "take padding='VALID', and longer windows"
        )  # fmt: skip
    if x.hop % stride:
        raise refuse(eqn, f"has a stride of {stride} over {x.hop} new frames; take a hop of more")
    # What is left over at the window's end is read by a later step.
    left = (x.length - window) % stride
    given = windows.extended(x, window - stride + left)
    made = _bind(eqn, given, *rest)
    return [StreamedValue(made, axis, (x.length - window) // stride + 1, x.hop // stride)]


def product(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A dot product: of each frame, or over time."""
    (contracted, batched) = eqn.params["dimension_numbers"]
    if all(isinstance(v, StreamedValue) for v in values):
        return whole_window(eqn, values, windows)
    side = 0 if isinstance(values[0], StreamedValue) else 1
    x = values[side]
    if x.axis in contracted[side] or x.axis in batched[side]:
        return whole_window(eqn, values, windows)
    made = _bind(eqn, *map(array_of, values))
    # Results: what is batched, then the left's free axes, then the right's.
    free = [a for a in range(x.value.ndim) if a not in contracted[side] and a not in batched[side]]
    axis = len(batched[0]) + free.index(x.axis)
    if side:
        left = values[0]
        axis += array_of(left).ndim - len(contracted[0]) - len(batched[0])
    return [x.like(made, axis)]


def reduction(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A reduction: within frames, or of the window."""
    (x,) = values
    axes = eqn.params["axes"]
    if x.axis in axes:
        return whole_window(eqn, values, windows)
    return [x.like(_bind(eqn, x.value), x.axis - sum(a < x.axis for a in axes))]


def reshape(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Another shape: time stays an axis, or the window is taken whole."""
    x = values[0]
    # Of the whole window, whose sizes the equation has.
    old, new = [*x.value.shape], list(eqn.params["new_sizes"])
    old[x.axis] = x.length
    before = math.prod(old[: x.axis])
    for axis, size in enumerate(new):
        if size == old[x.axis] and math.prod(new[:axis]) == before:
            new[axis] = x.value.shape[x.axis]
            return [x.like(_bind(eqn, x.value, new_sizes=tuple(new)), axis)]
    return whole_window(eqn, values, windows)


def pad(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Padding beside time, or none."""
    x, filling = values
    if eqn.params["padding_config"][x.axis] != (0, 0, 0):
        raise refuse(eqn, "pads over time; take padding='VALID', and longer windows")
    return [x.like(_bind(eqn, x.value, array_of(filling)))]


def cut(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A part of each frame."""
    (x,) = values
    begin, end = list(eqn.params["start_indices"]), list(eqn.params["limit_indices"])
    strides = eqn.params["strides"]
    stride = strides[x.axis] if strides else 1
    if (begin[x.axis], end[x.axis], stride) != (0, x.length, 1):
        raise refuse(eqn, "takes a part of the frames, by their place in the window")
    end[x.axis] = x.value.shape[x.axis]
    return [x.like(_bind(eqn, x.value, limit_indices=tuple(end)))]


def transpose(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Other places for the axes."""
    (x,) = values
    return [x.like(_bind(eqn, x.value), eqn.params["permutation"].index(x.axis))]


def squeeze(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Fewer axes of one."""
    (x,) = values
    gone = eqn.params["dimensions"]
    if x.axis in gone:  # of a single frame, which the whole window is in
        return whole_window(eqn, values, windows)
    return [x.like(_bind(eqn, x.value), x.axis - sum(a < x.axis for a in gone))]


def broadcast(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """More axes, or longer ones, beside time."""
    x = values[0]
    axis = eqn.params["broadcast_dimensions"][x.axis]
    shape = list(eqn.params["shape"])
    shape[axis] = x.value.shape[x.axis]
    return [x.like(_bind(eqn, x.value, shape=tuple(shape)), axis)]


def concatenate(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Channels beside channels; not frames after frames."""
    if any(isinstance(v, StreamedValue) and v.axis == eqn.params["dimension"] for v in values):
        raise refuse(eqn, "puts frames after each other, so a frame's place changes")
    return elementwise(eqn, values, windows)


def whole_window(eqn: JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Computes on the whole window what it always did."""
    made = _compat.bind(eqn, *(windows.whole(v) for v in values))
    # Frames of before were joined with another window's, so what reads this starts anew as well.
    return [WholeWindow(y) for y in made]


def _bind(eqn: JaxprEqn, *values: Any, **changed: Any) -> Any:
    (made,) = _compat.bind(eqn, *values, **changed)
    return made


RULES: dict[Any, Rule] = {
    **dict.fromkeys(prim.ELEMENTWISE | prim.IN_PLACE, elementwise),
    **dict.fromkeys(prim.WINDOW, pooling),
    **dict.fromkeys(prim.REDUCTION, reduction),
    p.conv_general_dilated_p: convolution,
    p.dot_general_p: product,
    p.reshape_p: reshape,
    p.transpose_p: transpose,
    p.pad_p: pad,
    p.slice_p: cut,
    p.squeeze_p: squeeze,
    p.broadcast_in_dim_p: broadcast,
    p.concatenate_p: concatenate,
}
