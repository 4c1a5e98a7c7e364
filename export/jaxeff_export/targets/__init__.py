"""Targets: what is compiled for, and the programs that linking and emulating need."""

from jaxeff_export.targets import _toolchain as toolchain  # noqa: F401
from jaxeff_export.targets._target import ARM_TARGETS as ARM_TARGETS
from jaxeff_export.targets._target import C_TARGETS as C_TARGETS
from jaxeff_export.targets._target import OPERATOR_BY_OPERATOR as OPERATOR_BY_OPERATOR
from jaxeff_export.targets._target import PROCESSORS as PROCESSORS
from jaxeff_export.targets._target import BoardMemory as BoardMemory
from jaxeff_export.targets._target import MissingExtraError as MissingExtraError
from jaxeff_export.targets._target import Processor as Processor
from jaxeff_export.targets._target import TargetError as TargetError
from jaxeff_export.targets._target import arithmetic_features as arithmetic_features
from jaxeff_export.targets._target import has_runtime as has_runtime
from jaxeff_export.targets._target import is_microcontroller as is_microcontroller
from jaxeff_export.targets._target import kernel_features as kernel_features
from jaxeff_export.targets._target import missing_features as missing_features
from jaxeff_export.targets._target import name_of as name_of
from jaxeff_export.targets._target import normalized_machine as normalized_machine
from jaxeff_export.targets._target import processor_of as processor_of
from jaxeff_export.targets._target import require_extra as require_extra
from jaxeff_export.targets._target import resolve_target as resolve_target
from jaxeff_export.targets._target import target_machine as target_machine
from jaxeff_export.targets._target import target_names as target_names
from jaxeff_export.targets._target import tvm_target as tvm_target
from jaxeff_export.targets._toolchain import CToolchain as CToolchain
from jaxeff_export.targets._toolchain import ToolchainError as ToolchainError
from jaxeff_export.targets._toolchain import emulation as emulation
from jaxeff_export.targets._toolchain import find_c_toolchain as find_c_toolchain
from jaxeff_export.targets._toolchain import find_emulator as find_emulator
from jaxeff_export.targets._toolchain import find_linker as find_linker
from jaxeff_export.targets._toolchain import find_modeller as find_modeller
from jaxeff_export.targets._toolchain import has_double_precision as has_double_precision
from jaxeff_export.targets._toolchain import packages as packages
