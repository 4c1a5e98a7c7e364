"""AdaRound: its formulas, the best rounding of small problems, and against nearest rounding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import LSQ, Int, LayerQuantization, Scaled, Uniform, adaround, quantized
from jaxeff.compression.post_training._rounding import excess, rectified_sigmoid


def linear(params, x):
    return x @ params["fc"]["kernel"]


def _problem(rows, inputs, outputs):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, inputs)) @ rng.normal(size=(inputs, inputs))
    w = rng.normal(size=(inputs, outputs))
    return {"fc": {"kernel": jnp.asarray(w, jnp.float32)}}, jnp.asarray(x, jnp.float32)


def test_the_rectified_sigmoid():
    """Eq. 23 with zeta = 1.1 and gamma = -0.1."""
    v = np.linspace(-6, 6, 25)
    expected = np.clip(1 / (1 + np.exp(-v)) * 1.2 - 0.1, 0, 1)
    np.testing.assert_allclose(rectified_sigmoid(jnp.asarray(v, jnp.float32)), expected, atol=1e-6)


def test_the_quadratic_form_is_the_squared_error():
    rng = np.random.default_rng(0)
    x, other = rng.normal(size=(2, 1, 30, 5))
    w, new = rng.normal(size=(2, 1, 5, 3))
    direct = np.square(x @ w - other @ new).mean(1)
    constant = np.square(x @ w).mean(1)

    def moment(a, b):
        return jnp.asarray(np.einsum("gni,gnj->gij", a, b) / 30, jnp.float32)

    form = excess(
        jnp.asarray(new, jnp.float32),
        jnp.asarray(w, jnp.float32),
        moment(other, other),
        moment(other, x),
    )
    np.testing.assert_allclose(np.asarray(form) + constant, direct, rtol=1e-4, atol=1e-5)


def test_close_to_the_best_of_all_roundings():
    """2^6 roundings for each output: the best one is found for most, never worse than nearest."""
    params, x = _problem(40, 6, 8)
    w, data = np.asarray(params["fc"]["kernel"]), np.asarray(x)
    _, new, spec = adaround(
        linear, params, x, {"fc": LayerQuantization(Uniform(3, symmetric=True))}
    )
    step = np.abs(w).max(0) / 3
    floor = np.floor(w / step)
    best = np.full(8, np.inf)
    for up in itertools.product((0, 1), repeat=6):
        rounded = np.clip(floor + np.array(up)[:, None], -3, 3) * step
        best = np.minimum(best, np.square(data @ (w - rounded)).mean(0))
    nearest = np.square(data @ (w - np.clip(np.rint(w / step), -3, 3) * step)).mean(0)
    ours = np.square(data @ (w - np.asarray(new["fc"]["kernel"]))).mean(0)
    assert (ours <= nearest * (1 + 1e-5)).all()
    assert (ours >= best * (1 - 1e-4)).all()
    assert ours.sum() - best.sum() < 0.3 * (nearest.sum() - best.sum())
    # Only the two neighbours are ever taken.
    codes = np.asarray(new["fc"]["kernel"]) / step
    assert (np.abs(codes - w / step) < 1 + 1e-4).all()
    assert spec["fc"].weights.range is not None


@pytest.mark.slow
@pytest.mark.parametrize("bits", [3, 4])
def test_better_than_nearest(trained, divergence, bits):
    f, params, x = trained
    spec = {"*:linear": Int(bits, 8, activations=False, symmetric=False)}
    for asymmetric in (True, False):
        _, new, started = adaround(f, params, x, spec, steps=500, asymmetric=asymmetric)
        assert divergence(new, started) < 0.5 * divergence(params, spec)
        np.testing.assert_array_equal(jax.jit(quantized(f, started))(new, x), f(new, x))


@pytest.mark.slow
def test_asymmetric_reconstruction_makes_good_what_came_before():
    """The error of the second layer's outputs, given the first one's at two bits (eq. 25)."""
    params, x = _problem(60, 8, 8)
    params = {"a": params["fc"], "b": {"kernel": params["fc"]["kernel"].T}}

    def f(params, x):
        return jax.nn.relu(x @ params["a"]["kernel"]) @ params["b"]["kernel"]

    method = LayerQuantization(Uniform(2, symmetric=True))
    errors = {}
    for asymmetric in (True, False):
        _, new, _ = adaround(f, params, x, {"*:linear": method}, steps=500, asymmetric=asymmetric)
        errors[asymmetric] = float(jnp.square(f(new, x) - f(params, x)).mean())
    assert errors[True] < errors[False]


@pytest.mark.slow
def test_other_grids():
    params, x = _problem(40, 6, 4)
    for method in (LSQ(3), LSQ(3, asymmetric=True), Uniform(3, per="tensor")):
        _, new, spec = adaround(linear, params, x, {"fc": LayerQuantization(method)}, steps=200)
        np.testing.assert_array_equal(jax.jit(quantized(linear, spec))(new, x), linear(new, x))
        nearest = quantized(linear, {"fc": LayerQuantization(method)})(params, x)
        exact = linear(params, x)
        assert jnp.square(linear(new, x) - exact).mean() < jnp.square(nearest - exact).mean()


@pytest.mark.slow
def test_degenerate_weights_and_mistakes():
    params, x = _problem(20, 4, 3)
    for value in (0.0, 0.7):
        constant = {"fc": {"kernel": jnp.full((4, 3), value)}}
        _, new, _ = adaround(
            linear, constant, x, {"fc": Int(4, activations=False, symmetric=False)}, steps=20
        )
        np.testing.assert_array_equal(new["fc"]["kernel"], constant["fc"]["kernel"])
    spec = {"fc": Int(4, activations=False, symmetric=False)}
    with pytest.raises(TypeError, match="evenly spaced values, but 'fc' has Scaled"):
        adaround(linear, params, x, {"fc": LayerQuantization(Scaled(Uniform(4), 2.0))})
    with pytest.raises(ValueError, match="steps must be at least 1"):
        adaround(linear, params, x, spec, steps=0)
    with pytest.raises(ValueError, match=r"beta\[1\]"):
        adaround(linear, params, x, spec, beta=(20.0, 0.0))
    with pytest.raises(ValueError, match="adaround: batch is empty"):
        adaround(linear, params, x[:0], spec)
