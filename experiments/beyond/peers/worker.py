"""Measures one subject: `python -m experiments.beyond.peers.worker NAME SETTINGS`, in JSON."""

import json
import os
import sys
from importlib.util import find_spec

from experiments.beyond.peers.__main__ import Settings


def main(subject: str, settings: Settings) -> None:
    """Prints the rows of a subject as a line."""
    # Threads that start from here on share the one processor, or two.
    processors = sorted(os.sched_getaffinity(0))[: 2 if subject == "threads" else 1]
    os.sched_setaffinity(0, processors)
    if find_spec("torch"):
        import torch  # optional

        torch.set_num_threads(1)
    from experiments.beyond.peers import bundles, limits, methods  # after torch has its threads

    rows = (bundles.SUBJECTS | methods.SUBJECTS | limits.SUBJECTS)[subject](settings)
    print(json.dumps(rows, default=float))


if __name__ == "__main__":
    main(sys.argv[1], Settings(**json.loads(sys.argv[2])))
