"""One model in a process of its own: a line of JSON as each cell is done.

python -m experiments.zoo.worker vit functional noisy
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence

from experiments.zoo.cells import Cell, tried
from experiments.zoo.models import subject


def main(arguments: Sequence[str]) -> None:
    """Tries columns of a model, in order."""
    name, *columns = arguments
    for column, cell in _cells(name, columns):
        print(json.dumps({"column": column, **dataclasses.asdict(cell)}), flush=True)


def _cells(name: str, columns: Sequence[str]) -> Iterator[tuple[str, Cell]]:
    try:
        model = subject(name)
    except ImportError as error:
        yield from ((column, Cell("absent", None, str(error))) for column in columns)
        return
    for column in columns:
        yield column, tried(column, model)


if __name__ == "__main__":
    # One core for every engine: threads that wait actively would count as time.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    os.environ["TVM_NUM_THREADS"] = "1"
    main(sys.argv[1:])
