"""Recorded schedules put to use: traces of MetaSchedule, applied to kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx
from tvm.s_tir.schedule import Schedule, Trace

from jaxeff_export.tuning.database import TuningDatabase
from jaxeff_export.tuning.errors import TuningError
from jaxeff_export.tuning.kernels import Kernel, kernel_of


def tuned_schedules(
    database: TuningDatabase, target: Mapping[str, Any]
) -> Callable[[tirx.PrimFunc], tirx.PrimFunc]:
    """What `compile_module` takes as `tuned`: the choices of a database for a target.

    Raises:
      TuningError: if the database's list of choices is damaged.
    """
    choices = {key: c for key, c in database.choices(target).items() if c.trace is not None}

    def tuned(function: tirx.PrimFunc) -> tirx.PrimFunc:
        if not choices or "tirx.is_scheduled" in function.attrs:
            return function
        kernel = kernel_of("", function)
        choice = choices.get(kernel.workload)
        if choice is None:
            return function
        return replayed(kernel, choice.trace).mod["main"].with_attr("tirx.is_scheduled", True)

    return tuned


def replayed(kernel: Kernel, trace: Any) -> Schedule:
    """A kernel scheduled as recorded.

    Args:
      kernel: the kernel.
      trace: what MetaSchedule wrote down of a schedule.

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
