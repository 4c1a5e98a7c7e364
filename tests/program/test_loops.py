"""Loops taken apart: built again of their parts, they are the same loops."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jaxeff.core import bind, jax_internals
from jaxeff.program import trace
from jaxeff.program.ir import Role, Scan, While, branch_operands, fixed_point, repetitions, walk

FEW = settings(max_examples=5, deadline=None)
X = jnp.arange(6.0).reshape(3, 2)
PARAMS = {"w": jnp.array([0.5, -1.0]), "b": jnp.array([2.0, 3.0])}


def called(closed, values):
    return jaxpr_as_fun(closed)(*values)


def loop_of(f):
    """The last equation of a function, which is a loop, and the arrays that it is called with."""
    operands = []

    def rule(eqn, values):
        operands[:] = values
        return bind(eqn, *values)

    closed = jax.make_jaxpr(f)(PARAMS, X)
    walk(closed, jax.tree.leaves((PARAMS, X)), rule)
    return closed.jaxpr.eqns[-1], operands


@FEW
@given(st.booleans(), st.integers(0, 2), st.integers(0, 2))
def test_a_scan_is_its_parts(reverse, carried, stacked):
    def f(p, x):
        def body(carry, row):
            made = row * p["w"] + sum(carry) + p["b"]
            return [made + i for i in range(carried)], [made] * stacked

        return lax.scan(body, [p["b"]] * carried, x, reverse=reverse)

    if not carried and not stacked:
        return  # JAX drops a loop that makes nothing
    eqn, operands = loop_of(f)
    loop = Scan.of(eqn, operands)
    assert (len(loop.carry), len(loop.xs), repetitions(eqn)) == (carried, 1, len(X))
    assert (loop.length, loop.reverse) == (len(X), reverse)

    carry, rows = loop.carry, []
    for i in reversed(range(3)) if reverse else range(3):
        row = [x[i] for x in loop.xs]
        carry, made = loop.split(called(loop.body, loop.inputs(carry, row)))
        rows.append(made)
    found = [*carry, *map(jnp.stack, zip(*(rows[::-1] if reverse else rows), strict=True))]
    jax.tree.map(np.testing.assert_array_equal, found, jax.tree.leaves(f(PARAMS, X)))


def test_a_while_loop_is_its_parts():
    def f(p, x):
        def test(state):
            return state[0].sum() < p["w"].sum() + 40

        return lax.while_loop(test, lambda s: (s[0] + p["b"], s[1] + 1), (x[0], 0))

    eqn, operands = loop_of(f)
    loop = While.of(eqn, operands)
    assert (len(loop.carry), loop.xs, repetitions(eqn)) == (2, [], 1)
    carry = loop.carry
    while called(loop.test, loop.test_inputs(carry))[0]:
        carry, rest = loop.split(called(loop.body, loop.inputs(carry)))
        assert not rest
    jax.tree.map(np.testing.assert_array_equal, carry, list(f(PARAMS, X)))
    assert carry[1] > 3


def test_a_fixed_point_is_what_every_iteration_leaves():
    """Something enters a shift register at one end and reaches the other after all its places."""
    calls = []

    def body(carry):
        calls.append(carry)
        return [frozenset("a"), *carry[:-1]], len(calls)

    carry, rest = fixed_point(body, [frozenset("b")] + 3 * [frozenset()], operator.or_)
    assert carry == 4 * [frozenset("ab")]
    # The last iteration changes nothing, and what it gives belongs to the carry returned.
    assert (calls[-1], rest) == (carry, len(calls)) == (carry, 5)


def test_a_fixed_point_may_compare_something_of_a_carry():
    shapes = lambda carry: [x.shape for x in carry]  # noqa: E731
    widened = lambda a, b: b if b.ndim > a.ndim else a  # noqa: E731
    body = lambda carry: ([carry[0], jnp.broadcast_to(carry[0], (2, 3))], None)  # noqa: E731
    carry, _ = fixed_point(body, [jnp.zeros(3), jnp.ones(3)], widened, shapes)
    assert shapes(carry) == [(3,), (2, 3)]


@pytest.mark.parametrize("kind", ["scan", "while"])
def test_roles_go_around_a_loop(kind):
    """What reaches a carry only in later iterations counts in the first one as well."""

    def step(carry):
        first, second, third, count = carry
        return (first, first + second, second + third, count + 1)

    def f(p, x):
        start = (x[0], p["w"], jnp.zeros(2), 0)
        if kind == "scan":
            return lax.scan(lambda c, _: (step(c), None), start, None, length=4)[0]
        return lax.while_loop(lambda c: c[3] < p["b"].sum(), step, start)

    program = trace(f, PARAMS, X)
    (layer,) = (layer for layer in program.layers if layer.kind == "control flow")
    *_, body = layer.programs
    data, mixed, last = [v.role for v in body.inputs if v.aval.shape == (2,)][-3:]
    assert data == Role.DATA
    assert mixed == last == Role.DATA | Role.PARAM


@pytest.mark.parametrize("name", ["cond", "remat", "scan"])
def test_branches_read_all_but_the_index(name):
    functions = {
        "cond": lambda p, x: lax.cond(p["b"].sum() > 0, jnp.sin, jnp.cos, x),
        "remat": lambda p, x: jax.checkpoint(jnp.sin)(x),
        "scan": lambda p, x: lax.scan(lambda total, row: (total + row, None), p["b"], x)[0],
    }
    eqn, operands = loop_of(functions[name])
    read = branch_operands(eqn, operands)
    assert (read is None) == (name == "scan")
    for body in jax_internals.sub_jaxprs(eqn) if read is not None else ():
        inputs = jax_internals.as_closed(body).jaxpr.invars
        assert [v.aval.shape for v in inputs] == [jnp.shape(x) for x in read]
