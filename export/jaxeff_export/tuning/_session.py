"""Tunes one kernel: measures candidates, then compares the best with the default schedule.

`Records` are a kernel's measurements in a database, `Libraries` what was built of its schedules.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from jaxeff_export import compiler
from jaxeff_export.schedules import FAILED, ScheduleChoice, TuningDatabase, TuningError, has_failed
from jaxeff_export.tuning._measuring import Bench
from jaxeff_export.tuning._spaces import CandidateSource, PostOrderApply, TileCandidates


class Records:
    """A database's measurements of one kernel.

    Attributes:
      kernel: the kernel.
      database: MetaSchedule's.
      count: number of candidates measured, failures included.
      best: seconds of the fastest, None if all failed.
    """

    def __init__(
        self, kernel: compiler.UnscheduledKernel, database: ms.database.JSONDatabase, target: Target
    ) -> None:
        self.kernel = kernel
        self.database = database
        self._met: set[str] = set()
        self.count = 0
        self.best: float | None = None
        self._workload = database.commit_workload(kernel.module)
        self._target = target
        # Earlier sessions count: candidates are never measured twice, and `trials` is a total.
        for record in database.get_all_tuning_records():
            if record.workload.same_as(self._workload):
                self._note(record)

    def key(self, schedule: Schedule) -> str:
        """Hashes a schedule, which tells schedules of the kernel apart."""
        return compiler.digest_of(self.kernel, schedule)

    def is_new(self, schedule: Schedule) -> bool:
        """Tells whether a schedule was neither measured nor asked about before."""
        key = self.key(schedule)
        new = key not in self._met
        self._met.add(key)
        return new

    def add(self, schedule: Schedule, seconds: float | None) -> None:
        """Commits a measurement; ``seconds`` is None for a candidate that failed."""
        record = ms.database.TuningRecord(
            schedule.trace,
            self._workload,
            # Failures are kept too, or every session would try them again.
            [FAILED if seconds is None else seconds],
            self._target,
            ms.arg_info.ArgInfo.from_entry_func(schedule.mod, True),
        )
        self.database.commit_tuning_record(record)
        self._note(record)

    def finalists(self, count: int) -> list[Any]:
        """Returns the traces of the fastest candidates."""
        best = self.database.get_top_k(self._workload, count)
        return [record.as_json()[0] for record in best if not has_failed(_seconds(record))]

    def _note(self, record: ms.database.TuningRecord) -> None:
        self._met.add(compiler.trace_digest(record.as_json()[0]))
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
        """Returns a library of each schedule, None where TVM fails."""
        keys = [self._records.key(schedule) for schedule in schedules]
        # Schedules may coincide, and finalists were built as candidates: each is compiled once.
        missing = {
            key: schedule
            for key, schedule in zip(keys, schedules, strict=True)
            if key not in self._built
        }
        if missing:
            libraries = self._bench.build(list(missing.values()))
            self._built.update(zip(missing, libraries, strict=True))
        return [self._built[key] for key in keys]


_BATCH = 32  # built at once: the processes that build are started anew for every batch
_FINALISTS = 3
_ROUNDS = 7
_MARGIN = 0.98  # of the default's time; less of a gain is noise


class Watcher(Protocol):
    """Receives a session's progress."""

    def begin(self, kernel: str, done: int, trials: int) -> None:
        """Starts a kernel, of which `done` candidates are known from earlier sessions."""

    def advance(self, best: float | None, default: float) -> None:
        """Notes that a candidate was measured; times are in seconds, None while all failed."""

    def decide(self, kernel: str, choice: ScheduleChoice) -> None:
        """Notes that a kernel is finished."""


@dataclass(frozen=True)
class TuningSession:
    """The place and the settings of tuning.

    Attributes:
      target: the TVM target dict.
      database: database that every measurement is written to at once.
      bench: builds and times schedules.
      space: ``"tiles"`` or ``"metaschedule"``.
      trials: candidates per kernel, those of earlier sessions included.
      watcher: receives every step.
    """

    target: Mapping[str, Any]
    database: TuningDatabase
    bench: Bench
    space: str
    trials: int
    watcher: Watcher

    def tune(self, kernel: compiler.UnscheduledKernel) -> ScheduleChoice:
        """Measures the remaining candidates, and compares the best with the default schedule."""
        target = compiler.compilation_target(self.target)
        default = compiler.default_schedule(kernel, compiler.Machine.of(target))
        records = Records(kernel, self.database.records(self.target, self.space), target)
        key = records.key(default)
        # Marks the default as met: a candidate that equals it is not worth a measurement.
        records.is_new(default)
        source = self._source(kernel, records, target)
        batch = self._next(source, records)
        choice = self.database.choices(self.target).get(kernel.workload)
        if batch or not choice or not self._still_holds(choice, key, records.count):
            libraries = Libraries(self.bench, records)
            self.bench.take(kernel)
            self.watcher.begin(kernel.name, records.count, self.trials)
            self._measure(source, batch, default, records, libraries)
            # More than one, since times of candidates were measured minutes apart and are noisy.
            finalists = records.finalists(_FINALISTS)
            # What won before competes again: a few candidates more must not lose a good schedule.
            if choice and choice.trace is not None and choice.trace not in finalists:
                finalists.append(choice.trace)
            # A candidate's time is the least of a moment, maybe a lucky one; only the duel decides.
            schedules = [default, *(compiler.replay_trace(kernel, trace) for trace in finalists)]
            times = self._duel(libraries.of(schedules))
            choice = chosen(kernel.workload, key, finalists, times, records.count, self.space)
            self.database.choose(self.target, choice)
        self.watcher.decide(kernel.name, choice)
        return choice

    def _still_holds(self, choice: ScheduleChoice, default: str, count: int) -> bool:
        """Tells whether nothing was measured or changed since the choice was made."""
        conditions = (choice.space, choice.default, choice.trials)
        return conditions == (self.space, default, count)

    def _measure(
        self,
        source: CandidateSource,
        batch: list[Schedule],
        default: Schedule,
        records: Records,
        libraries: Libraries,
    ) -> None:
        """Measures the default schedule, and candidates until there are enough."""
        # Built along with the first batch, whose processes are started once for all.
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
                # Written down at once, so that an interruption loses a single measurement.
                records.add(schedule, seconds[-1])
                self.watcher.advance(records.best, default_seconds)
            source.learn(seconds)
            batch = self._next(source, records)

    def _source(
        self, kernel: compiler.UnscheduledKernel, records: Records, target: Target
    ) -> CandidateSource:
        if self.space == "tiles":
            return TileCandidates(kernel, compiler.Machine.of(target), records.is_new)
        left = max(self.trials - records.count, 1)
        return PostOrderApply(kernel, target, records.database, left, min(left, _BATCH))

    def _next(self, source: CandidateSource, records: Records) -> list[Schedule]:
        left = self.trials - records.count
        return source.propose(min(left, _BATCH)) if left > 0 else []

    def _duel(self, libraries: Sequence[Path | None]) -> list[float]:
        """Measures several libraries in turns, so that a slower machine slows all of them."""
        rounds = [[self.bench.seconds(library) for library in libraries] for _ in range(_ROUNDS)]
        # The median: a round that something disturbed has no say.
        return [
            statistics.median(FAILED if seconds is None else seconds for seconds in column)
            for column in zip(*rounds, strict=True)
        ]


def chosen(
    workload: str,
    default: str,
    finalists: Sequence[Any],
    times: Sequence[float],
    trials: int,
    space: str,
) -> ScheduleChoice:
    """Decides for a kernel: the fastest finalist if it beats the default schedule.

    `default` is a digest of the default schedule; `times` are its seconds, and then those of each
    finalist; `trials` candidates from `space` were measured.
    """
    untuned, *others = times
    best = min(others, default=untuned)
    # The best of several noisy times is biased downwards; the margin keeps ties at the default.
    beats = best < _MARGIN * untuned
    return ScheduleChoice(
        workload=workload,
        trace=finalists[others.index(best)] if beats else None,
        microseconds=1e6 * (best if beats else untuned),
        default=default,
        default_microseconds=1e6 * untuned,
        trials=trials,
        space=space,
    )
