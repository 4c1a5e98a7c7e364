"""One model in a process of its own: a line of JSON as each cell is done.

python -m experiments.zoo.worker 240 vit functional noisy

The first number is what a cell may cost: seconds of this process on a processor, so that what else
the machine does takes no cell away. A process that spends more is ended.
"""

import dataclasses
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from experiments.zoo.cells import Cell, tried
from experiments.zoo.models import subject

_end = [math.inf]


def main(arguments: Sequence[str]) -> None:
    """Tries columns of a model, in order."""
    limit, name, *columns = arguments
    for column, cell in _cells(name, columns, float(limit)):
        print(json.dumps({"column": column, **dataclasses.asdict(cell)}), flush=True)


def _allow(seconds: float) -> None:
    """Lets this process compute so much longer."""
    _end[0] = time.process_time() + seconds


def watch() -> None:
    """Ends this process, by SIGXCPU, once it has computed for longer than it is allowed."""
    # Not by the system's own limit: while there is one, Linux reads the processor's clock by ticks
    # of milliseconds, and cells are timed by it.
    while time.process_time() < _end[0]:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGXCPU)


def _cells(name: str, columns: Sequence[str], limit: float) -> Iterator[tuple[str, Cell]]:
    _allow(limit)
    try:
        model = subject(name)
    except ImportError as error:
        yield from ((column, Cell("absent", None, str(error))) for column in columns)
        return
    for column in columns:
        _allow(limit)
        yield column, tried(column, model)


if __name__ == "__main__":
    # One core for every engine: threads that wait actively would count as time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    os.environ["TVM_NUM_THREADS"] = "1"
    # A process at its limit would leave all its memory behind in a file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.Thread(target=watch, daemon=True).start()
    main(sys.argv[1:])
