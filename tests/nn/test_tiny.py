"""MLPerf Tiny's reference networks have the published sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import DSCNN, DenseAutoencoder, MobileNetV1

# Keras' summaries of the reference models count running statistics; multiply-adds by hand.
SIZES = {
    "kws": (DSCNN, (49, 10, 1), 24_908, 125 * 64 * (40 + 4 * (9 + 64)) + 64 * 12),
    "vww": (MobileNetV1, (96, 96, 3), 221_794, 7_489_664),
    "ad": (DenseAutoencoder, (640,), 269_992, 2 * (640 * 128 + 3 * 128 * 128 + 128 * 8)),
}


@pytest.mark.parametrize("name", ["kws", "ad", pytest.param("vww", marks=pytest.mark.slow)])
def test_sizes_are_the_published_ones(name):
    make, shape, parameters, macs = SIZES[name]
    module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    leaves = jax.tree.leaves(nnx.state(module, (nnx.Param, nnx.BatchStat)))
    assert sum(leaf.size for leaf in leaves) == parameters
    module = make(rngs=nnx.Rngs(0))
    module.eval()
    f, params = jaxeff.functional(module)
    assert jaxeff.cost(f, params, jnp.zeros((1, *shape))).macs == macs


def test_separable_layers_see_one_channel_each():
    module = DSCNN(3, width=4, blocks=1, rngs=nnx.Rngs(0))
    module.eval()
    f, params = jaxeff.functional(module)
    x = jax.random.normal(jax.random.key(0), (2, 12, 6, 1))
    outputs = f(params, x)
    assert outputs.shape == (2, 3)
    # With a channel of the first layer cut off, its depthwise kernel has no effect.
    params["conv1"]["kernel"] = params["conv1"]["kernel"].at[..., 1].set(0)
    params["conv1"]["bias"] = params["conv1"]["bias"].at[1].set(0)
    before = f(params, x)
    kernel = params["blocks"]["0"]["depthwise"]["kernel"]
    params["blocks"]["0"]["depthwise"]["kernel"] = kernel.at[..., 1].add(5.0)
    np.testing.assert_array_equal(f(params, x), before)
    params["blocks"]["0"]["depthwise"]["kernel"] = kernel.at[..., 2].add(5.0)
    assert np.abs(f(params, x) - before).max() > 1e-3


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="width must be"):
        DSCNN(12, width=0, rngs=nnx.Rngs(0))
