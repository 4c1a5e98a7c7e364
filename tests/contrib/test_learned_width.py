"""`LearnedWidth`: gradients against eq. 3 of the paper, widths from step and maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.contrib import LearnedWidth
from tests.compression.tensors import DATA, WEIGHT

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(LearnedWidth(3, price=jnp.array(1.0)))
    check_method(LearnedWidth(5, per="channel"))


@pytest.mark.parametrize(("d", "q_max"), [(0.25, 0.75), (0.3, 1.0), (0.1, 4.0)])
def test_values_and_gradients_of_the_paper(d, q_max):
    inside = np.abs(X) <= q_max
    top = np.round(q_max / d) * d
    expected = np.where(inside, np.sign(X) * d * np.floor(np.abs(X) / d + 0.5), np.sign(X) * top)

    def product(q, x):
        return jnp.vdot(G, q.quantize(x, WEIGHT))

    q = LearnedWidth(step=jnp.array(d), maximum=jnp.array(q_max), signed=True)
    np.testing.assert_allclose(q.quantize(jnp.asarray(X), WEIGHT), expected, atol=1e-6)
    by_q, by_x = jax.grad(product, (0, 1))(q, jnp.asarray(X))
    by_d = (G * np.where(inside, (expected - X) / d, 0)).sum()  # eq. 3c
    np.testing.assert_allclose(by_q.step, by_d, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_q.maximum, (G * np.sign(X))[~inside].sum(), atol=1e-6)
    np.testing.assert_allclose(by_x, G * inside, atol=1e-6)


@pytest.mark.parametrize("bits", range(2, 17))
def test_the_width_is_that_of_its_codes(bits):
    # Whole numbers where the maximum is a whole number of steps, traced or not, for any step.
    for d in (0.1, 0.7, 1 / 3):
        for count, width in ((2 ** (bits - 1) - 1, bits), (2 ** (bits - 1), bits + 1)):
            q = LearnedWidth(step=jnp.array(d), maximum=jnp.array(d) * count)
            assert q.width == width
    assert jax.jit(lambda q: q.width)(q) == bits + 1
    started = LearnedWidth(bits).start(jnp.asarray(X), WEIGHT)
    assert started.width == bits
    assert LearnedWidth(bits).start(jnp.abs(jnp.asarray(X)), DATA).width == bits


def test_the_gradient_of_the_width():
    # b = log2(q_max / d + 1) + 1: db/dq_max = 1 / (ln 2 (q_max + d)), db/dd = -q_max / d times it.
    d, q_max = 0.3, 1.7
    q = LearnedWidth(step=jnp.array(d), maximum=jnp.array(q_max), signed=True)
    grads = jax.grad(lambda q: q.width)(q)
    np.testing.assert_allclose(grads.maximum, 1 / (np.log(2) * (q_max + d)), rtol=1e-6)
    np.testing.assert_allclose(grads.step, -q_max / d / (np.log(2) * (q_max + d)), rtol=1e-6)
    priced = LearnedWidth(step=jnp.array(d), maximum=jnp.array(q_max), signed=True, price=0.01)
    by_penalty = jax.grad(lambda q: q.penalty(jnp.asarray(X), WEIGHT))(priced)
    np.testing.assert_allclose(by_penalty.maximum, 0.24 * grads.maximum, rtol=1e-6)


def test_levels_and_error():
    x = jnp.linspace(-1, 1, 20001)[:, None]
    for bits in (3, 6):
        q = LearnedWidth(bits).start(x, WEIGHT)
        y = q.quantize(x, WEIGHT)
        assert len(np.unique(y)) == 2**bits - 1
        np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
        np.testing.assert_allclose(jnp.mean((y - x) ** 2), q.step**2 / 12, rtol=0.02)
    assert (LearnedWidth(3).quantize(jnp.abs(x), DATA) >= 0).all()


def test_channels_have_widths_of_their_own():
    step, top = jnp.array([[0.1, 0.1, 0.5, 1.0]]), jnp.array([[0.7, 1.5, 0.5, 3.0]])
    q = LearnedWidth(step=step, maximum=top, signed=True, per="channel")
    np.testing.assert_array_equal(q.width, [[4, 5, 2, 3]])
    assert q.storage((6, 4), WEIGHT) == 6 * (4 + 5 + 2 + 3) + 64 * 4
    traced = jax.jit(lambda q: q.storage((6, 4), WEIGHT))(q)
    assert traced == q.storage((6, 4), WEIGHT)


@pytest.mark.slow
def test_numbers_that_training_left_nowhere_still_quantize():
    x = jnp.asarray(X)
    structure = jax.tree.structure(LearnedWidth(step=1.0, maximum=1.0, signed=True))
    for numbers in ((-1.0, 1.0), (1.0, -1.0), (0.0, 0.0), (1e-30, 1.0)):
        q = jax.tree.unflatten(structure, [jnp.array(number) for number in numbers])
        assert np.isfinite(q.quantize(x, WEIGHT)).all()
        assert np.isfinite(jax.jit(lambda q: q.width)(q))


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"LearnedWidth.step must be positive"):
        LearnedWidth(step=0.0)
    with pytest.raises(ValueError, match=r"initial must be between 2 and 16"):
        LearnedWidth(1)
    with pytest.raises(ValueError, match=r"LearnedWidth.step at fc/weights_1 has shape \(3,\)"):
        LearnedWidth(step=jnp.ones(3), maximum=1.0).quantize(jnp.asarray(X), WEIGHT)
