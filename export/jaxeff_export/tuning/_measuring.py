"""Builds candidates and times them on a board, after checking their results.

Builders and the local runner are MetaSchedule's: processes of their own, so that a candidate that
crashes TVM or hangs takes nothing along.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule

from jaxeff_export.boards import Board, BoardLost
from jaxeff_export.bundle import NamedTarget
from jaxeff_export.compiler import UnscheduledKernel, compilation_target
from jaxeff_export.tuning._checking import CandidateError, draws_of, entry_module, timed
from jaxeff_export.tuning._interrupts import held_interrupts

_TIMEOUT = 30.0  # seconds for one build, and for one measurement
ARGUMENTS = "arguments.pickle"


class Bench:
    """Builds and measures schedules of one kernel after another.

    Attributes:
      reason: why the last candidate that failed did so.

    Args:
      target: the target that kernels are compiled for.
      board: an open board; candidates run on it, those for ``local`` in a process of their own.
      workspace: a folder for libraries and arguments.
    """

    def __init__(self, target: NamedTarget, board: Board, workspace: Path) -> None:
        self._target = compilation_target(target.settings)
        self.reason = ""
        self._workspace = workspace
        self._builder = _builder(target.linker, workspace)
        cores = int(target.settings.get("num-cores", 1))
        self._time = (
            local_timer(workspace, cores)
            if board.name == "local"
            else remote_timer(board, workspace)
        )

    def take(self, kernel: UnscheduledKernel) -> None:
        """Prepares a kernel's measurements: draws arguments and computes the expected outputs."""
        draws = draws_of(kernel)
        # A file serves processes that are started anew, without sending arrays each time.
        (self._workspace / ARGUMENTS).write_bytes(pickle.dumps(draws))

    def build(self, schedules: Sequence[Schedule]) -> list[Path | None]:
        """Builds a library of each schedule, None where TVM fails."""
        inputs = [
            ms.builder.BuilderInput(entry_module(schedule.mod), self._target)
            for schedule in schedules
        ]
        with held_interrupts():
            results = self._builder.build(inputs)
        self._note([result.error_msg for result in results])
        return [Path(str(r.artifact_path)) if r.artifact_path else None for r in results]

    def seconds(self, library: Path | None) -> float | None:
        """Times one call; None if the library could not be built, fails, or computes wrongly."""
        if library is None:
            return None
        try:
            with held_interrupts():
                return self._time(library)
        except CandidateError as error:
            self._note([str(error)])
            return None

    def _note(self, reasons: Sequence[str | None]) -> None:
        for reason in filter(None, reasons):
            self.reason = reason.strip().splitlines()[-1]


def _builder(linker: str, workspace: Path) -> ms.builder.LocalBuilder:
    """Makes MetaSchedule's builder; the functions that its processes run are sent by value."""

    def build(mod: tvm.IRModule, target: tvm.target.Target, _: object) -> Any:
        with tvm.transform.PassContext(opt_level=3):
            return tvm.compile(mod, target=target)

    def export(built: Any) -> str:
        # A name of its own: a process does not read a library again that it has loaded.
        path = workspace / f"{uuid.uuid4().hex}.so"
        built.export_library(str(path), cc=linker)
        return str(path)

    # Building in parallel is safe: nothing is timed meanwhile.
    workers = os.cpu_count() or 1
    return ms.builder.LocalBuilder(
        max_workers=workers, timeout_sec=_TIMEOUT, f_build=build, f_export=export
    )


def local_timer(workspace: Path, cores: int) -> Callable[[Path], float]:
    """Makes a timer in a process, which TVM starts anew whenever a candidate takes it down."""

    def start() -> None:
        os.environ["TVM_NUM_THREADS"] = str(cores)  # read when the first kernel runs in parallel

    def arguments(device: Any, *_: object) -> list[Any]:
        return [pickle.loads((workspace / ARGUMENTS).read_bytes())]

    def run(module: Any, device: Any, _: object, repeated: list[Any]) -> list[float]:
        return [timed(module, device, repeated[0])]

    runner = ms.runner.LocalRunner(
        timeout_sec=_TIMEOUT, f_alloc_argument=arguments, f_run_evaluator=run, initializer=start
    )

    def seconds(library: Path) -> float:
        (future,) = runner.run([ms.runner.RunnerInput(str(library), "cpu", [])])
        result = future.result()
        if not result.run_secs:
            raise CandidateError(str(result.error_msg))
        return float(result.run_secs[0])

    return seconds


def remote_timer(board: Board, workspace: Path) -> Callable[[Path], float]:
    """Makes a timer on a board, where a crash ends the session and no more."""

    def attempt(library: Path) -> float:
        started = time.monotonic()
        draws = pickle.loads((workspace / ARGUMENTS).read_bytes())
        try:
            return timed(board.load(library), board.device, draws)
        except CandidateError:
            raise
        except Exception as error:
            failure = board.failure(error, started)
            if isinstance(failure, BoardLost):
                raise failure from error
            raise CandidateError(str(failure)) from error

    def seconds(library: Path) -> float:
        try:
            return attempt(library)
        except BoardLost:
            board.reconnect()  # a board that is gone for good ends the tuning here
        try:
            return attempt(library)
        except BoardLost as error:  # twice is the candidate's fault
            board.reconnect()
            raise CandidateError(str(error)) from error

    return seconds
