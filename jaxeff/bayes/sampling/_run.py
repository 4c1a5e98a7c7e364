"""The host's side of sampling: start chains, run blocks of iterations, keep checkpoints.

A run on disk is a folder with the chains' state and the draws so far. ``state.safetensors`` is
replaced in one step after each block of iterations; what a block drew is in a file of its own,
written before. So a run that is killed loses at most the block it was in. Of processes that make
one run together, the first alone reads and writes.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.bayes import posteriors
from jaxeff.bayes.sampling import _program as warmup
from jaxeff.core import from_writer, is_writer, keeps_finished, progress_bar, to_host
from jaxeff.moment_propagation import is_gaussian
from jaxeff.store import (
    CheckpointError,
    Resume,
    load_metadata,
    load_pytree,
    reading_errors,
    require_same_run,
    save_pytree,
)

_KIND = "jaxeff.mcmc"


class Trace(NamedTuple):
    """Records of chains, in NumPy arrays.

    Attributes:
        positions: Kept draws, ``[draws, chains, d]``.
        stats: Mapping from name to ``[iterations, chains]``, warm-up included.
        seconds: Wall time of each iteration.
    """

    positions: np.ndarray
    stats: dict[str, np.ndarray]
    seconds: np.ndarray


class ChainStore:
    """The folder of one run."""

    def __init__(self, folder: Path, identity: dict[str, Any], together: bool = False):
        self._folder, self._identity, self._together = folder, identity, together
        self._state = folder / "state.safetensors"
        self._files: list[str] = []

    def clear(self) -> None:
        """Forgets the run so far; its draws are overwritten one by one."""
        if is_writer(self._together):
            self._state.unlink(missing_ok=True)

    def load(
        self, like: warmup.Chains, force: bool = False
    ) -> tuple[warmup.Chains, int, list[Trace]] | None:
        """Reads the run so far.

        `like` is a state of the same structure; with `force` another run is read as well. Returns
        the state, the number of iterations done and what they left; None if there is no run.

        Raises:
            CheckpointError: A file is damaged or missing, or the run is another one.
        """

        def read() -> tuple[warmup.Chains, int, list[Trace]] | None:
            with reading_errors(self._state):
                return self._read(like, force)

        return from_writer(read, self._together)

    def _read(
        self, like: warmup.Chains, force: bool
    ) -> tuple[warmup.Chains, int, list[Trace]] | None:
        path = self._state
        if not path.exists():
            return None
        metadata = load_metadata(path)
        if metadata.get("kind") != _KIND:
            raise CheckpointError(f"{path} is a checkpoint, but not one of sampled chains.")
        if not force:
            require_same_run(
                f"the chains in {self._folder} are", metadata["identity"], self._identity,
                place="folder",
            )  # fmt: skip
        state = load_pytree(path, like)
        # Files that the state names: any other is of a block that was cut off.
        self._files = list(metadata["files"])
        try:
            traces = [_numpy(load_pytree(self._folder / name)) for name in self._files]
        except FileNotFoundError as error:
            raise CheckpointError(f"the chains in {self._folder} are incomplete: {error}") from None
        return state, metadata["iterations"], traces

    def append(self, state: warmup.Chains, iterations: int, trace: Trace) -> None:
        """Keeps a block of iterations.

        `iterations` are those done so far, this block included; `trace` its records.
        """
        if not is_writer(self._together):
            return
        name = f"draws-{len(self._files):06d}.safetensors"
        # Draws before the state that names them: a kill between the two loses this block alone.
        save_pytree(self._folder / name, trace._asdict())
        self._files.append(name)
        metadata = {
            "kind": _KIND,
            "identity": self._identity,
            "iterations": iterations,
            "files": self._files,
        }
        save_pytree(self._state, state, metadata)


def _numpy(tree: dict[str, Any]) -> Trace:
    return Trace(**jax.tree.map(np.asarray, tree))


MOST, BYTES = 100, 2**26
"""Limits of a block: its iterations, and the bytes of its draws."""
SECONDS = 5.0
"""Seconds that a block should take; progress and a checkpoint follow each block."""


class ChainsDivergedError(FloatingPointError):
    """A chain on mini-batches left the finite numbers."""


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """How long chains run.

    Attributes:
        warmup: Iterations that come first, of which no draw is kept.
        samples: Draws of each chain that are kept.
        thin: Iterations for each of them.
    """

    warmup: int = 1000
    samples: int = 1000
    thin: int = 1

    @property
    def total(self) -> int:
        """All iterations of a chain."""
        return self.warmup + self.samples * self.thin


Progress = tuple[warmup.Chains, int, list[Trace]]
"""The state of chains, the iterations done, and what these left."""


def resumed(store: ChainStore | None, start: warmup.Chains, resume: Resume) -> Progress:
    """Returns how far a store's chains are; those that start, if it is empty or `resume` False.

    Raises:
        CheckpointError: The store holds another run.
    """
    # What lies there may be longer than what is asked for now: the draws are cut in the end.
    if store is not None and not resume:
        store.clear()
    elif store is not None and (kept := store.load(start, force=resume == "force")) is not None:
        return kept
    return start, 0, []


def run_chains(
    key: PRNGKeyArray,
    program: warmup.CompiledSampler,
    problem: warmup.SamplingProblem,
    begin: Progress,
    iterations: Iterations,
    store: ChainStore | None,
    progress: bool | None,
) -> Trace:
    """Runs chains to their end.

    `store` keeps the run, unless it is None. Returns what chains leave, before a resume too.

    Raises:
        ChainsDivergedError: A position isn't finite.
        InterruptedRun: Ctrl-C; its ``result`` is the trace so far, if it has draws.
    """
    (state, done, traces), total = begin, iterations.total
    # Bounded by memory too: a block's draws stay on the device until it ends.
    block = max(1, min(MOST, BYTES // state.point.position.nbytes))
    # A block's length longer: the last block reads phases past the end without running them.
    phases = np.zeros(total + block, np.int32)
    phases[: iterations.warmup] = warmup.phases(iterations.warmup)
    # Placed once: a block would copy the data to all devices again.
    state, (key, problem) = warmup.spread(program, state), warmup.copied(program, (key, problem))

    # One iteration first: it compiles, and the clock then tells how long blocks may be.
    count, divergences = 1, sum(_divergences(trace) for trace in traces)

    def finished() -> tuple[str, Any]:
        return _stopped(f"{done} of {total} iterations", traces, store is not None)

    with keeps_finished(finished), progress_bar(progress, "iteration", total, done) as advance:
        while done < total:
            began = time.perf_counter()
            # A block ends with warm-up, so that its time is known.
            left = (iterations.warmup if done < iterations.warmup else total) - done
            count = min(count, left)
            now = warmup.BlockIterations(done, count, phases[done : done + block])
            state, recorded = warmup.run_block(key, state, now, problem, program=program)
            trace = _kept(to_host(recorded), count, done - iterations.warmup, iterations.thin)
            each = _seconds(began, program) / count
            traces.append(trace._replace(seconds=np.full(count, each)))
            done += count
            host = to_host(state)
            _check_finite(host, done)
            if store is not None:
                store.append(host, done, traces[-1])
            divergences += _divergences(traces[-1])
            advance(count, _line(traces[-1], done <= iterations.warmup, divergences))
            # What comes out doesn't depend on the length of a block, so that may follow the clock.
            faster = SECONDS / _seconds(began, program)
            count = max(1, min(block, int(count * min(faster, 8))))
    trace = _joined(traces)
    # The store may hold more than is asked for: a resume with fewer samples cuts it.
    return jax.tree.map(lambda a: a[:total], trace)._replace(
        positions=trace.positions[: iterations.samples]
    )


def _stopped(done: str, traces: list[Trace], is_kept: bool) -> tuple[str, Trace | None]:
    """Says how far chains came, and returns the trace so far if it has draws."""
    draws = sum(len(trace.positions) for trace in traces)
    said = f"stopped after {done}, with {draws} draws of each chain"
    kept = "the same call goes on" if is_kept else "with a checkpoint the same call goes on"
    return f"{said}; {kept} where it stopped", _joined(traces) if draws else None


def _joined(traces: list[Trace]) -> Trace:
    return jax.tree.map(lambda *parts: np.concatenate(parts), *traces)


def _seconds(began: float, program: warmup.CompiledSampler) -> float:
    """Measures time by one clock for all processes, whose blocks must have one length."""
    return from_writer(lambda: time.perf_counter() - began, program.together)


def _kept(recorded: warmup.BlockRecord, count: int, sampled: int, thin: int) -> Trace:
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
    parts = {
        "step_size": "step size {:.2g}",
        "acceptance": "acceptance {:.2f}",
        "steps": "{:.0f} steps",
    }
    texts = [text.format(mean[name]) for name, text in parts.items() if name in mean]
    if "divergent" in mean:
        texts.append(f"{divergences} divergences")
    return "  ".join(["warm-up" if warming else "sampling", *texts])


def _check_finite(state: warmup.Chains, done: int) -> None:
    finite = np.isfinite(np.asarray(state.point.position)).all(1)
    if not finite.all():
        raise ChainsDivergedError(
            f"after {done} iterations the parameters of chain {int(np.argmin(finite))} are NaN or "
            "infinite: lower the step size"
        )


def starting_points(
    key: PRNGKeyArray, params: Any, scales: posteriors.Scales, chains: int, init: Any, jitter: float
) -> posteriors.Random:
    """Chooses a start for each chain.

    `init` is None for draws from the prior; a posterior for draws from it; parameters for one place
    that all chains start around, by `jitter` of the prior's standard deviations; parameters with a
    leading axis of chains. Returns the random parameters by path, with a leading axis of chains.

    Raises:
        ValueError: `init` is of another model, or of another number of chains.
    """
    if init is None:
        return _prior_draws(key, params, scales, chains)
    leaves = jax.tree.leaves(init, is_leaf=is_gaussian)
    if isinstance(init, posteriors.Posterior) or any(is_gaussian(leaf) for leaf in leaves):
        posteriors.check_posterior(init, params)
        return posteriors.random_part(posteriors.sample(key, init, chains), scales)
    if _leads_with_chains(init, params, chains):
        return posteriors.random_part(init, scales)
    center = posteriors.random_part(init, scales)
    # In the prior's units: parameters of all layers are spread on their own scales.
    noise = _prior_draws(key, params, scales, chains)
    return {path: center[path] + jitter * noise[path] for path in center}


@partial(jax.jit, static_argnames=("chains",))
def _prior_draws(
    key: PRNGKeyArray, params: Any, scales: posteriors.Scales, chains: int
) -> posteriors.Random:
    return jax.vmap(lambda k: posteriors.draw_prior(k, params, scales))(
        jax.random.split(key, chains)
    )


def _leads_with_chains(init: Any, params: Any, chains: int) -> bool:
    starts, expected = posteriors.named_leaves(init), posteriors.named_leaves(params)
    if starts.keys() != expected.keys():
        path = next(iter(starts.keys() ^ expected.keys()))
        raise ValueError(
            f"init and params differ in {path}: give a pytree of the model's parameters, one "
            "with a leading axis of chains, a posterior, or None to start at draws from the prior"
        )
    # All leaves agree on one of the two, so an axis as long as there are chains isn't mistaken.
    for extra in ((), (chains,)):
        if all(jnp.shape(starts[path]) == (*extra, *jnp.shape(expected[path])) for path in starts):
            return bool(extra)
    path = next(p for p in starts if jnp.shape(starts[p]) != jnp.shape(expected[p]))
    raise ValueError(
        f"init has {path} of shape {jnp.shape(starts[path])}, the model {jnp.shape(expected[path])}"
        f"; give those shapes, or all with a leading axis of {chains} chains"
    )
