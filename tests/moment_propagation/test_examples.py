"""Which arguments hold an example per place of their first axis, through loops too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.moment_propagation import Gaussian, calibrate_moments, moments
from jaxeff.moment_propagation._examples import batched_leaves
from jaxeff.program import trace

W = 0.5 * jax.random.normal(jax.random.key(0), (4, 4))
X = jax.random.normal(jax.random.key(1), (16, 6, 4))


def recurrent(step):
    def f(w, x):
        start = jnp.zeros_like(x[:, 0])
        return lax.scan(lambda h, row: (step(w, h, row), None), start, x.swapaxes(0, 1))[0]

    return f


def states(w, x):
    """Rows of a scan, in the order of its steps."""
    rows = lax.scan(lambda h, r: (jnp.tanh(h @ w + r),) * 2, x[:, 0], x.swapaxes(0, 1))[1]
    return rows.swapaxes(0, 1)


def nested(w, x):
    def outer(h, _):
        return recurrent(lambda w, h, row: jnp.tanh(h @ w + row))(w, x) + h, None

    return lax.scan(outer, x[:, 0], length=2)[0]


def of_examples(w, x):
    """A scan over the examples."""
    return lax.scan(lambda h, row: (h, row @ w), 0.0, x)[1]


def from_a_cell(w, x):
    """The state is one of pairs, and swaps them."""
    pairs = x[:, 0] @ x[:, 0].T
    return lax.scan(lambda h, _: (h.T, None), pairs, length=2)[0] @ x[:, 0] @ w


def while_loop(w, x):
    return lax.fori_loop(0, jnp.int32(w[0, 0] * 0 + 2), lambda _, h: jnp.tanh(h @ w), x[:, 0])


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (recurrent(lambda w, h, row: jnp.tanh(h @ w + row)), True),
        (states, True),
        (nested, True),
        (of_examples, False),
        (from_a_cell, False),
        (while_loop, False),
        (recurrent(lambda w, h, row: jnp.tanh(h @ w + row) - h.mean(0)), False),
        (recurrent(lambda w, h, row: jnp.tanh(jnp.roll(h, 1, 0) @ w + row)), False),
        (recurrent(lambda w, h, row: jnp.tanh(h[::-1] @ w + row)), False),
    ],
    ids=["state", "rows", "nested", "of examples", "pairs", "while", "mean", "roll", "reversed"],
)
def test_examples_are_followed_through_scans(f, expected):
    assert batched_leaves(trace(f, W, X), 2) == [False, expected]


@pytest.mark.slow
def test_examples_of_a_loop_are_derived_and_calibrated_apart():
    f = recurrent(lambda w, h, row: jnp.tanh(h @ w + row))
    posterior = Gaussian(W, 0.01 * jnp.ones_like(W))
    linear = jax.jit(moments(f, method="linear"))
    slopes = jax.vmap(jax.jacrev(f), (None, 0))(W, X[:3, None])[:, 0]
    exact = jnp.sum(slopes**2 * posterior.var, (-1, -2))
    np.testing.assert_allclose(linear(posterior, X[:3]).var, exact, rtol=1e-4)
    found = calibrate_moments(jax.random.key(2), f, posterior, X, samples=50, progress=False)
    assert found.unseen is not None  # told by inputs that were left out
