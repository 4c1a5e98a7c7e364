"""Crossbars: what is read on average, how much it scatters, and what they can't hold."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import TransformerEncoder
from jaxeff.photonics import ChaoticLight, PhotonicWeights, photonic, transmissions

KEY = jax.random.key(0)
N = 4000
PARAMS = {
    "w": jnp.array([[0.5, -1.0, 0.25], [-0.75, 0.4, 1.0]]),
    "b": jnp.array([0.1, 0.2, -0.3]),
}
X = jnp.array([[0.7, 1.9]])
LIGHT = ChaoticLight(noise=0.6, slots=4, photons=80.0, electronic=0.03)


def dense(params, x):
    return x @ params["w"] + params["b"][None]


def readings(setting, x=X):
    run = jax.jit(jax.vmap(jaxeff.photonic(dense, {"w": setting}), (0, None, None)))
    return np.asarray(run(jax.random.split(KEY, N), PARAMS, x), np.float64)[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("rails", ["two", "one"])
@pytest.mark.parametrize("model", ["gaussian", "physical"])
def test_readings_have_the_moments_of_carriers_and_detectors(model, rails):
    setting = PhotonicWeights(replace(LIGHT, model=model), 2000, 2000, rails)
    voltages = readings(setting)
    w = np.asarray(PARAMS["w"], np.float64)
    w = np.maximum(w, 0) if rails == "one" else w
    mean = np.asarray(X[0], np.float64) @ w + np.asarray(PARAMS["b"])
    error = 0.5 * 2.6 / 1999  # of a weight, times the inputs' sum: rounding to levels
    assert (np.abs(voltages.mean(0) - mean) < 5 * voltages.std(0) / np.sqrt(N) + error).all()
    excess = np.asarray(jaxeff.photonics.noise_sigma(X[0], replace(LIGHT, photons=1e30,
                                                                   electronic=0.0)))  # fmt: skip
    scale, count = np.abs(w).max(), 2 if rails == "two" else 1
    shot = np.asarray(X[0]) @ np.abs(w) * scale / 80 + count * 4 * (scale * 0.03) ** 2
    covariance = w.T @ np.diag(excess**2) @ w + np.diag(shot)
    centred = voltages - voltages.mean(0)
    products = centred[:, :, None] * centred[:, None]
    errors = 5 * products.std(0) / np.sqrt(N)
    assert (np.abs(products.mean(0) - covariance) < errors).all()
    assert (errors < 0.2 * np.sqrt(np.outer(*[np.diag(covariance)] * 2))).all()


def test_transmissions_are_levels_of_their_rail():
    weights = jnp.array([-1.0, -0.2, 0.0, 0.3, 0.9])
    scale, two = transmissions(weights, PhotonicWeights(levels=5))
    np.testing.assert_allclose(two, [-1, -0.25, 0, 0.25, 1])
    assert scale == 1
    scale, one = transmissions(weights, PhotonicWeights(levels=4, rails="one"))
    np.testing.assert_allclose(one, [0, 0, 0, 1 / 3, 1], rtol=1e-6)
    np.testing.assert_allclose(scale, 0.9)


@pytest.mark.slow
def test_a_convolution_is_one_too_and_learns():
    def f(params, x):
        return jax.lax.conv_general_dilated(
            x, params["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    params = {"w": jax.random.normal(KEY, (3, 3, 2, 4))}
    x = jax.nn.relu(jax.random.normal(KEY, (2, 5, 5, 2)))
    quiet = ChaoticLight(noise=0.0, slots=4, cap=2.0, modes=1e9, photons=1e7, electronic=0.0)
    for model in ("gaussian", "physical"):
        g = jaxeff.photonic(f, {"w": PhotonicWeights(replace(quiet, model=model), 4097, 4097)})
        np.testing.assert_allclose(jax.jit(g)(KEY, params, x), f(params, x), atol=0.01)
        gradient = jax.jit(jax.grad(lambda p, g=g: (g(KEY, p, x) ** 2).sum()))(params)["w"]
        expected = jax.grad(lambda p: (f(p, x) ** 2).sum())(params)["w"]
        np.testing.assert_allclose(gradient, expected, rtol=0.02, atol=0.2)


@pytest.mark.slow
def test_a_saturating_detector_holds_readings_down():
    light = replace(LIGHT, model="physical", saturation=0.1, electronic=0.0)
    voltages = readings(PhotonicWeights(light, rails="one"))
    assert voltages.max() <= 0.4 * 1.0 + 0.2 + 1e-6  # four slots, the largest weight, the bias


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="asks for 64 transmissions, but a cell has 32"):
        PhotonicWeights(levels=64)
    with pytest.raises(TypeError, match=r"PhotonicWeights.light must be a ChaoticLight, not 3"):
        PhotonicWeights(3)
    with pytest.raises(ValueError, match="rails must be one of 'two', 'one'"):
        PhotonicWeights(rails="three")
    with pytest.raises(ValueError, match=r"dense or convolution layer .*'relu' is elementwise"):
        jaxeff.photonic(lambda p, x: jax.nn.relu(dense(p, x)), {"relu": PhotonicWeights()})(
            KEY, PARAMS, X
        )


@pytest.mark.slow
def test_a_layer_inside_a_large_network_is_the_same_compiled():
    """XLA joins products behind a layer norm; one with constant zeros came out undefined."""
    model = TransformerEncoder(10, 14, 14, width=32, hidden=64, depth=1, rngs=nnx.Rngs(0))
    f, params = jaxeff.functional(model)
    x = jax.random.normal(jax.random.key(1), (400, 14, 14))
    light = ChaoticLight(noise=0.0, slots=8, cap=0.5, photons=100.0)
    g = photonic(f, {"*fc2": PhotonicWeights(light=light, inputs="signed")})
    compiled = jax.jit(g)(jax.random.key(0), params, x)
    # Entries on the edge of a level of light may be rounded the other way.
    off = jnp.abs(compiled - g(jax.random.key(0), params, x))
    assert float(off.mean()) < 0.01
    assert float(compiled.std(0).mean()) > 0.1
