"""`streaming`: a function of a sliding window as a step that computes what is new alone.

```python
import jax
import jax.numpy as jnp
from flax import nnx
import jaxeff

net = nnx.Sequential(
    nnx.Conv(4, 8, (3,), padding="VALID", rngs=nnx.Rngs(0)),
    nnx.relu,
    lambda x: x.mean(1),
    nnx.Linear(8, 3, rngs=nnx.Rngs(1)),
)
f, params = jaxeff.functional(net)                        # f(params, window), [1, 20, 4]
sound = jax.random.normal(jax.random.key(0), (1, 24, 4))
step, state = jaxeff.streaming(f, params, sound[:, :20], axis=1, hop=2)
for at in (20, 22):
    logits, state = step(params, sound[:, at : at + 2], state)
assert jnp.allclose(logits, f(params, sound[:, 4:]), atol=1e-6)
```

The step is a pure function like any other: quantized, converted by `integer`, and deployed with
`state=("state",)`. Rounded to codes, its result has the bits of the whole window's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff import core
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import Along, OperationFamily, Relation, Signature, Window, signature, walk
from jaxeff.program.ir import primitives as prim


class StreamError(ValueError):
    """An operation isn't the same at all times, so new frames alone don't decide its result.

    Sharp edges:
        Convolutions and pooling over time must not be padded: a window's first frames would be
        other than those of a stream. Means and products over all of the window keep the frames
        before them.
        Gradient rules of one's own (`custom_jvp`) are read as what they compute.
    """


@dataclasses.dataclass(frozen=True)
class StreamedValue:
    """A value with an axis of time.

    Attributes:
        value: The newest frames; while a state is begun, all of the window's.
        axis: The axis of time.
        length: Frames of the whole window.
        hop: Frames that a step adds.
    """

    value: Array
    axis: int
    length: int
    hop: int

    def like(self, value: Array, axis: int | None = None) -> StreamedValue:
        """Makes a stream of as many frames at the same times."""
        return dataclasses.replace(self, value=value, axis=self.axis if axis is None else axis)


@dataclasses.dataclass(frozen=True)
class RepeatedValue:
    """A value that is the same at all times, and has an axis of time only because it was broadcast.

    Attributes:
        value: It, for the whole window.
        axes: The axes along which it was broadcast.
    """

    value: Array
    axes: frozenset[int]


@dataclasses.dataclass(frozen=True)
class WholeWindow:
    """A value that a whole window decides: the next one's is another, at all times.

    What sums or reduces over time needs the window of its operand, and computes on it what it
    always did: the bits are the same, and nothing before it is computed again.

    Attributes:
        value: It, for the window that ends with the newest frames.
    """

    value: Array


class Windows:
    """Frames that operations still need from steps before, in the order of the operations.

    Convolutions and pooling need as many frames of before as their window is longer than their
    stride.

    Args:
        state: What the step before left; None while a state is begun from a whole window.
    """

    def __init__(self, state: tuple[Array, ...] | None) -> None:
        self._old, self._at = state, 0
        self.begun = state is not None
        self.state: list[Array] = []

    def extended(self, stream: StreamedValue, before: int) -> Array:
        """Puts frames of steps before in front of the new ones.

        Fewer than none leaves the first new ones out.
        """
        x, axis = stream.value, stream.axis
        if before <= 0:
            # A stride beyond the window skips frames; all of the window counts from its start.
            skipped = 0 if self._old is None else -before
            return jax.lax.slice_in_dim(x, skipped, x.shape[axis], axis=axis)
        if self._old is not None:
            x = jnp.concatenate([self._old[self._at], x], axis)
            self._at += 1
        size = x.shape[axis]
        self.state.append(jax.lax.slice_in_dim(x, size - before, size, axis=axis))
        return x

    def complete(self, value: Value) -> Array:
        """Makes the whole window of a value."""
        if isinstance(value, StreamedValue):
            return self.extended(value, value.length - value.hop)
        return array_of(value)


class Asked(Windows):
    """Finds out how many frames of before are asked for, without having them."""

    def __init__(self, begun: bool) -> None:
        super().__init__(() if begun else None)
        self.asked: list[int] = []

    def extended(self, stream: StreamedValue, before: int) -> Array:
        """Puts zeros in their place."""
        x = stream.value
        if before <= 0:
            return super().extended(stream, before)
        self.asked.append(before)
        if self._old is None:
            return x
        shape = [before if a == stream.axis else n for a, n in enumerate(x.shape)]
        return jnp.concatenate([jnp.zeros(shape, x.dtype), x], stream.axis)


class Given(Windows):
    """Frames of before are there already."""

    def extended(self, stream: StreamedValue, before: int) -> Array:
        """Returns the value as it is."""
        return super().extended(stream, before) if before <= 0 else stream.value


Value = Any
"""An array that is the same in all steps, `StreamedValue`, `RepeatedValue` or `WholeWindow`."""


def array_of(value: Value) -> Any:
    """Takes the numbers of a value."""
    return value.value if isinstance(value, StreamedValue | RepeatedValue | WholeWindow) else value


def refuse(eqn: core.JaxprEqn, why: str) -> StreamError:
    """Makes an error that names the operation and where it stands."""
    scope = str(eqn.source_info.name_stack) or _compat.source_line(eqn)
    return StreamError(f"streaming: {eqn.primitive.name} ({scope}) {why}")


def framewise(eqn: core.JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Computes each frame of itself, windows of frames, or all of a window, as signatures say."""
    # Of the whole window, whose sizes the equation has.
    of = signature(eqn)
    streams = {i: v for i, v in enumerate(values) if isinstance(v, StreamedValue)}
    if not of.is_known or of.family is OperationFamily.SOURCE:
        raise refuse(eqn, "isn't known to be the same at all times; keep it out of the stream")
    alongs = {i: _along(of, i, v.axis) for i, v in streams.items()}
    if any(one is None or one[1].relation is not Relation.SAME for one in alongs.values()):
        if len(streams) > 1 and of.family is not OperationFamily.CONTRACTION:
            raise refuse(eqn, "puts frames after each other, so a frame's place changes")
        return _shifted(eqn, of, values, windows, streams, alongs)
    target = {one[0] for one in alongs.values() if one is not None}
    first = next(iter(streams.values()))
    alike = all((v.length, v.hop) == (first.length, first.hop) for v in streams.values())
    if of.family is OperationFamily.CONTRACTION and (len(target) > 1 or not alike):
        return whole_window(eqn, values, windows)
    if len(target) > 1 or not alike:
        raise refuse(eqn, "joins values of other times; make their windows and strides the same")
    (axis,) = target
    return _of_frames(eqn, of, values, windows, first, axis)


def _of_frames(
    eqn: core.JaxprEqn,
    of: Signature,
    values: Sequence[Value],
    windows: Windows,
    first: StreamedValue,
    axis: int,
) -> Sequence[Value]:
    """Computes the results of the newest frames, whose axis of time is `axis`."""
    frames, operands = first.value.shape[first.axis], []
    for number, v in enumerate(values):
        time_axis = of.source(axis, number)
        if isinstance(v, StreamedValue) or time_axis is None or array_of(v).shape[time_axis] == 1:
            operands.append(array_of(v))
        elif isinstance(v, RepeatedValue) and time_axis in v.axes:
            operands.append(jax.lax.slice_in_dim(v.value, 0, frames, axis=time_axis))
        elif of.family is OperationFamily.CONTRACTION:
            return whole_window(eqn, values, windows)
        else:
            raise refuse(eqn, "reads numbers that differ along time; make them the same at all")
    results = _compat.bind(eqn, *operands, **_resized(eqn, first.axis, axis, frames))
    return [first.like(y, axis) for y in results]


def _along(of: Signature, operand: int, axis: int) -> tuple[int, Along] | None:
    """Returns the axis of the result that time is; None if there is no single one."""
    along = of.operands[operand].along[0] or ()
    candidates = [(r, one) for r, one in enumerate(along) if axis in one.axes]
    return candidates[0] if len(candidates) == 1 else None


def _resized(eqn: core.JaxprEqn, source: int, target: int, frames: int) -> dict[str, Any]:
    """Returns an equation's sizes for as many frames."""
    places = {"new_sizes": target, "shape": target, "limit_indices": source, "slice_sizes": source}
    changed = {}
    for name in places.keys() & eqn.params.keys():
        sizes = list(eqn.params[name])
        sizes[places[name]] = frames
        changed[name] = tuple(sizes)
    return changed


def _shifted(
    eqn: core.JaxprEqn,
    of: Signature,
    values: Sequence[Value],
    windows: Windows,
    streams: Mapping[int, StreamedValue],
    alongs: Mapping[int, tuple[int, Along] | None],
) -> Sequence[Value]:
    """Computes what reads several frames, or frames by their place in the window."""
    ((number, x),), (along,) = list(streams.items())[:1], list(alongs.values())[:1]
    if along is not None and along[1].relation is Relation.PLACED:
        part = along[1].part
        cut = part is None or part.step != 1 or part.stop - part.start != x.length
        raise refuse(
            eqn, "takes a part of the frames, by their place in the window" if cut
            else "puts frames after each other, so a frame's place changes; take longer windows"
        )  # fmt: skip
    if (
        along is None
        or along[1].window is None
        or of.family is OperationFamily.RUNNING
        or len(streams) > 1
    ):
        return whole_window(eqn, values, windows)
    axis, window = along[0], along[1].window
    if number:
        raise refuse(eqn, "has a kernel of data; only its input may be a stream")
    rest = [array_of(v) for v in values[1:]]
    return _windowed(eqn, x, rest, windows, window, axis)


def _windowed(
    eqn: core.JaxprEqn,
    x: StreamedValue,
    rest: Sequence[Any],
    windows: Windows,
    window: Window,
    axis: int,
) -> Sequence[Value]:
    if window.base != 1:
        raise refuse(eqn, "has frames with zeros between them, as transposed convolutions do")
    if window.padding != (0, 0):
        raise refuse(
            eqn, "is padded over time, so that its first frames differ from those of a stream; "
            "take padding='VALID', and longer windows"
        )  # fmt: skip
    stride = window.stride
    if x.hop % stride:
        raise refuse(eqn, f"has a stride of {stride} over {x.hop} new frames; take a hop of more")
    # What is left over at the window's end is read by a later step.
    left = (x.length - window.extent) % stride
    frames = windows.extended(x, window.extent - stride + left)
    (result,) = _compat.bind(eqn, frames, *rest)
    length = (x.length - window.extent) // stride + 1
    return [StreamedValue(result, axis, length, x.hop // stride)]


def whole_window(eqn: core.JaxprEqn, values: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """Computes on the whole window what it always did."""
    results = _compat.bind(eqn, *(windows.complete(v) for v in values))
    # Frames of before were joined with another window's, so what reads this starts anew as well.
    return [WholeWindow(y) for y in results]


INTEGER = "jaxeff.q_"
"""What the names of layers of codes begin with."""
State = tuple[Array, ...]
Step = Callable[[Any, Array, State], tuple[Any, State]]


@core.validate(
    f=core.function_of_form("f(params, window)"),
    params=core.parameter_tree,
    window=core.real_array(),
    axis=core.static_integer(-np.inf),  # the body knows the window's axes
    hop=core.static_integer(1),
)
def streaming(
    f: Callable[[Any, Array], Any], params: Any, window: Array, axis: int = 1, hop: int = 1
) -> tuple[Step, State]:
    """Makes a step of a function of a sliding window.

    Args:
        f: A pure function `f(params, window)`; what it returns has no axis of time.
        params: Parameters of `f`.
        window: A whole window, such as silence, after which the stream begins.
        axis: The window's axis of time, from the end if it is negative.
        hop: New frames of each step; all strides over time divide it.

    Returns:
        `step(params, frames, state) -> (result, state)`, where frames are a window's newest `hop`,
        and the state after `window`. The result is `f` of the last frames, as many as a window
        has.

    Raises:
        StreamError: An operation isn't the same at all times; it is named, with the way out.
        ValueError: There is no such axis, or a hop is longer than a window.
    """
    axis = axis + window.ndim if axis < 0 else axis
    if not 0 <= axis < window.ndim:
        raise ValueError(f"streaming: axis {axis} of a window of shape {window.shape}")
    if not 1 <= hop <= window.shape[axis]:
        raise ValueError(f"streaming: hop={hop} of a window of {window.shape[axis]} frames")
    length, window_spec = window.shape[axis], jax.ShapeDtypeStruct(window.shape, window.dtype)

    def run(params: Any, frames: Array, state: State | None) -> tuple[Any, State]:
        # Traced at the whole window's shape, whatever is computed of it: lengths are known by it.
        traced, shape = core.make_jaxpr(f)(params, window_spec)
        windows = Windows(state)
        leaves = [*jax.tree.leaves(params), StreamedValue(frames, axis, length, hop)]
        outputs = _evaluate(traced, leaves, windows)
        if any(isinstance(y, StreamedValue) for y in outputs):
            raise StreamError(
                "streaming: a result has an axis of time still; reduce over it, or return the "
                "newest frame"
            )
        results = map(array_of, outputs)
        return jax.tree.unflatten(jax.tree.structure(shape), results), tuple(windows.state)

    newest = (*window.shape[:axis], hop, *window.shape[axis + 1 :])

    def step(params: Any, frames: Array, state: State) -> tuple[Any, State]:
        # More or fewer would be computed with, and make a window of other lengths.
        if jnp.shape(frames) != newest:
            raise ValueError(
                f"streaming: frames of shape {jnp.shape(frames)}; a step takes {newest}, the "
                f"newest {hop} of a window"
            )
        return run(params, frames, state)

    begun = jax.jit(lambda params, window: run(params, window, None)[1])(params, window)
    # Refused here, and not in the first step: one is read without being computed.
    jax.eval_shape(step, params, jax.ShapeDtypeStruct(newest, window.dtype), begun)
    return step, begun


def _evaluate(closed: core.ClosedJaxpr, values: Sequence[Value], windows: Windows) -> list[Value]:
    return walk(closed, values, lambda eqn, inputs: _equation(eqn, inputs, windows))


def _equation(eqn: Any, inputs: Sequence[Value], windows: Windows) -> Sequence[Value]:
    inner = _body(eqn)
    if eqn.primitive is core.export_composite_p and str(eqn.params["operator"]).startswith(INTEGER):
        return _composite(eqn, inputs, windows)
    if inner is not None:
        return _evaluate(inner, inputs, windows)
    if any(isinstance(v, WholeWindow) for v in inputs):
        return whole_window(eqn, inputs, windows)
    if any(isinstance(v, StreamedValue) for v in inputs):
        return framewise(eqn, inputs, windows)
    results = _compat.bind(eqn, *map(array_of, inputs))
    repeated = signature(eqn).repeated
    return [RepeatedValue(results[0], repeated)] if repeated else results


def _composite(eqn: Any, inputs: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A layer of codes stays one, for the kernels that know it: its frames come from outside.

    So the state holds its codes, and not what it makes of them.
    """
    inner = eqn.params["jaxpr"]
    values: list[Value] = []
    streams = [v for v in inputs if isinstance(v, StreamedValue)]
    if any(isinstance(v, WholeWindow) for v in inputs):
        return whole_window(eqn, inputs, windows)
    if not streams:
        return _compat.bind(eqn, *map(array_of, inputs))

    def run(of: Windows, arrays: Sequence[Any]) -> list[Value]:
        pairs = zip(inputs, arrays, strict=True)
        put = [v.like(array) if isinstance(v, StreamedValue) else array for v, array in pairs]
        return _evaluate(inner, put, of)

    asked = Asked(windows.begun)
    operands = list(map(array_of, inputs))
    jax.eval_shape(lambda *arrays: [array_of(y) for y in run(asked, arrays)], *operands)
    if len(asked.asked) > 1 or (asked.asked and streams[0] is not inputs[0]):
        return _evaluate(inner, inputs, windows)
    if asked.asked:
        operands[0] = windows.extended(streams[0], asked.asked[0])

    def fn(*arrays: Any) -> list[Any]:
        values[:] = run(Given(() if windows.begun else None), arrays)
        return [array_of(y) for y in values]

    results = _compat.export_composite(
        fn, operands, eqn.params["operator"], dict(eqn.params["attributes"])
    )
    # Numbers of the composite, and what its equations say of them over time.
    return [
        dataclasses.replace(y, value=z) if y is not array_of(y) else z
        for y, z in zip(values, results, strict=True)
    ]


def _body(eqn: Any) -> Any:
    """Returns the equations of a call, or None."""
    if eqn.primitive in prim.CALLS:
        return eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if eqn.primitive in prim.CUSTOM:
        return eqn.params.get("call_jaxpr") or eqn.params.get("fun_jaxpr")
    return None
