"""Wanda: the score by hand, per output and in blocks, on what pruned layers give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import Uniform, quantized
from jaxeff.pruning.sparsity import Magnitude, NofM, Surgery, wanda

RNG = np.random.default_rng(0)
SIZE = np.where(np.arange(8) % 3 == 0, 8.0, 1.0)
X = jnp.asarray(RNG.normal(size=(100, 8)) * SIZE, jnp.float32)
PARAMS = {
    "a": {"w": jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)},
    "b": {"w": jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)},
}


def net(params, x):
    return jnp.tanh(x @ params["a"]["w"]) @ params["b"]["w"]


def by_hand(w, x, kept):
    scores = np.abs(w) * np.linalg.norm(x, axis=0)[:, None]
    new = np.zeros_like(w)
    for o in range(w.shape[1]):
        stay = np.argsort(-scores[:, o], kind="stable")[:kept]
        new[stay, o] = w[stay, o]
    return new


@pytest.mark.parametrize(("fraction", "kept"), [(0.5, 4), (0.75, 2), (0.6, 3), (0.9, 0)])
def test_every_output_keeps_its_largest_scores(fraction, kept):
    _, new, spec = wanda(net, PARAMS, X, {"a": Magnitude(fraction)})
    expected = by_hand(np.asarray(PARAMS["a"]["w"]), np.asarray(X), kept)
    np.testing.assert_array_equal(new["a"]["w"], expected)
    np.testing.assert_array_equal(new["b"]["w"], PARAMS["b"]["w"])
    np.testing.assert_array_equal(quantized(net, spec)(new, X), net(new, X))


def test_two_of_four_in_blocks_and_quantized():
    _, new, spec = wanda(net, PARAMS, X, {"a": NofM(2, 4)})
    w, x = np.asarray(PARAMS["a"]["w"]), np.asarray(X)
    expected = np.concatenate([by_hand(w[i : i + 4], x[:, i : i + 4], 2) for i in (0, 4)])
    np.testing.assert_array_equal(new["a"]["w"], expected)
    np.testing.assert_array_equal(quantized(net, spec)(new, X), net(new, X))
    eight = quantized(net, {"a": NofM(2, 4, values=Uniform(8, symmetric=True))})(new, X)
    np.testing.assert_allclose(eight, net(new, X), atol=0.3)


def test_norms_are_those_after_pruned_layers():
    _, new, _ = wanda(net, PARAMS, X, {"a": Magnitude(0.9), "b": Magnitude(0.5)})
    hidden = np.asarray(jnp.tanh(X @ new["a"]["w"]))
    np.testing.assert_array_equal(new["b"]["w"], by_hand(np.asarray(PARAMS["b"]["w"]), hidden, 2))


def test_errors_are_below_those_of_magnitudes():
    exact = X @ PARAMS["a"]["w"]
    _, new, _ = wanda(net, PARAMS, X, {"a": NofM(2, 4)})
    ours = jnp.square(X @ new["a"]["w"] - exact).mean()

    def only(params, x):
        return x @ params["a"]["w"]

    plain = jnp.square(quantized(only, {"a": NofM(2, 4)})(PARAMS, X) - exact).mean()
    assert ours < 0.6 * plain


@pytest.mark.slow
def test_a_convolution_and_a_batch_of_one_example():
    f, params = jaxeff.functional(nnx.Conv(4, 6, (3, 3), rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (1, 5, 5, 4))
    _, new, spec = wanda(f, params, x, {"*:linear": NofM(2, 4)})
    kept = (new["kernel"] != 0).reshape(9, 4, 6).sum(1)
    assert (kept == 2).all()
    np.testing.assert_array_equal(quantized(f, spec)(new, x), f(new, x))


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"wanda at 'a' takes Magnitude\(fraction\) or NofM"):
        wanda(net, PARAMS, X, {"a": Surgery()})
    with pytest.raises(TypeError, match="without values"):
        wanda(net, PARAMS, X, {"a": NofM(2, 4, values=Uniform(8))})
    with pytest.raises(ValueError, match="no weights"):
        wanda(net, PARAMS, X, {})
