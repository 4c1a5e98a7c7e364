"""Runs cases in processes of their own, which are replaced when they crash or hang."""

import contextlib
import multiprocessing
import os
import pkgutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

LIFETIME = 300  # cases; bounds what the compilers' caches keep
START = 120.0  # seconds to load everything


class Worker:
    """A process that runs one case after another.

    Attributes:
        case: The name of the one it has.
        connection: Where it answers.
    """

    def __init__(self, case: str, errors: Path, *task: object):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.case = case
        self._errors = errors
        self._process = context.Process(target=_serve, args=(theirs, errors, *task), daemon=True)
        self._process.start()
        theirs.close()
        self._stage = "starting"
        self._since = time.monotonic()
        self._served = 0

    def give(self, case: str) -> None:
        """Hands it the next case."""
        self.case, self._since = case, time.monotonic()
        self.connection.send(case)

    def left(self, seconds: float) -> float:
        """How much of its time the case still has."""
        allowed = START if self._stage == "starting" else seconds
        return max(0.0, self._since + allowed - time.monotonic())

    def receive(self) -> dict | None:
        """What came of the case; None while it only says which stage it is at."""
        try:
            said = self.connection.recv()
        except EOFError:
            self._process.join()
            message = f"{self._stage}, exit code {self._process.exitcode}: {self._last_words()}"
            return {"outcome": "crash", "message": message}
        if isinstance(said, dict):
            self._served += 1
            return said
        self._stage = said
        if said == "ready":
            self.give(self.case)
        return None

    def time_out(self) -> dict:
        """What is to be said of a case whose time is up."""
        return {"outcome": "timeout", "message": self._stage}

    def is_spent(self, outcome: str) -> bool:
        """Tells whether the process has to be replaced after a case."""
        return outcome in ("crash", "timeout") or self._served >= LIFETIME

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()

    def _last_words(self) -> str:
        lines = self._errors.read_text(errors="replace").splitlines()
        return " ".join(line.strip() for line in lines[-4:])[-500:]


def run_cases(
    names: Sequence[str],
    table: str,
    compiler: str,
    constants: bool = False,
    jobs: int = 1,
    seconds: float = 60.0,
) -> Iterator[dict]:
    """Runs cases and yields one record each, as they end.

    Args:
        names: The cases.
        table: Where they are: `module:function`, the function returning cases by name.
        compiler: A key of `trial.COMPILERS`.
        constants: Whether arguments are written into the modules.
        jobs: The number of processes.
        seconds: How long a case may take.
    """
    waiting = list(reversed(names))
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:

        def start() -> None:
            errors = Path(folder, f"{len(waiting)}.txt")
            worker = Worker(waiting.pop(), errors, table, compiler, constants)
            stack.callback(worker.stop)
            workers.append(worker)

        while waiting or workers:
            while waiting and len(workers) < jobs:
                start()
            ready = wait([w.connection for w in workers], min(w.left(seconds) for w in workers))
            for worker in list(workers):
                row = None
                if worker.connection in ready:
                    row = worker.receive()
                elif not worker.left(seconds):
                    row = worker.time_out()
                if row is None:
                    continue
                yield {"case": worker.case, **row}
                if worker.is_spent(row["outcome"]) or not waiting:
                    workers.remove(worker)
                    worker.stop()
                else:
                    worker.give(waiting.pop())


def _serve(
    connection: Connection, errors: Path, table: str, compiler: str, constants: bool
) -> None:
    """The life of a worker: cases come in by name, stages and records go out."""
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    import jax

    jax.config.update("jax_enable_x64", True)
    from tests.conformance.trial import run_case

    cases = pkgutil.resolve_name(table)()
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            case = cases[connection.recv()]
            connection.send(run_case(case, compiler, constants, connection.send))
            jax.clear_caches()
