"""Libraries with TVM's runtime multiply all inputs of a recurrent cell before its loop."""

import contextlib
import re

import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy, export, import_stablehlo
from jaxeff_export.compiler import compilation_target

from jaxeff import functional


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.GRUCell])
def test_inputs_of_all_steps_are_one_product(cell):
    f, params = functional(nnx.RNN(cell(8, 16, rngs=nnx.Rngs(0))))
    x = np.random.default_rng(0).normal(size=(3, 40, 8)).astype("float32")
    bundle = deploy(f, (params, x))
    assert bundle.check()
    np.testing.assert_allclose(bundle.run(x), f(params, x), rtol=1e-5, atol=1e-6)
    kernels = list(bundle.manifest.kernels)
    assert "loop" in kernels
    assert len([name for name in kernels if "matmul" in name]) == 1  # the state's is in the loop


def test_products_of_a_loop_fill_the_vectors_of_the_processor():
    f, params = functional(nnx.RNN(nnx.LSTMCell(8, 16, rngs=nnx.Rngs(0))))
    program = export(f, (params, np.zeros((3, 40, 8), "float32"))).stablehlo
    wide = compilation_target({"kind": "llvm", "mcpu": "skylake-avx512"})
    for target, width in ((contextlib.nullcontext(), 8), (wide, 16)):
        with target:
            loop = import_stablehlo(program)["loop"].script()
        widths = set(re.findall(r"T.vectorized\((?:T.int64\()?(\d+)", loop))
        assert widths == {str(width)}
