"""Scores of channels from scores of parameters: sums over what a channel takes along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxeff.pruning.dependencies import Channels, leaf_path, membership
from jaxeff.pruning.scores._making import making

Score = Callable[[Any, Channels], dict[str, np.ndarray]]
"""`score(params, channels)` gives one number per channel, by group; the higher the more it matters.

What a score needs besides (a loss, batches, a key, a posterior) it is made with: `taylor(loss,
batches)` is one. A group that it can say nothing about is left out.
"""


def summed(importance: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """Sums a number per parameter over each channel.

    Args:
        importance: A tree of the parameters' shapes (and no other leaves that are theirs).
        channels: The groups.
        outputs: Whether only the weights count that make a channel (the columns of a kernel, as
            the source's l1 scores have it), and not those that read it, nor biases and scales.

    Returns:
        By group, a number per channel.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    scores = {group.name: np.zeros(group.size) for group in channels}
    for name, values, axis, index in _members(importance, channels, outputs):
        along = values.sum(tuple(i for i in range(values.ndim) if i != axis))
        size = len(scores[name])
        scores[name] += np.bincount(index[index >= 0], along[index >= 0], size)
    return scores


def vectors(values: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """Returns what a channel takes along, as a vector each.

    Args:
        values: A tree of the parameters' shapes.
        channels: The groups.
        outputs: Same as for `summed`.

    Returns:
        By group, `[channels, entries]` in float64.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    rows = {group.name: [np.zeros((group.size, 0))] for group in channels}
    for name, array, axis, index in _members(values, channels, outputs):
        order = np.argsort(index, kind="stable")[(index < 0).sum() :]
        # Every channel has equally many indices of the axis: one, or one of each block.
        part = np.moveaxis(array, axis, 0)[order]
        rows[name].append(part.reshape(len(rows[name][0]), -1))
    return {name: np.concatenate(parts, axis=1) for name, parts in rows.items()}


def _members(
    tree: Any, channels: Channels, outputs: bool
) -> Iterator[tuple[str, np.ndarray, int, np.ndarray]]:
    """Yields group, values, axis, and the channel of each index, or -1."""
    found = {}
    for keypath, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = channels.find(leaf_path(keypath))
        if path is not None:
            # In float64: sums over large layers lose digits in float32.
            found[path] = np.asarray(leaf, np.float64)
    makes = making(channels) if outputs else frozenset()
    weights = {v.path for v in channels.program.inputs if v.is_weight}
    checked = set()
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        for path, axis in ((m.path, m.axis) for m in group.members):
            if outputs and (path, axis) not in makes:
                continue
            if path not in found and path not in weights:
                continue  # a state, such as running statistics, in a tree of parameters
            if path not in found:
                raise ValueError(f"there are no numbers for the parameter {path!r}")
            if path not in checked and not np.isfinite(found[path]).all():
                raise ValueError(f"the scores of {path!r} aren't finite")
            checked.add(path)
            yield group.name, found[path], axis, membership(channels.leaves[path][axis], dimension)
