"""`Ternary` and `TrainedTernary` against the equations of TWN and TTQ, by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Ternary, TrainedTernary
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
X = jnp.asarray(W)


@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_threshold_and_scale_of_ternary_weight_networks(per):
    # Li et al., eq. 3, 5 and 6.
    axis = None if per == "tensor" else 0
    threshold = 0.7 * np.abs(W).mean(axis, keepdims=True)
    beyond = np.abs(W) > threshold
    scale = (np.abs(W) * beyond).sum(axis, keepdims=True) / beyond.sum(axis, keepdims=True)
    q = Ternary(per=per)
    np.testing.assert_allclose(q.quantize(X, WEIGHT), scale * np.sign(W) * beyond, rtol=1e-6)
    slope = jax.grad(lambda x: jnp.vdot(G, q.quantize(x, WEIGHT)))(X)
    np.testing.assert_allclose(slope, G, rtol=1e-6)


def test_the_error_on_a_gaussian_is_near_the_least_of_all_thresholds():
    # Li et al., section 2.2: the best threshold of a Gaussian is about .75 mean |w|; its error is
    # that of the three-level quantizer of Max (1960): .1902 of the variance.
    w = jax.random.normal(jax.random.key(0), (200_000, 1))
    error = float(jnp.mean((jax.jit(lambda w: Ternary().quantize(w, DATA))(w) - w) ** 2))
    assert 0.1902 - 0.002 < error < 0.1902 + 0.005


def test_quantizing_twice_changes_nothing():
    fixed = Ternary(threshold=0.5, scale=1.25)
    once = fixed.quantize(X, WEIGHT)
    np.testing.assert_array_equal(fixed.quantize(once, WEIGHT), once)
    assert set(np.unique(once)) == {-1.25, 0.0, 1.25}
    again = Ternary().quantize(Ternary().quantize(X, WEIGHT), WEIGHT)
    np.testing.assert_allclose(again, Ternary().quantize(X, WEIGHT), rtol=1e-6)


@pytest.mark.slow
def test_values_are_learnt_as_by_trained_ternary_quantization():
    # Zhu et al., eq. 6 to 9; the sign of the negative value's gradient is that of eq. 6.
    p, n, threshold = 1.5, 0.4, 0.05 * np.abs(W).max()
    q = TrainedTernary(positive=p, negative=n)
    high, low = threshold < W, -threshold > W
    np.testing.assert_allclose(q.quantize(X, WEIGHT), p * high - n * low, rtol=1e-6)
    of_q, slope = jax.grad(lambda q, x: jnp.vdot(G, q.quantize(x, WEIGHT)), (0, 1))(q, X)
    np.testing.assert_allclose(of_q.positive, (G * high).sum(), rtol=1e-5)
    np.testing.assert_allclose(of_q.negative, -(G * low).sum(), rtol=1e-5)
    np.testing.assert_allclose(slope, G * np.where(high, p, np.where(low, n, 1)), rtol=1e-6)
    assert of_q.fraction == 0


@pytest.mark.slow
def test_trained_values_start_from_the_means_of_their_sides():
    q = TrainedTernary().start(X, WEIGHT)
    threshold = 0.05 * np.abs(W).max()
    np.testing.assert_allclose(q.positive, W[threshold < W].mean(), rtol=1e-6)
    np.testing.assert_allclose(q.negative, -W[-threshold > W].mean(), rtol=1e-6)
    one_side = TrainedTernary().start(jnp.abs(X), WEIGHT)
    assert one_side.negative == one_side.positive > 0
    nothing = TrainedTernary().start(jnp.zeros((2, 2)), WEIGHT)
    assert nothing.negative == nothing.positive == 1
    # The threshold follows weights, but not activations.
    assert q.threshold is None
    np.testing.assert_allclose(TrainedTernary().start(X, DATA).threshold, threshold, rtol=1e-6)


def test_bits_of_an_array():
    assert Ternary(per="channel").storage((9, 4), WEIGHT) == 36 * 2 + 4 * 32
    assert TrainedTernary().storage((9, 4), WEIGHT) == 36 * 2 + 2 * 32
