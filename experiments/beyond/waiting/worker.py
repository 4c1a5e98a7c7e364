"""One network in a process of its own: a line of JSON as each measurement is done.

python -m experiments.beyond.waiting.worker 600 vit 3 noisy convert

The first number is what a measurement may cost in seconds of this process on a processor, the
second how often a function is traced, compiled and run.
"""

import json
from collections.abc import Sequence

from experiments.beyond import trials
from experiments.beyond.waiting.measures import CALLS, NETS, call, function


def main(arguments: Sequence[str]) -> None:
    """Measures functions and calls, in order."""
    limit, net, rounds, *names = arguments
    trials.allow(float(limit))
    subject = NETS[net]()
    for name in names:
        trials.allow(float(limit))
        try:
            row = call(subject, name) if name in CALLS else function(subject, name, int(rounds))
        except (TypeError, ValueError, NotImplementedError) as error:
            words = f"{type(error).__name__}: {error}".split("\n")[0]
            row = {"refused": trials.without_folders(words)[:300]}
        print(json.dumps({"task": name, **row}), flush=True)


if __name__ == "__main__":
    trials.work(main)
