"""Bundles and C libraries of functions from codes to codes."""

import re

import jax
import jaxeff_export
import numpy as np
import pytest
from c_programs import require
from jaxeff_export.artifact import TensorSpec, specs_from_json

from jaxeff.compression import Int, Uniform, calibrate, integer
from jaxeff.nn import small_classifier


@pytest.fixture(scope="module")
def bundle():
    f, params, (x, _) = small_classifier()
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    h = g.coded(params, x)
    (q,) = h.encode(x[:2])
    codes = h.convert(params, q)
    return h, codes, h.encode(x[2:4])[0], jaxeff_export.deploy(h, (codes, q))


def test_codes_are_those_of_jax(bundle):
    h, codes, q, deployed = bundle
    assert np.array_equal(deployed.run(np.asarray(q)), jax.jit(h)(codes, q))


def test_a_bundle_says_what_its_codes_stand_for(bundle, tmp_path):
    h, _, _, deployed = bundle
    loaded = deployed.save(tmp_path / "bundle")
    for manifest in (deployed.manifest, loaded.manifest):
        assert manifest.inputs[0].grid == (h.arguments[0].step, h.arguments[0].zero)
        assert manifest.outputs[0].grid == (h.results[0].step, h.results[0].zero)
        assert not manifest.rounds_inputs


@pytest.mark.process
def test_a_header_has_the_numbers(bundle, tmp_path):
    h, _, _, deployed = bundle
    deployed.export_c(tmp_path / "c", name="net")
    header = (tmp_path / "c" / "net.h").read_text()
    steps = dict(re.findall(r"#define NET_(\w+)_STEP (\S+)f\n", header))
    zeros = dict(re.findall(r"#define NET_(\w+)_ZERO (\d+)\n", header))
    assert steps.keys() == zeros.keys() == {"ARGS_0", "RESULT"}
    grids = {"ARGS_0": h.arguments[0], "RESULT": h.results[0]}
    for name, grid in grids.items():
        assert np.float32(steps[name]) == np.float32(grid.step)
        assert int(zeros[name]) == grid.zero


@pytest.mark.slow
def test_codes_of_sixteen_bits_are_those_of_jax_and_have_their_numbers(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    f, params, (x, _) = small_classifier()
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    h = g.coded(params, x, arguments=Uniform(16, range=(-3, 3)), results=Uniform(16, range=(-9, 9)))
    (q,) = h.encode(x[:1])
    codes = h.convert(params, q)
    bundle = jaxeff_export.deploy(h, (codes, q), target="cortex-m7")
    deployed = bundle.run(np.asarray(q), board="emulated")
    assert np.array_equal(deployed, jax.jit(h)(codes, q))
    bundle.export_c(tmp_path / "c", name="net")
    header = (tmp_path / "c" / "net.h").read_text()
    assert "const int16_t *" in header
    assert "NOT_A_NUMBER" not in header  # which whole numbers never are
    for name, grid in (("ARGS_0", h.arguments[0]), ("RESULT", h.results[0])):
        (step,) = re.findall(rf"#define NET_{name}_STEP (\S+)f\n", header)
        (zero,) = re.findall(rf"#define NET_{name}_ZERO (\S+)\n", header)
        assert (np.float32(step), int(zero)) == (np.float32(grid.step), grid.zero)


@pytest.mark.parametrize("grid", [[0.0, 1], [1.0], [1.0, 0.5], [float("inf"), 0], "a", [1.0, True]])
def test_grids_of_any_origin_are_checked(grid):
    item = TensorSpec("x", (2,), "uint8", (0.5, 3)).to_json()
    assert specs_from_json([item], "inputs")[0].grid == (0.5, 3)
    with pytest.raises(ValueError, match=r"inputs\[0\]\.grid is no step"):
        specs_from_json([{**item, "grid": grid}], "inputs")
