"""C libraries compute images channels-last, in whatever order of axes a function has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from jaxeff_export import deploy
from jaxeff_export.clib import count_instructions

from jaxeff.compression import ptq
from tests.images import FIRST, LAST, WIDTH, convolution_parameters, convolutions, places_of


def network(numbers):
    """Convolutions, a pooling, dense layers."""
    images, places = convolutions(numbers), places_of(numbers)

    def f(params, x):
        x = images(params, x)
        window = [2 if axis in places else 1 for axis in range(4)]
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        return jax.nn.relu(x.reshape(len(x), -1) @ params["flat"]) @ params["head"]

    return f


@pytest.fixture
def params():
    rng = np.random.default_rng(0)
    layers = convolution_parameters(rng)
    flat = rng.normal(size=(WIDTH * 6, WIDTH)).astype("float32")
    return {**layers, "flat": flat, "head": rng.normal(size=(WIDTH, 3)).astype("float32")}


@pytest.fixture
def x():
    return np.random.default_rng(1).normal(size=(1, 2, 12, 10)).astype("float32")


@pytest.fixture
def turned(params):
    """The parameters of the same network with its channels last."""
    kernels = jax.tree.map(lambda w: w.transpose(2, 3, 1, 0) if w.ndim == 4 else w, params)
    rows = params["flat"].reshape(WIDTH, 3, 2, WIDTH).transpose(1, 2, 0, 3)
    return {**kernels, "flat": rows.reshape(-1, WIDTH)}


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["float32", "int8"])
def test_it_takes_what_the_same_network_takes(params, turned, x, bits, tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    pairs = ((FIRST, params, x), (LAST, turned, x.transpose(0, 2, 3, 1)))
    counts, workspaces, results = [], [], []
    for numbers, weights, data in pairs:
        f = network(numbers)
        if bits == "int8":
            f, weights, _ = ptq(f, weights, data)
        bundle = deploy(f, (weights, data), target="cortex-m7")
        library = bundle.export_c(tmp_path / numbers[0])
        counts.append(count_instructions(library, "cortex-m7").total)
        workspaces.append(library.sizes.workspace)
        results.append(bundle.run(data, board="emulated"))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5 if bits == "float32" else 0)
    assert counts[0] <= 1.02 * counts[1]
    assert workspaces[0] <= 1.05 * workspaces[1]


@pytest.mark.slow
def test_bundles_for_processors_have_their_kernels_too(params, turned, x):
    kernels = [
        sorted(
            operator.name for operator in deploy(network(n), (w, data)).profile(number=1, repeat=1)
        )
        for n, w, data in ((FIRST, params, x), (LAST, turned, x.transpose(0, 2, 3, 1)))
    ]
    # But for the one that turns the image; numbers at the end tell kernels of one name apart.
    first, last = ([name.rstrip("0123456789") for name in names] for names in kernels)
    assert sorted(first) == sorted([*last, "transpose"])
