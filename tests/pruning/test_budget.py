"""Budgets are met as nearly as rounding allows, and never exceeded."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.pruning import Budget, Plan, PlanError, Prune, channels, prune_plan, pruned, scores
from jaxeff.pruning._budget import macs, parameters

X = jnp.ones((2, 6))


def net(params, x):
    h = jax.nn.relu(x @ params["a"])
    h = jax.nn.relu(h @ params["b"])
    return h @ params["c"]


@functools.cache
def drawn():
    rng = np.random.default_rng(0)
    shapes = {"a": (6, 12), "b": (12, 10), "c": (10, 3)}
    return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}


def cost_of(plan, what):
    small = plan.shrink(drawn())
    if what == "macs":
        return jaxeff.cost(pruned(net, plan), small, X).macs
    return sum(w.size for w in jax.tree.leaves(small))


def whole(what):
    return cost_of(Plan({}, channels(net, drawn(), X)), what)


def convolved(x, w, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, padding="SAME", dimension_numbers=numbers, **options)


def images(params, x):
    """Grouped, depthwise and strided convolutions, a concatenation, a transposed one."""
    x = convolved(x, params["stem"], window_strides=(1, 1))
    y = convolved(jnp.tanh(x), params["grouped"], window_strides=(2, 2), feature_group_count=2)
    z = convolved(jnp.tanh(x), params["depthwise"], window_strides=(2, 2), feature_group_count=8)
    x = jnp.concatenate([jnp.tanh(y), jnp.tanh(z)], -1)
    x = jax.lax.conv_transpose(x, params["up"], (2, 2), "SAME")
    return jnp.tanh(x).mean((1, 2)) @ params["head"]


def tokens(params, x):
    """Heads in a loop over stacked layers, and a branch."""

    def block(x, w):
        q, k, v = ((x @ w[n]).reshape(*x.shape[:2], 2, 3) for n in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bihd,bjhd->bhij", q, k))
        y = jnp.einsum("bhij,bjhd->bihd", weights, v).reshape(*x.shape[:2], 6)
        return x + y @ w["o"], None

    x = jax.lax.scan(block, x @ params["in"], params["blocks"])[0]
    x = jax.lax.cond(x.sum() > 0, lambda x: jnp.tanh(x @ params["wide"]) @ params["back"],
                     lambda x: x, x)  # fmt: skip
    return x @ params["out"]


SHAPES = {
    images: {"stem": (3, 3, 2, 8), "grouped": (3, 3, 4, 6), "depthwise": (3, 3, 1, 8),
             "up": (2, 2, 14, 5), "head": (5, 3)},
    tokens: {"in": (3, 5), "out": (5, 2), "wide": (5, 20), "back": (20, 5),
             "blocks": {**{n: (4, 5, 6) for n in "qkv"}, "o": (4, 6, 5)}},
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("f", SHAPES, ids=["images", "tokens"])
def test_costs_are_counted_without_tracing(f, seed):
    params = jax.tree.map(jnp.ones, SHAPES[f], is_leaf=lambda s: isinstance(s, tuple))
    x = jnp.ones((2, 6, 6, 2) if f is images else (2, 4, 3))
    coupled = channels(f, params, x)
    assert len(coupled.free) >= 3
    rng = np.random.default_rng(seed)
    keep = {g.name: rng.random(g.size) < 0.6 for g in coupled.free}
    for where in keep.values():
        where[0] = True
    plan = Plan(keep, coupled)
    ids = {g.name: d for g, d in zip(coupled, coupled.dimensions, strict=True)}
    counts = {ids[n]: int(k.sum()) for n, k in keep.items()}
    small = plan.shrink(params)
    assert parameters(coupled)(counts) == sum(w.size for w in jax.tree.leaves(small))
    assert macs(coupled)(counts) == pytest.approx(jaxeff.cost(pruned(f, plan), small, x).macs)
    assert macs(coupled)({}) == jaxeff.cost(f, params, x).macs


@pytest.mark.parametrize("what", ["macs", "parameters"])
@pytest.mark.parametrize("round_to", [1, 4])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("share", [0.3, 0.55, 0.9])
def test_the_budget_is_met_and_no_block_fits_any_more(what, round_to, uniform, share):
    spec = {"*": Prune(0.9, round_to=round_to), "c": None}
    budget = Budget(**{what: share}, uniform=uniform)
    plan = prune_plan(net, drawn(), X, spec, budget=budget)
    limit = share * whole(what)
    assert cost_of(plan, what) <= limit
    for name, keep in plan.keep.items():
        n = int(keep.sum())
        assert n % round_to == 0 or n == len(keep)
        more = min(n + round_to - n % round_to, len(keep))
        if more > n:
            bigger = np.array(keep)
            bigger[np.flatnonzero(~bigger)[: more - n]] = True
            assert cost_of(Plan({**plan.keep, name: bigger}, plan.channels), what) > limit
    if uniform and round_to == 1:
        shares = [keep.mean() for keep in plan.keep.values()]
        assert max(shares) - min(shares) <= 2 / 10


def test_scores_of_all_layers_compete():
    params = {**drawn(), "b": drawn()["b"].at[:, 4:].multiply(1e-3)}
    plan = prune_plan(net, params, X, {"a": Prune(0.9), "b": Prune(0.9)},
                      budget=Budget(parameters=0.6))  # fmt: skip
    by_size = {k: v for k, v in plan.keep.items()}
    assert not by_size["b:1"][4:].any()
    assert by_size["a:1"].sum() > 8
    # Whatever the scale of a whole layer: scores are divided by their mean.
    scaled = {**params, "a": 100 * params["a"]}
    again = prune_plan(net, scaled, X, {"a": Prune(0.9), "b": Prune(0.9)},
                       budget=Budget(parameters=0.6))  # fmt: skip
    for name, keep in plan.keep.items():
        np.testing.assert_array_equal(again.keep[name], keep)
    raw = Budget(parameters=0.6, normalize="nothing")
    other = prune_plan(net, scaled, X, {"a": Prune(0.9), "b": Prune(0.9)}, budget=raw)
    assert other.keep["a:1"].all()


def test_a_measured_budget_holds_for_the_plan_itself():
    asked = []

    def seconds(plan):
        asked.append(plan)
        kept = [int(np.sum(k)) for k in plan.keep.values()]
        return 1.0 + np.prod(kept)  # a part that pruning can't remove

    budget = Budget(measured=0.5, measure=seconds)
    plan = prune_plan(net, drawn(), X, {"a": Prune(0.9), "b": Prune(0.9)}, budget=budget)
    assert len(asked) <= 2 + 5  # both ends, and log2 of 22 levels
    assert seconds(plan) <= 0.5 * seconds(asked[0])
    noisy = itertools.count()

    def jumpy(plan):
        return 10.0 if next(noisy) == 0 else 9.9

    with pytest.raises(PlanError, match=r"leaves 0\.99 \(9\.9 of 10\)"):
        prune_plan(net, drawn(), X, {"a": Prune(0.9)}, budget=Budget(measured=0.5, measure=jumpy))
    with pytest.raises(ValueError, match=r"Budget.measure\(plan\) must be positive"):
        prune_plan(net, drawn(), X, {"a": Prune(0.9)},
                   budget=Budget(measured=0.5, measure=lambda plan: 0.0))  # fmt: skip


def test_what_cannot_be_reached_says_what_can():
    spec = {"a": Prune(0.5)}
    least = prune_plan(net, drawn(), X, spec)
    share = cost_of(least, "macs") / whole("macs")
    with pytest.raises(PlanError, match=rf"0\.1 of the multiply-accumulates can't be reached.*"
                                        rf"leaves {share:.4g} \("):  # fmt: skip
        prune_plan(net, drawn(), X, spec, budget=Budget(macs=0.1))
    at_the_least = prune_plan(net, drawn(), X, spec, budget=Budget(macs=share))
    np.testing.assert_array_equal(at_the_least.keep["a:1"], least.keep["a:1"])
    everything = prune_plan(net, drawn(), X, spec, budget=Budget(macs=1.0))
    assert everything.keep["a:1"].all()


def test_budgets_are_checked():
    for wrong in ({}, {"macs": 0.5, "parameters": 0.5}):
        with pytest.raises(ValueError, match="takes one share"):
            Budget(**wrong)
    with pytest.raises(ValueError, match="together, or neither"):
        Budget(measured=0.5)
    with pytest.raises(ValueError, match=r"Budget\.macs must be"):
        Budget(macs=1.5)
    with pytest.raises(PlanError, match="negative, so that dividing"):
        prune_plan(net, drawn(), X, {"a": Prune(0.5)}, budget=Budget(macs=0.9),
                   score=lambda p, c: {g.name: -np.arange(g.size) for g in c})  # fmt: skip
    assert prune_plan(net, drawn(), X, {"a": Prune(0.5)}, score=scores.l2).keep["a:1"].sum() == 6


@pytest.mark.parametrize("budget", [None, Budget(macs=0.5)])
def test_shapes_alone_give_the_sizes_of_a_plan(budget):
    f, params, (x, _) = small_classifier(2)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x))
    ours = prune_plan(f, *shapes, {"*:linear": Prune(0.5)}, budget=budget)
    theirs = prune_plan(f, params, x, {"*:linear": Prune(0.5)}, budget=budget)
    if budget is None:
        sizes = [{n: int(k.sum()) for n, k in plan.keep.items()} for plan in (ours, theirs)]
        assert sizes[0] == sizes[1]
    else:
        # Which group loses how much is a matter of scores, of which there are none.
        smaller = jaxeff.cost(pruned(f, ours), ours.shrink(params), x).macs
        assert smaller <= 0.5 * jaxeff.cost(f, params, x).macs
