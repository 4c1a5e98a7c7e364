"""One model in a process of its own: a line of JSON as each cell is done.

python -m experiments.beyond.zoo.worker 240 vit functional noisy

The first number is what a cell may cost: seconds of this process on a processor, so that what else
the machine does takes no cell away. A process that spends more is ended.
"""

from collections.abc import Iterator, Sequence

from experiments.beyond import trials
from experiments.beyond.trials import Cell
from experiments.beyond.zoo.cells import tried
from experiments.beyond.zoo.models import subject


def main(arguments: Sequence[str]) -> None:
    """Tries columns of a model, in order."""
    limit, name, *columns = arguments
    trials.report(_cells(name, columns, float(limit)))


def _cells(name: str, columns: Sequence[str], limit: float) -> Iterator[tuple[str, Cell]]:
    trials.allow(limit)
    try:
        model = subject(name)
    except ImportError as error:
        yield from ((column, Cell("absent", None, str(error))) for column in columns)
        return
    for column in columns:
        trials.allow(limit)
        yield column, tried(column, model)


if __name__ == "__main__":
    trials.work(main)
