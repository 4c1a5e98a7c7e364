"""`HalfWave`: levels against published optima and brute force, gradients against the paper's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize

from jaxeff.compression import Tensor
from jaxeff.contrib import HalfWave, half_wave_levels

DATA = Tensor("relu", "input_0", "activation", 2)
X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32) * 1.5
G = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)


def error(levels):
    """E (Q(u) - u)^2 over positive u, by quadrature."""
    edges = [0, *((levels[1:] + levels[:-1]) / 2), 12.0]
    return sum(
        quad(lambda u, q=q: 2 * stats.norm.pdf(u) * (u - q) ** 2, a, b)[0]
        for q, a, b in zip(levels, edges[:-1], edges[1:], strict=True)
    )


def test_the_published_step_of_two_bits():
    levels = half_wave_levels(2)
    np.testing.assert_allclose(levels, 0.538 * np.arange(1, 4), rtol=2e-3)  # three digits
    # One bit has the mean of a half-normal, sqrt(2 / pi).
    np.testing.assert_allclose(half_wave_levels(1), np.sqrt(2 / np.pi), rtol=1e-12)


@pytest.mark.parametrize("bits", [2, 3])
def test_no_other_levels_are_nearer(bits):
    numbers = np.arange(1, 2**bits)
    best = minimize(lambda s: error(s[0] * numbers), [half_wave_levels(bits)[0] * 1.1], tol=1e-10)
    np.testing.assert_allclose(half_wave_levels(bits)[0], best.x, rtol=1e-4)
    free = half_wave_levels(bits, uniform=False)
    assert error(free) < error(half_wave_levels(bits))
    if bits == 2:
        best = minimize(error, half_wave_levels(bits), method="Nelder-Mead",
                        options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 2000})  # fmt: skip
        np.testing.assert_allclose(free, best.x, rtol=1e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_free_levels_are_where_lloyd_stops(bits):
    # Cai et al., section 3.2: each level is the mean of what it stands for.
    levels = half_wave_levels(bits, uniform=False)
    edges = np.concatenate([[0], (levels[1:] + levels[:-1]) / 2, [np.inf]])
    mass = stats.norm.sf(edges[:-1]) - stats.norm.sf(edges[1:])
    means = (stats.norm.pdf(edges[:-1]) - stats.norm.pdf(edges[1:])) / mass
    np.testing.assert_allclose(levels, means, rtol=1e-10)
    uniform = half_wave_levels(bits)
    np.testing.assert_allclose(np.diff(uniform), uniform[0], rtol=1e-9)
    assert uniform[-1] < 6


def test_values_are_the_nearest_positive_levels():
    # Eq. 12: zero for x <= 0, else the nearest of the levels.
    q = HalfWave(2, 1.0)
    levels = half_wave_levels(2)
    nearest = levels[np.abs(X[..., None] - levels).argmin(-1)]
    ours = q.quantize(jnp.asarray(X), DATA)
    np.testing.assert_allclose(ours, np.where(X > 0, nearest, 0), rtol=1e-6)
    np.testing.assert_array_equal(q.quantize(ours, DATA), ours)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_gradients(scale):
    # Cai et al., eq. 16 and 17, of u = x / scale; the scale cancels.
    last = half_wave_levels(2)[-1]
    u = X / scale
    beyond = u > last
    slopes = {
        "vanilla": u > 0,
        "clipped": (u > 0) & ~beyond,
        "log": np.where(beyond, 1 / (np.maximum(u, last) - (last - 1)), u > 0),
    }
    for gradient, slope in slopes.items():
        q = HalfWave(2, scale, gradient=gradient)
        ours = jax.grad(lambda x: jnp.vdot(G, q.quantize(x, DATA)))(jnp.asarray(X))  # noqa: B023
        np.testing.assert_allclose(ours, G * slope, rtol=1e-5, atol=1e-7)
    # That of the scale, by the chain rule: Q(u) - u inside, the last level beyond.
    q = HalfWave(2, scale)
    ours = jax.grad(lambda s: jnp.vdot(G, HalfWave(2, s).quantize(jnp.asarray(X), DATA)))(scale)
    values = np.asarray(q.quantize(jnp.asarray(X), DATA)) / scale
    np.testing.assert_allclose(ours, (G * (values - u * slopes["clipped"])).sum(), rtol=1e-4)


def test_the_scale_is_that_of_the_gaussian():
    x = 3.0 * jax.random.normal(jax.random.key(0), (200, 500))
    for array in (x, jnp.maximum(x, 0)):
        scale = float(HalfWave(2).start(array, DATA).scale)
        assert abs(scale - 3.0) < 3.0 * 4 * np.sqrt(5 / 4 / 1e5)
    y = HalfWave(3, 3.0).quantize(x, DATA)
    squares = np.asarray(jnp.where(x > 0, (y - x) ** 2, 0)) / 9
    expected = error(half_wave_levels(3)) / 2
    assert abs(squares.mean() - expected) < 4 * squares.std() / np.sqrt(squares.size)


def test_bits_of_an_array():
    assert HalfWave(3).storage((20, 4), DATA) == 80 * 3 + 32
