"""TVM on this processor, timed by its own clock: inputs are in place, results stay there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from jaxeff_export import Bundle, resolve_target
from jaxeff_export.compiler import compile_module
from tvm import relax

from experiments.timing import Meter


def host(threads: int = 1) -> dict[str, Any]:
    """Describes this processor with so many threads, as a target."""
    return {**resolve_target("host"), "num-cores": threads}


def modelled_cycles(bundle: Bundle) -> float:
    """Cycles of the kernels' main loops by a static model, of all calls of each: from below."""
    kernels, loops = bundle.manifest.kernels, bundle.model()
    return sum((loop.total or 0.0) * kernels[loop.name].get("calls", 1) for loop in loops
               if loop.name in kernels)  # fmt: skip


def meter_of(bundle: Bundle) -> Meter:
    """Times a bundle."""
    return lambda repeats: bundle.benchmark("local", number=repeats, repeat=1).median_ms / 1e3


def module_meter(module: tvm.IRModule, arguments: Sequence[Any], target: Any) -> Meter:
    """Times the function `main` of a module of Relax."""
    machine = relax.VirtualMachine(compile_module(module, target), tvm.cpu())
    machine.set_input("main", *arguments)

    def meter(repeats: int) -> float:
        timed = machine.time_evaluator("invoke_stateful", tvm.cpu(), number=repeats, repeat=1)
        return float(timed("main").mean)

    return meter


def module_results(module: tvm.IRModule, arguments: Sequence[Any], target: Any) -> list[np.ndarray]:
    """Computes what the function `main` of a module of Relax returns."""
    machine = relax.VirtualMachine(compile_module(module, target), tvm.cpu())
    return [result.numpy() for result in machine["main"](*arguments)]


def kernel_meter(library: Any, name: str, arguments: Sequence[Any]) -> Meter:
    """Times a function of a library of kernels."""

    def meter(repeats: int) -> float:
        timed = library.mod.time_evaluator(name, tvm.cpu(), number=repeats, repeat=1)
        return float(timed(*arguments).mean)

    return meter


def together(meters: Sequence[Meter]) -> Meter:
    """Times one after the other."""
    return lambda repeats: sum(meter(repeats) for meter in meters)
