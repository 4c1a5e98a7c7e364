"""How fast a core of this processor computes, by products of matrices, and gets bytes, by copies.

Per second of processor time; and measured in the rounds of what is compared with them, for a
machine that others use is slower at some times than at others.
"""

import time
from statistics import median
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

MEGABYTE = 2**20
FAR, NEAR = 64 * MEGABYTE, 2 * MEGABYTE
"""Bytes of an array that no cache holds, and of one that the last level does."""
SIDE = 768
"""Rows and columns of the matrices: their product has 128 operations for every byte of them."""


class Roofs(NamedTuple):
    """Bounds of one core."""

    arithmetic: float  # billions of operations a second, of products of matrices in float32
    cache: float  # billions of bytes a second, read and written, that the last cache holds
    memory: float  # the same of the memory behind it


class Meter:
    """Measures the roofs, a little at a time."""

    def __init__(self) -> None:
        self._arrays = {size: (np.ones(size, np.uint8), np.ones(size, np.uint8))
                        for size in (FAR, NEAR)}  # fmt: skip
        self._factor = np.ones((SIDE, SIDE), np.float32)
        self._product = np.empty((SIDE, SIDE), np.float32)
        self._found: dict[str, list[float]] = {name: [] for name in Roofs._fields}

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
        # A single thread: several wait for each other, busily, where others use the machine, and
        # that counts as processor time, so that a core seems to be three times slower than it is.
        with threadpool_limits(1):
            start = time.process_time()
            np.matmul(self._factor, self._factor, out=self._product)
            self._found["arithmetic"].append(2 * SIDE**3 / 1e9 / (time.process_time() - start))

    def roofs(self) -> Roofs:
        """Returns medians of what was measured."""
        return Roofs(**{name: median(found) for name, found in self._found.items()})
