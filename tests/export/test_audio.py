"""Sound in C: a front end in fixed point, and a network that computes what is new alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram, count_instructions

import jaxeff
from jaxeff import data, nn
from jaxeff.compression import Int, calibrate

FRONT = nn.LogMel(window=60, hop=40, bands=8, cepstra=4, low=100.0)


@pytest.mark.slow
def test_fixed_point_features_are_jaxs_bits_on_a_microcontroller(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    (audio,) = data.tones(jax.random.key(3), 1)[:, :60]
    bundle = deploy(FRONT.fixed, (audio,), target="cortex-m7", parameters=0)
    program = ExampleProgram(bundle.export_c(tmp_path / "net"), "cortex-m7")
    for lift in (1, 7, 200):  # loud and quiet: another shift for each
        quiet = (audio // lift).astype(np.int16)
        np.testing.assert_array_equal(program.run([quiet])[0], jax.jit(FRONT.fixed)(quiet))


def test_tables_of_a_front_end_are_kept_in_few_bytes(tmp_path):
    require("arm-none-eabi-gcc")
    (audio,) = data.tones(jax.random.key(3), 1)[:, :800]
    front = nn.LogMel(cepstra=10)
    library = deploy(front.fixed, (audio,), target="cortex-m4", parameters=0).export_c(
        tmp_path / "net"
    )
    sizes = library.sizes
    # A window, sines, filters, logarithms, cosines: 15 kB as int32, and twice that unrolled.
    assert sizes.parameters < 7_000
    # What a pass of the transform leaves behind lies where other kernels' arrays do.
    assert sizes.stack < 256
    assert sizes.workspace < 5_600
    # A loop of eight passes stays one, with one call for each of two frames.
    assert [step.kernel for step in library.steps].count("loop") == 2


def test_whole_numbers_are_narrow_where_all_calls_of_a_kernel_know_them(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    few, signed, many = np.arange(40) % 7, np.arange(40) - 20, np.arange(50) * 1000

    def f(x, at):
        # The first two are one kernel's, which reads what holds both.
        known = [jnp.asarray(table, jnp.int32)[at] * x for table in (few, few * 30, many)]
        return [*known, x + jnp.asarray(signed, jnp.int32), x[jnp.asarray(few[:30])]]

    x, at = np.arange(40, dtype=np.int32) * 10_000, np.arange(40, dtype=np.int32)[::-1].copy()
    library = deploy(f, (x, at), target="cortex-m4", parameters=0).export_c(tmp_path / "net")
    output = ExampleProgram(library, "cortex-m4").run([x, at])
    for ours, theirs in zip(output, jax.jit(f)(x, at), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # 800 bytes of int32: 30 or 40 a table, 100 of what needs 16 bits, and room to align them.
    assert library.sizes.parameters < 320


@pytest.mark.slow
def test_a_stream_of_codes_is_a_library_with_state(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    net = nnx.Sequential(
        nnx.Conv(4, 8, (4, 1), padding="VALID", rngs=nnx.Rngs(0)),
        nnx.relu,
        nnx.Conv(8, 8, (3, 1), feature_group_count=8, padding="VALID", rngs=nnx.Rngs(1)),
        nnx.relu,
        lambda x: x.mean((1, 2)),
        nnx.Linear(8, 3, rngs=nnx.Rngs(2)),
    )
    f, params = jaxeff.functional(net)
    sound = jax.random.normal(jax.random.key(0), (1, 30, 1, 4))
    window, frames = sound[:, :26], sound[:, 26:28]
    g = jaxeff.integer(f, calibrate(f, params, [window], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, window)
    step, state = jaxeff.streaming(g, codes, window, hop=2)
    bundle = deploy(step, (codes, frames, state), target="cortex-m7", state=("state",))
    library = bundle.export_c(tmp_path / "step", name="net")
    assert "net_state" in (library.folder / "net.h").read_text()
    made = ExampleProgram(library, "cortex-m7").run()
    for ours, theirs in zip(
        made, jax.tree.leaves(jax.jit(step)(codes, frames, state)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(made[0], jax.jit(g)(codes, sound[:, 2:28]))
    # Kernels of codes are those of the whole window, at a fraction of its instructions.
    whole = deploy(g, (codes, window), target="cortex-m7").export_c(tmp_path / "whole", name="net")
    few, many = (count_instructions(made, "cortex-m7").total for made in (library, whole))
    assert few < many / 3
