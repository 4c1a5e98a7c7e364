"""Steps that learn a part of a network behind a body in whole numbers, against float training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.adapters import LoRA, learner
from jaxeff.compression import Int, calibrate

NET = nnx.Sequential(
    nnx.Linear(6, 12, rngs=nnx.Rngs(0)),
    nnx.relu,
    nnx.Linear(12, 8, rngs=nnx.Rngs(1)),
    nnx.LayerNorm(8, rngs=nnx.Rngs(3)),
    nnx.relu,
    nnx.Linear(8, 3, rngs=nnx.Rngs(2)),
)
F, PARAMS = jaxeff.functional(NET)
X = jax.random.normal(jax.random.key(0), (32, 6))
Y = jax.random.randint(jax.random.key(1), (32,), 0, 3)
SPEC = calibrate(F, PARAMS, [X], {"*:linear": Int(8)}).spec
BODY = {name: SPEC[name] for name in ("layers/0", "layers/2")}


def steps(step, codes, state):
    """The last logits, and the state after all examples."""

    def one(state, at):
        logits, state = step(codes, at[0][None], at[1][None], state)
        return state, logits

    return jax.jit(lambda state: jax.lax.scan(one, state, (X, Y)))(state)


def test_the_head_learns_as_by_hand_on_what_the_body_says():
    """The body is `integer`'s; plain gradient steps of a softmax regression on its features."""
    step, codes, state = learner(F, PARAMS, X[:1], SPEC, optimizer=optax.sgd(0.1))
    assert state["learnt"].keys() == {"layers/5/kernel", "layers/5/bias"}
    assert codes.rest.keys() == {"4", "5"}  # of the norm; the head is the state's alone
    after, logits = steps(step, codes, state)
    inner = nnx.Sequential(*NET.layers[:-1])
    features, weights = jaxeff.functional(inner)
    g = jaxeff.integer(features, BODY)
    rows = np.asarray(g(g.convert(weights, X), X), np.float64)
    w, b = (np.asarray(PARAMS["layers"]["5"][n], np.float64) for n in ("kernel", "bias"))
    for row, label, said in zip(rows, np.asarray(Y), np.asarray(logits[:, 0]), strict=True):
        z = row @ w + b
        np.testing.assert_allclose(said, z, rtol=1e-3, atol=1e-4)
        delta = np.exp(z - z.max()) / np.exp(z - z.max()).sum() - np.eye(3)[label]
        w, b = w - 0.1 * np.outer(row, delta), b - 0.1 * delta
    np.testing.assert_allclose(after["learnt"]["layers/5/kernel"], w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after["learnt"]["layers/5/bias"], b, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "spec", "names"),
    [
        ({"layers/5": LoRA(2, alpha=2.0)}, SPEC, ("a", "b")),
        ("norms", {**SPEC, "layers/5": None}, ("bias", "scale")),
        ("head", None, ("bias", "kernel")),
    ],
    ids=["lora", "norms", "float body"],
)
def test_other_parts_learn(what, spec, names):
    """The loss of what it is told falls; without a label nothing changes, momentum included."""
    step, codes, state = learner(
        F, PARAMS, X[:1], spec, what=what, optimizer=optax.sgd(0.05, momentum=0.5)
    )
    assert sorted(path.rsplit("/", 1)[1] for path in state["learnt"]) == list(names)
    after = state
    for _ in range(4):
        after, logits = steps(step, codes, after)
    first = steps(step, codes, state)[1]

    def loss(logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, 0], Y).mean()

    assert loss(logits) < loss(first)
    _, same = step(codes, X[:1], jnp.array([-1]), after)
    jax.tree.map(np.testing.assert_array_equal, same, after)
    # Of two examples the unknown one has no part.
    both = step(codes, X[:2], jnp.array([1, -1]), after)[1]
    alone = step(codes, X[:1], jnp.array([1]), after)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), both, alone)


def test_what_has_no_gradient_is_named():
    match = "learner: layers/3 learns, and layers/5 behind it is in whole numbers"
    with pytest.raises(ValueError, match=match):
        learner(F, PARAMS, X, SPEC, what="norms")
    with pytest.raises(ValueError, match="learner: layers/0 learns, and layers/2 behind it"):
        learner(F, PARAMS, X, SPEC, what={"layers/0": LoRA(2)})
    features, params = jaxeff.functional(nnx.Sequential(nnx.Linear(6, 3, rngs=nnx.Rngs(0))))
    with pytest.raises(ValueError, match="what='norms' is no layer here; layers with parameters"):
        learner(features, params, X, what="norms")
    with pytest.raises(ValueError, match="learner: what must be"):
        learner(F, PARAMS, X, what="tail")
