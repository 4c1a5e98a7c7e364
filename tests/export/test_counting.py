"""Instructions of C libraries, counted in the emulator: a kernel that got slower fails here."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram, count_instructions

import jaxeff
from jaxeff.compression import Int, calibrate
from jaxeff.core import functional

MOST = {"cortex-m7": 177_000, "cortex-m4": 177_000}
"""Instructions of `Small`, one percent above what they are: another compiler's differ a little."""


class Small(nnx.Module):
    """What the networks of MLPerf Tiny are made of, small."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs)
        self.pointwise = nnx.Conv(8, 16, (1, 1), rngs=rngs)
        self.dense = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, x):
        for layer in (self.conv, self.depthwise, self.pointwise):
            x = nnx.relu(layer(x))
        return self.dense(x.mean((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("core", MOST)
def test_instructions_of_a_small_network(core, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params = functional(Small(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (1, 10, 9, 3))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8, symmetric="weights")}))
    codes = g.convert(params, x)
    library = deploy(g, (codes, x), target=core).export_c(tmp_path / "net")
    (result,) = ExampleProgram(library, core).run()
    np.testing.assert_array_equal(result, jax.jit(g)(codes, x))
    first, second = (count_instructions(library, core) for _ in range(2))
    assert first == second
    assert first.total <= MOST[core], first.by_function
    # Each product is executed, in pairs at most.
    assert first.total > (27 * 8 + 9 * 8 + 8 * 16) * 90 / 2
