"""Integer networks whose products are next to nothing beside what is added to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Int, calibrate, integer, integer_aware

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (3, 6))
W = {n: jax.random.normal(jax.random.key(i), (6, 6)) / 2 for i, n in enumerate("abc")}
GAINS = jnp.array([0.0, 1e-8, 1e-3, 1.0, 0.0, 1e-5])


def beside_floats(p, x):
    """What is added is read by no product, so it has no codes: a residual stream."""
    t = jnp.tanh(x)
    return (jax.nn.relu(jnp.sin(t) @ p["a"]) @ (1e-8 * p["b"]) + t) @ p["c"]


def beside_codes(p, x):
    h = jnp.tanh(x @ p["a"])
    return ((jax.nn.relu(h @ p["b"]) @ p["c"]) * GAINS[None] + h) @ p["a"]


def beside_a_product(p, x):
    return x @ (1e-9 * p["a"]) + x @ p["b"]


def read_with_and_without_a_line(p, x):
    y = x @ p["a"]
    scaled = y * jnp.arange(1.0, 7.0)[None] + jnp.arange(6.0)[None]
    return jax.nn.relu(scaled) @ p["b"], y


def read_in_a_sum_too(p, x):
    y = x @ p["a"]
    return (y * (1 + GAINS)[None]) @ p["b"], y + 100 * (x @ p["c"]), y @ p["c"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "f",
    [
        beside_floats,
        beside_codes,
        beside_a_product,
        read_with_and_without_a_line,
        read_in_a_sum_too,
    ],
)
def test_sums_are_those_of_the_simulation(f):
    spec = calibrate(f, W, [X], {"*:linear": Int(8)}).spec
    g = integer(f, spec)
    codes = g.convert(W, X)
    output, near = jax.jit(g)(codes, X), jax.jit(integer_aware(f, spec))(W, X)
    for a, b in zip(jax.tree.leaves(output), jax.tree.leaves(near), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())
    np.testing.assert_array_equal(jax.tree.leaves(g(W, X))[0], jax.tree.leaves(g(codes, X))[0])
