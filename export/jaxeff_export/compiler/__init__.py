"""From an imported module to machine code: kernels fused, merged, scheduled and lowered."""

from jaxeff_export.compiler import _compilation as compilation  # noqa: F401
from jaxeff_export.compiler._compilation import UnscheduledKernel as UnscheduledKernel
from jaxeff_export.compiler._compilation import bind_parameters as bind_parameters
from jaxeff_export.compiler._compilation import compilation_target as compilation_target
from jaxeff_export.compiler._compilation import compile_module as compile_module
from jaxeff_export.compiler._compilation import default_schedule as default_schedule
from jaxeff_export.compiler._compilation import digest_of as digest_of
from jaxeff_export.compiler._compilation import fuse as fuse
from jaxeff_export.compiler._compilation import fused_kernels as fused_kernels
from jaxeff_export.compiler._compilation import in_memory_files as in_memory_files
from jaxeff_export.compiler._compilation import kernel_of as kernel_of
from jaxeff_export.compiler._compilation import lower_module as lower_module
from jaxeff_export.compiler._compilation import ready_to_lower as ready_to_lower
from jaxeff_export.compiler._compilation import replay_trace as replay_trace
from jaxeff_export.compiler._compilation import schedule_module as schedule_module
from jaxeff_export.compiler._compilation import trace_digest as trace_digest
from jaxeff_export.compiler._compilation import tuned_schedules as tuned_schedules
from jaxeff_export.compiler._merging import join_siblings as join_siblings
from jaxeff_export.compiler._merging import merge_blocks as merge_blocks
from jaxeff_export.compiler._scheduling import schedule_cpu as schedule_cpu
from jaxeff_export.compiler._scheduling import schedule_kernel as schedule_kernel
from jaxeff_export.compiler._tiles import ANY_MACHINE as ANY_MACHINE
from jaxeff_export.compiler._tiles import Machine as Machine
from jaxeff_export.compiler._tiles import RegisterTile as RegisterTile
from jaxeff_export.compiler._tiles import divisors as divisors
from jaxeff_export.compiler._work import Work as Work
from jaxeff_export.compiler._work import reads_of as reads_of
from jaxeff_export.compiler._work import tiles_of as tiles_of
from jaxeff_export.compiler._work import work_of as work_of
