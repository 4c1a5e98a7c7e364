"""`ensemble`: members are the networks alone, what is shared is computed once, and it composes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import LSQ, Int
from jaxeff.compression import init as started
from jaxeff.ensembles import Members, member_loss
from jaxeff.nn import MLP, LeNet5
from jaxeff.noise import Additive
from jaxeff.program import SpecError
from jaxeff.pruning import Plan, channels

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 6))


def make(key):
    return jaxeff.functional(MLP((6, 32, 24, 3), rngs=nnx.Rngs(key)))[1]


F, PARAMS = jaxeff.functional(MLP((6, 32, 24, 3), rngs=nnx.Rngs(0)))
SPECS = {
    "heads": {"fc3": Members(4)},
    "behind": {"fc2": Members(4), "fc3": Members(4)},
    "kernels": {"*/kernel": Members(4)},
    "whole": {"*": Members(4)},
    "shared first": {"*": Members(4), "fc1": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("init", [None, make], ids=["redrawn", "fresh"])
def test_each_member_is_the_network_alone(spec, init):
    g, params = jaxeff.ensemble(KEY, F, PARAMS, spec, init=init)
    together = jax.jit(g)(params, X)
    assert together.shape == (4, 16, 3)
    alone = jax.jit(F)
    for i in range(4):
        np.testing.assert_allclose(together[i], alone(g.member(params, i), X), atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_what_is_shared_stays_as_it_is():
    _, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})
    for name in ("fc1", "fc2"):
        assert params[name]["kernel"] is PARAMS[name]["kernel"]
    assert params["fc3"]["kernel"].shape == (4, 24, 3)
    assert params["fc3"]["bias"].shape == (4, 3)


@pytest.mark.slow
def test_members_start_by_statistics_of_each_leaf():
    wide, params = jaxeff.functional(MLP((1, 200, 300), rngs=nnx.Rngs(0)))
    _, redrawn = jaxeff.ensemble(KEY, wide, params, {"*": Members(3)})
    kernel = params["fc2"]["kernel"]
    np.testing.assert_allclose(redrawn["fc2"]["kernel"].std((1, 2)), kernel.std(), rtol=0.02)
    np.testing.assert_array_equal(redrawn["fc2"]["bias"], np.zeros((3, 300)))
    _, near = jaxeff.ensemble(KEY, wide, params, {"*": Members(3, spread=0.1)})
    moved = near["fc2"]["kernel"] - kernel[None]
    np.testing.assert_allclose(moved.std((1, 2)), 0.1 * kernel.std(), rtol=0.02)
    _, copies = jaxeff.ensemble(KEY, wide, params, {"*": Members(3, spread=0.0)})
    np.testing.assert_array_equal(copies["fc2"]["kernel"][2], kernel)


def flops(g, *args):
    return jax.jit(g).lower(*args).compile().cost_analysis()["flops"]


@pytest.mark.slow
def test_what_is_shared_is_computed_once():
    f, params = jaxeff.functional(MLP((64, 256, 256, 10), rngs=nnx.Rngs(0)))
    x = jnp.ones((32, 64))
    single = flops(f, params, x)
    g, heads = jaxeff.ensemble(KEY, f, params, {"fc3": Members(10)})
    head = 2 * 32 * 256 * 10
    assert flops(g, heads, x) - single == pytest.approx(9 * head, rel=0.05)
    g, networks = jaxeff.ensemble(KEY, f, params, {"*": Members(10)})
    assert flops(g, networks, x) == pytest.approx(10 * single, rel=0.02)


@pytest.mark.slow
def test_multiplications_are_those_of_the_source():
    net = LeNet5(padding="VALID", rngs=nnx.Rngs(0))
    f, params = jaxeff.functional(net)
    x = jax.ShapeDtypeStruct((128, 28, 28, 1), jnp.float32)

    def millions(f, params):
        return round(jaxeff.cost(f, params, x).macs / 1e6, 2)

    assert millions(f, params) == 36.05
    assert millions(*jaxeff.ensemble(KEY, f, params, {"fc3": Members(10)})) == 37.02
    assert round(millions(*jaxeff.ensemble(KEY, f, params, {"*": Members(10)})), 1) == 360.5


@pytest.mark.slow
def test_sites_are_those_of_the_network():
    for spec in ({"fc3": Members(4)}, {"*": Members(4)}):
        g, params = jaxeff.ensemble(KEY, F, PARAMS, spec)
        assert list(jaxeff.sites(g, params, X)) == list(jaxeff.sites(F, PARAMS, X))


def _small_convolution(params, x):
    for kernel in (params["first"], params["second"]):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )
    return x.mean((1, 2)) @ params["fc"]


def test_convolutions_of_members_are_not_grouped_in_training():
    kernel = jnp.linspace(-1, 1, 36).reshape(3, 3, 2, 2)
    one = {"first": kernel, "second": kernel, "fc": jnp.ones((2, 4))}
    data = jax.random.normal(KEY, (5, 4, 4, 2)), jnp.arange(5) % 4
    g, params = jaxeff.ensemble(KEY, _small_convolution, one, {"*": Members(3)})

    def gradient(loss):
        return jax.jit(jax.grad(lambda params: loss(KEY, params, None, data, 0)[0]))

    apart, together = member_loss(g), member_loss(lambda p, x: g(p, x), members=3)
    groups = "feature_group_count=3", "batch_group_count=3"
    assert not any(group in str(jax.make_jaxpr(gradient(apart))(params)) for group in groups)
    assert any(group in str(jax.make_jaxpr(gradient(together))(params)) for group in groups)
    expected = gradient(together)(params)
    chex.assert_trees_all_close(gradient(apart)(params), expected, rtol=1e-5, atol=1e-7)


def test_dense_members_are_trained_together():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"*": Members(4)})
    assert str(jax.make_jaxpr(g.apart)(params, X)) == str(jax.make_jaxpr(g)(params, X))


def test_noise_around_an_ensemble_is_drawn_for_each_member():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4, spread=0.0)})
    out = jax.jit(jaxeff.noisy(g, {"fc3": Additive(0.3)}))(KEY, params, X)
    noise = np.asarray(out - g(params, X))
    assert np.abs(np.corrcoef(noise.reshape(4, -1)) - np.eye(4)).max() < 0.5
    shared = jaxeff.ensemble(KEY, jaxeff.noisy(F, {"fc3": Additive(0.3)}), PARAMS,
                             {"fc3": Members(4, spread=0.0)})  # fmt: skip
    out = jax.jit(shared[0])(KEY, shared[1], X)
    np.testing.assert_allclose(out[0], out[3], atol=1e-6)


@pytest.mark.slow
def test_quantized_members_are_the_quantized_network():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})
    spec = {"*:linear": Int(4, 8)}
    inside, _ = jaxeff.ensemble(KEY, jaxeff.quantized(F, spec), PARAMS, {"fc3": Members(4)})
    out, alone = jax.jit(inside)(params, X), jax.jit(jaxeff.quantized(F, spec))
    for i in range(4):
        np.testing.assert_allclose(out[i], alone(g.member(params, i), X), atol=1e-6)
    around = jax.jit(jaxeff.quantized(g, spec))(params, X)
    assert around.shape == (4, 16, 3)
    assert np.abs(around - g(params, X)).max() < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("own", ["*", "*fc3*"])
def test_learnt_settings_have_members_like_parameters(own):
    # Fields of a setting that are None are no leaves, neither shared ones nor members'.
    settings = started(F, PARAMS, X, {"*:linear": LSQ(4)})

    def f(learnt, x):
        return jaxeff.quantized(F, learnt["settings"])(learnt["params"], x)

    learnt = {"params": PARAMS, "settings": settings}
    g, params = jaxeff.ensemble(KEY, f, learnt, {own: Members(3, spread=0.2)})
    assert len(g.member_leaves(params)) == (12 if own == "*" else 4)
    members = [f(g.member(params, i), X) for i in range(3)]
    np.testing.assert_allclose(jax.jit(g)(params, X), np.stack(members), atol=1e-5)


@pytest.mark.slow
def test_moments_of_an_ensemble_are_those_of_its_members():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 + 0.01 * w**2), params)
    together = jax.jit(jaxeff.moments(g, method="diagonal"))(posterior, X)
    alone = jax.jit(jaxeff.moments(F, method="diagonal"))
    for i in range(4):
        out = alone(g.member(posterior, i), X)
        np.testing.assert_allclose(together.mean[i], out.mean, atol=1e-6)
        np.testing.assert_allclose(together.var[i], out.var, rtol=1e-5)


def test_a_pruned_ensemble_is_the_ensemble_of_pruned_networks():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})
    keep = {"fc1/kernel:1": jnp.arange(32) < 20, "fc2/kernel:1": jnp.arange(24) > 4}
    of_all = Plan(keep, channels(g, params, X))
    of_one = Plan(keep, channels(F, PARAMS, X))
    small = of_all.shrink(params)
    assert small["fc3"]["kernel"].shape == (4, 19, 3)
    around = jax.jit(jaxeff.pruned(g, of_all))(small, X)
    np.testing.assert_allclose(around, jax.jit(jaxeff.masked(g, of_all))(params, X), atol=1e-6)
    alone = jax.jit(jaxeff.pruned(F, of_one))(g.member(small, 2), X)
    np.testing.assert_allclose(around[2], alone, atol=1e-6)


@pytest.mark.slow
def test_a_state_goes_with_its_module():
    net = MLP((6, 8, 8, 3), batch_norm=True, rngs=nnx.Rngs(0))
    f, params, state = jaxeff.functional(net, mutable=True)
    g, whole, states = jaxeff.ensemble(KEY, f, params, {"*": Members(3)}, state=state)
    out, new = jax.jit(g)(whole, states, X)
    assert out.shape == (3, 16, 3)
    alone, after = jax.jit(f)(g.member(whole, 1), g.member(states, 1), X)
    np.testing.assert_allclose(out[1], alone, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, atol=1e-6), new, after)

    g, heads, shared = jaxeff.ensemble(KEY, f, params, {"fc3": Members(3)}, state=state)
    _, new = jax.jit(g)(heads, shared, X)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
    g, behind, shared = jaxeff.ensemble(KEY, f, params, {"fc2": Members(3)}, state=state)
    with pytest.raises(ValueError, match="give it members, too"):
        g(behind, shared, X)


def tied(params, x):
    hidden = jax.nn.relu(x @ params["code"]["kernel"])
    return hidden @ params["code"]["kernel"].T @ params["head"]["kernel"]


TIED = {"code": {"kernel": jnp.eye(6)[:, :4]}, "head": {"kernel": jnp.ones((6, 3))}}


@pytest.mark.slow
def test_a_tied_site_is_refused_unless_meant():
    g, params = jaxeff.ensemble(KEY, tied, TIED, {"code": Members(3)})
    with pytest.raises(ValueError, match=r"code/kernel is read at code, code#1.*tied=True"):
        g(params, X)
    meant, params = jaxeff.ensemble(KEY, tied, TIED, {"code": Members(3, tied=True)})
    assert meant(params, X).shape == (3, 16, 3)
    g, params = jaxeff.ensemble(KEY, tied, TIED, {"head": Members(3)})
    assert g(params, X).shape == (3, 16, 3)
    g, params = jaxeff.ensemble(KEY, tied, TIED, {"*": Members(3)})
    assert g(params, X).shape == (3, 16, 3)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ({"fc3": Members(0)}, ValueError, "'fc3' has 0 members.*Members\\(1\\) or more"),
        ({}, ValueError, "gives nothing members"),
        ({"*": None}, ValueError, "gives nothing members"),
        ({"fc4": Members(2)}, SpecError, "'fc4' matches no parameter.*fc3/kernel"),
        ({"fc2": Members(2), "fc3": Members(3)}, ValueError, "a member is one network"),
        ({"fc3": 10}, TypeError, "setting of 'fc3' must be so many members"),
        ({"fc3": Members}, TypeError, "this is a class"),
    ],
)
def test_a_wrong_spec_is_named(spec, error, message):
    with pytest.raises(error, match=message):
        jaxeff.ensemble(KEY, F, PARAMS, spec)


def test_other_parameters_are_named():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})
    with pytest.raises(ValueError, match=r"fc3/bias has 4 members.*\(3,\)"):
        g(PARAMS, X)
    with pytest.raises(ValueError, match="init makes parameters of another structure"):
        jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)}, init=lambda key: {"a": X})
    with pytest.raises(TypeError, match="count must be"):
        Members("ten")
    with pytest.raises(ValueError, match="spread"):
        Members(2, spread=-1.0)
    del params


def test_counters_have_no_spread_and_init_keeps_shapes():
    """A whole number can't be perturbed: all members begin with it."""
    params = {"fc": {"kernel": jnp.arange(6.0).reshape(2, 3), "count": jnp.asarray(7)}}

    def f(params, x):
        return x @ params["fc"]["kernel"] * params["fc"]["count"]

    g, started = jaxeff.ensemble(KEY, f, params, {"*": Members(3)})
    np.testing.assert_array_equal(started["fc"]["count"], [7, 7, 7])
    assert len(np.unique(started["fc"]["kernel"][:, 0, 1])) == 3
    x = jnp.ones((4, 2))
    np.testing.assert_allclose(g(started, x)[1], 7 * x @ started["fc"]["kernel"][1], rtol=1e-6)
    with pytest.raises(ValueError, match=r"fc/kernel of shape \(3, 3\).*have \(2, 3\)"):
        jaxeff.ensemble(
            KEY, f, params, {"*": Members(3)},
            init=lambda key: {"fc": {"kernel": jnp.ones((3, 3)), "count": jnp.asarray(7)}},
        )  # fmt: skip
