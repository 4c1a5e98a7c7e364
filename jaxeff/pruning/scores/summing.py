"""Scores of channels from scores of parameters: sums over what a channel takes along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxeff.pruning.channels import Channels, Group, leaf_path
from jaxeff.pruning.dimensions import Dimension, membership
from jaxeff.pruning.scores.making import making

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
    found = vectors(importance, channels, outputs=outputs)
    return {name: rows.sum(1) for name, rows in found.items()}


def vectors(values: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """What a channel takes along, as a vector each.

    Args:
        values: A tree of the parameters' shapes.
        channels: The groups.
        outputs: As for `summed`.

    Returns:
        By group, `[channels, entries]` in float64.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    found = {}
    for keypath, leaf in jax.tree_util.tree_leaves_with_path(values):
        name = channels.find(leaf_path(keypath))
        if name is not None:
            found[name] = np.asarray(leaf, np.float64)
    makes = making(channels) if outputs else frozenset()
    weights = frozenset(v.path for v in channels.program.inputs if v.is_weight)
    return {
        group.name: _rows(group, dimension, channels, found, makes, weights, outputs)
        for group, dimension in zip(channels, channels.dimensions, strict=True)
    }


def _rows(
    group: Group,
    dimension: Dimension,
    channels: Channels,
    found: dict[str, np.ndarray],
    makes: frozenset[tuple[str, int]],
    weights: frozenset[str | None],
    outputs: bool,
) -> np.ndarray:
    parts = [np.zeros((group.size, 0))]
    for member in group.members:
        if outputs and (member.path, member.axis) not in makes:
            continue
        if member.path not in found and member.path not in weights:
            continue  # a state, such as running statistics, in a tree of parameters
        if member.path not in found:
            raise ValueError(f"there are no numbers for the parameter {member.path!r}")
        values = found[member.path]
        if not np.isfinite(values).all():
            raise ValueError(f"the scores of {member.path!r} aren't finite")
        index = membership(channels.leaves[member.path][member.axis], dimension)
        order = np.argsort(index, kind="stable")[(index < 0).sum() :]
        # Every channel has equally many indices of the axis: one, or one of each block.
        parts.append(np.moveaxis(values, member.axis, 0)[order].reshape(group.size, -1))
    return np.concatenate(parts, axis=1)
