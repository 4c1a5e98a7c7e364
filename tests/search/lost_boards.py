"""A latency whose board is gone at some of its measurements."""

import itertools

from jaxeff.search import LatencyError, bit_operations


def loses(lost):
    """Counts bit operations; `lost` says at which calls, from 1, the board is gone."""
    calls = itertools.count(1)

    def latency(candidate):
        if lost(next(calls)):
            raise LatencyError("the board is gone")
        return bit_operations(candidate)

    return latency
