"""Loops and branches: structure, state that is handed around, and what is updated in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from importer_oracle import assert_agrees, assert_close, export
from jax import lax
from jaxeff_export.compiler import compile_module
from jaxeff_export.importer import import_stablehlo
from tvm import relax

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), jnp.float32)


@pytest.mark.slow
def test_state_is_handed_around():
    """Swaps, constants, unchanged and repeated state, integers, booleans and empty tensors."""

    def f(x, n):
        def step(state):
            i, a, b, same, flag, none, half = state
            return i + 1, b, a + b * 0.5, same, ~flag, none, half * jnp.bfloat16(0.5)

        state = (0, x, x * 2, x[0], True, jnp.zeros((0, 3)), x.astype(jnp.bfloat16))
        return lax.while_loop(lambda s: s[0] < n, step, state)

    assert_agrees(f, X, np.int32(7))
    assert_agrees(f, X, np.int32(0))


@pytest.mark.slow
def test_scans():
    """Long enough not to be unrolled; outputs written in place, forwards and backwards."""
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(300, 5)), jnp.float32)

    def f(xs, w):
        def cell(carry, x):
            h = jnp.tanh(x + carry @ w)
            return h, (carry, h.sum(), x > 0)

        forward = lax.scan(cell, jnp.zeros(5), xs)
        backward = lax.scan(cell, jnp.ones(5), xs, reverse=True, unroll=2)
        nested = lax.scan(
            lambda c, x: (lax.fori_loop(0, 500, lambda i, y: y * 0.99 + x, c), c[0]),
            jnp.zeros(5),
            xs[:20],
        )
        return forward, backward, nested, jnp.cumsum(lax.map(jnp.sin, xs), 0)

    assert_agrees(f, xs, jnp.eye(5) * 0.3, rtol=1e-4, atol=1e-5)


def test_what_is_updated_in_place_is_read_before():
    def f(x, n):
        def step(i, state):
            a, b, c, d = state
            row = lax.dynamic_slice(a, (i % 6, 0), (1, 5))  # of the old a
            new_a = lax.dynamic_update_slice(a, row * 2 + 1, (i % 6, 0))
            new_b = lax.dynamic_update_slice(b, a[:2], (i % 4, 0))  # reads the old a
            new_c = lax.dynamic_update_slice(c, b, (0, 0))  # all of the old b, handed on
            new_d = lax.dynamic_update_slice(d, d[::-1][:3], (jnp.int32(9), i % 2))  # clamped
            return new_a, new_b, new_c, new_d

        return lax.fori_loop(0, n, step, (x, x + 1, x + 2, x - 1))

    assert_agrees(f, X, np.int32(40))


@pytest.mark.slow
def test_branches():
    """Dear branches are taken, not computed and chosen from."""

    def f(i, flag, x):
        def forever(x):  # ends for the inputs of its own branch only
            return lax.while_loop(lambda y: (y != 0).any(), lambda y: y * 0, x)

        chosen = lax.switch(
            i,
            [
                lambda x: (x @ x.T, x),
                lambda x: (x[:, :1] * x[:, 0], x * 2),
                lambda x: (jnp.zeros((6, 6)), x),
            ],
            x,
        )
        bounded = lax.cond(
            flag,
            lambda x: lax.fori_loop(0, 900, lambda i, y: y * 0.99, x),
            lambda x: forever(x) + 1,
            x,
        )
        return chosen, bounded

    for i in (-1, 0, 1, 2, 5):
        assert_agrees(f, np.int32(i), np.bool_(i % 2), X)


def test_branches_within_loops():
    def f(x, n):
        def step(i, c):
            y, best = c
            y = lax.cond(i % 3 == 0, lambda y: jnp.tanh(y @ y.T @ y), lambda y: y * 0.9, y)
            return y, jnp.maximum(best, i * jnp.arange(6) % 7)

        return lax.fori_loop(0, n, step, (x, jnp.zeros(6, jnp.int32)))

    assert_agrees(f, X, np.int32(50), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ours", [True, False])
def test_a_million_iterations(ours):
    """On any pipeline, and with no more stack than one iteration takes."""

    def f(x, n):
        return lax.fori_loop(0, n, lambda i, c: (c * 0.999 + x, c.sum() > 0)[0], x)

    module = import_stablehlo(export(f, X[0, :2], np.int32(0)))
    built = compile_module(module) if ours else tvm.compile(module, target="llvm")
    arguments = [tvm.runtime.tensor(np.array(a)) for a in (X[0, :2], np.int32(1_000_000))]
    result = relax.VirtualMachine(built, tvm.cpu())["main"](*arguments).numpy()
    assert_close(result, np.asarray(jax.jit(f)(X[0, :2], np.int32(1_000_000))), rtol=1e-4)


@pytest.mark.slow
def test_state_is_written_over_only_when_nothing_needs_it_any_more():
    """Elementwise updates and scatters of state that other kernels of the body read too."""
    big = jnp.asarray(np.random.default_rng(2).normal(size=(8, 9)), jnp.float32)

    def f(x, n):
        def step(i, state):
            a, b, c, d, e = state
            new_a = a * 0.5 + b  # reads b, which is replaced as well
            new_b = b - 0.1 * a
            new_c = c.at[i % 8].add(a[0]).at[(i + 1) % 8, 2].set(1.5)
            new_d = d + c[::-1]  # reads c out of order
            new_e = (e @ e.T) @ e * 0.01 + e  # reads e as a whole and by element
            return new_a, new_b, new_c, new_d, new_e

        return lax.fori_loop(0, n, step, (x, x + 1, x - 1, x * 2, x * 0.1))

    def crossed(x, n):  # each reads the other after it would have been written
        def step(i, state):
            a, b = state
            return a.at[i % 8].set(b[i % 8] + 1), b.at[(i + 1) % 8].set(a[i % 8] * 0.5)

        return lax.fori_loop(0, n, step, (x, x * 3))

    assert_agrees(lambda x, n: (f(x, n), crossed(x, n)), big, np.int32(30), rtol=1e-4, atol=1e-4)


def test_broadcasts_from_outside_are_read_in_place():
    def f(x, w, n):
        wide = jnp.broadcast_to(w, (6, 5))  # used inside, elementwise and whole

        def step(i, c):
            return jnp.tanh(c * wide + (wide * 2) @ x.T[:, :5] + wide.sum())

        return lax.fori_loop(0, n, step, x)

    assert_agrees(f, X, X[0], np.int32(12), rtol=1e-4, atol=1e-5)


def test_a_product_reads_what_was_transposed_outside():
    def f(x, w):
        moved = w.T
        return lax.fori_loop(0, 700, lambda i, c: jnp.tanh(c @ moved + x), x)

    weights = jnp.asarray(np.random.default_rng(2).normal(size=(16, 16)), jnp.float32)
    assert_agrees(f, weights[:1], 0.1 * weights, rtol=1e-5, atol=1e-6)


def test_a_state_is_not_overwritten_before_its_last_reader():
    """Both results come of one loop, and the first takes the place of what the second reads."""
    x = np.arange(1, 21, dtype=np.int32)
    assert_agrees(jnp.gcd, x, np.array([3, 2, 5, 7, 1] * 4, np.int32))
