"""Huffman codes: bits of codes whose lengths vary, the frequent ones shorter.

Source: Huffman, "A Method for the Construction of Minimum-Redundancy Codes", Proc. IRE 40 (1952);
used for weights by Han et al., "Deep Compression", arXiv:1510.00149, section 4.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


def code_lengths(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Computes the length of each symbol's code in a Huffman code.

    Args:
        counts: Number of occurrences of each symbol.

    Returns:
        Whole numbers of bits, of the shape of `counts`; 0 for what doesn't occur, and for a symbol
        that is the only one.

    Raises:
        ValueError: A count is negative or not finite, or there is none above zero.
    """
    numbers = _checked(counts)
    lengths = np.zeros(numbers.shape, int)
    order = itertools.count()  # decides between equal counts, so that members aren't compared
    heap = [(float(n), next(order), [i]) for i, n in enumerate(numbers) if n > 0]
    heapq.heapify(heap)
    # Joining the two rarest groups lengthens the code of each member by one bit.
    while len(heap) > 1:
        (n, _, members), (m, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[members + others] += 1
        heapq.heappush(heap, (n + m, next(order), members + others))
    return lengths


def mean_length(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the bits per symbol of a Huffman code: from the entropy to one bit above it."""
    numbers = _checked(counts)
    return float(np.sum(code_lengths(numbers) * numbers) / np.sum(numbers))


def entropy(counts: Sequence[int] | np.ndarray) -> float:
    """Computes the entropy of the symbols in bits, which no code gets below."""
    numbers = _checked(counts)
    shares = numbers[numbers > 0] / np.sum(numbers)
    # The zero added turns the -0.0 of a single symbol into 0.
    return float(-np.sum(shares * np.log2(shares))) + 0.0


def _checked(counts: Any) -> np.ndarray:
    numbers = np.asarray(counts, np.float64).ravel()
    if not (np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers > 0).any()):
        raise ValueError(f"counts must be at least zero, and one of them above, but are {counts}.")
    return numbers
