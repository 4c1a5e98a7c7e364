"""IREE: the StableHLO that JAX lowers the method to, compiled for this processor."""

from collections.abc import Collection, Iterator

import iree.compiler.tools as compiler
import iree.runtime as runtime
import jax
import numpy as np

from experiments.latency.engines import Contestant, Setup, deviation
from experiments.latency.networks import SEVERAL, Subject
from experiments.timing import metered

FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3")


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """The methods of a single pass."""
    driver = "local-sync" if setup.threads == 1 else "local-task"
    for method in methods:
        if method in SEVERAL:
            continue
        g, params = net.program(method)
        lowered = jax.jit(g).lower(params, net.x)
        library = compiler.compile_str(
            lowered.as_text(),
            input_type="stablehlo",
            target_backends=["llvm-cpu"],
            extra_args=list(FLAGS),
        )
        config = runtime.Config(driver)
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, library))
        (module,) = (m for name, m in context.modules.items() if name.startswith("jit"))
        leaves = jax.tree.leaves((params, net.x))
        arguments = [runtime.asdevicearray(config.device, np.asarray(leaf)) for leaf in leaves]

        def call(main=module["main"], arguments=arguments):  # type: ignore[no-untyped-def]
            return main(*arguments)

        found = [np.asarray(result) for result in jax.tree.leaves(call())]
        error = deviation(found, jax.tree.leaves(lowered.compile()(params, net.x)))
        yield Contestant(method, "iree", metered(call), error)
