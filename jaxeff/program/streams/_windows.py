"""What is known of a value over time, and the state that windows need."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


class StreamError(ValueError):
    """An operation isn't the same at all times, so new frames alone don't decide its result."""


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

    def at(self, stream: StreamedValue, frames: int) -> Array:
        """Takes as many frames as a stream has; which ones doesn't matter."""
        if self.value.shape[stream.axis] == 1:  # the operation repeats it itself
            return self.value
        return jax.lax.slice_in_dim(self.value, 0, frames, axis=stream.axis)


@dataclasses.dataclass(frozen=True)
class WholeWindow:
    """A value that a whole window decides: the next one's is another, at all times.

    Attributes:
        value: It, for the window that ends with the newest frames.
    """

    value: Array


class Windows:
    """Frames that operations still need from steps before, in the order of the operations.

    Args:
        state: What the step before left; None while a state is begun from a whole window.
    """

    def __init__(self, state: tuple[Array, ...] | None) -> None:
        self._old, self._at = state, 0
        self.begun = state is not None
        self.state: list[Array] = []

    def extended(self, stream: StreamedValue, before: int) -> Array:
        """Puts frames of steps before in front of the new ones.

        Args:
            stream: The value.
            before: How many; fewer than none leaves the first new ones out.
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

    def whole(self, value: Value) -> Array:
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
