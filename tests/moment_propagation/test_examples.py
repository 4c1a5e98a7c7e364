"""Which arguments hold an example per place of their first axis, through loops too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.moment_propagation import Gaussian, calibrate_moments, moments
from jaxeff.moment_propagation.linear import batched_leaves
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


TABLE = jax.random.normal(jax.random.key(4), (16, 4))


def two_views(w, x):
    """A mask by two counts of the same numbers, along the first axis and another."""
    n = jnp.arange(16) * 2
    return (jnp.where(n[:, None] >= n[None], 1.0, 0.5)[..., None] * x[:, :1]).sum(1) @ w


def rows_in_a_loop(w, x):
    return lax.scan(lambda h, _: (jnp.tanh(h @ w + TABLE), None), x[:, 0], length=2)[0]


def by_one_of_two(w, x):
    """Both branches of a scalar choice, which isn't followed."""
    return lax.cond(w[0, 0] > 0, lambda: x[:, 0] @ w, lambda: x[:, 0])


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda w, x: (x[:, 0] + TABLE) @ w, False),
        (lambda w, x: x[:, 0] @ w + jnp.tanh(jnp.arange(16.0))[:, None], False),
        (lambda w, x: x[:, 0] @ w + jnp.take(TABLE, jnp.arange(x.shape[0]), 0), False),
        (lambda w, x: x[:, 0] @ w + jax.random.normal(jax.random.key(0), (16, 4)), False),
        (lambda w, x: x[:, 0] @ w + jnp.cumsum(jnp.ones((16, 1)), 0), False),
        (lambda w, x: x[:, 0] @ w + jnp.zeros((16, 4)).at[0].set(1.0), False),
        (lambda w, x: x[:, 0] @ w + jnp.sort(TABLE, 0), False),
        (two_views, False),
        (rows_in_a_loop, False),
        (by_one_of_two, False),
        (lambda w, x: (x + TABLE[:6]) @ w, True),
        (lambda w, x: x[:, 0] @ w + jnp.arange(4.0) + jnp.zeros((16, 1)), True),
        (lambda w, x: jnp.concatenate([jnp.ones((16, 1, 4)), x], 1) @ w + TABLE[:1], True),
    ],
    ids=["captured", "counted", "looked up", "random", "summed", "set", "sorted", "views",
         "loop", "branch", "positions", "features", "first token"],
)  # fmt: skip
def test_rows_that_differ_by_themselves_are_no_examples(f, expected):
    assert batched_leaves(trace(f, W, X), 2) == [False, expected]


@pytest.mark.parametrize("rank", [2, 16])
def test_data_of_other_sizes_are_shared_by_all_examples(rank):
    """An adapter's factors come before the examples, and may be as many rows as there are."""
    f = lambda w, down, up, x: jnp.tanh(x @ (w + down @ up))  # noqa: E731
    down, up = jnp.ones((4, rank)), jnp.ones((rank, 4)) / 8
    assert batched_leaves(trace(f, W, down, up, X), 4) == [False, False, False, True]
    posterior = Gaussian(W, 0.01 * jnp.ones_like(W))
    ours = moments(f, method="linear")(posterior, down, up, X).var
    plain = moments(lambda w, x: jnp.tanh(x @ w), method="linear")
    shifted = Gaussian(W + down @ up, posterior.var)
    np.testing.assert_allclose(ours, plain(shifted, X).var, rtol=1e-5)


def test_captured_rows_reach_their_own_results():
    """The delta method takes examples one by one where it may."""
    posterior, x = Gaussian(W, 0.01 * jnp.ones_like(W)), X[:, 0]
    given = moments(lambda w, x, rows: jnp.tanh((x * rows) @ w), method="linear")
    captured = moments(lambda w, x: jnp.tanh((x * TABLE) @ w), method="linear")
    both = (captured(posterior, x), given(posterior, x, TABLE))
    for ours, expected in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_examples_of_a_loop_are_derived_and_calibrated_apart():
    f = recurrent(lambda w, h, row: jnp.tanh(h @ w + row))
    posterior = Gaussian(W, 0.01 * jnp.ones_like(W))
    linear = jax.jit(moments(f, method="linear"))
    slopes = jax.vmap(jax.jacrev(f), (None, 0))(W, X[:3, None])[:, 0]
    exact = jnp.sum(slopes**2 * posterior.var, (-1, -2))
    np.testing.assert_allclose(linear(posterior, X[:3]).var, exact, rtol=1e-4)
    calibrated = calibrate_moments(jax.random.key(2), f, posterior, X, samples=50, progress=False)
    assert calibrated.unseen is not None  # told by inputs that were left out
