"""From an imported module to machine code: kernels fused, merged, scheduled and lowered."""

from jaxeff_export.compiler import _compilation as compilation
from jaxeff_export.compiler._compilation import (
    UnscheduledKernel,
    bind_parameters,
    compilation_target,
    compile_module,
    default_schedule,
    digest_of,
    fuse,
    fused_kernels,
    in_memory_files,
    kernel_of,
    lower_module,
    ready_to_lower,
    replay_trace,
    schedule_module,
    trace_digest,
    tuned_schedules,
)
from jaxeff_export.compiler._merging import join_siblings, merge_blocks
from jaxeff_export.compiler._scheduling import schedule_cpu, schedule_kernel
from jaxeff_export.compiler._tiles import (
    ANY_MACHINE,
    Machine,
    RegisterTile,
    divisors,
)
from jaxeff_export.compiler._work import Work, reads_of, work_of

__all__ = [
    "ANY_MACHINE",
    "Machine",
    "RegisterTile",
    "UnscheduledKernel",
    "Work",
    "bind_parameters",
    "compilation",
    "compilation_target",
    "compile_module",
    "default_schedule",
    "digest_of",
    "divisors",
    "fuse",
    "fused_kernels",
    "in_memory_files",
    "join_siblings",
    "kernel_of",
    "lower_module",
    "merge_blocks",
    "reads_of",
    "ready_to_lower",
    "replay_trace",
    "schedule_cpu",
    "schedule_kernel",
    "schedule_module",
    "trace_digest",
    "tuned_schedules",
    "work_of",
]
