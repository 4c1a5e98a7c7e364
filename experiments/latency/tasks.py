"""What is measured in one go, and the process that does it.

A task is confined to its threads before an engine starts: engines ask the system how many cores
they may use, or the environment, when they first run.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Annotated, Any, Literal

from experiments.engines import available
from experiments.harness import SELECTS, Count, Least, Refused
from experiments.latency import arm, contest, networks, operators, profiling
from experiments.latency.engines import ENGINES, Setup

NETS = ("mlp", "lenet5")
SAMPLERS = ("xla", "tvm", "numpyro", "pyro")
"""Engines of the curve over batch sizes."""
Part = Literal["main", "curve", "ensembles", "profile", "optimizations", "arm"]


@dataclass(frozen=True)
class Task:
    """One table's worth of one network at one batch and number of threads."""

    table: str  # which table its rows are for
    model: str  # the network
    batch: int  # inputs per prediction
    threads: int  # threads and cores
    methods: tuple[str, ...]  # what is predicted with
    engines: tuple[str, ...]  # what runs it
    rounds: int  # how often each is timed
    trials: int = 0  # candidates per kernel to tune with; none: nothing is tuned

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.table}: {self.model}, batch {self.batch}, {threads}"


@dataclass(frozen=True)
class Settings:
    """What is measured, how often."""

    rounds: Count = 21  # rounds of each timing
    # numbers of threads; what isn't measured with each takes the first, and the manual
    # optimizations, one of which is parallelization, the last
    threads: Annotated[tuple[Count, ...], SELECTS] = (1, 2)
    # candidates per kernel to tune with, for the main table and the profile
    trials: Annotated[int, Least(0)] = 16
    main: Annotated[tuple[Count, ...], SELECTS] = (1, 10, 100)  # batch sizes of the main table
    # batch sizes of the curve
    curve: Annotated[tuple[Count, ...], SELECTS] = (
        1, 2, 4, 8, 16, 32, 64, 128, 256,
    )  # fmt: skip
    # batch sizes of the moment pass beside ten heads, but for the largest
    beside: Annotated[tuple[int, ...], SELECTS] = (1, 8, 16, 32, 64)
    # ARM processors that are modelled, at the batches of the main table and of `beside`
    cores: Annotated[tuple[arm.Core, ...], SELECTS] = arm.CORES
    parts: Annotated[tuple[Part, ...], SELECTS] = ()  # tables to measure; all if none is given


SIZES = {
    "fast": Settings(7, (1,), 0, (10,), (), (), ("cortex-a72",)),
    "default": Settings(),
    "full": Settings(rounds=51, trials=64),
}


def settle(settings: Settings) -> Settings:
    """As many threads as there are cores."""
    there = tuple(n for n in settings.threads if n <= len(cores()))
    if not there:
        raise Refused(f"{settings.threads[0]} threads were asked for, there are {len(cores())}")
    return replace(settings, threads=there)


def plan(settings: Settings) -> list[Task]:
    """Everything that is measured, in order."""
    first, last = settings.threads[0], settings.threads[-1]

    def task(table: str, model: str, batch: int, methods: Any = (), **more: Any) -> Task:
        how: dict[str, Any] = {"threads": first, "engines": ("tvm",)} | more
        return Task(table, model, batch, methods=methods, rounds=settings.rounds, **how)

    tuned: dict[str, Any] = {"trials": settings.trials}
    every, samplers = (tuple(available(names)) for names in (ENGINES, SAMPLERS))
    both: dict[str, Any] = {"engines": ("xla", "tvm")}
    several = ("deterministic", "multihead", "ensemble")
    tasks = []
    for threads in settings.threads:
        how: dict[str, Any] = {"threads": threads, "engines": every} | tuned
        for model, batch in product(NETS, settings.main):
            tasks.append(task("main", model, batch, networks.METHODS, **how))
    for model, batch in product(NETS, settings.curve):
        tasks.append(task("curve", model, batch, ("svi30", "moments"), engines=samplers))
    tasks.append(task("ensembles", "sine", 1000, several, **both))
    for batch in settings.beside:
        tasks.append(task("ensembles", "lenet5_valid", batch, ("moments", "multihead"), **both))
    tasks.append(task("ensembles", "lenet5_valid", 128, (*several, "moments"), **both))
    tasks += [task("profile", model, 10, ("moments",), **tuned) for model in NETS]
    tasks.append(task("optimizations", "mlp", 10, ("moments",), threads=last))
    if not arm.missing():
        tasks += [task("arm", *place, engines=settings.cores) for place in _modelled(settings)]
    return [one for one in tasks if not settings.parts or one.table in settings.parts]


def _modelled(settings: Settings) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Lists networks, batches and methods of the thesis' tables of ARM processors."""
    for model, batch in product(NETS, settings.main):
        yield model, batch, ("deterministic", "moments")
    for batch in settings.beside:
        yield "lenet5_valid", batch, ("deterministic", "moments", "multihead")
    several = ("deterministic", "multihead", "ensemble")
    yield "sine", 1000, several
    yield "lenet5_valid", 128, (*several, "moments")


def run(task: Task, database: Path | None) -> list[dict[str, Any]]:
    """Measures a task in this process; one row per measured thing."""
    setup = Setup(task.threads, database if task.trials else None, task.trials)
    how = setup, task.rounds

    def net() -> networks.Subject:
        return networks.subject(task.model, task.batch)

    measure: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "optimizations": lambda: operators.measure(task.batch, *how),
        "arm": lambda: arm.measure(net(), task.methods, task.engines),
        "profile": lambda: profiling.measure(net(), task.methods, *how),
    }
    compare = lambda: contest.hold(net(), task.engines, task.methods, *how)  # noqa: E731
    return [{"table": task.table, **row} for row in measure.get(task.table, compare)()]


def run_all(
    tasks: Sequence[Task],
    database: Path | None = None,  # a folder for tuning records
) -> Iterator[tuple[Task, list[dict[str, Any]]]]:
    """Measures tasks one after the other, those of as many threads in one process.

    Raises:
        RuntimeError: If that process dies; says at which task.
    """
    for threads in dict.fromkeys(task.threads for task in tasks):
        with ProcessPoolExecutor(1, get_context("spawn"), _confine, (threads,)) as pool:
            for task in tasks:
                if task.threads != threads:
                    continue
                try:
                    yield task, pool.submit(run, task, database).result()
                except BrokenProcessPool as error:
                    died = f"the process that measured {str(task)!r} died; run again to go on"
                    raise RuntimeError(died) from error


def cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0))


def _confine(threads: int) -> None:
    """What a worker does first: keep to its cores, and end when whoever started it is killed."""
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
    allowed = cores()
    if len(allowed) < threads:
        raise RuntimeError(f"{threads} threads were asked for, there are {len(allowed)} cores")
    os.sched_setaffinity(0, allowed[:threads])
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"):
        os.environ[name] = str(threads)


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
