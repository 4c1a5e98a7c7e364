"""Programs compiled by IREE for this processor, which run on the calling thread."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import iree.runtime
from iree.compiler import compile_str


def compiled(text: str) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """Compiles StableHLO.

    Returns:
        The program's function, of arrays on IREE's device, and what puts an array there.
    """
    binary = compile_str(
        text, input_type="stablehlo", target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )  # fmt: skip
    setting = iree.runtime.Config("local-sync")
    module = iree.runtime.VmModule.copy_buffer(setting.vm_instance, binary)
    context = iree.runtime.SystemContext(config=setting)
    context.add_vm_module(module)
    on_device = functools.partial(iree.runtime.asdevicearray, setting.device)
    return context.modules[module.name].main, on_device
