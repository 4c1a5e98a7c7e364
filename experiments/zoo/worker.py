"""One model in a process of its own: a line of JSON as each cell is done.

python -m experiments.zoo.worker vit functional noisy
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from experiments.zoo.cells import tried
from experiments.zoo.models import subject


def main(arguments: Sequence[str]) -> None:
    """Tries columns of a model, in order."""
    name, *columns = arguments
    model = subject(name)
    for column in columns:
        cell = dataclasses.asdict(tried(column, model))
        print(json.dumps({"column": column, **cell}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
