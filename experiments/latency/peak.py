"""How many multiply-accumulates a core does in a second with nothing to load: kernels' roof."""

import numpy as np
import tvm
from jaxeff_export.compiler.schedules import Machine
from tvm import relax, te

from experiments.contests.tvm import host, module_meter
from experiments.timing import Meter

_SUMS = 12  # vectors; more than a fused multiply-add takes cycles, fewer than half the registers
_TURNS = 20_000


def meter() -> tuple[Meter, int]:
    """Times a kernel of fused multiply-adds whose operands stay in registers.

    Returns:
        The meter, and how many multiply-accumulates a call is.
    """
    lanes = Machine.of(tvm.target.Target(host())).lanes
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
    arrays = [tvm.runtime.tensor(np.ones(n, np.float32)) for n in (1, _SUMS * lanes)]
    return module_meter(builder.get(), arrays, host()), _SUMS * lanes * _TURNS
