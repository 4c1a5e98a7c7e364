"""Targets: what is compiled for, and the programs that linking and emulating need."""

from jaxeff_export.targets import _toolchain as toolchain
from jaxeff_export.targets._c_toolchain import (
    BoardMemory,
    CToolchain,
    emulation,
    find_c_toolchain,
    has_double_precision,
)
from jaxeff_export.targets._entry_points import OPERATOR_BY_OPERATOR
from jaxeff_export.targets._extras import MissingExtraError, require_extra
from jaxeff_export.targets._target import (
    ARM_TARGETS,
    C_TARGETS,
    TargetError,
    arithmetic_features,
    has_runtime,
    is_microcontroller,
    kernel_features,
    missing_features,
    normalized_machine,
    resolve_target,
    target_machine,
    target_names,
)
from jaxeff_export.targets._toolchain import (
    ToolchainError,
    find_emulator,
    find_linker,
    find_modeller,
    packages,
)

__all__ = [
    "ARM_TARGETS",
    "C_TARGETS",
    "OPERATOR_BY_OPERATOR",
    "BoardMemory",
    "CToolchain",
    "MissingExtraError",
    "TargetError",
    "ToolchainError",
    "arithmetic_features",
    "emulation",
    "find_c_toolchain",
    "find_emulator",
    "find_linker",
    "find_modeller",
    "has_double_precision",
    "has_runtime",
    "is_microcontroller",
    "kernel_features",
    "missing_features",
    "normalized_machine",
    "packages",
    "require_extra",
    "resolve_target",
    "target_machine",
    "target_names",
    "toolchain",
]
