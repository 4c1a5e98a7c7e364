"""What the machine and the engines can do at best, to read the other figures by."""

from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export

from experiments.contests.tvm import host, meter_of
from experiments.contests.xla import compiled
from experiments.latency.engines import Setup
from experiments.latency.networks import place
from experiments.timing import measure_rounds, metered, summary

SIDE = 1024


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
    times = measure_rounds({"/".join(of): meter for of, meter in meters.items()}, rounds)
    macs = {"matmul": SIDE**3, "dispatch": 0}
    return [
        {
            **place("machine", method, engine, 1, setup.threads),
            **summary(times[f"{method}/{engine}"]), "macs": macs[method],
        }
        for method, engine in meters
    ]  # fmt: skip
