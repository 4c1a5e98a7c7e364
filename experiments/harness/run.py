"""One run of a study: its settings, its folder, and the rows that it has kept."""

import dataclasses
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from rich.console import Console

from experiments.harness import journals
from experiments.harness.command import Order, Refused, find_options
from experiments.harness.report import COMMIT, Row, commit, machine, plain
from jaxeff.core import fast_key, progress_bar
from jaxeff.store import CheckpointError, Journal, require_same_run, write_atomically

S = TypeVar("S")
T = TypeVar("T")


class Found(NamedTuple):
    """What a study has measured."""

    rows: Sequence[Row]  # flat records, one per measured thing
    # further top-level entries of the JSON
    extra: dict[str, Any] = {}  # noqa: RUF012
    # what only figures need, by name
    arrays: dict[str, np.ndarray] = {}  # noqa: RUF012


def without_curves(findings: Found, place: Callable[[Row], str]) -> Found:
    """Moves what rows have in "curves" to the arrays, whose names begin with a row's place."""
    arrays = {
        f"{place(row)}/{name}": np.asarray(curve)
        for row in findings.rows
        for name, curve in (row.get("curves") or {}).items()
    }
    rows = [{k: v for k, v in row.items() if k != "curves"} for row in findings.rows]
    return Found(rows, findings.extra, findings.arrays | arrays)


def apart(rows: Iterable[Row], column: str = "of") -> dict[str, list[Row]]:
    """Sorts rows by the kind that a column names, and takes the column out; none of others.

    For studies whose tasks make rows of several kinds: what a task has made is kept as one.
    """
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row[column]].append({k: v for k, v in row.items() if k != column})
    return kinds


class Run(Generic[S]):
    """What a study is given to run with.

    Attributes:
        settings: Of the chosen size, with what the command line overrides.
        size: `fast`, `default` or `full`.
        seed: Of everything.
        name: Of the study with its size and what was overridden: the stem of the results.
        results: Folder of all results.
        folder: Of this run; what is kept for its resuming goes to `work` in it.
        console: Where text goes.
        left: Tasks that were asked for and have no rows yet.
    """

    def __init__(
        self, name: str, order: Order, settings: S, console: Console, version: int = 1
    ) -> None:
        self.settings, self.size, self.seed = settings, order.size, order.seed
        self.name, self.results, self.console = name, order.results, console
        self.folder = order.results / name
        self.work = self.folder / "work"
        self.config: dict[str, Any] = {"size": order.size, "seed": order.seed, **plain(settings)}
        options = find_options(type(settings))
        silent = [option.path for option in options if not option.identifies(settings)]
        identity = journals.identity_of(settings)
        for *outer, last in silent:
            inside = identity
            for step in outer:
                inside = inside[step]
            del inside[last]
        identity = {"study": name, "seed": order.seed, **identity}
        if version != 1:  # rows that were made before versions are of the first one
            identity["version"] = version
        self.left = 0
        self._planned: list[Any] = []
        self._asked: list[Any] = []  # tasks whose rows this run has, in order
        self._kept_only = order.kept
        self._commit = commit()
        self._clock = 0.0  # the first task takes what the process has taken to start
        self._open(identity, order)

    @property
    def key(self) -> jax.Array:
        """Random key of the seed."""
        return jax.random.key(self.seed)

    @property
    def fast_key(self) -> jax.Array:
        """The same, of the generator that costs least on a processor."""
        return fast_key(self.seed)

    def say(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text)

    def shared(self, name: str) -> Path:
        """A folder of results that other runs use too."""
        return self.results / name

    def keep(self, task: Any, make: Callable[[], Iterable[Row]]) -> list[Row]:
        """The rows of one task: those of an earlier run, or made now and kept.

        Args:
            task: What tells it from others, a dataclass or what JSON can say.
            make: Makes its rows.
        """
        task = journals.identity_of(task)
        if task not in self._kept:
            if self._kept_only:
                self.left += 1
                return []
            self._add(task, make())
        return self._rows(task)

    def plan(self, tasks: Iterable[Any]) -> None:
        """Says which tasks are going to be asked for, in the folder `work`."""
        self._planned += [
            task for task in map(journals.identity_of, tasks) if task not in self._planned
        ]
        said = {"config": self.config, "tasks": self._planned}
        write_atomically(self.work / journals.PLAN, json.dumps(said))

    def each(
        self,
        tasks: Sequence[T],
        make: Callable[[T], Iterable[Row]],
        until: Callable[[], bool] = lambda: False,
    ) -> list[Row]:
        """The rows of every task, with a progress bar; see `keep`.

        Args:
            tasks: Dataclasses or what JSON can say; shown by their `name` or as they are.
            make: Makes the rows of one.
            until: Whether to start no further one; what is left has no rows.
        """
        return self.stream(tasks, lambda todo: ((task, make(task)) for task in todo), until)

    def stream(
        self,
        tasks: Sequence[T],
        make: Callable[[Sequence[T]], Iterable[tuple[T, Iterable[Row]]]],
        until: Callable[[], bool] = lambda: False,
        again: Callable[[list[Row]], bool] = lambda rows: False,
    ) -> list[Row]:
        """The same for tasks that are made in one go.

        Args:
            tasks: As of `each`.
            make: Yields each of the tasks it is given with its rows, in any order.
            until: As of `each`.
            again: Whether to make a task again that has these rows.
        """
        self.plan(tasks)
        named = [journals.identity_of(task) for task in tasks]
        known = {i for i, name in enumerate(named) if name in self._kept}
        known -= {i for i in known if again(self._kept[named[i]])}
        todo = [task for i, task in enumerate(tasks) if i not in known]
        if len(todo) < len(tasks):
            self.say(f"{len(tasks) - len(todo)} of {len(tasks)} tasks were done before")
        self.left += len(todo)
        if self._kept_only:
            todo = []
        left = iter(make(todo))
        bar = progress_bar(True, "tasks", len(tasks), len(known), console=self.console)
        with bar as advance:
            for number in range(len(todo)):
                if until():
                    self.say(f"{len(todo) - number} tasks are left for another run")
                    break
                task, rows = next(left)
                self._add(journals.identity_of(task), rows)
                self.left -= 1
                advance(1, _name(task))
        return [row for name in named if name in self._kept for row in self._rows(name)]

    def made(self, rows: int) -> list[dict[str, Any]]:
        """Counts tasks, rows and CPU seconds by the commit and machine that made them.

        Of the tasks that this run asked for: others in its journal are of runs that share it.

        Args:
            rows: Of the report, all made by this process where none are kept by task.
        """
        if self._asked:
            return journals.makers(self._done(self._asked))
        return [{**self._spending(), "tasks": 1, "rows": rows}]

    def _done(self, tasks: Iterable[Any]) -> Iterator[journals.Done]:
        for task in tasks:
            spent = self._spent[task] if task in self._spent else None  # noqa: SIM401
            yield journals.Done(task, self._kept[task], spent)

    def _add(self, task: Any, rows: Iterable[Row]) -> None:
        """Keeps a task's rows with the commit that made them, and what it took."""
        self._kept.add(task, [plain(row) | self._commit for row in rows])
        self._spent.add(task, self._spending())

    def _spending(self) -> dict[str, Any]:
        """Says who computes, and the CPU seconds since the last time."""
        before, self._clock = self._clock, _cpu_seconds()
        return {
            COMMIT: None, **self._commit, "machine": ", ".join(machine().values()),
            "cpu_seconds": round(self._clock - before, 2),
        }  # fmt: skip

    def _rows(self, task: Any) -> list[Row]:
        """The rows of a task that is done, without the commit where it is that of this run."""
        if task not in self._asked:
            self._asked.append(task)
        mine = self._commit.items()
        # The report says its own commit once: in rows it would be a column that tells nothing.
        return [
            {k: v for k, v in row.items() if k != COMMIT or (k, v) not in mine}
            for row in self._kept[task]
        ]

    def _take(self, place: Path, identity: dict[str, Any]) -> None:
        """Takes over what another folder of results, or a packed journal, has and this one lacks.

        Raises:
            Refused: It has nothing of this run.
            CheckpointError: It is of another run.
        """
        path = place if place.suffix == ".xz" else place / self.name / "work" / journals.ROWS
        if not path.exists():
            raise Refused(f"nothing to take over: there is no {path}")
        read = journals.unpack if path == place else lambda file: journals.read_work(file.parent)
        there, done = read(path)
        require_same_run(f"the values in {path} are", there, identity, overwrite="start afresh")
        for task, rows, spent in done:
            if task not in self._kept:
                self._kept.add(task, rows)
                if spent:
                    self._spent.add(task, spent)

    def _open(self, identity: dict[str, Any], order: Order) -> None:
        """The rows of this run; nothing is computed where they can't be kept."""
        path = self.work / journals.ROWS
        try:
            if order.fresh and path.exists():
                shutil.rmtree(self.work)
            for file in (path, order.json or order.results / f"{self.name}.json"):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(probe := file.with_name(f"{file.name}.probe"), "")
                probe.unlink()
            self._kept = Journal(path, identity)
            self._spent = Journal(self.work / journals.SPENT, identity)
            for folder in order.take:
                self._take(folder, identity)
        except OSError as error:
            raise Refused(f"results can't be written: {error}") from error
        except CheckpointError as error:
            raise Refused(str(error).replace("start afresh", "start afresh (--fresh)")) from error


def make_console() -> Console:
    """A console that is wide enough for a table where the output isn't a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=130)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def _name(task: Any) -> str:
    if dataclasses.is_dataclass(task):
        return str(getattr(task, "name", task))
    return str(task)
