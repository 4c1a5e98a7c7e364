"""Inputs in groups with draws of their own.

Inputs that share their draws share most of the draws' error, which then doesn't average out over
them, however many there are. With draws for each few inputs it does, at the same number of
evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxeff.moment_propagation.values import is_gaussian
from jaxeff.program.ir import Value

_LARGEST, _GROUPS = 8, 8


@dataclass(frozen=True)
class Groups:
    """How the inputs of a function are divided.

    Attributes:
        batched: Marks of leaves of the arguments that hold an input per place of their first axis.
        count: Number of groups.
        size: Number of inputs in each.
    """

    batched: tuple[bool, ...]
    count: int
    size: int

    @property
    def members(self) -> np.ndarray:
        """For each input the number of its group."""
        return np.repeat(np.arange(self.count), self.size)

    def part(self, args: Any, start: int, stop: int) -> Any:
        """Selects the inputs of the groups from one to before another."""
        rows = slice(start * self.size, stop * self.size)
        leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)
        found = [
            jax.tree.map(lambda a: a[rows], leaf) if b else leaf
            for leaf, b in zip(leaves, self.batched, strict=True)
        ]
        return jax.tree.unflatten(structure, found)

    def axes(self, whole: Sequence[Value], part: Sequence[Value]) -> list[int | None] | None:
        """Finds the axis along which each value of all inputs consists of those of groups.

        Args:
            whole: Values of the program that reads all inputs.
            part: The same of the program that reads one group.

        Returns:
            One per value, None for one that no input reaches; or None if groups don't fit.
        """
        if len(whole) != len(part):
            return None
        found: list[int | None] = []
        for all_of, one in zip(whole, part, strict=True):
            shapes = all_of.aval.shape, one.aval.shape
            if len(shapes[0]) != len(shapes[1]):
                return None
            differ = [i for i, (n, m) in enumerate(zip(*shapes, strict=True)) if n != m]
            # A second axis that differs is one over pairs of inputs.
            if len(differ) > 1 or any(shapes[0][i] != shapes[1][i] * self.count for i in differ):
                return None
            found.append(differ[0] if differ else None)
        return found


def groups_of(batched: Sequence[bool], examples: int) -> Groups:
    """Divides inputs: groups of eight, or smaller so that there are eight of them."""
    size = min(_LARGEST, examples // _GROUPS)
    if size < 1 or not any(batched):
        return Groups(tuple(batched), 1, examples)
    return Groups(tuple(batched), examples // size, size)


def joined(parts: Sequence[np.ndarray], axis: int | None) -> np.ndarray:
    """Joins what groups have of one value; of one that no input reaches, takes the mean."""
    if axis is None:
        return np.mean(parts, 0, dtype=parts[0].dtype)
    return np.concatenate(parts, axis)
