"""IREE: the StableHLO that JAX lowers a function to, compiled for this processor."""

from collections.abc import Callable
from typing import Any

import iree.compiler.tools as compiler
import iree.runtime as runtime
import jax
import numpy as np

FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")


def started(f: Callable[..., Any], params: Any, x: Any, threads: int) -> Callable[[], Any]:
    """A call of a function of parameters and an input, which are in place."""
    library = compiler.compile_str(
        jax.jit(f).lower(params, x).as_text(), input_type="stablehlo",
        target_backends=["llvm-cpu"], extra_args=list(FLAGS),
    )  # fmt: skip
    config = runtime.Config("local-sync" if threads == 1 else "local-task")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, library))
    (module,) = (m for name, m in context.modules.items() if name.startswith("jit"))
    leaves = jax.tree.leaves((params, x))
    arguments = [runtime.asdevicearray(config.device, np.asarray(leaf)) for leaf in leaves]
    return lambda: module["main"](*arguments)
