"""PyTorch's recurrent layers as one loop a layer and direction.

PyTorch decomposes `torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` step by step: read like that, a
layer of a hundred steps is a program of a thousand equations, which takes half a minute to trace.
Here it is a `lax.scan`, whose results are PyTorch's (`torch.nn.LSTM` and `GRU` have the formulas).

A packed sequence has the rows of all sequences that are still running, step by step. Its lengths
are numbers, as its shape depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Cell = Callable[[Sequence[Any], Sequence[Any], Any], list[Any]]
"""Gives the states after a step, for a direction's weights, the states before, and inputs."""


def _summed(weights: Sequence[Any], h: Any, x: Any) -> tuple[Any, Any]:
    """Multiplies an input and a state by the weights of all gates, `[gates * hidden, ...]`."""
    # Both have a bias, of which one would do; PyTorch keeps what cuDNN has.
    of_input, of_state, *biases = weights
    parts = x @ of_input.T, h @ of_state.T
    return tuple(p + b for p, b in zip(parts, biases, strict=True)) if biases else parts  # type: ignore[return-value]


def _lstm_cell(weights: Sequence[Any], states: Sequence[Any], x: Any) -> list[Any]:
    h, c = states
    # A projection, which states are smaller by, is the last of an odd number.
    projected = weights[-1] if len(weights) % 2 else None
    i, f, g, o = jnp.split(sum(_summed(weights[: len(weights) // 2 * 2], h, x)), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return [h if projected is None else h @ projected.T, c]


def _gru_cell(weights: Sequence[Any], states: Sequence[Any], x: Any) -> list[Any]:
    (h,) = states
    of_input, of_state = (jnp.split(part, 3, axis=-1) for part in _summed(weights, h, x))
    # The state's part of the new state is reset after its product, as cuDNN does it.
    reset, update = (jax.nn.sigmoid(of_input[k] + of_state[k]) for k in (0, 1))
    new = jnp.tanh(of_input[2] + reset * of_state[2])
    return [(1 - update) * new + update * h]


def _elman_cell(activation: Callable[[Any], Any]) -> Cell:
    return lambda weights, states, x: [activation(sum(_summed(weights, states[0], x)))]


CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _elman_cell(jnp.tanh),
    "rnn_relu": _elman_cell(jax.nn.relu),
}
"""By name of PyTorch's function."""


def recurrent(cell: Cell, unknown: Callable[[], Exception]) -> Callable[..., Any]:
    """Makes the function that computes a recurrent layer as PyTorch's of its name does.

    Args:
        cell: One of `CELLS`.
        unknown: Makes what is raised where PyTorch has to decompose a call itself: dropout between
            layers.
    """

    def layers(x: Any, states: Any, weights: Any, *settings: Any) -> Any:
        packed = None
        if isinstance(settings[0], list | tuple):  # rows, sizes, states, weights and settings
            packed = _Packed(np.asarray(states))
            states, weights, settings = weights, settings[0], (*settings[1:], False)
        count, dropout, train, both_ways, batch_first = settings[1:]  # the first: whether biased
        if dropout and train and count > 1:
            raise unknown()
        # Of the LSTM two, the state and what its cells remember; of the others one.
        states = states if isinstance(states, list | tuple) else [states]
        directions = 2 if both_ways else 1
        # With biases and a projection five of a layer and direction, without either two.
        each = len(weights) // (count * directions)
        y = jnp.swapaxes(x, 0, 1) if batch_first else x
        y = y if packed is None else packed.padded(y)
        after = []
        for layer in range(count):
            # The second direction has weights of its own, and begins at the end.
            results = []
            for direction in range(directions):
                place = layer * directions + direction
                last, rows = _scanned(
                    cell, weights[place * each : (place + 1) * each], [s[place] for s in states],
                    (y, None if packed is None else packed.running), direction == 1,
                )  # fmt: skip
                after.append(last)
                results.append(rows)
            y = jnp.concatenate(results, -1) if both_ways else results[0]
        y = jnp.swapaxes(y, 0, 1) if batch_first else y
        y = y if packed is None else packed.rows(y)
        return (y, *(jnp.stack(each) for each in zip(*after, strict=True)))

    return layers


def _scanned(
    cell: Cell, weights: Sequence[Any], states: Sequence[Any], rows: Any, reverse: bool
) -> tuple[Sequence[Any], Any]:
    """Runs a cell over the rows of `[steps, batch, inputs]`: its last states, and each step's.

    Beside the rows stands whether each sequence is running, [steps, batch, 1], or None: a sequence
    that isn't keeps its states, those it ended with or, from the end, those it begins with.
    """

    def step(states: Sequence[Any], row: Any) -> tuple[list[Any], Any]:
        # Where all run, as they do without packing, no selection is written down.
        x, running = row
        after = cell(weights, states, x)
        if running is not None:
            after = [jnp.where(running, *both) for both in zip(after, states, strict=True)]
        return after, after[0]

    return lax.scan(step, list(states), rows, reverse=reverse)


class _Packed:
    """How a packed sequence's rows lie in `[steps, batch]`.

    Args:
        sizes: How many sequences run at each step, longest ones first.

    Attributes:
        running: Whether a sequence runs at a step, [steps, batch, 1].
    """

    def __init__(self, sizes: np.ndarray) -> None:
        self.running = (np.arange(sizes[0]) < sizes[:, None])[..., None]
        self._steps, self._sequences = np.nonzero(self.running[..., 0])

    def padded(self, rows: Any, value: float = 0.0) -> Any:
        # Where no sequence runs any more is the value, which a loop's mask never reads.
        empty = jnp.full((*self.running.shape[:2], *rows.shape[1:]), value, rows.dtype)
        return empty.at[self._steps, self._sequences].set(rows)

    def rows(self, padded: Any) -> Any:
        return padded[self._steps, self._sequences]


def pack(padded: Any, lengths: np.ndarray, batch_first: bool) -> tuple[Any, np.ndarray]:
    """Returns the rows and sizes of a packed sequence: `torch._pack_padded_sequence`.

    Args:
        padded: Sequences, longest first, [steps, batch, ...], or [batch, steps, ...].
        lengths: Their lengths, [batch].
        batch_first: Whether the batch is the first of these axes.

    Raises:
        ValueError: Lengths are no numbers of steps, or aren't sorted.
    """
    y = jnp.swapaxes(padded, 0, 1) if batch_first else padded
    if lengths.shape != (y.shape[1],) or not (0 < lengths.min() <= lengths.max() <= y.shape[0]):
        raise ValueError(
            f"pack_padded_sequence: lengths {lengths.tolist()} for {y.shape[1]} sequences padded "
            f"to {y.shape[0]} steps: give one a sequence, from 1 to {y.shape[0]}."
        )
    if (np.diff(lengths) > 0).any():
        raise ValueError(
            f"pack_padded_sequence: lengths {lengths.tolist()} aren't sorted, longest first: "
            "enforce_sorted=False sorts them."
        )
    # How many sequences are longer than each step: the batch that PyTorch computes there.
    sizes = (lengths > np.arange(lengths[0])[:, None]).sum(1)
    return _Packed(sizes).rows(y), sizes


def pad(
    rows: Any, sizes: np.ndarray, batch_first: bool, value: float, total: int
) -> tuple[Any, np.ndarray]:
    """Returns padded sequences and their lengths: `torch._pad_packed_sequence`."""
    packed = _Packed(sizes)
    y = packed.padded(rows, value)
    if total > len(sizes):
        beyond = [(0, total - len(sizes)), *[(0, 0)] * (y.ndim - 1)]
        y = jnp.pad(y, beyond, constant_values=value)
    return (jnp.swapaxes(y, 0, 1) if batch_first else y), packed.running[..., 0].sum(0)
