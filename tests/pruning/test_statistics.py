"""Statistics over channels that go: told, kept as the masked network has them, or left alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.pruning import (
    Budget,
    CrossedWarning,
    Plan,
    PlanError,
    Prune,
    channels,
    load_pruned,
    masked,
    prune_iteratively,
    prune_plan,
    pruned,
    save_pruned,
)
from jaxeff.pruning._iterative import lifted
from jaxeff.training import cross_entropy

pytestmark = pytest.mark.promotes("dtype", "rank")
X = jax.random.normal(jax.random.key(0), (32, 6))
NORMS = {
    "layer": nnx.LayerNorm,
    "root mean square": nnx.RMSNorm,
    "group": functools.partial(nnx.GroupNorm, num_groups=4),
}


class Normed(nnx.Module):
    def __init__(self, norm, rngs):
        self.first, self.norm = nnx.Linear(6, 16, rngs=rngs), norm(16, rngs=rngs)
        self.second, self.last = nnx.Linear(16, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.second(jax.nn.gelu(self.norm(self.first(x))))))


@functools.cache
def network(name):
    return jaxeff.functional(Normed(NORMS[name], nnx.Rngs(0)))


def crossing_plan(name, crossed=None):
    """Removes half of the channels that a statistic crosses."""
    f, params = network(name)
    coupled = channels(f, params, X)
    (group,) = [group for group in coupled.free if group.crossed]
    keep = {group.name: np.arange(group.size) % 2 == 0}
    return Plan(keep, coupled, {} if crossed is None else {group.name: crossed})


@pytest.mark.parametrize("name", NORMS)
def test_a_statistic_over_fewer_channels_is_told(name):
    f, _ = network(name)
    with pytest.warns(CrossedWarning, match=r"left of 'first/kernel:1\S* by .*at 'norm'") as told:
        pruned(f, crossing_plan(name))
    assert all(way in str(told[0].message) for way in ('"left"', '"zeros"', '"keep"'))
    pruned(f, crossing_plan(name, "left"))  # a warning would be an error


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMS)
def test_removed_channels_that_count_as_zeros_are_masked_ones(name):
    f, params = network(name)
    plan = crossing_plan(name, "zeros")
    small = plan.shrink(params)

    def computed(g):
        def total(p):
            out = g(p, X)
            return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

        return jax.jit(jax.value_and_grad(total, has_aux=True))

    (_, ours), gradient = computed(pruned(f, plan))(small)
    (_, theirs), masked_output = computed(masked(f, plan))(params)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        jax.tree.leaves(gradient), jax.tree.leaves(plan.shrink(masked_output)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    left = pruned(f, crossing_plan(name, "left"))(small, X)
    assert np.abs(ours - left).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, Budget(parameters=0.8)])
def test_what_prune_says_of_statistics_is_what_the_plan_does(budget):
    f, params = network("layer")
    plans = {
        crossed: prune_plan(f, params, X, {"*": Prune(0.5, crossed=crossed)}, budget=budget)
        for crossed in (None, "left", "zeros", "keep")
    }
    norm, plain = "first/kernel:1", "second/kernel:1"
    assert {c: plan.crossed for c, plan in plans.items()} == {
        None: {}, "left": {norm: "left"}, "zeros": {norm: "zeros"}, "keep": {},
    }  # fmt: skip
    assert set(plans["keep"].keep) == {plain}
    assert set(plans["zeros"].keep) == {norm, plain}
    small = plans["zeros"].shrink(params)
    np.testing.assert_allclose(
        pruned(f, plans["zeros"])(small, X), masked(f, plans["zeros"])(params, X), atol=1e-5
    )
    with pytest.raises(ValueError, match=r'Statistics cross all others, which crossed="keep"'):
        prune_plan(f, params, X, {"first": Prune(0.5, crossed="keep")})
    with pytest.raises(ValueError, match=r"Prune\.crossed must be one of .* not 'mask'"):
        Prune(0.5, crossed="mask")


def test_zeros_are_refused_where_a_statistic_reads_something_else():
    def f(p, x):
        h = x @ p["q"]
        return (h / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)) @ p["o"]  # squared distances

    params = {"q": jnp.ones((6, 4)), "o": jnp.ones((4, 2))}
    with pytest.raises(PlanError, match=r"'q:1' can't count as zeros: .*\"left\".*\"keep\""):
        prune_plan(f, params, X, {"q": Prune(0.5, crossed="zeros")})
    coupled = channels(f, params, X)
    keep = {"q:1": np.arange(4) < 2}
    with pytest.raises(PlanError, match="'q:1' can't count as zeros"):
        pruned(f, Plan(keep, coupled, {"q:1": "zeros"}))
    with pytest.raises(PlanError, match="not 'ones'"):
        pruned(f, Plan(keep, coupled, {"q:1": "ones"}))
    with pytest.raises(PlanError, match="no group 'r'"):
        pruned(f, Plan(keep, coupled, {"r": "left"}))


@pytest.mark.slow
def test_rounds_files_and_trees_keep_what_is_said_of_statistics(tmp_path):
    f, params = network("layer")
    data = X, (X[:, 0] > 0).astype(jnp.int32)
    run = prune_iteratively(
        jax.random.key(0), f, params, data, {"*": Prune(0.9, crossed="zeros")},
        [Budget(parameters=0.8), Budget(parameters=0.6)], loss=cross_entropy,
        optimizer=optax.sgd(1e-2), epochs=1, batch_size=32, progress=False,
    )  # fmt: skip
    assert run.plan.crossed == {"first/kernel:1": "zeros"}
    # What was trained at the narrower shapes is the masked network, the removed channels at zero.
    plan = run.plan
    assert 1 < plan.keep["first/kernel:1"].sum() < 16

    (whole,) = jax.linear_transpose(plan.shrink, params)(run.params)
    np.testing.assert_allclose(run.f(run.params, X), f(whole, X), rtol=1e-4, atol=1e-5)

    save_pruned(tmp_path / "small", plan, run.params)
    read, small = load_pruned(tmp_path / "small", plan.channels, params)
    assert read.crossed == plan.crossed
    np.testing.assert_array_equal(pruned(f, read)(small, X), run.f(run.params, X))
    gates = Plan(
        {n: jnp.asarray(k, jnp.float32) for n, k in plan.keep.items()}, plan.channels, plan.crossed
    )
    for same in (
        jax.tree.map(jnp.asarray, plan),
        gates.above(0.5),
        lifted(plan, Plan({}, plan.channels)),
    ):
        assert same.crossed == plan.crossed
    assert jax.tree.structure(plan) != jax.tree.structure(Plan(plan.keep, plan.channels))
