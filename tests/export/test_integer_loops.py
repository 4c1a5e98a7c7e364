"""Layers of codes in loops and branches, whose arrays lie within one kernel: on every core."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from jaxeff_export import deploy
from jaxeff_export.targets import C_TARGETS

import jaxeff
from jaxeff.compression import Int, calibrate

STEPS = 12
"""More than are unrolled."""
TOOLS = {
    "riscv32": ("riscv64-unknown-elf-gcc", "qemu-system-riscv32"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
    "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
}
MICROCONTROLLER = ("arm-none-eabi-gcc", "qemu-system-arm")


def _weights(*shape):
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.normal(size=shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32)


PARAMS = {
    "in": _weights(8, 8),
    "state": _weights(8, 8),
    "more": _weights(8, 8) / 2,
    "image": _weights(3, 3, 4, 4),
    "channels": _weights(3, 3, 1, 4),
    "even": _weights(8, 8) * 2,
    "odd": -_weights(8, 8),
}


def recurrence(params, rows):
    """The simplest of all."""

    def step(h, row):
        return jnp.tanh(row @ params["in"] + h @ params["state"]), None

    return jax.lax.scan(step, jnp.zeros_like(rows[0]), rows)[0]


def residual(params, rows):
    """Codes that become codes, and a shortcut."""

    def step(h, row):
        y = jax.nn.relu(row @ params["in"] + h @ params["state"])
        return jnp.tanh(jax.nn.relu(y @ params["more"]) @ params["state"] + y), y @ params["in"]

    return jax.lax.scan(step, jnp.zeros_like(rows[0]), rows)


def images(params, rows):
    """Convolutions of a state, by windows and by channels."""
    rows = rows.reshape(*rows.shape[:2], 2, 2, 2)
    numbers = ("NHWC", "HWIO", "NHWC")

    def convolved(x, kernel, groups):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    def step(h, row):
        both = jnp.concatenate([h[..., :2], row], -1)
        y = jax.nn.relu(convolved(both, params["image"], 1))
        return jnp.tanh(convolved(y, params["channels"], 4) + y), None

    return jax.lax.scan(step, jnp.zeros((*rows.shape[1:4], 4)), rows)[0]


def until(params, rows):
    """A loop whose end the data could decide, around another."""

    def turn(state):
        i, h = state
        h = jax.lax.fori_loop(0, STEPS, lambda _, h: jnp.tanh(h @ params["state"] + h), h)
        return i + 1, h @ params["in"]

    return jax.lax.while_loop(lambda state: state[0] < 2, turn, (0, rows[0]))[1]


def branching(params, rows):
    """One of two layers, in turn."""

    def step(h, numbered):
        i, row = numbered
        h = jax.lax.cond(
            i % 2 == 0, lambda y: y @ params["even"], lambda y: jnp.tanh(y @ params["odd"]), h + row
        )
        return jnp.tanh(h), None

    return jax.lax.scan(step, jnp.zeros_like(rows[0]), (jnp.arange(len(rows)), rows))[0]


LOOPS = (recurrence, residual, images, until, branching)


def _integer(f, batch, requantize="float"):
    # Rows of steps first. More than one example: the arrays of a loop have several rows then.
    x = jax.random.normal(jax.random.key(batch), (STEPS, batch, 8))
    spec = calibrate(f, PARAMS, [x], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec, requantize=requantize)
    return g, g.convert(PARAMS, x), x


def _agrees(bundle, g, codes, x, board):
    # A tanh, which compilers round differently: a millionth of its range.
    ours = bundle.run(x, board=board) if board else bundle.run(x)
    theirs = jax.jit(g)(codes, x)
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "loop", [recurrence, *(pytest.param(loop, marks=pytest.mark.slow) for loop in LOOPS[1:])]
)
def test_loops_compute_on_this_machine_what_xla_does(loop, tmp_path):
    g, codes, x = _integer(loop, 3)
    _agrees(deploy(g, (codes, x), path=tmp_path / "b"), g, codes, x, None)


@pytest.mark.slow
@pytest.mark.parametrize("requantize", ["float", "fixed"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("core", sorted(C_TARGETS))
def test_loops_compute_on_every_core_what_xla_does(core, batch, requantize, tmp_path):
    require(*TOOLS.get(core, MICROCONTROLLER))

    def f(params, rows):
        return [loop(params, rows) for loop in LOOPS]

    g, codes, x = _integer(f, batch, requantize)
    _agrees(deploy(g, (codes, x), target=core, path=tmp_path / "b"), g, codes, x, "emulated")


@pytest.mark.slow
def test_a_loop_that_no_data_is_in_calls_no_c_here(tmp_path):
    """It is run before any call, by this machine, which has none of the functions."""
    require(*MICROCONTROLLER)
    g, codes, rows = _integer(recurrence, 1)

    def f(codes, x):
        return g(codes, rows) + x

    x = jnp.ones((1, 8))
    bundle = deploy(f, (codes, x), target="cortex-m7", path=tmp_path / "b")
    output = bundle.run(x, board="emulated")
    np.testing.assert_allclose(output, jax.jit(f)(codes, x), rtol=0, atol=1e-6)
