"""A study: what it needs to be run from the command line, again and at three sizes.

    python -m experiments.<name> [--fast | --full] [--json PATH] [--results FOLDER] [--fresh] ...

A run leaves `results/NAME[-SIZE][-OVERRIDES].json` and a folder of that name with its figures and,
in `work`, the rows and checkpoints with which a run that was killed goes on. Runs of another size
or other settings have other names; one that finds rows of other settings under its own says so.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.harness import figures
from experiments.harness.command import SIZES, Order, Refused, read
from experiments.harness.report import Report, Row, plain, show_checks
from experiments.harness.run import Found, Run, S, make_console
from jaxeff.core import Table
from jaxeff.store import atomic_file


def _all_rows(report: Report) -> list[Table]:
    return [Table.from_rows(report.name, report.rows)]


@dataclass(frozen=True)
class Study(Generic[S]):
    """A study's science; the rest is the harness's.

    Attributes:
        name: As in the names of its results.
        about: What it does and what its source is; the command's help.
        sizes: Settings at `fast`, `default` and `full`, of one dataclass.
        run: Measures. What it passes through `Run.keep` or `Run.each` outlives a kill.
        judge: Adds checks to the report, from its rows.
        draw: Makes figures by name, from the report alone.
        tables: What is printed; all rows unless told otherwise.
        differences: From the source, in words.
        settle: Fills in what depends on the machine: processors, data sets, engines.
    """

    name: str
    about: str
    sizes: Mapping[str, S]
    run: Callable[[Run[S]], Found | Sequence[Row]]
    judge: Callable[[Report], None]
    draw: Callable[[Report], Mapping[str, Figure]]
    tables: Callable[[Report], Sequence[Table]] = _all_rows
    differences: tuple[str, ...] = ()
    settle: Callable[[S], S] = lambda settings: settings

    def __post_init__(self) -> None:
        if set(self.sizes) != set(SIZES):
            raise ValueError(f"{self.name}: the sizes are {', '.join(SIZES)}")

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Runs the command line.

        Args:
            arguments: Those after the command; the process' own if None.

        Raises:
            SystemExit: With status 2 and one line where something can't be asked for.
        """
        try:
            self.execute(read(self.name, self.about, self.sizes, arguments))
        except Refused as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            sys.exit(2)

    def execute(self, order: Order) -> Report:
        """Runs, judges, draws and prints."""
        mpl.use("Agg")
        console = make_console()
        run = Run(_stem(self.name, order), order, self.settle(order.settings), console)
        console.rule(run.name)
        found = self.run(run)
        found = found if isinstance(found, Found) else Found(found)
        rows, extra = plain([*found.rows]), plain(found.extra)
        report = Report(self.name, run.size, run.config, rows, extra, found.arrays)
        self.judge(report)
        path = report.save(order.json or order.results / f"{run.name}.json", self.differences)
        if found.arrays:
            with atomic_file(run.folder / "arrays.npz") as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **found.arrays)  # type: ignore[arg-type]
        pictures = figures.save(self.draw(report), run.folder)

        for table in self.tables(report):
            console.print(table)
        show_checks(console, report.checks)
        for difference in self.differences:
            console.print(f"- {difference}")
        console.print(*(f"[bold]{p}[/bold]" for p in (path, *pictures)), sep=", ")
        return report


def _stem(name: str, order: Order) -> str:
    """The name of the results: the study, its size, and what was overridden."""
    size = [] if order.size == "default" else [order.size]
    changed = [f"{option}={_short(value)}" for option, value in order.changed.items()]
    return "-".join([name, *size, *changed])


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_short, value))
    return value.name if isinstance(value, Path) else str(value)
