"""Random networks in a process: a line of JSON for each task, which is a seed and a column.

    python -m experiments.beyond.fuzz.worker 120 6 0:integer 0:moments

The first number is what a task may cost in seconds of this process on a processor, the second the
most blocks of a network.
"""

import os
from collections.abc import Iterator, Sequence

import jax

from experiments.beyond import trials
from experiments.beyond.fuzz.cells import COLUMNS
from experiments.beyond.fuzz.grammar import network
from experiments.beyond.trials import Cell, tried


def main(arguments: Sequence[str]) -> None:
    """Tries tasks, in order."""
    limit, blocks, *tasks = arguments
    trials.report(_cells(tasks, int(blocks), float(limit)))


def _cells(tasks: Sequence[str], blocks: int, limit: float) -> Iterator[tuple[str, Cell]]:
    drawn = ""
    for task in tasks:
        trials.allow(limit)
        seed, column = task.split(":")
        if seed != drawn:
            jax.clear_caches()  # of the last network, which none computes again
            net, drawn = network(int(seed), blocks), seed
        yield task, tried(COLUMNS[column], net)


if __name__ == "__main__":
    # Most of the time is LLVM's, for functions that are called once.
    cheap = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {cheap}"
    trials.work(main)
