"""Sound in C: a front end in fixed point, and a network that computes what is new alone."""

import jax
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
