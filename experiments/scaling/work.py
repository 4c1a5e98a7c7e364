"""The arithmetic and the traffic of one compiled step, as XLA itself counts them.

Operations are one per element of a result and two per multiply-accumulate; transcendental
functions, which XLA counts apart, are one each. Bytes are those that each fused
operation reads and writes: traffic with the nearest cache, which is more than reaches memory where
a network stays in the caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

import jaxeff


@dataclass(frozen=True)
class Work:
    """What a gradient of the log density, or an update of SVI, costs.

    Attributes:
        flops: Floating-point operations.
        bytes: Read and written by its operations.
        macs: Multiply-accumulates of its matrix products alone.
        held: Bytes of its arguments, results and temporary arrays; None where nobody knows.
    """

    flops: float
    bytes: float
    macs: int
    held: int | None


def repeated(
    epoch: Callable[[Any, Any], tuple[Any, Any]], initial: Any, epochs: int, updates: int
) -> Callable[[], list[int]]:
    """Makes a run of SVI over so many epochs, which says how many updates each had."""

    def run() -> list[int]:
        state = initial
        for key in jax.random.split(jax.random.key(1), epochs):
            state, losses = epoch(state, key)
        jax.block_until_ready((state, losses))
        return [updates] * epochs

    return run


def compiled_work(f: Callable[..., Any], *args: Any) -> Work:
    """The work of `f` on this machine.

    Args:
        f: A function of arrays: parameters first, data after them.
        *args: Its arguments, arrays or pytrees of them.
    """
    lowered = jax.jit(f).lower(*args)
    compiled = lowered.compile()
    # Before fusion: a fused program computes cheap things again wherever they are needed.
    counts: Any = lowered.cost_analysis()
    traffic: Any = compiled.cost_analysis()
    memory: Any = compiled.memory_analysis()
    return Work(
        counts["flops"] + counts.get("transcendentals", 0.0),
        traffic["bytes accessed"],
        jaxeff.cost(f, *args).macs,
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes,
    )
