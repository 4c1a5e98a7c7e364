"""What can't be done is one error that says what, where, and what to do instead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.pruning import (
    NothingPrunedWarning,
    Plan,
    PlanError,
    Prune,
    channels,
    masked,
    prune_plan,
    pruned,
    scores,
)

X = jax.random.normal(jax.random.key(0), (2, 3, 4))


def net(params, x):
    """Heads of a reshape, two layers that share their channels, a result."""
    q = (x @ params["q"]).reshape(*x.shape[:2], 2, 3)
    k = (x @ params["k"]).reshape(*x.shape[:2], 2, 3)
    y = jnp.einsum("bihd,bjhd->bijh", q, k).mean(2) @ params["mix"]
    return (jnp.tanh(y) + x @ params["skip"]) @ params["out"]


@functools.cache
def drawn():
    rng = np.random.default_rng(0)
    shapes = {"q": (4, 6), "k": (4, 6), "mix": (2, 5), "skip": (4, 5), "out": (5, 3)}
    return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}


@functools.cache
def found():
    return channels(net, drawn(), X)


def named(size):
    return next(g.name for g in found().free if g.size == size)


def test_all_channels_of_a_layer():
    name = named(5)
    with pytest.raises(
        PlanError, match=rf"all channels of '{name}' \(made by mix, skip\); keep one"
    ):
        pruned(net, Plan({name: np.zeros(5, bool)}, found()))
    with pytest.raises(PlanError, match=r"5 channels can't be removed from .* one has to stay"):
        prune_plan(net, drawn(), X, {"mix": Prune(count=5), "skip": Prune(count=5)})


def test_results_and_inputs():
    for group in found():
        if group.held and group.size in (3, 4):
            keep = Plan({group.name: np.arange(group.size) > 0}, found())
            with pytest.raises(PlanError, match=r"can't lose channels: an? (input|result) of"):
                keep.shrink(drawn())
    with pytest.raises(ValueError, match="a result of the function"):
        prune_plan(net, drawn(), X, {"out": Prune(0.5)})


def depthwise(params, x):
    """A separable convolution behind one that makes its channels, as in a MobileNet."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    for name in ("first", "depth", "point"):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(
                x, params[name], (1, 1), "SAME", dimension_numbers=dimensions,
                feature_group_count=8 if name == "depth" else 1,
            )
        )  # fmt: skip
    return x.mean((1, 2)) @ params["out"]


KERNELS = {"first": (3, 3, 1, 8), "depth": (3, 3, 1, 8), "point": (1, 1, 8, 6), "out": (6, 3)}
SEPARABLE = {n: jnp.arange(1.0, 1 + np.prod(s)).reshape(s) for n, s in KERNELS.items()}
IMAGES = jnp.ones((2, 5, 5, 1))


@pytest.mark.parametrize(
    ("spec", "kept", "added"),
    [
        ({"first": Prune(0.5)}, "first", "depth"),
        ({"depth": Prune(0.5)}, "depth", "first"),
        ({"first": Prune(0.5), "point": Prune(0.5)}, "first", "depth"),
    ],
)
def test_a_layer_whose_channels_another_makes_too_is_warned_of(spec, kept, added):
    with pytest.warns(NothingPrunedWarning, match=rf"'{kept}' \(add '{added}'\)\. Add them"):
        plan = prune_plan(depthwise, SEPARABLE, IMAGES, spec)
    assert plan.shrink(SEPARABLE)["first"].shape[-1] == 8
    assert plan.shrink(SEPARABLE)["point"].shape[-1] == (3 if "point" in spec else 6)
    both = prune_plan(depthwise, SEPARABLE, IMAGES, {kept: Prune(0.5), added: Prune(0.5)})
    assert both.shrink(SEPARABLE)["first"].shape[-1] == 4


def test_layers_that_share_channels_with_one_left_alone_are_not_warned_of():
    plan = prune_plan(depthwise, SEPARABLE, IMAGES, {"*:linear": Prune(0.5), "out": None})
    assert plan.shrink(SEPARABLE)["first"].shape[-1] == 4
    prune_plan(depthwise, SEPARABLE, IMAGES, {"first": Prune(0.5), "depth": None})
    prune_plan(depthwise, SEPARABLE, IMAGES, {"point": Prune(0.0)})


def test_a_branch_of_a_sum_is_warned_of():
    with pytest.warns(NothingPrunedWarning, match=r"'mix' \(add 'skip'\)"):
        prune_plan(net, drawn(), X, {"mix": Prune(0.4)})


def test_less_than_a_channel_is_warned_of():
    with pytest.warns(NothingPrunedWarning, match="nothing is removed"):
        prune_plan(depthwise, SEPARABLE, IMAGES, {"point": Prune(0.1)})


def test_heads_that_do_not_divide():
    # Channels of a head, or heads, can go; any six of two times three can't be said.
    sizes = sorted(g.size for g in found().free)
    assert sizes == [2, 3, 5]
    wrong = Plan({named(3): np.arange(6) < 4}, found())
    for call in (pruned, masked):
        with pytest.raises(PlanError, match=r"has 3 channels, the plan \(6,\).*one per channel"):
            call(net, wrong)


def test_layers_that_share_channels_and_disagree():
    with pytest.raises(PlanError, match=r"mix, skip make the same channels .* the same setting"):
        prune_plan(net, drawn(), X, {"mix": Prune(0.2), "skip": Prune(0.4)})


def test_a_group_that_is_not_there():
    for call in (pruned, masked):
        with pytest.raises(PlanError, match=rf"no group 'conv/kernel:3'; there are \[.*{named(5)}"):
            call(net, Plan({"conv/kernel:3": np.ones(3, bool)}, found()))
    plan = Plan({named(5): np.arange(5) < 2}, found())
    with pytest.raises(PlanError, match=r"q has shape|no group"):
        pruned(lambda p, x: x @ p["q"], plan)({"q": jnp.ones((4, 5))}, X)


def test_plans_that_are_not_known():
    name = named(5)
    with pytest.raises(PlanError, match=r"traced.*outside of jit, or use masked\(f, plan\)"):
        jax.jit(lambda k: pruned(net, Plan({name: k}, found())))(jnp.ones(5, bool))
    with pytest.raises(PlanError, match=r"give plan\.above\(threshold\), or use masked"):
        Plan({name: jnp.ones(5)}, found()).shrink(drawn())
    with pytest.raises(PlanError, match=r"give plan\.above\(threshold\)"):
        Plan({name: jnp.ones(5)}, found()).save("nowhere.json")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda p, c: {}, r"says nothing about the channels of .* \(made by q, k\); set None"),
        (lambda p, c: {g.name: np.ones(7) for g in c}, r"has shape \(7,\); it has to have one"),
        (lambda p, c: {g.name: np.full(g.size, np.nan) for g in c}, "has NaN; look at"),
    ],
)
def test_scores_that_cannot_be_put_in_order(score, message):
    with pytest.raises(PlanError, match=message):
        prune_plan(net, drawn(), X, {"q": Prune(0.4), "k": Prune(0.4)}, score=score)


def test_parameters_that_are_not_finite():
    broken = {**drawn(), "q": drawn()["q"].at[0, 0].set(jnp.nan)}
    with pytest.raises(ValueError, match="scores of 'q' aren't finite"):
        prune_plan(net, broken, X, {"q": Prune(0.4), "k": Prune(0.4)})
    with pytest.raises(ValueError, match="needs at least one batch"):
        scores.taylor(lambda p, b: 0.0, [])


def test_nothing_is_half_shrunk():
    params = drawn()
    plan = Plan({named(5): np.arange(5) < 2}, found())
    with pytest.raises(PlanError, match="out has shape"):
        plan.shrink({**params, "out": jnp.ones((4, 3))})
    assert params["mix"].shape == (2, 5)
