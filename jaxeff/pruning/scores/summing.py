"""Scores of channels from scores of parameters: sums over what a channel takes along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxeff.pruning.channels import Channels, leaf_path
from jaxeff.pruning.dimensions import membership

Score = Callable[[Any, Channels], dict[str, np.ndarray]]
"""`score(params, channels)` gives one number per channel, by group."""


def summed(importance: Any, channels: Channels, *, outputs: bool = False) -> dict[str, np.ndarray]:
    """Sums a number per parameter over each channel.

    Args:
        importance: A tree of the parameters' shapes (and no other leaves that are theirs).
        channels: The groups.
        outputs: Whether only the weights count that make a channel (the last axis of a kernel, as
            the source's l1 scores have it), and not those that read it.

    Returns:
        By group, a number per channel.

    Raises:
        ValueError: A parameter has no numbers, or some that aren't finite.
    """
    found = {}
    for keypath, leaf in jax.tree_util.tree_leaves_with_path(importance):
        name = channels.find(leaf_path(keypath))
        if name is not None:
            found[name] = np.asarray(leaf, np.float64)
    scores = {}
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        total = np.zeros(group.size)
        for member in group.members:
            axes = channels.leaves[member.path]
            if outputs and (len(axes) < 2 or member.axis != len(axes) - 1):
                continue
            if member.path not in found:
                raise ValueError(f"there are no numbers for the parameter {member.path!r}")
            values = found[member.path]
            if not np.isfinite(values).all():
                raise ValueError(f"the scores of {member.path!r} aren't finite")
            others = tuple(i for i in range(values.ndim) if i != member.axis)
            along = values.sum(others)
            index = membership(axes[member.axis], dimension)
            total += np.bincount(index[index >= 0], along[index >= 0], group.size)
        scores[group.name] = total
    return scores
