"""`Binary`: signs and their gradients against the papers' equations, draws, scales."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Binary, LayerQuantization, init, quantized
from jaxeff.nn import small_classifier
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def gradient(q, x=W, tensor=WEIGHT):
    return jax.grad(lambda x: jnp.vdot(G, q.quantize(x, tensor)))(jnp.asarray(x))


@pytest.mark.slow
def test_the_sign_and_its_clipped_gradient():
    # Hubara et al., eq. 1 and 4.
    q = Binary(per="none")
    np.testing.assert_array_equal(q.quantize(jnp.asarray(W), WEIGHT), np.where(W >= 0, 1, -1))
    np.testing.assert_allclose(gradient(q), G * (np.abs(W) <= 1), rtol=1e-6)
    assert q.quantize(jnp.zeros(1), DATA) == 1


def test_the_polynomial_gradient():
    # Liu et al.: ApproxSign has the derivative 2 + 2x below zero, 2 - 2x above, 0 outside [-1, 1].
    slope = np.where(W < 0, 2 + 2 * W, 2 - 2 * W) * (np.abs(W) < 1)
    np.testing.assert_allclose(gradient(Binary(per="none", gradient="polynomial")), G * slope, 1e-6)
    inner = gradient(Binary(2.0, gradient="polynomial"))
    np.testing.assert_allclose(inner, 2 * G * slope, rtol=1e-6)


@pytest.mark.parametrize(("per", "axes"), [("channel", 0), ("tensor", None)])
def test_a_scale_that_follows_the_weights(per, axes):
    # Rastegari et al.: eq. 6, and dC/dW = dC/dW~ (1/n + scale dsign/dW) of section 3.1.
    q = Binary(per=per)
    scale = np.abs(W).mean(axes, keepdims=True)
    ours = q.quantize(jnp.asarray(W), WEIGHT)
    np.testing.assert_allclose(ours, np.sign(W) * scale, rtol=1e-6)
    n = 6 if per == "channel" else 24
    np.testing.assert_allclose(gradient(q), G * (1 / n + scale * (np.abs(W) <= 1)), rtol=1e-6)


def test_the_scale_is_nearest_and_learnt_by_its_own_gradient():
    q = Binary().start(jnp.asarray(W), WEIGHT)
    assert q.scale.shape == (1, 4)

    def error(scale):
        return jnp.sum((Binary(scale).quantize(jnp.asarray(W), WEIGHT) - W) ** 2)

    np.testing.assert_allclose(jax.grad(error)(q.scale), 0, atol=1e-5)
    grads = jax.grad(lambda q: jnp.vdot(G, q.quantize(jnp.asarray(W), WEIGHT)))(q)
    np.testing.assert_allclose(grads.scale, (G * np.sign(W)).sum(0, keepdims=True), rtol=1e-5)
    assert Binary(follow=True).start(jnp.asarray(W), WEIGHT).scale is None
    assert Binary(follow=True).start(jnp.asarray(W), DATA).scale.shape == ()


@pytest.mark.slow
def test_drawn_signs_are_unbiased_within_the_scale():
    # Courbariaux et al., eq. 2 and 3: P(+1) = clip((x / scale + 1) / 2, 0, 1).
    x, scale, n = jnp.array([-3.0, -0.5, 0.0, 0.2, 1.0, 4.0]), 2.0, 4000
    q = Binary(scale, per="tensor", stochastic=True)

    def draw(key):
        return q.quantize(x, dataclasses.replace(DATA, rank=1, key=key))

    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), n))
    assert set(np.unique(drawn)) == {-2.0, 2.0}
    expected = np.clip(x, -scale, scale)
    error = np.sqrt((scale**2 - expected**2) / n)
    assert (np.abs(drawn.mean(0) - expected) <= 4 * error).all()
    # The gradient is that of the mean: one inside, zero outside.
    key = jax.random.key(1)
    grads = jax.grad(lambda x: q.quantize(x, dataclasses.replace(DATA, rank=1, key=key)).sum())(x)
    np.testing.assert_array_equal(grads, np.abs(x) <= scale)
    # That of the scale is zero inside on average, and the sign outside.
    by_scale = jax.vmap(jax.grad(
        lambda s, key: dataclasses.replace(q, scale=s).quantize(
            x[1:2], dataclasses.replace(DATA, rank=1, key=key)
        )[0]
    ), (None, 0))(scale, jax.random.split(key, n))  # fmt: skip
    assert abs(by_scale.mean()) < 4 * by_scale.std() / np.sqrt(n)


@pytest.mark.slow
def test_a_draw_needs_a_key():
    f, params, (x, _) = small_classifier()
    spec = {"*:linear": LayerQuantization(Binary(stochastic=True))}
    with pytest.raises(ValueError, match="keyed=True"):
        quantized(f, spec)(params, x)
    g = quantized(f, spec, keyed=True)
    one, other = (g(jax.random.key(i), params, x) for i in (0, 1))
    assert jnp.isfinite(one).all()
    assert (one != other).any()


@pytest.mark.slow
def test_a_model_of_one_bit_is_trained_by_its_gradient():
    f, params, (x, y) = small_classifier()
    spec = init(
        f, params, x, {"*:linear": LayerQuantization(Binary(), Binary(gradient="polynomial"))}
    )

    def loss(params, spec):
        logits = quantized(f, spec)(params, x)
        return -jax.nn.log_softmax(logits)[jnp.arange(len(y)), y].mean()

    grads = jax.grad(loss, (0, 1))(params, spec)
    assert all(jnp.isfinite(g).all() and jnp.any(g != 0) for g in jax.tree.leaves(grads))


def test_bits_of_an_array():
    assert Binary().storage((6, 4), WEIGHT) == 24 + 4 * 32
    assert Binary(per="none").storage((6, 4), WEIGHT) == 24


def test_scales_that_do_not_fit():
    with pytest.raises(ValueError, match=r"Binary.scale at fc/weights_1 has shape \(3,\)"):
        Binary(jnp.ones(3)).quantize(jnp.asarray(W), WEIGHT)
    with pytest.raises(ValueError, match="one of 'clipped', 'polynomial'"):
        Binary(gradient="none")
