"""A front end of sound in C: fixed point has JAX's bits, here and on a microcontroller."""

import jax
import numpy as np
import pytest
from c_programs import require
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram

from jaxeff import data, nn

FRONT = nn.LogMel(window=60, hop=40, bands=8, cepstra=4, low=100.0)


@pytest.mark.slow
def test_fixed_point_features_are_jaxs_bits_on_a_microcontroller(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    (audio,) = data.tones(1, seed=3)[:, :60]
    bundle = deploy(FRONT.fixed, (audio,), target="cortex-m7", parameters=0)
    program = ExampleProgram(bundle.export_c(tmp_path / "net"), "cortex-m7")
    for lift in (1, 7, 200):  # loud and quiet: another shift for each
        quiet = (audio // lift).astype(np.int16)
        np.testing.assert_array_equal(program.run([quiet])[0], jax.jit(FRONT.fixed)(quiet))
