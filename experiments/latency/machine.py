"""What the machine and the engines can do at best, to read the other figures by."""

from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
import numpy as np
import tvm
from jaxeff_export.compiler.schedules import Machine
from tvm import relax, te

from experiments.contests.tvm import host, meter_of, module_meter
from experiments.contests.xla import compiled
from experiments.latency.engines import Setup
from experiments.latency.networks import place
from experiments.timing import Meter, measure_rounds, metered, summary

SIDE = 1024
_SUMS = 12  # vectors; more than a fused multiply-add takes cycles, fewer than half the registers
_TURNS = 20_000


def measure(setup: Setup, rounds: int) -> list[dict[str, Any]]:
    """Times a large matrix product, and calls that do nothing.

    Returns:
        Rows of the model `machine`: `matmul`, whose `macs` per time is the peak that a network can
        be held against, and `dispatch`, what a call costs on top of its arithmetic.
    """
    square = jax.random.normal(jax.random.key(0), (SIDE, SIDE))
    small = jnp.ones(1)
    bundle = jaxeff_export.deploy(lambda p, x: x + p, (small, small), target=host(setup.threads))
    meters = {
        ("matmul", "xla"): metered(compiled(jnp.matmul, square, square)),
        ("dispatch", "xla"): metered(compiled(jnp.add, small, small)),
        ("dispatch", "tvm_untuned"): meter_of(bundle),
    }
    times = measure_rounds(meters, rounds)
    macs = {"matmul": SIDE**3, "dispatch": 0}
    return [
        {
            **place("machine", method, engine, 1, setup.threads),
            **summary(values), "macs": macs[method],
        }
        for (method, engine), values in times.items()
    ]  # fmt: skip


def peak_meter() -> tuple[Meter, int]:
    """Times how many multiply-accumulates a core does with nothing to load: kernels' roof.

    They are fused, and their operands stay in registers.

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
