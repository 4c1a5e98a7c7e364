"""Products on IREE, in float32 on the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import iree.runtime
import jax
import numpy as np
from iree.compiler import compile_str


def calls(params: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Returns a call for the only format: StableHLO of weights in int8 is dequantized in memory."""
    w, data = np.asarray(params["w"]), np.asarray(x)
    text = jax.jit(lambda w, x: x @ w).lower(w, data).as_text()
    made = compile_str(
        text, input_type="stablehlo", target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host"],
    )  # fmt: skip
    setting = iree.runtime.Config("local-sync")
    module = iree.runtime.VmModule.copy_buffer(setting.vm_instance, made)
    context = iree.runtime.SystemContext(config=setting)
    context.add_vm_module(module)
    main = context.modules[module.name].main
    taken = [iree.runtime.asdevicearray(setting.device, each) for each in (w, data)]
    # The result is read, as a caller would.
    return {"float32": lambda: main(*taken).to_host()}
