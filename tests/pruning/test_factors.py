"""A share of a layer's channels is that share, also where they are a product."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.pruning import (
    Budget,
    NothingPrunedWarning,
    Prune,
    channels,
    masked,
    prune_plan,
    pruned,
)

pytestmark = pytest.mark.promotes("dtype", "rank")


class GroupNormed(nnx.Module):
    def __init__(self, groups, rngs):
        self.first = nnx.Linear(3, 16, rngs=rngs)
        self.norm = nnx.GroupNorm(16, num_groups=groups, rngs=rngs)
        self.last = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.relu(self.norm(self.first(x))))


def attention(p, x):
    q, k, v = (jnp.einsum("bld,dhe->blhe", x, p[n]) for n in "qkv")
    weights = jax.nn.softmax(jnp.einsum("blhe,bmhe->bhlm", q, k))
    return jnp.einsum("bhlm,bmhe->blhe", weights, v).reshape(*x.shape[:2], -1) @ p["o"]


def grouped(p, x):
    numbers = ("NWC", "WIO", "NWC")
    y = jax.lax.conv_general_dilated(
        jnp.tanh(x @ p["in"]), p["conv"], (1,), "SAME", dimension_numbers=numbers,
        feature_group_count=3,
    )  # fmt: skip
    return jnp.tanh(y) @ p["o"]


X = jax.random.normal(jax.random.key(0), (2, 5, 3))
SHAPES = {
    attention: {"q": (3, 4, 6), "k": (3, 4, 6), "v": (3, 4, 10), "o": (40, 2)},
    grouped: {"in": (3, 12), "conv": (3, 4, 15), "o": (15, 2)},
}


def drawn(f):
    rng = np.random.default_rng(0)
    return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in SHAPES[f].items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "ratio", "left"),
    # Whole blocks go where that is what was asked, and channels of every block elsewhere.
    [(4, 0.5, 8), (8, 0.5, 8), (2, 0.25, 12), (4, 0.1, 16), (4, 0.8, 4)],
)
def test_a_group_norm_loses_what_was_asked(groups, ratio, left):
    f, params = jaxeff.functional(GroupNormed(groups, nnx.Rngs(0)))
    with (
        pytest.warns(NothingPrunedWarning, match="less than a channel")
        if left == 16
        else contextlib.nullcontext()
    ):
        plan = prune_plan(f, params, X[:, 0], {"first": Prune(ratio, crossed="zeros")})
    small = plan.shrink(params)
    assert small["first"]["kernel"].shape == (3, left)
    ours, theirs = pruned(f, plan)(small, X[:, 0]), masked(f, plan)(params, X[:, 0])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_whole_blocks_of_a_group_norm_go_where_it_makes_no_difference():
    f, params = jaxeff.functional(GroupNormed(4, nnx.Rngs(0)))
    blockwise = Prune(0.3, round_to=8, crossed="keep")
    for setting in (Prune(0.5), Prune(count=8), blockwise):
        with (
            pytest.warns(NothingPrunedWarning, match="a smaller round_to")
            if setting is blockwise
            else contextlib.nullcontext()
        ):
            plan = prune_plan(f, params, X[:, 0], {"first": setting})
        (name,) = plan.keep
        assert not plan.channels[name].crossed
        left = 16 if setting.ratio == 0.3 else 8  # a block is four channels, and 12 aren't full
        assert plan.shrink(params)["first"]["kernel"].shape == (3, left)
        pruned(f, plan)  # nothing to warn of


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("f", SHAPES)
def test_heads_and_convolutions_in_groups_lose_what_was_asked(f, ratio):
    params = drawn(f)
    plan = prune_plan(f, params, X, {"*": Prune(ratio), "o": None})
    small = plan.shrink(params)
    for name in ("q", "k", "v") if f is attention else ("in", "conv"):
        widths = [
            int(np.prod(p[name].shape[1 if f is attention else -1 :])) for p in (params, small)
        ]
        asked = widths[0] - int(ratio * widths[0])
        # A factor's channel is as many channels of the layer as the other factor has.
        other = 4 if f is attention else 3
        assert asked <= widths[1] < asked + other, (name, widths)
    ours, theirs = pruned(f, plan)(small, X), masked(f, plan)(params, X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_with_a_budget_no_more_of_a_layer_goes_than_may():
    params = drawn(attention)
    spec = {"*": Prune(0.5), "o": None}
    weight_count = sum(w.size for w in params.values())
    plan = prune_plan(attention, params, X, spec, budget=Budget(parameters=0.75))
    small = plan.shrink(params)
    assert sum(w.size for w in small.values()) <= 0.75 * weight_count
    assert all(small[n].size >= 0.5 * params[n].size for n in "qkv")
    with pytest.raises(ValueError, match="can't be reached"):
        prune_plan(attention, params, X, spec, budget=Budget(parameters=0.4))
    assert {g.size for g in channels(attention, params, X).free} == {4, 6, 10}
