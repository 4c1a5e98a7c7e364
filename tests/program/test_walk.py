"""Values followed through equations: scope, constants and calls are those of the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.core import bind
from jaxeff.core import primitives as p
from jaxeff.program.ir import Value, computed_at_once, entering, flatten, inside, walk, walk_nodes

TABLE = jnp.arange(3.0)


@jax.custom_jvp
def rectified(x):
    return jnp.maximum(x, 0.0)


rectified.defjvp(lambda primals, tangents: (rectified(*primals), tangents[0]))


@jax.custom_vjp
def doubled(x):
    return rectified(x) * 2


doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (2 * g,))


def f(x):
    """Calls in calls, a constant, a literal as a result, and an input that is one."""
    y = jax.jit(lambda v: jnp.sin(doubled(v) + TABLE) - 1)(x)
    return y, x, 3.0


X = jnp.array([-1.0, 0.5, 2.0])
CLOSED = jax.make_jaxpr(f)(X)


@pytest.mark.parametrize("wrap", [lambda rule: rule, entering])
def test_evaluating_equations_is_calling_the_function(wrap):
    rule = wrap(lambda eqn, values: bind(eqn, *values))
    # One by one: the compiler may reassociate what it sees as a whole.
    with jax.disable_jit():
        expected = f(X)
    for found, wanted in zip(walk(CLOSED, [X], rule), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_calls_are_entered_where_that_is_asked_for():
    def seen(wrap):
        found = []

        def rule(eqn, values):
            found.append(eqn.primitive)
            return [max(values)] * len(eqn.outvars)

        walk(CLOSED, [0], wrap(rule, lambda *_: 0), lambda *_: 0)
        return found

    assert seen(lambda rule, _: rule) == [p.jit_p]
    assert seen(entering) == [p.max_p, p.mul_p, p.add_p, p.sin_p, p.sub_p]
    (call,) = CLOSED.jaxpr.eqns
    assert [eqn.primitive for eqn in inside(call)] == seen(entering)


def test_a_loop_is_one_equation():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, r: (c + r, c), 0.0, x))(X)
    (eqn,) = closed.jaxpr.eqns
    assert [e.primitive for e in inside(eqn)] == [p.scan_p]


def test_constants_and_literals_are_told_from_what_is_given():
    """Which results depend on the argument: those that only constants make don't."""
    closed = jax.make_jaxpr(lambda x: (TABLE * 2, x + TABLE, 5.0))(X)
    told = []

    def constant(atom, value):
        told.append(np.asarray(value))
        assert atom.aval.shape == np.shape(value)
        return False

    rule = entering(lambda eqn, known: [any(known)] * len(eqn.outvars), constant)
    assert walk(closed, [True], rule, constant) == [False, True, False]
    assert any(np.array_equal(value, TABLE) for value in told)
    assert any(np.array_equal(value, 5.0) for value in told)


def test_nodes_leave_what_they_make():
    graph = flatten(CLOSED, [Value(X.aval)])
    # Each value's distance from the inputs.
    known = dict.fromkeys([*graph.inputs, *graph.constants], 0)
    rule = lambda eqn, values: [1 + max(values)] * len(eqn.outvars)  # noqa: E731
    assert walk_nodes(graph.nodes, known, graph.outputs, rule, lambda *_: 0) == [4, 0, 0]
    assert [known[node.outputs[0]] for node in graph.nodes] == [1, 2, 3, 4]


def test_a_rule_answers_for_every_result():
    closed = jax.make_jaxpr(lambda x: lax.sort([x, -x]))(X)
    with pytest.raises(ValueError, match="shorter"):
        walk(closed, [0], lambda eqn, values: values[:1], lambda *_: 0)
    with pytest.raises(ValueError, match="shorter"):
        walk(closed, [], lambda eqn, values: values, lambda *_: 0)


NEAR = jnp.array([[0.0, 2.0**-30, -1.5, 3.0], [127.5, -128.5, 1e20, -2.5]])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x / jnp.max(jnp.abs(x), 0, keepdims=True),
        lambda x: x / 3,
        lambda x: jnp.clip(lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), -3, 3),
        lambda x: x.astype(jnp.int8),
        lambda x: jnp.where(x > 0, -x, x * 7)[:, 1:3].T.reshape(-1),
        lambda x: (x.astype(jnp.int32) << 3).sum(1) // 5,
        lambda x: jnp.any(x != 0, 1) | jnp.all(x >= 1, 1) & ~jnp.any(x <= -2, 1),
        lambda x: lax.rsqrt(jnp.abs(x) + 1) @ jnp.ones((4, 2)),
        lambda x: lax.select_n(x.astype(jnp.int32) % 3, x, x, x) - jnp.min(x),
        lambda x: jax.jit(lambda v: v.astype(jnp.bfloat16) * 3)(x),
        lambda x: lax.scan(lambda c, row: (c + row, c), jnp.zeros(4), x),
    ],
)
def test_computing_at_once_gives_the_bits_of_compiled_functions(make):
    expected = jax.tree.leaves(jax.jit(make)(NEAR))
    results = computed_at_once(jax.make_jaxpr(make)(NEAR), [NEAR])
    assert [np.asarray(y).dtype for y in results] == [y.dtype for y in expected]
    assert [np.asarray(y).tobytes() for y in results] == [np.asarray(y).tobytes() for y in expected]
