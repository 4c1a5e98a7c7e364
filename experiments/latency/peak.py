"""How many multiply-accumulates a core does in a second with nothing to load: kernels' roof."""

import numpy as np
import tvm
from jaxeff_export.compiler import compile_module
from jaxeff_export.compiler.schedules import Machine
from jaxeff_export.targets import resolve_target
from tvm import relax, te

from experiments.timing import Meter

_SUMS = 12  # vectors; more than a fused multiply-add takes cycles, fewer than half the registers
_TURNS = 20_000


def meter() -> tuple[Meter, int]:
    """Times a kernel of fused multiply-adds whose operands stay in registers.

    Returns:
        The meter, and how many multiply-accumulates a call is.
    """
    target = {**resolve_target("host"), "num-cores": 1}
    lanes = Machine.of(tvm.target.Target(target)).lanes
    builder = relax.BlockBuilder()
    one = relax.Var("one", relax.TensorType((1,), "float32"))
    many = relax.Var("many", relax.TensorType((_SUMS * lanes,), "float32"))

    def sums(factor: te.Tensor, factors: te.Tensor) -> te.Tensor:
        turn = te.reduce_axis((0, _TURNS), name="turn")
        return te.compute(factors.shape, lambda i: te.sum(factor[0] * factors[i], axis=[turn]))

    with builder.function("main", [one, many]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit_te(sums, one, many))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(compile_module(builder.get(), target), tvm.cpu())
    arrays = [tvm.runtime.tensor(np.ones(n, np.float32)) for n in (1, _SUMS * lanes)]
    machine.set_input("main", *arrays)

    def seconds(repeats: int) -> float:
        timed = machine.time_evaluator("invoke_stateful", tvm.cpu(), number=repeats, repeat=1)
        return float(timed("main").mean)

    return seconds, _SUMS * lanes * _TURNS
