"""`Relaxed`: probabilities, draws and gradients against the paper's formulas in NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Tensor, deterministic, quantized
from jaxeff.contrib import Relaxed
from jaxeff.nn import small_classifier

KEY = jax.random.key(2)
WEIGHT = Tensor("fc", "weights_1", "weight", 2, KEY, lambda: (1,))
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def by_hand(x, step, sigma, temperature, bits=3, reach=2):
    """Grid values, probabilities, weights of the draw and derivatives, values last."""
    x = x[..., None].astype(np.float64)
    nearest = np.clip(np.round(x / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    codes = nearest + np.arange(-reach, reach + 1)
    inside = (codes >= -(2 ** (bits - 1))) & (codes < 2 ** (bits - 1))
    a, b = (codes - 0.5) * step - x, (codes + 0.5) * step - x
    mass = sigmoid(b / sigma) - sigmoid(a / sigma)  # section 2.1
    pi = np.where(inside, mass, 0) / np.where(inside, mass, 0).sum(-1, keepdims=True)
    gumbel = np.asarray(jax.random.gumbel(KEY, (2 * reach + 1, *x.shape[:-1]))).transpose(1, 2, 0)
    z = np.where(inside, np.exp((np.log(np.where(inside, mass, 1)) + gumbel) / temperature), 0)
    z /= z.sum(-1, keepdims=True)
    # d log mass: the density of the logistic distribution at both ends.
    da, db = (sigmoid(v / sigma) * (1 - sigmoid(v / sigma)) / sigma for v in (a, b))
    scores = {
        "x": (da - db) / mass,
        "step": (db * (codes + 0.5) - da * (codes - 0.5)) / mass,
        "sigma": (da * a - db * b) / sigma / mass,
    }

    def derivative(score, direct=0.0):
        score = np.where(inside, score, 0)
        centred = score - (z * score).sum(-1, keepdims=True)
        return (z * (centred / temperature * codes * step + direct)).sum(-1)

    slopes = {
        "x": derivative(scores["x"]),
        "step": derivative(scores["step"], codes),
        "sigma": derivative(scores["sigma"]),
    }
    return codes * step, pi, z, slopes


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(Relaxed(3), exact=False)
    check_method(Relaxed(4, draw="hard", per="channel"), exact=False)
    check_method(Relaxed(3, draw="deterministic"))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "sigma", "temperature"), [(0.4, 0.15, 1.0), (0.3, 0.3, 0.5)])
def test_the_soft_draw_and_its_gradients(step, sigma, temperature):
    grid, _, z, slopes = by_hand(X, step, sigma, temperature)
    q = Relaxed(3, jnp.array(step), jnp.array(sigma), True, temperature)
    y = q.quantize(jnp.asarray(X), WEIGHT)
    np.testing.assert_allclose(y, (z * grid).sum(-1), atol=2e-6)

    def product(q, x):
        return jnp.vdot(G, q.quantize(x, WEIGHT))

    by_q, by_x = jax.grad(product, (0, 1))(q, jnp.asarray(X))
    np.testing.assert_allclose(by_x, G * slopes["x"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_q.step, (G * slopes["step"]).sum(), rtol=1e-4)
    np.testing.assert_allclose(by_q.sigma, (G * slopes["sigma"]).sum(), rtol=1e-4)
    # The hard draw takes the largest weight, and the same gradients.
    hard = dataclasses.replace(q, draw="hard")
    best = np.take_along_axis(grid, z.argmax(-1)[..., None], -1)[..., 0]
    np.testing.assert_allclose(hard.quantize(jnp.asarray(X), WEIGHT), best, atol=1e-6)
    again = jax.grad(product, 1)(hard, jnp.asarray(X))
    np.testing.assert_allclose(again, by_x, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_hard_draws_have_the_probabilities_of_the_noise():
    n, x = 4000, jnp.asarray(X[:2])
    q = Relaxed(3, 0.4, 0.15, True, draw="hard")
    grid, pi, _, _ = by_hand(X[:2], 0.4, 0.15, 1.0)

    def draw(key):
        return q.quantize(x, dataclasses.replace(WEIGHT, key=key))

    drawn = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), n)))
    share = np.isclose(drawn[..., None], grid, atol=1e-5).mean(0)
    assert (np.abs(share - pi) <= 4 * np.sqrt(pi * (1 - pi) / n) + 4 / n).all()


def test_the_deterministic_value_is_the_nearest():
    x = jnp.linspace(-1, 1, 20001)[:, None]
    for bits in (3, 6):
        q = Relaxed(bits, draw="deterministic").start(x, WEIGHT)
        np.testing.assert_allclose(q.sigma, q.step / 3, rtol=1e-6)
        y = q.quantize(x, dataclasses.replace(WEIGHT, key=None))
        assert len(np.unique(y)) == 2**bits - 1  # the range reaches the largest code both ways
        np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
        np.testing.assert_allclose(jnp.mean((y - x) ** 2), q.step**2 / 12, rtol=0.02)


@pytest.mark.slow
def test_soft_values_sharpen_with_the_temperature():
    x = jnp.asarray(X)
    q = Relaxed(3, 0.4, 0.15, True)
    hard = dataclasses.replace(q, draw="hard").quantize(x, WEIGHT)
    gaps = [
        float(jnp.abs(dataclasses.replace(q, temperature=t).quantize(x, WEIGHT) - hard).mean())
        for t in (1.0, 0.1, 0.01)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.01


@pytest.mark.slow
def test_in_a_model():
    f, params, (x, _) = small_classifier()
    with pytest.raises(ValueError, match="Relaxed at 'conv1' draws random numbers"):
        quantized(f, {"*:linear": Relaxed(3)})(params, x)
    keyed = quantized(f, {"*:linear": Relaxed(3)}, keyed=True)
    assert np.isfinite(jax.jit(keyed)(jax.random.key(0), params, x)).all()
    plain = quantized(f, deterministic({"*:linear": Relaxed(3)}))
    assert np.isfinite(jax.jit(plain)(params, x)).all()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"Relaxed.temperature must be positive"):
        Relaxed(4, temperature=0.0)
    with pytest.raises(ValueError, match=r"Relaxed.draw must be one of 'soft', 'hard'"):
        Relaxed(4, draw="loud")
    assert Relaxed(4, per="channel").storage((6, 4), WEIGHT) == 24 * 4 + 4 * 32
