"""Instructions of C libraries, counted in the emulator: a kernel that got slower fails here."""

from __future__ import annotations

import functools

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

MOST = {"cortex-m7": 139_400, "cortex-m4": 140_700}
"""Instructions of `Small`, one percent above what they are: another compiler's differ a little."""
WORKSPACE = 992
OTHERS = ("cortex-m0plus", "cortex-m3", "cortex-m33", "cortex-m55", "cortex-m85")


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


@functools.cache
def small():
    """The network in int8, its parameters and an input."""
    f, params = functional(Small(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (1, 10, 9, 3))
    g = jaxeff.integer(f, calibrate(f, params, [x], {"*:linear": Int(8, symmetric="weights")}))
    return g, g.convert(params, x), x


@pytest.mark.slow
@pytest.mark.parametrize("core", OTHERS)
def test_other_microcontrollers_compute_the_bits_of_xla(core, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    g, codes, x = small()
    bundle = deploy(g, (codes, x), target=core, path=tmp_path / "b")
    np.testing.assert_array_equal(bundle.run(x, board="emulated"), jax.jit(g)(codes, x))


@pytest.mark.slow
@pytest.mark.parametrize("core", MOST)
def test_instructions_of_a_small_network(core, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    g, codes, x = small()
    library = deploy(g, (codes, x), target=core).export_c(tmp_path / "net")
    (result,) = ExampleProgram(library, core).run()
    np.testing.assert_array_equal(result, jax.jit(g)(codes, x))
    first, second = (count_instructions(library, core) for _ in range(2))
    assert first == second
    assert first.total <= MOST[core], first.by_function
    # The largest of its arrays, codes of the first layer's input and result; nothing beside them.
    assert library.sizes.workspace <= WORKSPACE, library.steps
    # Each product is executed, in pairs at most.
    assert first.total > (27 * 8 + 9 * 8 + 8 * 16) * 90 / 2
