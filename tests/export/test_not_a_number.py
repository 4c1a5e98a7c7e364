"""Arguments that hold NaN, of integer networks: refused wherever they are deployed."""

import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import SignatureError, deploy

import jaxeff
from jaxeff.compression import Int, calibrate

PROGRAM = """
#include "wave.h"
#include <math.h>
#include <stdio.h>
static _Alignas(64) unsigned char workspace[WAVE_WORKSPACE_BYTES + 64];
int main(void) {
    float x[4] = {1, 2, 3, 4}, y[3] = {7, 7, 7};
    wave_inputs inputs = {x};
    wave_outputs outputs = {y};
    int good = wave_run(&inputs, &outputs, workspace, sizeof workspace);
    y[0] = y[1] = y[2] = 7;
    x[2] = NAN;
    int bad = wave_run(&inputs, &outputs, workspace, sizeof workspace);
    printf("%d %d %d %g", good, bad, WAVE_NOT_A_NUMBER, y[0]);
    return 0;
}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A layer of int8 and the same in float32, deployed for this machine."""
    f, params = jaxeff.functional(nnx.Linear(4, 3, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (1, 4))
    spec = calibrate(f, params, [x], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec)
    folder = tmp_path_factory.mktemp("bundles")
    integer = deploy(g, (g.convert(params, x), x), path=folder / "integer")
    return integer, deploy(f, (params, x), path=folder / "float")


BAD = np.array([[1, 2, np.nan, 4]], np.float32)


@pytest.mark.slow
def test_bundles_refuse_it_and_those_of_floats_hand_it_on(bundles):
    integer, plain = bundles
    with pytest.raises(SignatureError, match="holds NaN"):
        integer.run(BAD)
    assert jnp.isfinite(integer.run(np.nan_to_num(BAD))).all()
    assert np.isnan(plain.run(BAD)).all()


def test_the_program_on_a_device_refuses_it(bundles):
    integer, _ = bundles
    place = importlib.util.spec_from_file_location("program", integer.folder / "run.py")
    program = importlib.util.module_from_spec(place)
    sys.modules["program"] = program
    try:
        place.loader.exec_module(program)
        model = program.Model(integer.folder)
        model.run([np.nan_to_num(BAD)])
        with pytest.raises(program.Refused, match="holds NaN"):
            model.run([BAD])
    finally:
        del sys.modules["program"]


@pytest.mark.process
def test_a_c_library_returns_a_code_and_writes_nothing(bundles, tmp_path):
    integer, _ = bundles
    integer.export_c(tmp_path / "library", name="wave")
    (tmp_path / "main.c").write_text(PROGRAM)
    archive = tmp_path / "library" / "libwave.a"
    command = ["cc", "-I", tmp_path / "library", tmp_path / "main.c", archive, "-lm", "-o"]
    subprocess.run([*command, tmp_path / "main"], check=True)
    shown = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    good, bad, code, first = shown.split()
    assert (good, bad, first) == ("0", code, "7")
