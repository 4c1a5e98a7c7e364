"""Gates on channels, and penalties, against integrals, draws and other functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy import integrate

import jaxeff
from jaxeff.pruning import Plan, PlanError, channels, group_lasso, masked, pruned, slimming
from jaxeff.pruning.gates import DropoutGates, HardConcrete, dropout_divergence
from jaxeff.training import fit, stateless

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (4, 6, 6, 1))


class Net(nnx.Module):
    """Convolutions with a skip, a depthwise one, a batch norm, a head."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 6, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs, use_running_average=True)
        self.deep = nnx.Conv(6, 6, (3, 3), feature_group_count=6, rngs=rngs)
        self.again = nnx.Conv(6, 6, (1, 1), rngs=rngs)
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.norm(self.stem(x)))
        x = x + jnp.tanh(self.again(self.deep(x)))
        return self.head(x.mean((1, 2)))


def attention(params, x):
    """Queries and keys are read by their product alone, values by a parameter; a loop around."""

    def block(x, w):
        q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
        weights = jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k))
        return x + (weights @ v) @ w["o"], None

    return jax.lax.scan(block, x @ params["in"], params["blocks"])[0] @ params["out"]


@functools.cache
def nets():
    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    shapes = {
        "in": (3, 4), "out": (4, 2),
        "blocks": {"q": (2, 4, 5), "k": (2, 4, 5), "v": (2, 4, 6), "o": (2, 6, 4)},
    }  # fmt: skip
    zeros = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda s: isinstance(s, tuple))
    x = jax.random.normal(KEY, (2, 3, 3))
    return {"net": (f, drawn(params), X), "attention": (attention, drawn(zeros), x)}


def drawn(params):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(5), len(leaves))
    new = [w + 0.5 * jax.random.normal(k, w.shape) for k, w in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, new)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net", "attention"])
def test_gates_of_zero_and_one_are_the_mask(name):
    f, params, x = nets()[name]
    coupled = channels(f, params, x)
    assert len(coupled.free) == {"net": 1, "attention": 3}[name]
    rng = np.random.default_rng(0)
    keep = {g.name: rng.random(g.size) < 0.5 for g in coupled.free}
    for where in keep.values():
        where[0] = True
    gates = Plan({n: jnp.asarray(k, jnp.float32) for n, k in keep.items()}, coupled)
    hard = gates.above(0.5)
    for group, where in keep.items():
        np.testing.assert_array_equal(hard.keep[group], where)
    theirs = jax.jit(masked(f, hard))(params, x)
    np.testing.assert_allclose(jax.jit(masked(f, gates))(params, x), theirs, atol=1e-5, rtol=1e-5)
    ours = jax.jit(pruned(f, hard))(hard.shrink(params), x)
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    ones = jax.tree.map(jnp.ones_like, gates)
    np.testing.assert_allclose(
        jax.jit(masked(f, ones))(params, x), f(params, x), atol=1e-5, rtol=1e-5
    )
    sites = jaxeff.sites(f, params, x)
    assert [s for s in jaxeff.sites(masked(f, gates), params, x) if s in sites] == list(sites)


@pytest.mark.slow
def test_a_gate_counts_once_and_is_not_undone_by_a_normalization():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    (group,) = coupled.free
    gate = jnp.linspace(0.2, 1.7, 6)
    ours = masked(f, Plan({group.name: gate}, coupled))(params, x)
    # By hand: whatever sums over the channels reads them times the gate.
    by_hand = jax.tree.map(lambda w: w, params)
    for layer, shape in (("again", (1, 1, 6, 1)), ("head", (6, 1))):
        kernel = by_hand[layer]["kernel"] * gate.reshape(shape)
        by_hand[layer] = {**by_hand[layer], "kernel": kernel}
    np.testing.assert_allclose(ours, f(by_hand, x), rtol=1e-5, atol=1e-6)
    with_gates = pruned(masked(f, Plan({group.name: gate}, coupled)), plan := Plan(
        {group.name: gate > 0.8}, coupled
    ))  # fmt: skip
    masked_output = masked(f, Plan({group.name: jnp.where(gate > 0.8, gate, 0.0)}, coupled))(
        params, x
    )
    np.testing.assert_allclose(
        with_gates(plan.shrink(params), x), masked_output, rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_gates_of_a_product_of_activations_act_on_one_side():
    f, params, x = nets()["attention"]
    coupled = channels(f, params, x)
    gate = jnp.linspace(0.5, 1.5, 5)
    name = next(g.name for g in coupled.free if g.size == 5)
    ours = masked(f, Plan({name: gate}, coupled))(params, x)
    blocks = {**params["blocks"], "q": params["blocks"]["q"] * gate[None, None]}
    np.testing.assert_allclose(ours, f({**params, "blocks": blocks}, x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bool, float])
def test_a_key_may_stand_before_the_parameters(kind):
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    keep = jnp.array([1, 0, 1, 1, 0, 1]).astype(kind)
    plan = Plan({coupled.free[0].name: keep}, coupled)
    noise = {"head": jaxeff.Additive(0.3)}
    ours = masked(jaxeff.noisy(f, noise), plan)(KEY, params, x)
    theirs = jaxeff.noisy(masked(f, plan), noise)(KEY, params, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert jnp.abs(ours - jaxeff.noisy(f, noise)(KEY, params, x)).max() > 1e-3


@pytest.mark.slow
def test_gates_trace_vmap_and_differentiate():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    (group,) = coupled.free

    def value(gate):
        return jnp.square(masked(f, Plan({group.name: gate}, coupled))(params, x)).sum()

    gates = jax.random.uniform(KEY, (3, 6), minval=0.2)
    each = jnp.stack([value(g) for g in gates])
    np.testing.assert_allclose(jax.jit(jax.vmap(value))(gates), each, rtol=1e-5)
    slope = jax.jit(jax.grad(value))(gates[0])
    step = 1e-2 * jnp.eye(6)[2]
    numeric = (value(gates[0] + step) - value(gates[0] - step)) / 2e-2
    np.testing.assert_allclose(slope[2], numeric, rtol=1e-2)
    # The gradient of a closed gate is there: it may open again.
    assert jax.grad(value)(gates[0].at[1].set(0.0))[1] != 0


@pytest.mark.slow
def test_expected_gates_are_what_draws_have():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    (group,) = coupled.free
    phi = jnp.linspace(-3.0, 3.0, 6)
    gates = HardConcrete({group.name: phi}, coupled)
    draws = 4000
    z = jax.vmap(lambda k: gates.draw(k).keep[group.name])(jax.random.split(KEY, draws))
    assert ((z >= 0) & (z <= 1)).all()
    assert ((z == 0).any(0) & (z == 1).any(0)).all()
    open_, p = (z > 0).mean(0), gates.openness[group.name]
    assert (jnp.abs(open_ - p) < 4 * jnp.sqrt(p * (1 - p) / draws)).all()
    counts = (z > 0).sum(1)
    error = counts.std() / np.sqrt(draws)
    assert abs(counts.mean() - gates.expected("channels")) < 4 * error
    np.testing.assert_allclose(gates.expected(), group.parameters * p.sum(), rtol=1e-6)
    start = HardConcrete.start(coupled, open=0.7)
    np.testing.assert_allclose(start.openness[group.name], 0.7, rtol=1e-6)
    slope = jax.grad(lambda g: g.expected("channels"))(gates).location[group.name]
    np.testing.assert_allclose(slope, p * (1 - p), rtol=1e-5)


def divergence(log_alpha):
    """KL(N(mu, alpha mu^2) || 1/|w|) but for a constant: E log|e| - log alpha / 2, e ~ N(1, a)."""
    alpha = np.exp(log_alpha)

    def integrand(t):
        return np.log(np.abs(1 + np.sqrt(alpha) * t)) * np.exp(-(t**2) / 2) / np.sqrt(2 * np.pi)

    value, _ = integrate.quad(
        integrand, -9, 9, points=[np.clip(-1 / np.sqrt(alpha), -9, 9)], limit=400
    )
    return value - 0.5 * log_alpha


def test_the_dropout_divergence_is_the_integral_within_a_hundredth():
    rates = np.linspace(-5, 6, 23)
    exact = np.array([divergence(r) for r in rates])
    # The constant is that of alpha without bounds: E log|t| of a standard normal.
    exact -= -(np.euler_gamma + np.log(2)) / 2
    ours = np.asarray(dropout_divergence(jnp.asarray(rates, jnp.float32)), np.float64)
    assert np.abs(ours - exact).max() < 0.01
    assert (np.diff(ours) < 0).all()


@pytest.mark.slow
def test_dropout_gates_have_their_moments_and_drop_what_is_noise():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    (group,) = coupled.free
    mean = jnp.array([1.0, 0.5, 2.0, 0.01, 1.0, 1.0])
    gates = DropoutGates({group.name: mean}, {group.name: jnp.full(6, -2.0)}, coupled)
    draws = 4000
    z = jax.vmap(lambda k: gates.draw(k).keep[group.name])(jax.random.split(KEY, draws))
    sigma = np.exp(-1)
    assert (jnp.abs(z.mean(0) - mean) < 4 * sigma / np.sqrt(draws)).all()
    error = sigma**2 * np.sqrt(2 / draws)
    assert (jnp.abs(z.var(0) - sigma**2) < 4 * error).all()
    np.testing.assert_allclose(gates.log_alpha[group.name], -2 - 2 * jnp.log(mean), rtol=1e-3)
    assert gates.plan().keep[group.name].tolist() == [True, True, True, False, True, True]
    soft = gates.deterministic().keep[group.name]
    np.testing.assert_array_equal(soft, jnp.where(mean > 0.1, mean, 0))
    zero = jax.tree.map(jnp.zeros_like, gates)
    slopes = jax.grad(lambda g: g.penalty())(zero)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")
@pytest.mark.parametrize("kind", [HardConcrete, DropoutGates])
def test_training_closes_gates_of_channels_that_only_cost(kind):
    def f(params, x):
        return (x @ params["w"]) @ params["out"]

    x = jax.random.normal(KEY, (256, 4))
    # Channels 2 and 3 make nothing that is asked for.
    params = {"w": jnp.eye(4), "out": jnp.array([[1.0], [1.0], [0.01], [0.01]])}
    y = x[:, :2].sum(1, keepdims=True)
    coupled = channels(f, params, x)
    (group,) = coupled.free

    def loss(key, learnt, batch):
        gates, (x, y) = learnt, batch
        error = jnp.square(masked(f, gates.draw(key))(params, x) - y).mean() * 10
        if kind is HardConcrete:
            return error + 0.1 * gates.expected("channels")
        return error + 0.1 * gates.penalty()

    run = fit(
        KEY, stateless(loss), kind.start(coupled), (x, y),
        optimizer=optax.adam(0.1), epochs=40, batch_size=64, progress=False,
    )  # fmt: skip
    keep = run.params.plan() if kind is DropoutGates else run.params.deterministic().above(0)
    assert keep.keep[group.name].tolist() == [True, True, False, False]


def test_group_lasso_is_the_sum_of_norms_and_so_is_its_gradient():
    def f(params, x):
        return jax.nn.relu(x @ params["a"] + params["b"][None]) @ params["c"]

    rng = np.random.default_rng(0)
    shapes = {"a": (3, 4), "b": (4,), "c": (4, 2)}
    params = {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}
    params = {"a": params["a"].at[:, 1].set(0), "b": params["b"].at[1].set(0),
              "c": params["c"].at[1].set(0)}  # fmt: skip
    coupled = channels(f, params, jnp.ones((2, 3)))
    value, gradient = jax.value_and_grad(group_lasso)(params, coupled)
    rows = np.concatenate([params["a"].T, params["b"][:, None], params["c"]], 1)
    norms = np.linalg.norm(rows, axis=1)
    root = np.sqrt(3 + 1 + 2)
    np.testing.assert_allclose(value, root * norms.sum(), rtol=1e-6)
    slope = root * np.divide(rows, norms[:, None], where=norms[:, None] > 0, out=0 * rows)
    np.testing.assert_allclose(gradient["a"], slope[:, :3].T, rtol=1e-5)
    np.testing.assert_allclose(gradient["b"], slope[:, 3], rtol=1e-5)
    np.testing.assert_allclose(gradient["c"], slope[:, 4:], rtol=1e-5)


def test_group_lasso_counts_the_diagonal_of_a_recurrent_kernel_once():
    def f(params, x):
        def cell(h, row):
            return jnp.tanh(row[None] @ params["x"] + h @ params["h"]), None

        return jax.lax.scan(cell, jnp.zeros((1, 3)), x)[0] @ params["out"]

    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3), "h": (3, 3), "out": (3, 1)}
    params = {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}
    coupled = channels(f, params, jnp.ones((4, 2)))
    (group,) = [g for g in coupled.free if g.size == 3]
    total = 0.0
    for c in range(3):
        entries = {n: np.zeros(s, bool) for n, s in shapes.items()}
        entries["x"][:, c] = entries["h"][c] = entries["h"][:, c] = entries["out"][c] = True
        total += np.sqrt(sum(np.square(params[n][entries[n]]).sum() for n in shapes))
    expected = np.sqrt(group.parameters) * total
    np.testing.assert_allclose(group_lasso(params, coupled), expected, rtol=1e-5)


@pytest.mark.slow
def test_slimming_is_the_sum_of_scales():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    value, gradient = jax.value_and_grad(slimming)(params, coupled)
    np.testing.assert_allclose(value, jnp.abs(params["norm"]["scale"]).sum(), rtol=1e-6)
    np.testing.assert_array_equal(gradient["norm"]["scale"], jnp.sign(params["norm"]["scale"]))
    assert not jnp.any(gradient["stem"]["kernel"])
    f, params, x = nets()["attention"]
    with pytest.raises(ValueError, match="the model has none; group_lasso"):
        slimming(params, channels(f, params, x))


def test_gates_are_refused_where_a_plan_is_needed():
    f, params, x = nets()["net"]
    coupled = channels(f, params, x)
    (group,) = coupled.free
    soft = Plan({group.name: jnp.linspace(0, 1, 6)}, coupled)
    for call in (lambda: pruned(f, soft), lambda: soft.shrink(params)):
        with pytest.raises(PlanError, match=r"multiplied by numbers.*give plan\.above"):
            call()
    with pytest.raises(PlanError, match=r"there are \['again/kernel:3'"):
        masked(f, Plan({"nothing": jnp.ones(6)}, coupled))
    with pytest.raises(PlanError, match="has 6 channels, the plan"):
        masked(f, Plan({group.name: jnp.ones(5)}, coupled))
    with pytest.raises(PlanError, match="can't lose channels: a result of the function"):
        HardConcrete.start(coupled, groups=["head/kernel:1"])
    with pytest.raises(ValueError, match="open must be positive and below 1"):
        HardConcrete.start(coupled, open=1.0)
