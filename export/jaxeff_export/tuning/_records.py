"""The measurements of one kernel: its records in a database, and its libraries built so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule
from tvm.target import Target

from jaxeff_export.compiler import UnscheduledKernel, digest_of, trace_digest
from jaxeff_export.schedules import FAILED, has_failed
from jaxeff_export.tuning._measuring import Bench


class Records:
    """A database's measurements of one kernel.

    Attributes:
      kernel: the kernel.
      database: MetaSchedule's.
      count: number of candidates measured, failures included.
      best: seconds of the fastest, None if all failed.
    """

    def __init__(
        self, kernel: UnscheduledKernel, database: ms.database.JSONDatabase, target: Target
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
        return digest_of(self.kernel, schedule)

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
