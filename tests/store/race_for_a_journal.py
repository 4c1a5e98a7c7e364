"""Processes that begin, repair and add to one journal at once, while others die in a line.

Run as a program, since it forks: ``python race_for_a_journal.py FOLDER ROUNDS WORKERS ROWS``. It
prints how many rows were lost.
"""

import os
import sys
import time
from pathlib import Path

from jaxeff.store import Journal, repair_lines
from jaxeff.store import _journal as journals

RUN = {"seed": 1}


def work(path, worker, rows):
    """Keep rows; each call returns when its row is on disk."""
    kept = Journal(path, RUN)
    for i in range(rows):
        kept.add([worker, i], [i, "text" * 50])
        if i % 5 == worker:
            repair_lines(path)
        if i % 7 == worker:
            kept = Journal(path, RUN)


def die(path, worker, rows):
    """End in the middle of a line, as a process that is killed does."""
    Journal(path, RUN)
    with journals._alone(path) as file:
        journals._repair(path, file)
        file.write(b'{"task": [-1, 0], "rows": ["ha')
        os._exit(0)


def run(folder, rounds, workers, rows):
    """Count the rows that are lost."""
    lost = 0
    for number in range(rounds):
        path, start, children = folder / f"{number}.jsonl", time.monotonic() + 0.02, []
        for worker, task in enumerate([*[work] * workers, die, die]):
            child = os.fork()
            if not child:
                time.sleep(max(0, start - time.monotonic()))
                task(path, worker, rows)
                os._exit(0)
            children.append(child)
        assert not any(os.waitpid(child, 0)[1] for child in children)
        lost += workers * rows - len(Journal(path, RUN))
    return lost


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), *map(int, sys.argv[2:])))
