"""Tunes one kernel: measures candidates, then compares the best with the default schedule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from jaxeff_export.compiler import (
    UnscheduledKernel,
    compilation_target,
    default_schedule,
    replay_trace,
)
from jaxeff_export.compiler.schedules import Machine
from jaxeff_export.schedules import FAILED, ScheduleChoice, TuningDatabase, TuningError
from jaxeff_export.tuning._measuring import Bench
from jaxeff_export.tuning._records import Libraries, Records
from jaxeff_export.tuning._spaces import CandidateSource, PostOrderApply, TileCandidates

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

    def tune(self, kernel: UnscheduledKernel) -> ScheduleChoice:
        """Measures the remaining candidates, and compares the best with the default schedule.

        Raises:
          TuningError: if not even the default schedule can be measured.
        """
        target = compilation_target(self.target)
        default = default_schedule(kernel, Machine.of(target))
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
            schedules = [default, *(replay_trace(kernel, trace) for trace in finalists)]
            times = self._duel(libraries.of(schedules))
            choice = chosen(kernel.workload, key, finalists, times, records.count, self.space)
            self.database.choose(self.target, choice)
        self.watcher.decide(kernel.name, choice)
        return choice

    def _still_holds(self, choice: ScheduleChoice, default: str, count: int) -> bool:
        """Tells whether nothing was measured or changed since the choice was made."""
        made = (choice.space, choice.default, choice.trials)
        return made == (self.space, default, count)

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
        self, kernel: UnscheduledKernel, records: Records, target: Target
    ) -> CandidateSource:
        if self.space == "tiles":
            return TileCandidates(kernel, Machine.of(target), records.is_new)
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

    Args:
      workload: the kernel's hash.
      default: a digest of the default schedule.
      finalists: recorded schedules.
      times: seconds of the default schedule, and then of each finalist.
      trials: number of candidates measured.
      space: source that proposed them.
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
