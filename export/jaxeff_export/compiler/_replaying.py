"""Recorded schedules put to use: traces of MetaSchedule, applied to kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Schedule, Trace

from jaxeff_export.artifact import digest
from jaxeff_export.compiler._compilation import compilation_target
from jaxeff_export.compiler._workloads import UnscheduledKernel, kernel_of
from jaxeff_export.compiler.schedules import Machine, schedule_kernel
from jaxeff_export.schedules import TuningDatabase, TuningError


def tuned_schedules(
    database: TuningDatabase, target: Mapping[str, Any]
) -> Callable[[tirx.PrimFunc], tirx.PrimFunc]:
    """Returns the `tuned` argument of `compile_module`: a database's choices for a target.

    A choice was measured against the default schedule of its time. If this version's default is
    another, the choice is ignored.

    Raises:
      TuningError: if the database's list of choices is damaged.
    """
    # The target as compiled for, so that the default compared here is the one that would run.
    machine = Machine.of(compilation_target(target))
    choices = {key: c for key, c in database.choices(target).items() if c.trace is not None}

    def tuned(function: tirx.PrimFunc) -> tirx.PrimFunc:
        if not choices or "tirx.is_scheduled" in function.attrs:
            return function
        kernel = kernel_of("", function)
        choice = choices.get(kernel.workload)
        if choice is None or choice.default != digest_of(kernel, default_schedule(kernel, machine)):
            return function
        return replay_trace(kernel, choice.trace).mod["main"].with_attr("tirx.is_scheduled", True)

    return tuned


def default_schedule(kernel: UnscheduledKernel, machine: Machine) -> Schedule:
    """Schedules a kernel without tuning; plain loops if no rule applies to it."""
    return schedule_kernel(kernel.function, machine) or Schedule(kernel.module)


def digest_of(kernel: UnscheduledKernel, schedule: Schedule) -> str:
    """Hashes a schedule's trace, which tells the schedules of a kernel apart."""
    if any(step.kind.name == "TransformLayout" for step in schedule.trace.insts):
        return digest(str(schedule.trace).encode())[:16]  # MetaSchedule writes no maps down
    record = ms.database.TuningRecord(schedule.trace, ms.database.Workload(kernel.module))
    return trace_digest(record.as_json()[0])


def trace_digest(trace: Any) -> str:
    """Hashes a trace as MetaSchedule writes it."""
    return digest(json.dumps(trace).encode())[:16]


def replay_trace(kernel: UnscheduledKernel, trace: Any) -> Schedule:
    """Schedules a kernel as recorded.

    Args:
      kernel: the kernel.
      trace: MetaSchedule's record of a schedule.

    Raises:
      TuningError: if TVM cannot apply it to this kernel.
    """
    schedule = Schedule(kernel.module)
    try:
        Trace.apply_json_to_schedule(trace, schedule)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise TuningError(
            f"a recorded schedule does not fit the kernel {kernel.name or kernel.workload}: "
            f"{reason}; tune it again into another folder"
        ) from error
    return schedule
