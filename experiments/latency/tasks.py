"""What is measured in one go, and the process that does it.

A task is confined to its threads before an engine starts: engines ask the system how many cores
they may use, or the environment, when they first run.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from experiments.latency import contest, machine, networks, profiling
from experiments.latency.engines import Setup, available

NETS = ("mlp", "lenet5")


@dataclass(frozen=True)
class Task:
    """One table's worth of one network at one batch and number of threads.

    Attributes:
        table: Which table its rows are for.
        model: The network.
        batch: Inputs per prediction.
        threads: Threads and cores.
        methods: What is predicted with.
        engines: What runs it.
        rounds: How often each is timed.
    """

    table: str
    model: str
    batch: int
    threads: int
    methods: tuple[str, ...]
    engines: tuple[str, ...]
    rounds: int

    @property
    def name(self) -> str:
        """For people."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.table}: {self.model}, batch {self.batch}, {threads}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it; two tasks that are equal here are the same."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


def plan(fast: bool, rounds: int, threads: Sequence[int]) -> list[Task]:
    """Everything that is measured, in order.

    Args:
        fast: Batch 10 and few others, the numbers of threads given.
        rounds: How often each is timed.
        threads: The numbers of threads.
    """
    everyone = tuple(available())
    compilers: tuple[str, ...] = ("xla", "tvm")
    tasks = []
    for count in threads:
        base = Task("machine", "machine", 1, count, (), (), rounds)
        tasks.append(base)
        for model in NETS:
            for batch in (10,) if fast else (1, 10, 100):
                tasks.append(Task("main", model, batch, count, networks.METHODS, everyone, rounds))
    first = threads[0]
    samplers = tuple(e for e in ("xla", "tvm", "pyro") if e in everyone)
    curve = (1, 16, 256) if fast else tuple(2**i for i in range(9))
    for model in NETS:
        for batch in curve:
            both = ("svi30", "moments")
            tasks.append(Task("curve", model, batch, first, both, samplers, rounds))
    one_pass = tuple(m for m in networks.METHODS if m not in ("svi30", "moments"))
    tasks.append(Task("ensembles", "sine", 1000, first, one_pass, compilers, rounds))
    for batch in (128,) if fast else (1, 8, 16, 32, 64, 128):
        methods = (*one_pass, "moments") if batch == 128 else ("moments", "multihead")
        tasks.append(Task("ensembles", "lenet5_valid", batch, first, methods, compilers, rounds))
    for model in NETS:
        tasks.append(Task("profile", model, 10, first, ("moments",), ("tvm",), rounds))
    return tasks


def run(task: Task) -> list[dict[str, Any]]:
    """Measures a task in this process; one row per measured thing."""
    setup = Setup(task.threads)
    if task.table == "machine":
        rows = machine.measure(setup, task.rounds)
    elif task.table == "profile":
        net = networks.subject(task.model, task.batch)
        rows = profiling.measure(net, task.methods, setup, task.rounds)
    else:
        net = networks.subject(task.model, task.batch)
        rows = contest.hold(net, task.engines, task.methods, setup, task.rounds)
    return [{"table": task.table, **row} for row in rows]


def run_all(
    tasks: Sequence[Task], before: Callable[[Task], Any] = lambda task: None
) -> Iterator[tuple[Task, list[dict[str, Any]]]]:
    """Measures tasks one after the other, those of as many threads in one process.

    Args:
        tasks: What to measure.
        before: Called with each task when it starts.

    Raises:
        RuntimeError: If that process dies; says at which task.
    """
    for threads in dict.fromkeys(task.threads for task in tasks):
        with ProcessPoolExecutor(1, get_context("spawn"), _confine, (threads,)) as pool:
            for task in tasks:
                if task.threads != threads:
                    continue
                before(task)
                try:
                    yield task, pool.submit(run, task).result()
                except BrokenProcessPool as error:
                    died = f"the process that measured {task.name!r} died; run again to go on"
                    raise RuntimeError(died) from error


def cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0))


def _confine(threads: int) -> None:
    allowed = cores()
    if len(allowed) < threads:
        raise RuntimeError(f"{threads} threads were asked for, there are {len(allowed)} cores")
    os.sched_setaffinity(0, allowed[:threads])
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"):
        os.environ[name] = str(threads)
