"""From an imported module to machine code: kernels fused, merged, scheduled and lowered."""

from jaxeff_export.compiler import _compilation as compilation
from jaxeff_export.compiler._compilation import (
    bind_parameters,
    compilation_target,
    compile_module,
    fuse,
    fused_kernels,
    lower_module,
    ready_to_lower,
    schedule_module,
)
from jaxeff_export.compiler._object_code import in_memory_files
from jaxeff_export.compiler._replaying import (
    default_schedule,
    digest_of,
    replay_trace,
    trace_digest,
    tuned_schedules,
)
from jaxeff_export.compiler._work import Work, work_of
from jaxeff_export.compiler._workloads import UnscheduledKernel, kernel_of

__all__ = [
    "UnscheduledKernel",
    "Work",
    "bind_parameters",
    "compilation",
    "compilation_target",
    "compile_module",
    "default_schedule",
    "digest_of",
    "fuse",
    "fused_kernels",
    "in_memory_files",
    "kernel_of",
    "lower_module",
    "ready_to_lower",
    "replay_trace",
    "schedule_module",
    "trace_digest",
    "tuned_schedules",
    "work_of",
]
