"""What a step of vmapped replicates costs as replicates and devices grow.

Processor cores are given to JAX as eight devices, which only a process that starts so can do; so
the measurement runs in one of its own (`measure`). Accelerators are measured as they are.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxeff
from experiments.harness import Row
from experiments.timing import measure_rounds, metered
from jaxeff.nn import MLP
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, epoch_function, spread_replicates, start_function

WIDTHS = (784, 64, 64, 64, 10)
BATCH = 128
VIRTUAL = 8
GRID = [(1, 64), (2, 64), (4, 64), (8, 64), (8, 8), (8, 512)]
"""Devices and replicates."""


def loss_at(f: Callable[..., Any]) -> Callable[[Any], Any]:
    """The loss under noise of a level."""
    return lambda spec: cross_entropy(jaxeff.noisy(f, spec), keyed=True)


def fresh(key: jax.Array) -> tuple[Any, None]:
    """Initial parameters of the network."""
    return jaxeff.functional(MLP(WIDTHS, rngs=nnx.Rngs(key)))[1], None


def measure(steps: int, rounds: int) -> list[Row]:
    """Time and memory over the devices there are, or over virtual ones of a processor."""
    if jax.default_backend() != "cpu":
        return grow(steps, rounds)
    flag = f"--xla_force_host_platform_device_count={VIRTUAL}"
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flag}"}
    arguments = [sys.executable, "-m", __name__, str(steps), str(rounds)]
    done = subprocess.run(
        arguments, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def grow(steps: int, rounds: int) -> list[Row]:
    """A row per number of devices and replicates, as far as there are devices."""
    grid = [(n, replicates) for n, replicates in GRID if n <= jax.device_count()]
    if (most := jax.device_count()) < VIRTUAL:
        grid += [(most, 8), (most, 512)]
    rows, calls = {}, {}
    for devices, replicates in dict.fromkeys(grid):
        name = f"{replicates} on {devices}"
        calls[name], memory = _program(steps, devices, replicates)
        rows[name] = {"devices": devices, "replicates": replicates, "mb_per_device": memory / 1e6}
    times = measure_rounds({name: metered(call) for name, call in calls.items()}, rounds, 0.0)
    for name, row in rows.items():
        row["step_ms"] = min(times[name]) / steps
        row["ms_per_replicate"] = row["step_ms"] / row["replicates"]
    return list(rows.values())


def _program(steps: int, devices: int, replicates: int) -> tuple[Callable[[], Any], int]:
    """A call of so many steps, and the bytes that it needs on each device, as XLA reports them."""
    f = jaxeff.functional(MLP(WIDTHS, rngs=nnx.Rngs(0)))[0]
    optimizer = optax.adam(1e-3)
    spread = spread_replicates(1, replicates, jax.devices()[:devices])
    key = jax.random.key(0)
    images = jax.random.normal(key, (steps * BATCH, WIDTHS[0]))
    data = spread.replicated((images, jnp.argmax(images[:, :10], axis=-1)))
    levels = {"*": Additive(jnp.linspace(0, 1, spread.settings))}
    keys = spread.replicated(jax.random.split(key, 1))
    carry = start_function(fresh, optimizer, spread.sharding)(keys, spread.replicated(levels))
    epoch = epoch_function(loss_at(f), optimizer, BATCH, spread.seeds, spread.settings)
    compiled = jax.jit(epoch).lower(carry, keys, data).compile()
    needs = compiled.memory_analysis()
    assert needs is not None
    size = (
        needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes
        - needs.alias_size_in_bytes
    )  # fmt: skip
    return lambda: compiled(carry, keys, data), size


if __name__ == "__main__":
    print(json.dumps(grow(*map(int, sys.argv[1:]))))
