"""`BinaryBases` against ABC-Net's formulas, by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.contrib import BinaryBases
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(0.2, 1.0, (9, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)


def bases_of(w, m):
    """Section 3.1: sign(w - mean + u_i std), u_i = -1 + (i - 1) 2 / (m - 1)."""
    shifts = np.linspace(-1, 1, m) if m > 1 else np.zeros(1)
    return np.stack([np.where(w - w.mean() + u * w.std() >= 0, 1.0, -1.0) for u in shifts], -1)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_weights_are_the_nearest_sum_of_bases(m, per):
    ours = BinaryBases(m, per=per).quantize(jnp.asarray(W), WEIGHT)
    columns = [W] if per == "tensor" else list(W.T)
    expected = []
    for w in columns:
        b = bases_of(w, m).reshape(-1, m)
        expected.append((b @ np.linalg.lstsq(b, w.ravel(), rcond=None)[0]).reshape(w.shape))
    by_hand = expected[0] if per == "tensor" else np.stack(expected, 1)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-6)
    for column in [np.asarray(ours)] if per == "tensor" else np.asarray(ours).T:
        assert len(np.unique(column.round(5))) <= m + 1


@pytest.mark.slow
def test_more_bases_are_nearer():
    def error(m):
        q = BinaryBases(m, per="channel")
        return float(jnp.mean((q.quantize(jnp.asarray(W), WEIGHT) - W) ** 2))

    one, two, three = (error(m) for m in (1, 3, 5))
    assert one > two > three


def test_the_gradient_of_weights_is_the_sum_of_the_scales():
    # Section 3.1, backward: dC/dW = sum_i scale_i dC/dB_i, with dB_i/dW = 1.
    q = BinaryBases(3)
    b = bases_of(W, 3)
    scales = np.linalg.lstsq(b.reshape(-1, 3), W.ravel(), rcond=None)[0]

    def loss(q, x):
        return jnp.vdot(G, q.quantize(x, WEIGHT))

    open_slope = jax.grad(loss, 1)(q, jnp.asarray(W))
    np.testing.assert_allclose(open_slope, G * scales.sum(), rtol=1e-5)
    of_q, slope = jax.grad(loss, (0, 1))(q.start(jnp.asarray(W), WEIGHT), jnp.asarray(W))
    np.testing.assert_allclose(slope, G * scales.sum(), rtol=1e-5)
    np.testing.assert_allclose(of_q.scales, np.einsum("ij,ijk->k", G, b), rtol=1e-5)
    np.testing.assert_allclose(of_q.shifts, scales * W.std() * G.sum(), rtol=1e-4)


def test_activations_and_their_gradients():
    # Section 3.2: A = 2 [clip(R + v, 0, 1) >= 1/2] - 1, with the derivative [0 <= R + v <= 1].
    shifts, scales = np.array([-0.6, 0.1], np.float32), np.array([0.7, 1.3], np.float32)
    q = BinaryBases(2, jnp.asarray(shifts), jnp.asarray(scales))
    moved = W[..., None] + shifts
    a = np.where(np.clip(moved, 0, 1) >= 0.5, 1.0, -1.0)
    inside = (moved >= 0) & (moved <= 1)
    np.testing.assert_allclose(q.quantize(jnp.asarray(W), DATA), a @ scales, rtol=1e-6)
    of_q, slope = jax.grad(lambda q, x: jnp.vdot(G, q.quantize(x, DATA)), (0, 1))(q, jnp.asarray(W))
    np.testing.assert_allclose(slope, G * (inside @ scales), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_q.scales, np.einsum("ij,ijk->k", G, a), rtol=1e-5)
    expected = np.einsum("ij,ijk->k", G, inside) * scales
    np.testing.assert_allclose(of_q.shifts, expected, rtol=1e-5, atol=1e-6)


def test_activations_start_from_least_squares():
    x = jnp.maximum(jnp.asarray(W), 0)
    q = BinaryBases(3).start(x, DATA)
    error = jax.grad(lambda s: jnp.sum((BinaryBases(3, q.shifts, s).quantize(x, DATA) - x) ** 2))
    np.testing.assert_allclose(error(q.scales), 0, atol=1e-4)
    assert BinaryBases(3, follow=True).start(jnp.asarray(W), WEIGHT).scales is None


def test_bits_of_an_array():
    assert BinaryBases(3, per="channel").storage((9, 4), WEIGHT) == 36 * 3 + 4 * 3 * 32
