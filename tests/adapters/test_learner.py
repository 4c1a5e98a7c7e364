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


KERNEL, BIAS = "layers/5/kernel", "layers/5/bias"


def in_16_bits(update, **options):
    """A step of the head in int16, of updates that are the same whatever the gradient."""
    step, codes, state = learner(
        F, PARAMS, X[:1], optimizer=optax.stateless(lambda g, p: update(g)), dtype="int16"
    )
    first = {path: state["learnt"][path].astype(jnp.int32) for path in (KERNEL, BIAS)}
    return step, codes, state, first


def size(state):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_16_bits_learn_what_floats_do():
    """Each rounding's variance is at most a quarter of a step's square; plain descent adds them."""
    after = {}
    for dtype in (None, "int16"):
        step, codes, state = learner(F, PARAMS, X[:1], SPEC, optimizer=optax.sgd(0.1), dtype=dtype)
        last, _ = steps(step, codes, state)
        after[dtype] = step.learnt(last), size(last)
    grid_step = 2.0**-12  # of the power of two above 8 times what the head has, at most 1
    assert 0.5 < max(float(jnp.abs(PARAMS["layers"]["5"][n]).max()) for n in ("kernel", "bias")) < 1
    (floats, its_bytes), (ours, fewer) = after.values()
    assert fewer == its_bytes / 2 + 4
    assert last["learnt"][KERNEL].dtype == jnp.int16
    assert last["count"] == len(X)
    for path in (KERNEL, BIAS):
        assert jnp.abs(floats[path] - step.learnt(state)[path]).max() > 100 * grid_step
        distance = float(jnp.abs(ours[path] - floats[path]).max())
        assert 0 < distance < (0.5 + 5 * 0.5 * len(X) ** 0.5) * grid_step
        codes_of = np.asarray(ours[path]) / grid_step
        np.testing.assert_array_equal(codes_of, np.round(codes_of))


def test_updates_far_below_a_step_add_up():
    """Their sum is met up to five standard errors; to nearest, none would move anything."""
    count, parts = 1500, 40
    grid_step = 2.0**-12
    tiny = grid_step / parts
    step, codes, state, first = in_16_bits(
        lambda g: {KERNEL: jnp.full_like(g[KERNEL], tiny), BIAS: jnp.full_like(g[BIAS], -tiny)}
    )
    zero = in_16_bits(lambda g: jax.tree.map(jnp.zeros_like, g))

    def many(step, codes, state):
        def one(state, _):
            return step(codes, X[:1], Y[:1], state)[1], None

        return jax.jit(lambda s: jax.lax.scan(one, s, length=count)[0])(state)

    after = many(step, codes, state)
    for path, sign in ((KERNEL, 1), (BIAS, -1)):
        moved = sign * np.asarray(after["learnt"][path] - first[path])
        deviation = (count / parts * (1 - 1 / parts)) ** 0.5
        assert abs(moved.mean() - count / parts) < 5 * deviation / moved.size**0.5
        assert (np.abs(moved - count / parts) < 5 * deviation).all()
    # An update of zero moves nothing, however often.
    same = many(*zero[:3])
    jax.tree.map(np.testing.assert_array_equal, same["learnt"], zero[2]["learnt"])


def test_codes_stay_at_the_ends_of_their_grid():
    ends = {"far": 1e9, "all": jnp.inf, "down": -jnp.inf, "nobody knows": jnp.nan}
    for name, value in ends.items():
        step, codes, state, first = in_16_bits(
            lambda g, value=value: jax.tree.map(lambda a: jnp.full_like(a, value), g)
        )
        for _ in range(2):
            _, state = step(codes, X[:1], Y[:1], state)
        for path, before in first.items():
            expected = before if name == "nobody knows" else np.sign(value) * (2**15 - 1)
            np.testing.assert_array_equal(state["learnt"][path], expected)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "several"])
@pytest.mark.parametrize("what", ["lora", "norms"])
def test_what_an_optimizer_keeps_has_16_bits_too(what, optimizer):
    """The loss falls as in floats, in half of the bytes; without a label nothing changes."""
    optimizers = {
        "momentum": optax.sgd(0.02, momentum=0.8),
        "adam": optax.adam(0.02),
        "several": optax.MultiSteps(optax.sgd(0.1), 4),
    }
    spec, part = {"lora": (SPEC, {"layers/5": LoRA(2, alpha=2.0)}), "norms": (BODY, "norms")}[what]

    def loss(logits):
        return float(optax.softmax_cross_entropy_with_integer_labels(logits[:, 0], Y).mean())

    losses, sizes = [], []
    for dtype in (None, "int16"):
        step, codes, state = learner(
            F, PARAMS, X[:1], spec, what=part, optimizer=optimizers[optimizer], dtype=dtype
        )
        after, first = steps(step, codes, state)
        for _ in range(3):
            after, last = steps(step, codes, after)
        losses.append((loss(first), loss(last)))
        sizes.append(size(after))
    (_, floats), (begin, end) = losses
    assert end < begin
    assert abs(end - floats) < 0.05 * (begin - floats)
    halves = [leaf for leaf in jax.tree.leaves(after) if leaf.dtype in (jnp.int16, jnp.uint16)]
    others = size(after) - size(halves)
    assert others <= 16
    assert sizes[0] == 2 * size(halves) + others - 4
    _, same = step(codes, X[:1], jnp.array([-1]), after)
    jax.tree.map(np.testing.assert_array_equal, same, after)


def test_what_has_no_grid_is_named():
    broken = jax.tree.map(lambda a: a, PARAMS)
    broken["layers"]["5"]["bias"] = jnp.array([0, jnp.inf, 0])
    with pytest.raises(ValueError, match="learner: layers/5/bias has values that aren't finite"):
        learner(F, broken, X, dtype="int16")
    with pytest.raises(ValueError, match="learner: dtype must be"):
        learner(F, PARAMS, X, dtype="int8")
    # Of zeros alone, codes reach eight.
    broken["layers"]["5"] = jax.tree.map(jnp.zeros_like, broken["layers"]["5"])
    step, _, state = learner(F, broken, X, dtype="int16")
    ends = {**state, "learnt": jax.tree.map(lambda q: q + (2**15 - 1), state["learnt"])}
    assert 8 <= step.learnt(ends)["layers/5/kernel"].max() < 16
