"""XLA's own count: transformed LeNet-5 costs what the same net written by hand does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, quantized
from jaxeff.core import functional
from jaxeff.nn import LeNet5
from jaxeff.noise import Additive, noisy

KEY = jax.random.key(1)
X = jax.random.normal(jax.random.key(0), (10, 28, 28, 1))


def lenet(params, x, weight, read, after):
    """LeNet-5 with a function of every kernel, of what a kernel meets and of every layer's result.

    `after` is called at the network's input too, where `noisy` has a site.
    """

    def conv(x, name, padding):
        layer = params[name]
        y = jax.lax.conv_general_dilated(
            read(x), weight(layer["kernel"], (3,)), (1, 1), padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        return after(y + layer["bias"])

    def dense(x, name):
        return after(read(x) @ weight(params[name]["kernel"], (1,)) + params[name]["bias"])

    x = after(x)
    for name, padding in (("conv1", "SAME"), ("conv2", "VALID")):
        x = after(nnx.max_pool(after(jax.nn.relu(conv(x, name, padding))), (2, 2), (2, 2)))
    x = x.reshape(len(x), -1)
    for name in ("fc1", "fc2"):
        x = after(jax.nn.relu(dense(x, name)))
    return dense(x, "fc3")


def noisy_by_hand(key, params, x):
    keys = iter(jax.random.split(key, 12))

    def after(x):
        return x + 0.3 * jax.random.normal(next(keys), x.shape)

    return lenet(params, x, lambda w, _: w, lambda x: x, after)


def quantized_by_hand(params, x):
    def fake(x, keep):
        axes = tuple(i for i in range(x.ndim) if i not in keep)
        low, high = x.min(axes, keepdims=True), x.max(axes, keepdims=True)
        s = 255 / (high - low)
        z = jnp.round(s * low) + 128
        q = (jnp.clip(jnp.round(s * x - z), -128, 127) + z) / s
        return x + jax.lax.stop_gradient(q - x)

    return lenet(params, x, fake, lambda x: fake(x, (0,)), lambda x: x)


@pytest.fixture(scope="module")
def model():
    return functional(LeNet5(rngs=nnx.Rngs(0)))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["noisy", "quantized"])
@pytest.mark.promotes("rank")
def test_cost_is_that_of_the_hand_written_net(model, which):
    f, params = model
    if which == "noisy":
        ours, by_hand, args = noisy(f, {"*": Additive(0.3)}), noisy_by_hand, (KEY, params, X)
    else:
        ours, by_hand, args = (
            quantized(f, {"*": Int(8, symmetric=False)}),
            quantized_by_hand,
            (params, X),
        )
    compiled, expected = (jax.jit(g).lower(*args).compile() for g in (ours, by_hand))
    if which == "quantized":
        # Rounding noise may move an activation across a tie: one of 255 steps in some layer.
        np.testing.assert_allclose(compiled(*args), expected(*args), atol=0.02)
    for quantity in ("flops", "bytes accessed"):
        counts = [c.cost_analysis()[quantity] for c in (compiled, expected)]
        assert counts[0] <= 1.02 * counts[1], (quantity, counts)
