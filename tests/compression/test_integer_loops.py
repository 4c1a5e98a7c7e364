"""Integer networks with loops and branches: products in codes, arrays of parameters made before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.compression import (
    Int,
    IntegerError,
    IntegerFallbackWarning,
    calibrate,
    integer,
    integer_aware,
)

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (3, 6))
W = {n: jax.random.normal(jax.random.key(i), (6, 6)) / 2 for i, n in enumerate("abc")}
LINEAR = {"*:linear": Int(8)}


def scanned(p, x):
    """Two products, a shortcut that has codes, and rows that are returned."""

    def step(carry, t):
        h = jax.nn.relu((carry + t) @ p["a"])
        y = jax.nn.relu(h @ p["b"]) + h
        return jnp.tanh(y @ p["c"]), y

    return lax.scan(step, x, jnp.arange(3.0))


def stacked(p, x):
    def step(carry, row):
        return jnp.tanh(carry @ row["w"] + row["b"][None]), None

    rows = {"w": jnp.stack([p["a"], p["b"]]), "b": p["c"][:2]}
    return lax.scan(step, x, rows)[0] @ p["c"]


def nested(p, x):
    def outer(c, w):
        inner = lax.fori_loop(0, 2, lambda _, c: jnp.tanh(c @ w), c @ p["b"])
        return inner, None

    return lax.scan(outer, x, jnp.stack([p["a"], p["c"]]))[0]


def while_loop(p, x):
    def test(c):
        return (c[0] < 3) & ((c[1] @ p["b"]).sum() < 1e6)

    return lax.while_loop(test, lambda c: (c[0] + 1, jnp.tanh(c[1] @ p["a"])), (0, x))[1] @ p["c"]


def branches(p, x):
    branch = lax.cond(x.sum() > 0, lambda x: jax.nn.relu(x @ p["a"]), lambda x: x @ p["b"], x)
    return branch @ p["c"]


def remat(p, x):
    return jax.checkpoint(lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"])(p, x) @ p["c"]


def no_rounds(p, x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ p["a"]), None), x, length=0)[0] @ p["b"]


def close(found, near):
    """Holds results of codes to those of the simulation, to the last digits of a few layers."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(near), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())


def sites_of(codes):
    return {name.removesuffix("/codes") for name in codes.named() if name.endswith("/codes")}


def share(f, params, codes, *args):
    rows = jaxeff.cost(f, params, *args).layers
    inside = sites_of(codes)
    return sum(r.macs for r in rows if r.site in inside) / sum(r.macs for r in rows)


def converted(f, *args, spec=LINEAR):
    """Returns an integer network, what it is held to, and its parameters."""
    spec = calibrate(f, W, [args, jax.tree.map(jnp.negative, args)], spec).spec
    g = integer(f, spec)
    return g, integer_aware(f, spec), g.convert(W, *args)


@pytest.mark.slow
@pytest.mark.parametrize("f", [scanned, nested, stacked, while_loop, branches, remat, no_rounds])
def test_products_in_loops_and_branches_are_of_codes(f):
    spec = {"b": LINEAR["*:linear"]} if f is no_rounds else LINEAR
    g, near, codes = converted(f, X, spec=spec)
    output = jax.jit(g)(codes, X)
    close(output, jax.jit(near)(W, X))
    close(jax.jit(g)(W, X), output)
    assert share(f, W, codes, X) == 1
    assert all(a.dtype in (np.int8, np.int32) or a.size < 36 for a in codes.arrays.values())
    assert not codes.rest


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell])
def test_recurrent_cells_are_of_codes(cell):
    model = nnx.RNN(cell(4, 8, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    f, params = jaxeff.functional(model)
    x = jax.random.normal(KEY, (2, 7, 4))
    spec = calibrate(f, params, [x], LINEAR).spec
    g = integer(f, spec)
    codes = g.convert(params, x)
    close(jax.jit(g)(codes, x), jax.jit(integer_aware(f, spec))(params, x))
    assert share(f, params, codes, x) == 1
    assert not codes.rest


def test_a_weight_that_a_loop_changes_stays_in_float():
    def f(p, x):
        def step(_, c):
            return c[0] * 0.9, jnp.tanh(c[1] @ c[0])

        return lax.fori_loop(0, 3, step, (p["a"], x))[1] @ p["b"]

    with pytest.warns(IntegerFallbackWarning, match="'a' is a product with a weight that a loop"):
        g, near, codes = converted(f, X)
    with pytest.warns(IntegerFallbackWarning, match="'a' is a product with a weight that a loop"):
        output = jax.jit(g)(codes, X)
    close(output, jax.jit(near)(W, X))
    assert sites_of(codes) == {"b"}
    assert len(codes.rest) == 1


def test_loops_converted_for_another_spec_are_refused():
    g, _, codes = converted(scanned, X, spec={"a": LINEAR["*:linear"]})
    whole, _, _ = converted(scanned, X)
    with pytest.raises(IntegerError, match="they were made by another spec"):
        whole(codes, X)
    close(g(codes, X), jax.jit(g)(codes, X))


def test_a_loop_without_a_range_says_how_to_get_one():
    with pytest.raises(IntegerError, match=r"a/input_0 has no range: calibrate\(f, params"):
        integer(scanned, LINEAR).convert(W, X)
    output = integer(scanned, LINEAR, dynamic=True)(W, X)
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(output))


def unrolled(p, x):
    """A recurrence as a loop of Python's, from an empty state."""
    h = jnp.zeros((len(x), 6))
    for t in range(1, 4):
        h = jnp.tanh((x * t) @ p["a"] + h @ p["b"] + p["c"][:1])
    return h


def tied(p, x):
    """A table of tokens whose rows are looked up, and which logits are made with."""
    tokens = jnp.clip(jnp.round(jnp.abs(x)), 0, 5).astype(jnp.int32)
    return jax.nn.relu(p["a"][tokens] @ p["b"]) @ p["a"].T


def applied_twice(p, x):
    """Under different biases, and to an activation and its negative."""
    return jax.nn.relu(x @ p["a"] + p["b"][:1]) @ p["a"] - (-x) @ p["c"]


CODES = LINEAR["*:linear"]
PACKED = Int(4, activations=False)


@pytest.mark.parametrize(
    ("f", "weights", "setting"),
    [
        (unrolled, "ab", CODES), (tied, "ab", CODES), (applied_twice, "ac", CODES),
        (unrolled, "ab", PACKED), (applied_twice, "ac", PACKED),
    ],
)  # fmt: skip
def test_a_weight_has_codes_once_however_often_it_is_used(f, weights, setting):
    """And no float copy beside them."""
    g, near, codes = converted(f, X, spec={"*": setting})
    matrices = [name for name, a in codes.arrays.items() if a.ndim > 1 and a.dtype != jnp.float32]
    assert sorted(matrices) == [f"{name}/codes" for name in weights]
    assert codes.rest.keys().isdisjoint(str("abc".index(name)) for name in weights)
    # Each use has codes still, by its own name.
    uses = [name for name, *_ in codes.shared if name.endswith("/codes")]
    assert uses
    assert {*uses, *matrices} == {name for name in codes.named() if name.endswith("/codes")}
    output = jax.jit(g)(codes, X)
    close(output, jax.jit(near)(W, X))
    np.testing.assert_array_equal(output, jax.jit(g)(W, X))
    # Arrays are leaves once; structure and names survive a transform.
    leaves = jax.tree.leaves(codes)
    assert len(leaves) == len(codes.arrays) + len(codes.rest)
    np.testing.assert_array_equal(g(jax.tree.map(lambda a: a, codes), X), g(codes, X))


def test_an_empty_state_times_a_weight_is_the_same_for_every_batch():
    g, _, codes = converted(unrolled, X)
    assert codes.rest.keys() == {"2"}
    np.testing.assert_array_equal(g(codes, X[:1]), g(codes, X)[:1])
