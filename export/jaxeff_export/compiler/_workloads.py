"""Kernels as schedules are recorded for them, and the hashes that identify them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import meta_schedule as ms

from jaxeff_export.compiler.schedules import merge_blocks


@dataclass(frozen=True)
class UnscheduledKernel:
    """A kernel on its own, without its module.

    Attributes:
      name: name of its function in the module.
      function: the function, blocks merged and not scheduled.
      workload: the structural hash, equal for equal kernels of other modules.
    """

    name: str
    function: tirx.PrimFunc
    workload: str

    @property
    def module(self) -> tvm.IRModule:
        """Returns a module of the kernel alone, as MetaSchedule takes it."""
        return tvm.IRModule({"main": self.function})

    @property
    def outputs(self) -> list[int]:
        """Returns the positions of the arguments that it writes."""
        written: list[tirx.Var] = []
        tvm_ffi.structural_walk(
            self.function.body, (tirx.BufferStore, lambda store: written.append(store.buffer))
        )
        return [
            index
            for index, parameter in enumerate(self.function.params)
            if any(parameter.same_as(buffer) for buffer in written)
        ]


def kernel_of(name: str, function: tirx.PrimFunc) -> UnscheduledKernel:
    """Makes a kernel of a module's function that is not scheduled yet."""
    # Schedules apply to merged blocks, so these are what a record has to be matched by.
    merged = merge_blocks(function)
    return UnscheduledKernel(name, merged, workload_of(merged))


def workload_of(function: tirx.PrimFunc) -> str:
    """Returns the structural hash of a kernel whose blocks are merged."""
    return str(ms.database.Workload(tvm.IRModule({"main": function})).as_json()[0])
