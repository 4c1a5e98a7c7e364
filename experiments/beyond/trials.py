"""Trials that may fail in any way: what became of one, and processes that only cost one.

A process of its own tries tasks one after another and prints a line of JSON for each. Where it
dies, hangs or computes for longer than it is allowed, another goes on after the task it was at.
"""

import dataclasses
import json
import math
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from experiments.harness import Row
from jaxeff.moment_propagation import MomentsWarning

T = TypeVar("T")

PATIENCE = 20
"""A process that waits for ever computes nothing: seconds of the clock, in limits."""

_OURS = ("jaxeff", "jaxeff_export")
# A path begins at a slash that ends no word (sites have names with slashes) and no address.
_FOLDERS = re.compile(r"(?<![\w.:/*)\]}])~?/(?:[^\s/'\"`,;:()]+/)+")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What became of one transform of one model.

    Attributes:
        status: "right", "off" (variances that are another order), "wrong", "refused" (an error of
            the library that says why), "crash" (any other error) or "absent" (a package is).
        number: What was measured: an error, a share, a ratio.
        words: An error's, or a warning's.
        megabytes: Of the files that were written.
        times: Seconds of a call over those of XLA's, both of one thread, in turn.
    """

    status: str
    number: float | None = None
    words: str = ""
    megabytes: float | None = None
    times: float | None = None


def apart(found: Any, exact: Any) -> float:
    """The largest distance of two results, over the largest value of the second."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
    # Where all of the second are zero, any distance is far too large, and none is none.
    least = float(np.finfo(np.float32).tiny)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), least)) for a, b in pairs)


def judged(number: float, limit: float) -> Cell:
    """Right, if an error is no larger than a limit."""
    return Cell("right" if number <= limit else "wrong", number)


def tried(make: Callable[[T], Cell], subject: T) -> Cell:
    """One cell, whatever happens."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            cell = make(subject)
            # Whether a user is warned of what is off; of the rest, packages warn of themselves.
            warned = [str(w.message) for w in told if issubclass(w.category, MomentsWarning)]
            words = warned[0] if cell.status == "off" and warned else cell.words
            return dataclasses.replace(cell, words=without_folders(words)[:400])
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = any(f"/{package}/" in last for package in _OURS)
        meant = ours and isinstance(error, ValueError | TypeError | NotImplementedError)
        words = f"{type(error).__name__}: {error}".split("\n")[0]
        return Cell("refused" if meant else "crash", None, without_folders(words)[:400])


def without_folders(words: str) -> str:
    """Leaves of each path its last name: where a machine keeps its files is no result."""
    return _FOLDERS.sub("", words)


def in_processes(
    module: str, arguments: Sequence[str], tasks: Sequence[str], limit: float
) -> Iterator[tuple[str, Row]]:
    """Has a module try tasks, as `python -m MODULE LIMIT ARGUMENTS... TASKS...`.

    Args:
        module: Its main program calls `work`.
        arguments: What it needs to know of all tasks.
        tasks: What it tries, in order.
        limit: Seconds of a processor that a task may take.

    Yields:
        Each task with its row: a cell's entries; "slow" with the limit where it took longer;
        "crash" where the process died.
    """
    left = list(tasks)
    while left:
        command = [sys.executable, "-m", module, f"{limit}", *arguments, *left]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            lines: queue.Queue[str] = queue.Queue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            while left:
                task = left.pop(0)
                try:
                    line = lines.get(timeout=PATIENCE * limit)
                except queue.Empty:
                    process.kill()
                    words = f"not done in {PATIENCE * limit:g} s of waiting"
                    yield task, _lost("slow", words, limit=limit)
                    break
                if not line:
                    yield task, _ended(process.wait(), limit)
                    break
                cell = json.loads(line)
                yield cell.pop("task"), cell


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def _ended(code: int, limit: float) -> Row:
    if code == -signal.SIGXCPU:
        return _lost("slow", f"not done in {limit:g} s of a processor", limit=limit)
    return _lost("crash", f"the process ended with {code}")


def _lost(status: str, words: str, **more: float) -> Row:
    return {"status": status, "number": None, "words": words, **more}


_end = [math.inf]


def allow(seconds: float) -> None:
    """Lets this process compute so much longer."""
    _end[0] = time.process_time() + seconds


def watch() -> None:
    """Ends this process, by SIGXCPU, once it has computed for longer than it is allowed."""
    # Not by the system's own limit: while there is one, Linux reads the processor's clock by ticks
    # of milliseconds, and cells are timed by it.
    while time.process_time() < _end[0]:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGXCPU)


def report(cells: Iterable[tuple[str, Cell]]) -> None:
    """Prints a line of JSON for each task, as soon as it is done."""
    for task, cell in cells:
        print(json.dumps({"task": task, **dataclasses.asdict(cell)}), flush=True)


def work(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a worker's main program with its arguments, on one core and watched."""
    # One core for every engine: threads that wait actively would count as time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    os.environ["TVM_NUM_THREADS"] = "1"
    # A process at its limit would leave all its memory behind in a file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.Thread(target=watch, daemon=True).start()
    main(sys.argv[1:])
