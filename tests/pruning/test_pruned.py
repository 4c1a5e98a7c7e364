"""A pruned network is the masked one, where no statistic crosses channels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.pruning import Plan, PlanError, Prune, channels, masked, prune_plan, pruned, scores
from tests.pruning.networks import IMAGE, NETWORKS
from tests.pruning.networks.convolutional import Residual


def network(name):
    made = NETWORKS[name]()
    return made.f, jax.tree.map(jnp.asarray, made.params), made.args


def drawn(found, seed):
    """A plan that removes half of what can be removed."""
    rng = np.random.default_rng(seed)
    keep = {}
    for group in found.free:
        keep[group.name] = where = rng.random(group.size) < 0.5
        where[rng.integers(group.size)] = True
    return Plan(keep, found)


@pytest.mark.slow
def test_any_batch_and_eager_are_the_same():
    f, params, (x,) = network("resnet18")
    plan = drawn(channels(f, params, x), 0)
    g, small = pruned(f, plan), plan.shrink(params)
    both = jnp.concatenate([x, 2 * x])
    np.testing.assert_allclose(g(small, both)[:2], jax.jit(g)(small, x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_mean_over_channels_is_that_of_those_left():
    class Normed(nnx.Module):
        def __init__(self, width, rngs):
            self.first, self.norm = nnx.Linear(6, width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
            self.last = nnx.Linear(width, 3, rngs=rngs)

        def __call__(self, x):
            return self.last(jax.nn.gelu(self.norm(self.first(x))))

    wide, narrow = (jaxeff.functional(Normed(n, nnx.Rngs(0))) for n in (16, 5))
    x = jax.random.normal(jax.random.key(0), (4, 6))
    coupled = channels(wide[0], wide[1], x)
    (group,) = coupled.free
    assert "div at 'norm' (a mean)" in group.crossed[0]
    plan = Plan({group.name: jnp.arange(16) < 5}, coupled, {group.name: "left"})
    small = plan.shrink(wide[1])
    assert jax.tree.map(jnp.shape, small) == jax.tree.map(jnp.shape, narrow[1])
    ours, theirs = pruned(wide[0], plan)(small, x), narrow[0](small, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(ours - masked(wide[0], plan)(wide[1], x)).max() > 1e-3


@pytest.mark.slow
def test_running_statistics_are_cut_whether_closed_over_or_given():
    f, params, state = jaxeff.functional(Residual(nnx.Rngs(0)), mutable=True)
    plan = drawn(channels(f, params, state, IMAGE), 1)
    g = pruned(f, plan)
    out, new = g(plan.shrink(params), plan.shrink(state), IMAGE)
    _, masked_output = masked(f, plan)(params, state, IMAGE)
    assert out.shape == (2, 5)
    for ours, theirs in zip(
        jax.tree.leaves(new), jax.tree.leaves(plan.shrink(masked_output)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_many_plans_are_one_program():
    f, params, (x,) = network("linen mlp")
    coupled = channels(f, params, x)
    (group,) = coupled.free
    keeps = jnp.stack([jnp.arange(16) < n for n in (4, 8, 16)])
    many = jax.jit(jax.vmap(lambda k: masked(f, Plan({group.name: k}, coupled))(params, x)))(keeps)
    for keep, out in zip(keeps, many, strict=True):
        plan = Plan({group.name: keep}, coupled)
        np.testing.assert_allclose(pruned(f, plan)(plan.shrink(params), x), out, atol=1e-5)


def test_optimizers_and_posteriors_shrink_too():
    import optax

    f, params, (x,) = network("linen mlp")
    plan = drawn(channels(f, params, x), 0)
    small = plan.shrink(params)
    adam = optax.adam(1e-3)
    state = plan.shrink(adam.init(params))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, adam.init(small))
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 0.01)), params)
    logits = jaxeff.moments(pruned(f, plan), method="diagonal")(plan.shrink(posterior), x)
    assert logits.var.shape == (2, 4)
    assert (logits.var > 0).all()


@pytest.mark.slow
def test_transforms_compose():
    f, params, (x,) = network("mobilenet3")
    plan = drawn(channels(f, params, x), 0)
    g, small = pruned(f, plan), plan.shrink(params)
    key = jax.random.key(0)
    noise = {"stem/conv": jaxeff.Additive(0.1)}
    assert jaxeff.noisy(g, noise)(key, small, x).shape == (2, 5)
    np.testing.assert_allclose(
        pruned(jaxeff.quantized(f, {"head": jaxeff.Int(8)}), plan)(small, x),
        jaxeff.quantized(g, {"head": jaxeff.Int(8)})(small, x),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "score",
    [scores.l1, scores.l2, scores.random(jax.random.key(0))],
    ids=["l1", "l2", "random"],
)
def test_plans_keep_what_was_asked(score):
    f, params, (x,) = network("lenet")
    spec = {"*:linear": Prune(0.5), "fc1": Prune(count=50, round_to=8), "conv1": None}
    with pytest.raises(ValueError, match="a result of the function"):
        prune_plan(f, params, x, {"fc3": Prune(0.5)})
    plan = prune_plan(f, params, x, spec, score=score)
    left = {name: int(np.sum(keep)) for name, keep in plan.keep.items()}
    assert left == {"conv2/kernel:3": 8, "fc1/kernel:1": 72, "fc2/kernel:1": 42}


@pytest.mark.slow
def test_scores_rank_channels_by_what_they_do():
    f, params, (x,) = network("linen mlp")
    coupled = channels(f, params, x)
    (group,) = coupled.free
    kernel = next(m.path for m in group.members if m.axis == 1)
    weak = jax.tree_util.tree_map_with_path(
        lambda path, w: (
            w.at[:, 3].set(0)
            if kernel in jax.tree_util.keystr(path, simple=True, separator="/")
            else w
        ),
        params,
    )
    labels = jnp.array([0, 1])

    def loss(p, batch):
        return -jnp.take_along_axis(jax.nn.log_softmax(f(p, batch)), labels[:, None], 1).mean()

    small = scores.taylor(loss, [x])(weak, coupled)[group.name]
    assert scores.l1(weak, coupled)[group.name].argmin() == 3
    assert np.isfinite(small).all()
    # Against the change of the loss itself, for channels that hardly matter.
    tiny = jax.tree.map(lambda w: 0.01 * w, params)
    predicted = scores.taylor(loss, [x])(tiny, coupled)[group.name]
    assert predicted.shape == (16,)
    second = scores.optimal_brain_damage(jax.random.key(0), loss, [x])(params, coupled)
    assert (second[group.name] >= 0).all()
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 0.1)), weak)
    assert scores.signal_to_noise(posterior)(None, coupled)[group.name].argmin() == 3


def test_a_plan_is_text_and_refuses_another_model(tmp_path):
    f, params, (x,) = network("lenet")
    coupled = channels(f, params, x)
    plan = drawn(coupled, 0)
    path = plan.save(tmp_path / "plan.json")
    again = Plan.load(path, channels(f, params, x))
    for name, keep in plan.keep.items():
        np.testing.assert_array_equal(again.keep[name], keep)
    other, weights, (y,) = network("linen mlp")
    with pytest.raises(PlanError, match="plan of another model"):
        Plan.load(path, channels(other, weights, y))
    with pytest.raises(PlanError, match="has shape"):
        plan.shrink({"conv1": {"kernel": jnp.ones((2, 2))}})
    path.write_text("{")
    with pytest.raises(PlanError, match="no plan, or damaged"):
        Plan.load(path, coupled)


def test_mistakes_are_named():
    f, params, (x,) = network("lenet")
    coupled = channels(f, params, x)
    with pytest.raises(PlanError, match="removes all channels of 'conv1/kernel:3'"):
        pruned(f, Plan({"conv1/kernel:3": jnp.zeros(6, bool)}, coupled))
    with pytest.raises(PlanError, match="can't lose channels: a result of the function"):
        pruned(f, Plan({"fc3/kernel:1": jnp.arange(10) < 5}, coupled))
    with pytest.raises(ValueError, match="a ratio or a count"):
        Prune()
    with pytest.raises(PlanError, match="one has to stay"):
        prune_plan(f, params, x, {"conv1": Prune(count=6)})
    plan = drawn(coupled, 0)
    with pytest.raises(PlanError, match=r"give plan\.shrink\(params\)"):
        pruned(f, plan)(params, x)
    with pytest.raises(PlanError, match="traced"):
        jax.jit(lambda k: pruned(f, Plan({"conv1/kernel:3": k}, coupled)))(jnp.ones(6, bool))


def test_what_cannot_be_pruned_says_why():
    def ordered(p, x):
        return jnp.sort(x @ p["a"], axis=-1) @ p["b"]

    p, x = {"a": jnp.ones((3, 8)), "b": jnp.ones((8, 2))}, jnp.ones((2, 3))
    coupled = channels(ordered, p, x)
    assert not coupled.free
    assert "sort" in coupled["a:1"].held[0]
    assert "sort" in str(coupled)


@pytest.mark.slow
def test_what_was_pruned_is_pruned_again():
    f, params, (x,) = network("resnet18")
    first = drawn(channels(f, params, x), 0)
    g, small = pruned(f, first), first.shrink(params)
    second = drawn(channels(g, small, x), 1)
    h, smaller = jax.jit(pruned(g, second)), second.shrink(small)
    expected = jax.jit(masked(g, second))(small, x)
    np.testing.assert_allclose(h(smaller, x), expected, rtol=1e-5, atol=1e-5)
    # Both plans as one, of the network that it began with.
    keep = {}
    for name, where in first.keep.items():
        keep[name] = both = np.array(where)
        both[both] = second.keep.get(name, np.ones(both.sum(), bool))
    at_once = Plan(keep, first.channels)
    np.testing.assert_allclose(
        jax.jit(pruned(f, at_once))(at_once.shrink(params), x), expected, rtol=1e-5, atol=1e-5
    )


def test_a_plan_that_removes_nothing_is_the_function():
    f, params, args = network("linen mlp")
    coupled = channels(f, params, *args)
    assert pruned(f, Plan({}, coupled)) is f
    whole = Plan({group.name: np.ones(group.size, bool) for group in coupled}, coupled)
    assert pruned(f, whole) is f


def test_a_function_that_needs_what_the_plan_removes_is_refused():
    f, params, (x,) = network("linen mlp")
    (group,) = (coupled := channels(f, params, x)).free
    plan = Plan({group.name: np.arange(16) < 3}, coupled)

    def ordered(p, x):
        p = {**p, "fc1": {k: jnp.cumsum(w, -1) for k, w in p["fc1"].items()}}
        return f(p, x)

    with pytest.raises(PlanError, match="cumsum"):
        pruned(ordered, plan)(plan.shrink(params), x)


def test_a_result_may_be_a_number():
    f, params, (x,) = network("linen mlp")
    counted = lambda p, x: (f(p, x), 3.0)  # noqa: E731
    (group,) = (coupled := channels(counted, params, x)).free
    plan = Plan({group.name: np.arange(16) < 3}, coupled)
    smaller, count = pruned(counted, plan)(plan.shrink(params), x)
    np.testing.assert_array_equal(smaller, pruned(f, plan)(plan.shrink(params), x))
    assert count == 3
