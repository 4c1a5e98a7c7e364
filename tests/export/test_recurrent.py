"""Libraries with TVM's runtime multiply all inputs of a recurrent cell before its loop."""

import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

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
