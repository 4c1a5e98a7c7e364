"""The host's side of sampling: run blocks of iterations, show progress, keep checkpoints."""

import time

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.sampling import _warmup as warmup
from jaxeff.bayes.sampling._chain_store import ChainStore, Trace
from jaxeff.bayes.sampling._program import (
    BlockRecord,
    Chains,
    CompiledSampler,
    SamplingProblem,
    copied,
    run_block,
    spread,
)
from jaxeff.core import from_writer, progress_bar, to_host
from jaxeff.store import Resume

MOST, BYTES = 100, 2**26
"""Limits of a block: its iterations, and the bytes of its draws."""
SECONDS = 5.0
"""Seconds that a block should take; progress and a checkpoint follow each block."""


class ChainsDivergedError(FloatingPointError):
    """A chain on mini-batches left the finite numbers."""


def run_chains(
    key: PRNGKeyArray,
    program: CompiledSampler,
    problem: SamplingProblem,
    start: Chains,
    *,
    warmup_iterations: int,
    samples: int,
    thin: int,
    store: ChainStore | None,
    resume: Resume,
    progress: bool | None,
) -> Trace:
    """Runs chains to their end.

    Args:
        key: Random key of the run.
        program: Program to compile.
        problem: The arrays that are sampled.
        start: The state before the first iteration.
        warmup_iterations: Number of first iterations, whose draws aren't kept.
        samples: Draws to keep of each chain.
        thin: Iterations for each of them.
        store: Storage that keeps the run; None keeps nothing.
        resume: Whether to go on from what the store holds.
        progress: Whether to show a bar; see `jaxeff.core`.

    Returns:
        What they leave, the part before a resume included.

    Raises:
        ChainsDivergedError: A position isn't finite.
        CheckpointError: The store holds another run.
    """
    total = warmup_iterations + samples * thin
    chains, dimensions = start.point.position.shape
    size = dimensions * chains * start.point.position.dtype.itemsize
    # Bounded by memory too: a block's draws stay on the device until it ends.
    block = max(1, min(MOST, BYTES // size))
    # A block's length longer: the last block reads phases past the end without running them.
    phases = np.zeros(total + block, np.int32)
    phases[:warmup_iterations] = warmup.phases(warmup_iterations)
    state, done = start, 0
    traces: list[Trace] = []
    if store is not None and not resume:
        store.clear()
    elif store is not None and (found := store.load(start, force=resume == "force")) is not None:
        state, done, traces = found
    # Placed once: a block would copy the data to all devices again.
    state, (key, problem) = spread(program, state), copied(program, (key, problem))

    # One iteration first: it compiles, and the clock then tells how long blocks may be.
    count, divergences = 1, sum(_divergences(trace) for trace in traces)
    with progress_bar(progress, "iteration", total, done) as advance:
        while done < total:
            began = time.perf_counter()
            # A block ends with warm-up, so that its time is known.
            left = (warmup_iterations if done < warmup_iterations else total) - done
            count = min(count, left)
            now = phases[done : done + block]
            state, recorded = run_block(key, state, done, count, now, problem, program=program)
            trace = _kept(to_host(recorded), count, done - warmup_iterations, thin)
            each = _seconds(began, program) / count
            traces.append(trace._replace(seconds=np.full(count, each)))
            done += count
            host = to_host(state)
            _check_finite(host, done)
            if store is not None:
                store.append(host, done, traces[-1])
            divergences += _divergences(traces[-1])
            advance(count, _line(traces[-1], done <= warmup_iterations, divergences))
            # What comes out doesn't depend on the length of a block, so that may follow the clock.
            faster = SECONDS / _seconds(began, program)
            count = max(1, min(block, int(count * min(faster, 8))))
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *traces)
    # The store may hold more than is asked for: a resume with fewer samples cuts it.
    return jax.tree.map(lambda a: a[:total], whole)._replace(positions=whole.positions[:samples])


def _seconds(began: float, program: CompiledSampler) -> float:
    """Measures time by one clock for all processes, whose blocks must have one length."""
    return from_writer(lambda: time.perf_counter() - began, program.together)


def _kept(recorded: BlockRecord, count: int, sampled: int, thin: int) -> Trace:
    """Selects what to keep of a block that begins at iteration `sampled` of sampling."""
    number = sampled + np.arange(count)
    # The last of every `thin`, so that statistics of kept draws are every `thin`-th, too.
    kept = np.flatnonzero((number >= 0) & (number % thin == thin - 1))
    positions = np.asarray(recorded.positions)[kept]
    stats = {name: np.asarray(a)[:count] for name, a in recorded.stats.items()}
    return Trace(positions, stats, np.zeros(count))


def _divergences(trace: Trace) -> int:
    return int(trace.stats.get("divergent", np.zeros(0)).sum())


def _line(trace: Trace, warming: bool, divergences: int) -> str:
    mean = {name: values.mean() for name, values in trace.stats.items()}
    parts = ["warm-up" if warming else "sampling", f"step size {mean['step_size']:.2g}"]
    if "acceptance" in mean:
        parts += [
            f"acceptance {mean['acceptance']:.2f}",
            f"{mean['steps']:.0f} steps",
            f"{divergences} divergences",
        ]
    return "  ".join(parts)


def _check_finite(state: Chains, done: int) -> None:
    finite = np.isfinite(np.asarray(state.point.position)).all(1)
    if not finite.all():
        raise ChainsDivergedError(
            f"after {done} iterations the parameters of chain {int(np.argmin(finite))} are NaN or "
            "infinite: lower the step size"
        )
