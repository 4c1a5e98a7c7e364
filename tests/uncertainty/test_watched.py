"""A step that learns what it is told and watches the rest, against the two of which it is made."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff import uncertainty
from jaxeff.adapters import learner
from jaxeff.uncertainty import watched

F, PARAMS = jaxeff.functional(nnx.Linear(6, 3, rngs=nnx.Rngs(0)))
KEY = jax.random.key(3)
X, Y = jax.random.normal(KEY, (32, 6)), jax.random.randint(KEY, (32,), 0, 3)
LEARNS = learner(F, PARAMS, X[:1], optimizer=optax.sgd(0.5))
SETS = uncertainty.conformalize(F(PARAMS, X), Y, uncertainty.LAC(), 0.8)
TOLD = jnp.array([-1, -1, 2, 0, -1, -1, 1, -1])


def test_it_is_the_learner_where_told_and_the_monitor_elsewhere():
    step, params, first = watched(KEY, LEARNS, X, SETS, uncertainty.msp)
    learn, codes, learnt = LEARNS
    watch, begin = uncertainty.monitor(
        KEY, lambda _, outputs: outputs, {}, F(PARAMS, X), SETS, uncertainty.msp
    )

    def ours(state, at):
        seen, state = step(params, at[0][None], at[1][None], state)
        return state, (seen.outputs, seen.alarm, seen.unknown_rate)

    def apart(state, at):
        logits, learnt = learn(codes, at[0][None], at[1][None], state["learnt"])
        _, kept = watch({}, logits, at[1][None], state["watch"])
        kept = jax.lax.cond(at[1] < 0, lambda: kept, lambda: state["watch"])
        return {"learnt": learnt, "watch": kept}, (logits, kept.alarm, kept.unknown_rate)

    both = jax.jit(
        lambda a, b: (jax.lax.scan(ours, a, (X[:8], TOLD)), jax.lax.scan(apart, b, (X[:8], TOLD)))
    )
    one, other = both(first, {"learnt": learnt, "watch": begin})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    assert one[0]["watch"].capital.seen.tolist() == [int((TOLD < 0).sum())]
    moved = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), one[0]["learnt"], first["learnt"]
    )
    assert min(jax.tree.leaves(moved)) > 0.01


def test_what_is_no_learner_is_refused():
    with pytest.raises(TypeError, match="watched: learns must be a step, its parameters and its f"):
        watched(KEY, LEARNS[0], X, SETS, uncertainty.msp)
