"""While loops without the carries that nothing needs: as many rounds, the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jaxeff.core import primitives as p
from jaxeff.core._jax_internals import sub_jaxprs
from jaxeff.program.reading import without_dead_code

X = jnp.array([1.0, -2.0, 3.0])
COUNT = jnp.int32(4)
TABLE = jnp.array([1.0, 0.5, 2.0])


def rounds(w, x, count, start=None):
    """A loop whose carries are read in part: by its test, by each other, by themselves, by none."""

    def body(state):
        i, h, feeds, alone, _, limit = state
        made = jnp.tanh(h * w + feeds * TABLE)
        return i + 1, made, feeds * 0.5, jnp.sort(alone), alone + h, limit

    start = (0, x, x, x, x, count) if start is None else start
    return lax.while_loop(lambda s: s[0] < s[5], body, start)


def loops(closed):
    found = []
    for eqn in closed.jaxpr.eqns:
        found += [eqn] if eqn.primitive is p.while_p else []
        found += [one for sub in sub_jaxprs(eqn) for one in loops(sub)]
    return found


def nested(w, x, count):
    """A loop in a loop: what the inner one makes for a dead carry of the outer one is dead too."""

    def body(state):
        i, h, dead = state
        inner = rounds(w, dead, count)
        return i + 1, rounds(w, h, count)[1], inner[3]

    return lax.while_loop(lambda s: s[0] < 2, body, (0, x, x))[1]


WITHIN = {
    "plain": lambda w, x, n: rounds(w, x, n)[1],
    "jit": lambda w, x, n: jax.jit(rounds)(w, x, n)[1],
    "remat": lambda w, x, n: jax.checkpoint(rounds)(w, x, n)[1],
    "scan": lambda w, x, n: lax.scan(lambda c, _: (rounds(w, c, n)[1], None), x, length=2)[0],
    "cond": lambda w, x, n: lax.cond(n > 2, lambda: rounds(w, x, n)[1], lambda: x),
    "while": nested,
}


@pytest.mark.parametrize("name", WITHIN)
def test_only_what_results_need_is_carried(name):
    closed = jax.make_jaxpr(WITHIN[name])(0.5, X, COUNT)
    live = without_dead_code(closed)
    # The counter, its limit, the result and what feeds that; the outer loop carries two.
    assert [len(eqn.outvars) for eqn in loops(live)] == ([2, 4] if name == "while" else [4])
    assert live.in_avals == closed.in_avals
    output, expected = (jaxpr_as_fun(c)(0.5, X, COUNT) for c in (live, closed))
    np.testing.assert_array_equal(output, expected)


def test_what_only_dead_carries_read_is_no_operand():
    def f(table, x, count):
        def body(state):
            return state[0] + 1, state[1] * 2, state[2] + table

        return lax.while_loop(lambda s: s[0] < count, body, (0, x, x))[1]

    closed = jax.make_jaxpr(f)(X, X, COUNT)
    (before,), (after,) = loops(closed), loops(without_dead_code(closed))
    # Not the table, which stays an argument of the function.
    assert (len(before.invars), len(after.invars)) == (5, 3)
    args = X, X, COUNT
    np.testing.assert_array_equal(jaxpr_as_fun(without_dead_code(closed))(*args)[0], f(*args))


def test_a_loop_with_effects_stays_as_it_is():
    def f(x, count):
        def body(state):
            jax.debug.print("{}", state[1])
            return state[0] + 1, state[1] * 2

        return lax.while_loop(lambda s: s[0] < count, body, (0, x))[0]

    closed = jax.make_jaxpr(f)(X, COUNT)
    (eqn,) = loops(without_dead_code(closed))
    assert len(eqn.outvars) == 2
