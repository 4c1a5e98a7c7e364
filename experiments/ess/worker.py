"""One run of one contender, in a process of its own: `python -m experiments.ess.worker`."""

import json
from pathlib import Path

import typer

from experiments.ess.samplers import RUNS
from experiments.report import write_atomically


def main(command: str, path: Path) -> None:
    """Run one contender and write what was measured.

    Args:
        command: Its settings, as JSON.
        path: Where the measurements go.
    """
    settings = json.loads(command)
    run = RUNS[settings["contender"]]
    measured = run(**{name: value for name, value in settings.items() if name != "contender"})
    content = {"command": settings, "measured": measured}
    write_atomically(path, json.dumps(content).encode())


if __name__ == "__main__":
    typer.run(main)
