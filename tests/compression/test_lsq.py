"""`LSQ`: values and gradients against the papers' equations, what it starts from, its sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import LSQ
from tests.compression.tensors import DATA, WEIGHT

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(LSQ(3), exact=False)
    check_method(LSQ(jnp.array(3.0), per="channel", initial="error"), exact=False)
    check_method(LSQ(4, asymmetric=True), exact=False)


def pulled_back(q, x=X, tensor=WEIGHT):
    y, back = jax.vjp(lambda q, x: q.quantize(x, tensor), q, jnp.asarray(x))
    return np.asarray(y), *back(jnp.asarray(G))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("signed", [True, False])
def test_values_and_gradients_of_the_paper(bits, signed):
    """Esser et al., eqs. 1 to 3 and 5, one value at a time."""
    step = np.float32(0.9)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    q = LSQ(bits, step=jnp.asarray(step), signed=signed, scaled=False)
    y, of_spec, of_x = pulled_back(q)
    expected, of_step, passed = np.zeros_like(X), 0.0, np.zeros_like(X)
    for i in np.ndindex(X.shape):
        v = float(X[i]) / float(step)
        code = min(max(np.round(v), low), high)
        expected[i] = code * step
        inside = low < v < high
        slope = np.round(v) - v if inside else (low if v <= low else high)
        of_step += float(G[i]) * slope
        passed[i] = G[i] if inside else 0.0
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(of_spec.step, of_step, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_x, passed, rtol=1e-6)


@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_the_gradient_of_the_step_is_scaled(per):
    """By 1 / sqrt(n Qp), n the values that share the step (section 2.2)."""
    step = jnp.full((1, 4) if per == "channel" else (), 0.4)
    plain, scaled = (LSQ(3, step=step, signed=True, per=per, scaled=s) for s in (False, True))
    count = X.size // (4 if per == "channel" else 1)
    _, a, _ = pulled_back(plain)
    _, b, _ = pulled_back(scaled)
    np.testing.assert_allclose(b.step, np.asarray(a.step) / np.sqrt(count * 3), rtol=1e-5)


def test_the_offset_has_the_gradient_of_what_is_clipped():
    """Bhalgat et al., eq. 6: zero inside the range, one outside."""
    q = LSQ(3, step=jnp.asarray(0.2), signed=False, offset=jnp.asarray(-0.3), asymmetric=True,
            scaled=False)  # fmt: skip
    _, of_spec, _ = pulled_back(q, tensor=DATA)
    v = (X + 0.3) / 0.2
    outside = (v < 0) | (v > 7)
    np.testing.assert_allclose(of_spec.offset, G[outside].sum(), rtol=1e-5)


def test_it_starts_from_the_mean_magnitude():
    """2 <|v|> / sqrt(Qp) (section 2.1)."""
    q = LSQ(4).start(jnp.asarray(X), WEIGHT)
    np.testing.assert_allclose(q.step, 2 * np.abs(X).mean() / np.sqrt(7), rtol=1e-6)
    of_channels = LSQ(4, per="channel").start(jnp.asarray(X), WEIGHT)
    expected = 2 * np.abs(X).mean(0, keepdims=True) / np.sqrt(7)
    np.testing.assert_allclose(of_channels.step, expected, rtol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("tensor", [WEIGHT, DATA], ids=["weights", "activations"])
def test_the_least_error_is_as_small_as_a_search_finds(bits, tensor):
    x = np.maximum(X, 0) if tensor is DATA else X
    q = LSQ(bits, initial="error").start(jnp.asarray(x), tensor)
    half = 2**bits / 2
    low, high = (0, 2 * half - 1) if tensor is DATA else (-half, half - 1)

    def error(step):
        return ((np.clip(np.round(x / step), low, high) * step - x) ** 2).sum()

    widest = max(-x.min() / max(-low, 1), x.max() / max(high, 1))
    assert error(np.asarray(q.step)) <= min(error(widest * i / 64) for i in range(1, 65)) + 1e-5
    mean = LSQ(bits).start(jnp.asarray(x), tensor)
    assert error(np.asarray(q.step)) <= error(np.asarray(mean.step)) * (1 + 1e-6)


def test_zeros_and_traced_bits():
    zeros = jnp.zeros((3, 4))
    for initial in ("mean", "error"):
        started = LSQ(4, initial=initial).start(zeros, WEIGHT)
        np.testing.assert_array_equal(started.quantize(zeros, WEIGHT), zeros)

        def of_bits(bits, initial=initial):
            return LSQ(bits, initial=initial, signed=True).quantize(jnp.asarray(X), WEIGHT)

        many = jax.jit(jax.vmap(of_bits))(jnp.array([2, 3, 8]))
        for bits, found in zip((2, 3, 8), many, strict=True):
            np.testing.assert_allclose(found, of_bits(bits), rtol=1e-5, atol=1e-6)


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match=r"LSQ\.bits"):
        LSQ(0)
    with pytest.raises(ValueError, match=r"LSQ\.step"):
        LSQ(4, step=-1.0)
    with pytest.raises(ValueError, match=r"LSQ\.initial"):
        LSQ(4, initial="median")
    for one in (1, jnp.array([4, 1])):
        with pytest.raises(ValueError, match=r"LSQ\.narrow leaves one bit the code 0 alone"):
            LSQ(one, narrow=True)


def test_an_offset_of_whole_steps_has_a_code_for_zero():
    # In float32 some of these products divide to a neighbour of the whole number.
    steps = np.random.default_rng(0).uniform(1e-4, 1, 100).astype(np.float32)
    products = np.float32(-255) * steps
    assert (products / steps != -255).any()
    for step, offset in zip(steps, products, strict=True):
        method = LSQ(8, step=float(step), signed=False, offset=float(offset), asymmetric=True)
        assert method.uniform_grid(None, DATA).zero == -255
    between = LSQ(8, step=0.5, signed=False, offset=-0.2, asymmetric=True)
    np.testing.assert_allclose(between.uniform_grid(None, DATA).zero, -0.4, rtol=1e-6)
