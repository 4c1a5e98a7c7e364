"""One kernel's tuning: measure candidates, then let the best of them meet the default schedule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from jaxeff_export.compilation import compilation_target
from jaxeff_export.scheduling import Machine
from jaxeff_export.tuning.database import Choice, TuningDatabase, has_failed
from jaxeff_export.tuning.errors import TuningError
from jaxeff_export.tuning.kernels import Kernel
from jaxeff_export.tuning.measuring import Bench
from jaxeff_export.tuning.schedules import default_schedule, digest_of, replayed, trace_digest
from jaxeff_export.tuning.spaces import PostOrderApply, Space, Tiles

_BATCH = 32  # built at once: the processes that build are started anew for every batch
_FINALISTS = 3
_ROUNDS = 7
_MARGIN = 0.98  # of the default's time; less of a gain is noise
_FAILED = 1e10  # seconds, MetaSchedule's sign of a failure


class Watcher(Protocol):
    """Who is told of a session's progress."""

    def begin(self, kernel: str, done: int, trials: int) -> None:
        """A kernel is taken up, of which `done` candidates are known from earlier sessions."""

    def advance(self, best: float | None, default: float) -> None:
        """Another candidate was measured; times are in seconds, None while all failed."""

    def decide(self, kernel: str, choice: Choice) -> None:
        """The kernel is finished."""


@dataclass(frozen=True)
class Session:
    """Where and how kernels are tuned.

    Attributes:
      target: the TVM target dict.
      database: where everything measured goes, at once.
      bench: what measures.
      space: ``"tiles"`` or ``"metaschedule"``.
      trials: candidates per kernel, those of earlier sessions included.
      watcher: told of every step.
    """

    target: Mapping[str, Any]
    database: TuningDatabase
    bench: Bench
    space: str
    trials: int
    watcher: Watcher

    def tune(self, kernel: Kernel) -> Choice:
        """Measure what is still to be measured, and let the best meet the default schedule.

        Raises:
          TuningError: if not even the default schedule can be measured.
        """
        target = compilation_target(self.target)
        default = default_schedule(kernel, Machine.of(target))
        records = Records(kernel, self.database.records(self.target, self.space), target)
        key = records.key(default)
        records.is_new(default)
        source = self._source(kernel, records, target)
        batch = self._next(source, records)
        choice = self.database.choices(self.target).get(kernel.workload)
        if batch or not choice or not self._still_holds(choice, key, records.count):
            libraries = Libraries(self.bench, records)
            self.bench.take(kernel)
            self.watcher.begin(kernel.name, records.count, self.trials)
            self._measure(source, batch, default, records, libraries)
            finalists = records.finalists(_FINALISTS)
            if choice and choice.trace is not None and choice.trace not in finalists:
                finalists.append(choice.trace)
            schedules = [default, *(replayed(kernel, trace) for trace in finalists)]
            times = self._duel(libraries.of(schedules))
            choice = chosen(kernel.workload, key, finalists, times, records.count, self.space)
            self.database.choose(self.target, choice)
        self.watcher.decide(kernel.name, choice)
        return choice

    def _still_holds(self, choice: Choice, default: str, count: int) -> bool:
        """Tell whether nothing was measured or changed since a choice was made."""
        made = (choice.space, choice.default, choice.trials)
        return made == (self.space, default, count)

    def _measure(
        self,
        source: Space,
        batch: list[Schedule],
        default: Schedule,
        records: Records,
        libraries: Libraries,
    ) -> None:
        """Measure the default schedule, and candidates until there are enough."""
        default_seconds = self.bench.seconds(libraries.of([default, *batch])[0])
        if default_seconds is None:
            raise TuningError(
                f"the default schedule of {records.kernel.name} cannot be measured: "
                f"{self.bench.reason}; exclude {records.kernel.name} to tune the others"
            )
        while batch:
            seconds = []
            for schedule, library in zip(batch, libraries.of(batch), strict=True):
                seconds.append(self.bench.seconds(library))
                records.add(schedule, seconds[-1])
                self.watcher.advance(records.best, default_seconds)
            source.learn(seconds)
            batch = self._next(source, records)

    def _source(self, kernel: Kernel, records: Records, target: Target) -> Space:
        if self.space == "tiles":
            return Tiles(kernel, Machine.of(target), records.is_new)
        left = max(self.trials - records.count, 1)
        return PostOrderApply(kernel, target, records.database, left, min(left, _BATCH))

    def _next(self, source: Space, records: Records) -> list[Schedule]:
        left = self.trials - records.count
        return source.propose(min(left, _BATCH)) if left > 0 else []

    def _duel(self, libraries: Sequence[Path | None]) -> list[float]:
        """Measure several in turn, so that whatever slows the machine slows all."""
        rounds = [[self.bench.seconds(library) for library in libraries] for _ in range(_ROUNDS)]
        return [
            statistics.median(_FAILED if seconds is None else seconds for seconds in column)
            for column in zip(*rounds, strict=True)
        ]


def chosen(
    workload: str,
    default: str,
    finalists: Sequence[Any],
    times: Sequence[float],
    trials: int,
    space: str,
) -> Choice:
    """The decision for a kernel: the fastest finalist if it beats the default schedule.

    Args:
      workload: the kernel's hash.
      default: a digest of the default schedule.
      finalists: recorded schedules.
      times: seconds of the default schedule, and then of each finalist.
      trials: how many candidates were measured.
      space: where they came from.
    """
    untuned, *others = times
    best = min(others, default=untuned)
    beats = best < _MARGIN * untuned
    return Choice(
        workload=workload,
        trace=finalists[others.index(best)] if beats else None,
        microseconds=1e6 * (best if beats else untuned),
        default=default,
        default_microseconds=1e6 * untuned,
        trials=trials,
        space=space,
    )


class Records:
    """What a database knows of one kernel.

    Attributes:
      kernel: the kernel.
      database: MetaSchedule's.
      count: how many candidates were measured, failures included.
      best: seconds of the fastest, None if all failed.
    """

    def __init__(self, kernel: Kernel, database: ms.database.JSONDatabase, target: Target) -> None:
        self.kernel = kernel
        self.database = database
        self._met: set[str] = set()
        self.count = 0
        self.best: float | None = None
        self._workload = database.commit_workload(kernel.module)
        self._target = target
        for record in database.get_all_tuning_records():
            if record.workload.same_as(self._workload):
                self._note(record)

    def key(self, schedule: Schedule) -> str:
        """What tells schedules of the kernel apart."""
        return digest_of(self.kernel, schedule)

    def is_new(self, schedule: Schedule) -> bool:
        """Tell whether a schedule was neither measured nor asked about before."""
        key = self.key(schedule)
        new = key not in self._met
        self._met.add(key)
        return new

    def add(self, schedule: Schedule, seconds: float | None) -> None:
        """Commit a measurement; None for a candidate that failed."""
        record = ms.database.TuningRecord(
            schedule.trace,
            self._workload,
            [_FAILED if seconds is None else seconds],
            self._target,
            ms.arg_info.ArgInfo.from_entry_func(schedule.mod, True),
        )
        self.database.commit_tuning_record(record)
        self._note(record)

    def finalists(self, count: int) -> list[Any]:
        """The traces of the fastest."""
        best = self.database.get_top_k(self._workload, count)
        return [record.as_json()[0] for record in best if not has_failed(_seconds(record))]

    def _note(self, record: ms.database.TuningRecord) -> None:
        self._met.add(trace_digest(record.as_json()[0]))
        self.count += 1
        seconds = _seconds(record)
        if not has_failed(seconds) and (self.best is None or seconds < self.best):
            self.best = seconds


def _seconds(record: ms.database.TuningRecord) -> float:
    return float(record.run_secs[0])


class Libraries:
    """The libraries of one kernel's schedules, each built once."""

    def __init__(self, bench: Bench, records: Records) -> None:
        self._bench = bench
        self._records = records
        self._built: dict[str, Path | None] = {}

    def of(self, schedules: Sequence[Schedule]) -> list[Path | None]:
        """A library of each schedule, or None where TVM fails."""
        keys = [self._records.key(schedule) for schedule in schedules]
        missing = {
            key: schedule
            for key, schedule in zip(keys, schedules, strict=True)
            if key not in self._built
        }
        if missing:
            libraries = self._bench.build(list(missing.values()))
            self._built.update(zip(missing, libraries, strict=True))
        return [self._built[key] for key in keys]
