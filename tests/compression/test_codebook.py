"""`Codebook` against k-means by scikit-learn, its gradient, and Huffman's code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from jaxeff.compression import Codebook, LayerQuantization, init
from jaxeff.compression.quantizers._codebook import code_lengths, entropy, mean_length
from jaxeff.nn import small_classifier
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
X = jnp.asarray(W)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "per"), [(3, "tensor"), (2, "channel")])
def test_values_are_those_of_k_means(bits, per):
    # Han et al., section 3.1 and 3.2: from evenly spaced values. None loses all its members here,
    # where scikit-learn would move it elsewhere.
    ours = np.asarray(Codebook(bits, per=per).start(X, WEIGHT).values).reshape(-1, 2**bits)
    for values, x in zip(ours, [W.ravel()] if per == "tensor" else W.T, strict=True):
        first = np.linspace(x.min(), x.max(), 2**bits)[:, None]
        peer = KMeans(2**bits, init=first, n_init=1, tol=0).fit(x[:, None].astype(np.float64))
        np.testing.assert_allclose(values, peer.cluster_centers_[:, 0], rtol=1e-5)


@pytest.mark.slow
def test_values_are_shared_and_stay():
    q = Codebook(3).start(X, WEIGHT)
    y = q.quantize(X, WEIGHT)
    assert len(np.unique(y)) == 8
    np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
    nearest = np.asarray(q.values)[np.abs(W[..., None] - np.asarray(q.values)).argmin(-1)]
    np.testing.assert_array_equal(y, nearest)
    # Values that crossed in training are put in order.
    crossed = Codebook(1, jnp.array([1.0, -1.0])).quantize(X, WEIGHT)
    np.testing.assert_array_equal(crossed, np.where(W > 0, 1, -1))


@pytest.mark.slow
def test_the_gradient_of_a_value_is_the_sum_over_its_members():
    # Han et al., eq. 3.
    q = Codebook(3).start(X, WEIGHT)
    codes = np.abs(W[..., None] - np.asarray(q.values)).argmin(-1)
    expected = [(G * (codes == k)).sum() for k in range(8)]

    def loss(q, x, tensor=WEIGHT):
        return jnp.vdot(G, q.quantize(x, tensor))

    of_q, slope = jax.grad(loss, (0, 1))(q, X)
    np.testing.assert_allclose(of_q.values, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(slope, 0)
    through = Codebook(3, q.values, reassign=True)
    for method, tensor in ((through, WEIGHT), (q, DATA), (Codebook(3), WEIGHT)):
        np.testing.assert_allclose(jax.grad(loss, 1)(method, X, tensor), G, rtol=1e-6)


def test_huffmans_code_by_hand():
    # The classic: 5 symbols with 15, 7, 6, 6 and 5 members have lengths 1, 3, 3, 3, 3.
    counts = [15, 7, 6, 6, 5]
    np.testing.assert_array_equal(code_lengths(counts), [1, 3, 3, 3, 3])
    assert mean_length(counts) == 87 / 39
    np.testing.assert_array_equal(code_lengths([0, 4, 0]), 0)
    np.testing.assert_array_equal(code_lengths([1, 1, 1, 1, 0]), [2, 2, 2, 2, 0])
    assert entropy([1, 1, 1, 1]) == 2
    assert entropy([7]) == mean_length([7]) == 0
    for bad in ([], [0, 0], [-1, 2], [np.nan, 1]):
        with pytest.raises(ValueError, match="counts must be"):
            mean_length(bad)


def test_a_huffman_code_is_a_code_near_the_entropy():
    rng = np.random.default_rng(2)
    for _ in range(20):
        counts = rng.integers(0, 1000, 16) ** 3
        counts[0] += 1
        lengths = code_lengths(counts)
        assert (0.5 ** lengths[lengths > 0]).sum() in (0.0, 1.0)  # Kraft, with equality
        assert entropy(counts) <= mean_length(counts) + 1e-12 < entropy(counts) + 1


def test_bits_of_an_array():
    assert Codebook(3).storage((60, 3), WEIGHT) == 180 * 3 + 8 * 32
    assert Codebook(3, per="channel").storage((60, 3), WEIGHT) == 180 * 3 + 3 * 8 * 32
    coded = Codebook(3, coding="huffman").start(X, WEIGHT)
    counts = np.unique(np.asarray(coded.quantize(X, WEIGHT)), return_counts=True)[1]
    bits = coded.storage((60, 3), WEIGHT)
    np.testing.assert_allclose(bits, 180 * mean_length(counts) + 8 * 40, rtol=1e-6)
    assert 180 * entropy(counts) < bits - 8 * 40 < 180 * 3
    apart = Codebook(3, per="channel", coding="huffman").start(X, WEIGHT)
    assert apart.storage((60, 3), WEIGHT) < 180 * 3 + 24 * 40


@pytest.mark.slow
def test_a_codebook_larger_than_the_weights():
    f, params, (x, _) = small_classifier()
    with pytest.raises(ValueError, match=r"/weights_1 has \d+ value.*fewer bits there.*\(None\)"):
        init(f, params, x, {"*:linear": LayerQuantization(Codebook(8))})
    with pytest.raises(ValueError, match=r'has 60 value.*per="tensor"'):
        Codebook(6, per="channel").quantize(X, WEIGHT)
    same = jnp.full((2, 2), 0.3)
    np.testing.assert_array_equal(Codebook(2).quantize(same, WEIGHT), same)
