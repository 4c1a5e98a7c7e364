"""Products of a loop's rows are computed before it, those of one operand as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff import functional
from jaxeff.program.ir import products_ahead

STEPS, BATCH, WIDTH = 5, 3, 8


def products(f, *args):
    """Counts the products outside of a function's loops, and inside."""

    def count(jaxpr, inside):
        for eqn in jaxpr.eqns:
            counts[inside] += eqn.primitive.name == "dot_general"
            for name in ("jaxpr", "call_jaxpr"):
                if name in eqn.params:
                    count(eqn.params[name].jaxpr, inside or eqn.primitive.name == "scan")

    counts = {False: 0, True: 0}
    count(jax.make_jaxpr(f)(*args).jaxpr, False)
    return counts[False], counts[True]


def recurrent(cell, **options):
    rnn = nnx.RNN(cell(WIDTH, 16, rngs=nnx.Rngs(0)), **options)
    f, params = functional(rnn)
    return f, params, np.random.default_rng(0).normal(size=(BATCH, STEPS, WIDTH)).astype("float32")


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"time_major": True}])
@pytest.mark.parametrize(("cell", "before"), [(nnx.LSTMCell, 8), (nnx.GRUCell, 2)])
def test_cells_multiply_all_inputs_at_once_and_their_state_once_a_step(cell, before, options):
    f, params, x = recurrent(cell, **options)
    g = products_ahead(f)
    assert products(f, params, x) == (0, before)
    assert products(g, params, x) == (1, 1)
    np.testing.assert_allclose(g(params, x), f(params, x), rtol=1e-6, atol=1e-6)


RNG = np.random.default_rng(1)
W, V, X = (RNG.normal(size=s).astype("float32") for s in ((8, 8), (8, 8), (STEPS, BATCH, WIDTH)))


def scan(step, w=W, v=V, x=X):
    return jax.lax.scan(lambda c, row: step(w, v, c, row), jnp.ones((BATCH, WIDTH)), x)


def as_pytorch_has_it(w, v, c, row):
    c = jnp.tanh(row @ w.T + c @ v.T)
    return c, c


def of_what_is_made_of_rows(w, v, c, row):
    c = jnp.tanh(jnp.exp(row[:, ::-1]) @ jnp.exp(w) + c)
    return c, row.sum()


def within_a_call(w, v, c, row):
    return jax.lax.scan(lambda d, r: (d @ v + r @ w, r @ v), c, jnp.stack([row, row]))[0], c


def of_both(w, v, c, row):
    return (row + c) @ w, (row * c) @ v


def two_of_one_and_one_of_another(w, v, c, row):
    return jnp.tanh(c @ w) * (c @ v) + jnp.sin(c) @ v, row @ w


CASES = {
    as_pytorch_has_it: (1, 1),
    of_what_is_made_of_rows: (1, 0),
    within_a_call: (0, 2),  # the inner loop's state; its rows are multiplied in the outer one
    of_both: (0, 2),
    two_of_one_and_one_of_another: (1, 2),
}


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_what_depends_on_the_carry_stays_and_results_are_the_same(step):
    def f(w, v, x):
        return scan(step, w, v, x)

    g = products_ahead(f)
    if step is not within_a_call:
        assert products(g, W, V, X) == CASES[step]
    for ours, plain in zip(jax.tree.leaves(g(W, V, X)), jax.tree.leaves(f(W, V, X)), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=1e-5)


def test_what_is_drawn_by_row_is_drawn_as_before():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), STEPS)

    def f(w, x, keys):
        def step(c, row):
            x, key = row
            return c + (x + jax.random.normal(key, x.shape)) @ w, None

        return jax.lax.scan(step, jnp.zeros((BATCH, WIDTH)), (x, keys))[0]

    g = products_ahead(f)
    assert products(g, W, X, keys) == (0, 1)
    np.testing.assert_array_equal(g(W, X, keys), f(W, X, keys))


def test_derivatives_and_modes_pass_through():
    def f(w, x, *, scale):
        return scale * scan(as_pytorch_has_it, w, w, x)[0].sum()

    g = products_ahead(f)
    ours, plain = (jax.grad(h)(W, X, scale=2.0) for h in (g, f))
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def test_what_has_no_such_products_is_left_alone():
    def f(w, v, x):
        return jax.lax.scan(lambda c, row: (jnp.tanh(c @ w) + row, c), x[0] @ v, x)

    assert str(jax.make_jaxpr(products_ahead(f))(W, V, X)) == str(jax.make_jaxpr(f)(W, V, X))


def test_products_that_would_fill_the_memory_stay_in_their_loop():
    long = jax.ShapeDtypeStruct((1 << 20, 1, 64), jnp.float32)
    wide = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def f(w, x):
        return jax.lax.scan(lambda c, row: (jnp.tanh(c + row @ w), None), jnp.zeros((1, 64)), x)[0]

    assert products(products_ahead(f), wide, long) == (0, 1)
