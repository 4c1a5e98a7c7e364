"""The engines: each module has `mcmc(problem, settings)` and, where it does both, `svi`.

They are written as a user of the library would write them. Their work is counted by XLA:
operations are one per element of a result and two per multiply-accumulate; transcendental
functions, which XLA counts apart, are one each. Bytes are those that each fused operation reads
and writes: traffic with the nearest cache, which is more than reaches memory where a network stays
in the caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

import jaxeff
from experiments.engines import load
from experiments.scaling.problem import Problem, Settings

ENGINES: dict[str, tuple[str, ...]] = {
    "numpyro": ("mcmc", "svi"), "blackjax": ("mcmc",), "tfp": ("mcmc", "svi"),
    "pyro": ("mcmc", "svi"), "jaxeff": ("mcmc", "svi"),
}  # fmt: skip
"""The methods that each engine is measured with; BlackJAX's own SVI takes no mini-batches."""


@dataclass(frozen=True)
class Work:
    """What a gradient of the log density, or an update of SVI, costs."""

    flops: float  # floating-point operations
    bytes: float  # read and written by its operations
    macs: int  # multiply-accumulates of its matrix products alone
    # bytes of its arguments, results and temporary arrays; None where nobody knows
    held: int | None


@dataclass(frozen=True)
class Session:
    """An engine that is through its warm-up, its sampler compiled."""

    work: Work  # of one gradient (MCMC) or of one update (SVI)
    # draws samples or trains the epochs; returns the gradients or updates of each
    run: Callable[[], Sequence[int]]
    warmup: Sequence[int] = ()  # gradients of each transition of the warm-up
    step_size: float | None = None  # what the warm-up arrived at; None for SVI


def prepare(engine: str, method: str, problem: Problem, settings: Settings) -> Session:
    """Compiles an engine and runs its warm-up."""
    return getattr(load(__name__, engine), method)(problem, settings)


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
    """The work on this machine of a function of parameters and data, arrays or pytrees of them."""
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
