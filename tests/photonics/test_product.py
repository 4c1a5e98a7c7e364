"""Products of two activations by light: what is read on average, how it scatters, whose scale."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.photonics import ChaoticLight, PhotonicProduct, PhotonicWeights, photonic, read_out

KEY, DRAWS = jax.random.key(0), 4000
P = {"s": jnp.float32(1.0)}
Q = jax.random.normal(jax.random.key(1), (2, 3, 4))
K = jax.random.normal(jax.random.key(2), (2, 5, 4))
LIGHT = ChaoticLight(noise=0.6, slots=4, photons=80.0, electronic=0.03)
SILENT = ChaoticLight(noise=0.0, modes=1e12, photons=1e12, electronic=0.0)


def scores(p, q, k):
    return jnp.einsum("bqd,bkd->bqk", q, k) * p["s"]


def fine(light, **own):
    return {"matmul": PhotonicProduct(light, 2000, 2000, **own)}


def test_a_silent_product_is_the_product_of_signed_operands():
    for cells in ("right", "left"):
        output = photonic(scores, fine(SILENT, cells=cells))(KEY, P, Q, K)
        np.testing.assert_allclose(output, scores(P, Q, K), atol=0.01)
    # What is sent as positive light alone loses its negative part.
    output = photonic(scores, fine(SILENT, inputs="positive"))(KEY, P, Q, K)
    np.testing.assert_allclose(output, scores(P, jax.nn.relu(Q), K), atol=0.01)
    nothing = photonic(scores, fine(SILENT))(KEY, P, jnp.zeros_like(Q), K)
    np.testing.assert_allclose(nothing, 0.0, atol=1e-6)


def test_every_example_has_its_own_scale():
    g = photonic(scores, fine(LIGHT))
    # Powers of two are exact: one example a thousand times as large changes no other's reading.
    loud = jnp.array([1.0, 1024.0])[:, None, None]
    plain, scaled = g(KEY, P, Q, K), g(KEY, P, Q * loud, K)
    np.testing.assert_array_equal(plain[0], scaled[0])
    np.testing.assert_allclose(scaled[1], 1024 * plain[1], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cells"), [("gaussian", "right"), ("physical", "right"), ("physical", "left")]
)
def test_readings_have_the_moments_that_are_expected(model, cells):
    spec = fine(replace(LIGHT, model=model), cells=cells)
    keys = jax.random.split(KEY, DRAWS)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: photonic(scores, spec)(key, P, Q, K)))(keys))
    expected = jaxeff.moments(scores, noise=read_out(scores, P, (Q, K), spec), method="diagonal")(
        P, Q, K
    )
    error = draws.std(0) / DRAWS**0.5
    # A step of the cells' 2,000 levels is left beside five standard errors.
    assert (np.abs(draws.mean(0) - np.asarray(expected.mean)) < 5 * error + 2e-3).all()
    centred = (draws - draws.mean(0)) ** 2
    off = np.abs(centred.mean(0) - np.asarray(expected.var))
    assert (off < 5 * centred.std(0) / DRAWS**0.5 + 1e-9).all()


def test_gradients_are_those_of_the_product():
    g = photonic(scores, fine(replace(LIGHT, model="physical")))
    slope = jax.jit(jax.grad(lambda q, k: g(KEY, P, q, k).sum(), (0, 1)))(Q, K)
    exact = jax.grad(lambda q, k: scores(P, q, k).sum(), (0, 1))(Q, K)
    for found, wanted in zip(slope, exact, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.02)


def test_signed_inputs_of_weights_are_two_measurements():
    def dense(p, x):
        return x @ p["w"] + p["b"][None]

    params = {"w": K[0, :4], "b": jnp.array([0.1, 0.2, -0.3, 0.5])}
    x = Q[0]
    silent = {"w": PhotonicWeights(SILENT, 2000, 2000, inputs="signed")}
    np.testing.assert_allclose(photonic(dense, silent)(KEY, params, x), dense(params, x), atol=0.01)
    lit = {"w": PhotonicWeights(LIGHT, 2000, 2000, inputs="signed")}
    both = read_out(dense, params, x, lit)["w"].var
    alone = {"w": PhotonicWeights(LIGHT, 2000, 2000)}
    parts = [read_out(dense, params, sign * x, alone)["w"].var for sign in (1, -1)]
    np.testing.assert_allclose(both, sum(parts), rtol=1e-5)


def test_what_is_no_product_of_activations_is_refused():
    with pytest.raises(ValueError, match=r"two different activations.*'w' is linear"):
        photonic(lambda p, x: x @ p["w"], {"w": PhotonicProduct()})(KEY, {"w": K[0].T}, Q[0])
    with pytest.raises(ValueError, match="cells must be one of 'right', 'left'"):
        PhotonicProduct(cells="top")
    with pytest.raises(ValueError, match=r"PhotonicProduct.levels asks for 64 transmissions"):
        PhotonicProduct(levels=64)
