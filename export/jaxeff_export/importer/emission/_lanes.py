"""Number of partial results that a reduction along the innermost dimension keeps.

Vector units need independent partial results, and sums of many terms are more accurate so.
"""

from __future__ import annotations

import math

# Eight float32 fill one vector of AVX2 or two of NEON.
_VECTOR = 8
_MOST = 64
_TURNS = 4  # at least; LLVM's vectoriser breaks some products of fewer, once these are unrolled


def lanes_of(length: int) -> int | None:
    """Returns into how many lanes ``length`` elements divide well, or None if they do not.

    The lanes fill vectors as well as they can: 32 of 512, 50 of 500.
    """
    # Whole lanes only: a remainder would need a loop of its own.
    divisors = [d for d in range(_VECTOR, _MOST + 1) if length % d == 0 and length >= _TURNS * d]
    if not divisors:
        return None

    def fill(lanes: int) -> float:
        return lanes / (math.ceil(lanes / _VECTOR) * _VECTOR)

    # Full vectors first. Then close to 32 sums: four chains of AVX2 vectors, or eight of NEON,
    # hide the latency of an addition and still leave registers for the operands.
    return max(divisors, key=lambda d: (fill(d), -abs(d - 32)))
