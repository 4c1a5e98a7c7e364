"""How fast bytes come to a core of this processor, by copies.

Per second of processor time; and measured in the rounds of what is compared with them, for a
machine that others use is slower at some times than at others. The bound of arithmetic isn't among
them: what libraries of matrix products spend waiting for each other counts as processor time.
"""

import time
from statistics import median
from typing import NamedTuple

import numpy as np

MEGABYTE = 2**20
FAR, NEAR = 64 * MEGABYTE, 2 * MEGABYTE
"""Bytes of an array that no cache holds, and of one that the last level does."""


class Roofs(NamedTuple):
    """Bounds of one core."""

    cache: float  # billions of bytes a second, read and written, that the last cache holds
    memory: float  # the same of the memory behind it


class Meter:
    """Measures the roofs, a little at a time."""

    def __init__(self) -> None:
        self._arrays = {size: (np.ones(size, np.uint8), np.ones(size, np.uint8))
                        for size in (FAR, NEAR)}  # fmt: skip
        self._found: dict[str, list[float]] = {"cache": [], "memory": []}

    def measure(self) -> None:
        """Measures each roof once."""
        for name, size in (("cache", NEAR), ("memory", FAR)):
            source, target = self._arrays[size]
            # As many bytes of either, so that both are measured for as long.
            count = 4 * FAR // size
            start = time.process_time()
            for _ in range(count):
                np.copyto(target, source)
            # A copy reads and writes every byte.
            self._found[name].append(2 * size * count / 1e9 / (time.process_time() - start))

    def roofs(self) -> Roofs:
        """Returns medians of what was measured."""
        return Roofs(**{name: median(found) for name, found in self._found.items()})
