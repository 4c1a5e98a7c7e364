"""A study: what it needs to be run from the command line, again and at three sizes.

    python -m experiments.<name> [--fast | --full] [--json PATH] [--results FOLDER] [--fresh] ...

A run leaves `results/NAME[-SIZE][-OVERRIDES].json` and a folder of that name with its figures and,
in `work`, the rows and checkpoints with which a run that was killed goes on. Runs of another size
or other settings have other names; one that finds rows of other settings under its own says so.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.harness import figures
from experiments.harness.command import SIZES, Order, Refused, read
from experiments.harness.report import ENTRIES, LEFT, MADE, Report, Row, plain, show_checks
from experiments.harness.rows import Entry, Selection, cell, every, where
from experiments.harness.run import Found, Run, S, T, make_console
from experiments.harness.sizes import reached
from experiments.harness.staleness import fingerprint
from jaxeff.core import Table
from jaxeff.data import DataError
from jaxeff.store import atomic_file


@dataclass(frozen=True)
class Part(Generic[S, T]):
    """Rows that tasks make, each kept as soon as it is made."""

    # the tasks for a run: dataclasses or what JSON can say, different in all parts
    tasks: Callable[[Run[S]], Sequence[T]]
    make: Callable[[Run[S], T], Iterable[Row]]  # makes the rows of one
    when: Callable[[S], bool] = lambda settings: True  # whether the settings ask for it
    mark: Mapping[str, Any] = field(default_factory=dict)  # columns that all its rows begin with

    @classmethod
    def of(
        cls,
        name: str,
        whats: Callable[[Run[S]], Iterable[Any]],
        make: Callable[[Run[S], Any], Iterable[Row]],
        option: str = "",
    ) -> "Part[S, Any]":
        """Declares a part of settings with `runs`, whose rows bear its name as ``part``.

        Args:
            name: Of the part; with each of `whats` a task.
            whats: What it is made for.
            make: Makes the rows of one of them.
            option: What `runs` is asked for, if it isn't the name.
        """
        return Part(
            lambda run: [(name, what) for what in whats(run)],
            lambda run, task: make(run, task[1]),
            lambda settings: settings.runs(option or name),  # type: ignore[attr-defined]
            {"part": name},
        )

    def __call__(self, run: Run[S]) -> list[Row]:
        """Makes what an earlier run hasn't kept."""
        if not self.when(run.settings):
            return []
        rows = run.each(self.tasks(run), lambda task: self.make(run, task))
        return [{**self.mark, **row} for row in rows]


@dataclass(frozen=True)
class Kept(Generic[S]):
    """A function that makes rows in no other way than by `Run.keep`, `Run.each` or `Run.stream`.

    So that its rows can be reported while some are missing; other functions are left out then.
    """

    make: Callable[[Run[S]], Found | Sequence[Row]]

    def __call__(self, run: Run[S]) -> Found | Sequence[Row]:
        """Makes the rows, or collects those that are there."""
        return self.make(run)


@dataclass(frozen=True)
class Listing:
    """A printed table."""

    # above it, or a function of the report; the study's name if empty
    title: str | Callable[[Report], str] = ""
    # their names, or heads with the column, template or function that fills them; all columns if
    # empty
    columns: Sequence[str] | Mapping[str, Entry] = ()
    of: Selection = every  # selection of rows; without rows there is no table

    @staticmethod
    def each(columns: Mapping[str, Sequence[str]]) -> Callable[[Report], list[Table]]:
        """Lists each kind of row that there is, by the entry ``table``; `columns` of each."""

        def show(report: Report) -> list[Table]:
            kinds = [Listing(kind, names, where(table=kind)) for kind, names in columns.items()]
            return [table for kind in kinds for table in kind(report)]

        return show

    def __call__(self, report: Report) -> list[Table]:
        """Makes the table."""
        rows, columns = list(self.of(report)), self.columns
        if isinstance(columns, Mapping):
            rows = [{head: cell(row, what) for head, what in columns.items()} for row in rows]
            columns = ()
        title = self.title(report) if callable(self.title) else self.title or report.name
        return [Table.from_rows(title, rows, columns)] if rows else []


@dataclass(frozen=True)
class Study(Generic[S]):
    """A study's science; the rest is the harness's.

    Parts, claims, plots and tables are functions, of which `Part`, `Claim`, `Plot` and `Listing`
    are the declared ones; what these can't say is a function of the study's own.
    """

    name: str  # as in the names of its results
    about: str  # what it does and what its source is; the command's help
    sizes: Mapping[str, S]  # settings at `fast`, `default` and `full`, of one dataclass
    # measure. What they pass through `Run.keep` or `Run.each` outlives a kill
    parts: Sequence[Callable[[Run[S]], Found | Sequence[Row]]]
    claims: Sequence[Callable[[Report], None]]  # add checks to the report, from its rows
    # make figures by name, from the report alone
    plots: Sequence[Callable[[Report], Mapping[str, Figure]]]
    # make what is printed; all rows unless told otherwise
    tables: Sequence[Callable[[Report], Sequence[Table]]] = (Listing(),)
    differences: tuple[str, ...] = ()  # from the thesis, in words
    # fills in what depends on the machine: processors, data sets, engines
    settle: Callable[[S], S] = lambda settings: settings
    # raised by whoever changes what the rows of the same settings are: kept runs of lower versions
    # are stale then, which no renaming and no moving of code makes them
    version: int = 1
    # names of the data sets that it reads; those that its settings name if None
    data: tuple[str, ...] | None = None
    # changes what all parts have found, before it is judged
    derive: Callable[[Run[S], Found], Found] = lambda run, findings: findings

    def __post_init__(self) -> None:
        if set(self.sizes) != set(SIZES):
            raise ValueError(f"{self.name}: the sizes are {', '.join(SIZES)}")

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Runs the command line.

        Args:
            arguments: Those after the command; the process' own if None.

        Raises:
            SystemExit: With status 2 and one line where something can't be asked for, or data that
                it needs aren't there.
        """
        try:
            self.execute(read(self.name, self.about, self.sizes, arguments))
        except (Refused, DataError) as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            sys.exit(2)

    def measure(self, run: Run[S], kept: bool = False) -> Found:
        """Runs all parts, whose findings are joined.

        Args:
            run: The run.
            kept: Whether to collect what is kept alone.
        """
        rows: list[Row] = []
        extra: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for part in self.parts:
            if isinstance(part, Part) and part.when(run.settings):
                run.plan(part.tasks(run))
        for part in self.parts:
            if kept and not isinstance(part, Part | Kept):
                run.left += 1
                continue
            findings = part(run)
            findings = findings if isinstance(findings, Found) else Found(findings)
            rows += findings.rows
            extra |= findings.extra
            arrays |= findings.arrays
        findings = Found(rows, extra, arrays)
        with _excused(run.left):
            findings = self.derive(run, findings)
        return findings

    def report(self, content: Mapping[str, Any]) -> Report:
        """Reads a run's JSON, without its checks."""
        extra = {key: value for key, value in content.items() if key not in ENTRIES}
        return Report(
            self.name, content["size"], content["config"], content["rows"], extra,
            decides=reached(content["config"], self.sizes), left=content.get(LEFT, 0),
        )  # fmt: skip

    def judge(self, report: Report) -> None:
        """Adds the checks of all claims to a report."""
        size = report.decides
        for claim in self.claims:
            before = len(report.checks)
            # What a claim doesn't depend on can only let a run decide more.
            free = reached(report.config, self.sizes, getattr(claim, "regardless", ()))
            report.decides = max(size, free, key=SIZES.index)
            with _excused(report.left):
                claim(report)
                continue
            del report.checks[before:]
            text = getattr(claim, "text", None)
            name = text if isinstance(text, str) else getattr(claim, "__name__", "a claim")
            report.check(name.replace("_", " "), None, None, None)
        report.decides = size

    def draw(self, report: Report) -> dict[str, Figure]:
        """Draws all figures of a report; without all rows those that can be drawn."""
        drawn: dict[str, Figure] = {}
        for plot in self.plots:
            with _excused(report.left):
                drawn |= plot(report)
        return drawn

    def show(self, report: Report) -> list[Table]:
        """Makes all tables of a report; without all rows those that can be made."""
        shown: list[Table] = []
        for listing in self.tables:
            with _excused(report.left):
                shown += listing(report)
        return shown

    def execute(self, order: Order) -> Report:
        """Runs, judges, draws and prints."""
        mpl.use("Agg")
        console = make_console()
        run = Run(stem(self.name, order), order, self.settle(order.settings), console, self.version)
        console.rule(run.name)
        findings = self.measure(run, order.kept)
        if order.kept and not findings.rows:
            raise Refused("nothing that can be reported is kept yet")
        rows, extra = plain([*findings.rows]), plain(findings.extra)
        extra = {**fingerprint(self, run.config), MADE: run.made(len(rows)), **extra}
        if run.left:
            extra[LEFT] = run.left
        report = Report(
            self.name, run.size, run.config, rows, extra, findings.arrays,
            decides=reached(run.config, self.sizes), left=run.left,
        )  # fmt: skip
        self.judge(report)
        path = report.save(order.json or order.results / f"{run.name}.json", self.differences)
        if findings.arrays:
            with atomic_file(run.folder / "arrays.npz") as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, **findings.arrays)  # type: ignore[arg-type]
        pictures = figures.save(self.draw(report), run.folder)

        for table in self.show(report):
            console.print(table)
        show_checks(console, report.checks)
        for difference in self.differences:
            console.print(f"- {difference}")
        console.print(*(f"[bold]{p}[/bold]" for p in (path, *pictures)), sep=", ")
        return report


@contextlib.contextmanager
def _excused(left: int) -> Iterator[None]:
    """Passes over what can't be done with a report because rows are missing."""
    try:
        yield
    except (LookupError, ValueError, TypeError, ArithmeticError, StopIteration):
        if not left:
            raise


def stem(name: str, order: Order) -> str:
    """The name of the results: the study, its size, and what was overridden."""
    size = [] if order.size == "default" else [order.size]
    changed = [f"{option}={_short(value)}" for option, value in order.changed.items()]
    return "-".join([name, *size, *changed])


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_short, value))
    return value.name if isinstance(value, Path) else str(value)
