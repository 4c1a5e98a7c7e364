"""The processes that measure: one for each engine and method, so that memory is its own.

They are forked from a server that has imported the engines but not used them, confined to the same
core, and timed in turn: a round times every engine once, while the others wait. Times are of the
processor, which a busy machine lengthens less than those of the clock; of one thread on a core of
its own both are the same.
"""

import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from experiments.engines import available, load
from experiments.scaling import machine
from experiments.scaling.engines import prepare
from experiments.scaling.problem import Configuration, Settings, make_problem

_CONTEXT = get_context("forkserver")
_PRELOADED = ("numpyro", "tfp", "pyro")
"""The others start JAX when they are imported; a process with JAX's threads can't be forked."""


def measure(
    contestants: Sequence[tuple[str, str]], configuration: Configuration, settings: Settings
) -> list[dict[str, Any]]:
    """Measures engines beside each other: a row for each pair of engine and method.

    Raises:
        RuntimeError: If a process dies; says which.
    """
    rows = []
    with _started(contestants, configuration, settings) as children:
        for name, child in children.items():
            rows.append({"engine": name[0], "method": name[1], **_receive(child, name)})
        times: dict[tuple[str, str], list[Any]] = {name: [] for name in children}
        for _ in range(settings.rounds):
            for name, child in children.items():
                child.send("run")
                times[name].append(_receive(child, name))
    for row, measured in zip(rows, times.values(), strict=True):
        row |= _timing(row, measured, settings)
    return [{**asdict(configuration), "parameters": configuration.parameters, **r} for r in rows]


def measure_machine(rounds: int) -> dict[str, Any]:
    """The ceilings of the roofline, measured in a process of its own."""
    with _CONTEXT.Pool(1, confine) as pool:
        return pool.apply(machine.ceilings, (rounds,))


def preload() -> None:
    """Has the server import the engines; to be called before the first process starts."""
    engines = [f"experiments.scaling.engines.with_{name}" for name in available(_PRELOADED)]
    _CONTEXT.set_forkserver_preload([__name__, *engines])


def confine() -> None:
    """Keeps this process to one core and one thread; to be called before an engine starts."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in ("OMP_NUM_THREADS", "NPROC"):
        os.environ[name] = "1"


@contextmanager
def _started(
    contestants: Sequence[tuple[str, str]], configuration: Configuration, settings: Settings
) -> Iterator[dict[tuple[str, str], Connection]]:
    """Processes by contestant; they prepare side by side."""
    processes, children = [], {}
    try:
        for name in contestants:
            ours, theirs = _CONTEXT.Pipe()
            arguments = (theirs, *name, configuration, settings)
            process = _CONTEXT.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            children[name] = ours
        yield children
    finally:
        for process in processes:
            process.terminate()
            process.join()


def serve(
    connection: Connection, engine: str, method: str, configuration: Configuration,
    settings: Settings,
) -> None:  # fmt: skip
    """What a process does: prepares, says what it found, and runs as often as it is told to."""
    confine()
    load("experiments.scaling.engines", engine)
    before, start = _peak(), time.process_time()
    session = prepare(engine, method, make_problem(configuration), settings)
    if method == "svi":
        session.run()  # compiles
    found = {"warmup_evaluations": sum(session.warmup), "step_size": session.step_size}
    connection.send(asdict(session.work) | found | {"prepare_s": time.process_time() - start})
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        begin, start = time.perf_counter(), time.process_time()
        counts = session.run()
        seconds, wall = time.process_time() - start, time.perf_counter() - begin
        connection.send((counts, seconds, wall, _peak() - before))


def _timing(row: dict[str, Any], measured: list[Any], settings: Settings) -> dict[str, Any]:
    """Latency of a sample or an epoch, and the work of the whole inference."""
    counts = measured[0][0]
    kept = counts[-settings.samples :] if row["method"] == "mcmc" else counts
    evaluations = row["warmup_evaluations"] + sum(kept)
    per_evaluation = median(1e3 * seconds / sum(of) for of, seconds, _, _ in measured)
    return {
        "evaluations": evaluations,
        "per_iteration": list(kept),
        "total_flops": evaluations * row["flops"],
        "ms": median(1e3 * seconds / len(of) for of, seconds, _, _ in measured),
        "wall_ms": median(1e3 * wall / len(of) for of, _, wall, _ in measured),
        "ms_per_evaluation": per_evaluation,
        "intensity": row["flops"] / row["bytes"],
        "gflops": row["flops"] / per_evaluation / 1e6,
        "peak_mb": max(peak for *_, peak in measured) / 1e6,
    }


def _receive(child: Connection, name: tuple[str, str]) -> Any:
    try:
        return child.recv()
    except EOFError as error:
        died = f"the process that ran {' '.join(name)} died; run again to go on"
        raise RuntimeError(died) from error


def _peak() -> int:
    """The most memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
