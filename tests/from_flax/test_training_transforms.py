"""Transforms of a network in training mode, with dropout and batch statistics that it updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff import Additive, Gaussian, Int
from jaxeff.compression import calibrate, integer_aware
from jaxeff.ensembles import Members
from jaxeff.pruning import Prune, masked

KEY, DRAWS = jax.random.key(3), 2000


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 16, rngs=rngs)
        self.bn = nnx.BatchNorm(16, rngs=rngs, momentum=0.5)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.bn(self.first(x)))))


@pytest.fixture(scope="module")
def net():
    keyed, params, state = jaxeff.functional(Net(nnx.Rngs(0)), keyed=True, mutable=True)
    x = jax.random.normal(jax.random.key(1), (8, 4))
    return keyed, lambda params, state, x: keyed(KEY, params, state, x), (params, state, x)


def assert_near(found, exact, error):
    for ours, want in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(ours, want, rtol=0, atol=error * np.abs(want).max())


@pytest.mark.slow
def test_noise_and_grids_are_in_results_and_statistics(net):
    keyed, f, args = net
    exact = f(*args)
    assert_near(jaxeff.quantized(f, {"*:linear": Int(16)})(*args), exact, 1e-4)
    noisy = jaxeff.noisy(keyed, {"*:linear": Additive(0.1)})
    (y, state), (_, plain) = noisy(jax.random.key(9), KEY, *args), exact
    assert not np.allclose(y, exact[0])
    assert not np.allclose(state["bn"]["mean"], plain["bn"]["mean"], rtol=1e-4)


@pytest.mark.slow
def test_codes_take_the_place_of_parameters_that_come_first(net):
    keyed, f, args = net
    spec = calibrate(f, args[0], [args[1:]], {"*:linear": Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(*args)
    assert_near(g(codes, *args[1:]), integer_aware(f, spec)(*args), 1e-6)
    with pytest.raises(TypeError, match="lambda params, key"):
        jaxeff.integer(keyed, spec).convert(KEY, *args)


@pytest.mark.slow
def test_statistics_are_cut_with_the_layer_that_they_are_of(net):
    _, f, (params, state, x) = net
    plan = jaxeff.prune_plan(f, params, (state, x), {"first": Prune(0.5)})
    g, small = jaxeff.pruned(f, plan), plan.shrink(params)
    y, after = g(small, plan.shrink(state), x)
    exact, masked_output = masked(f, plan)(params, state, x)
    assert_near(y, exact, 1e-5)
    assert_near(after, plan.shrink(masked_output), 1e-5)
    with pytest.raises(ValueError, match="batch statistics the same"):
        g(small, state, x)


@pytest.mark.slow
def test_members_have_statistics_of_their_own(net):
    _, f, (params, state, x) = net
    g, members = jaxeff.ensemble(KEY, f, params, {"first": Members(2)})
    each = [f(g.member(members, i), state, x) for i in range(2)]
    assert_near(g(members, state, x), jax.tree.map(lambda *ys: jnp.stack(ys), *each), 1e-6)


@pytest.mark.slow
def test_linear_variances_pass_the_stop_before_statistics(net):
    _, f, (params, state, x) = net
    posterior = jax.tree.map(lambda w: Gaussian(w, (0.05 * w) ** 2), params)
    gaussian, after = jaxeff.moments(f, method="linear")(posterior, state, x)

    def draw(key):
        keys = jax.random.split(key, 6)
        leaves, structure = jax.tree.flatten(params)
        moved = [
            w * (1 + 0.05 * jax.random.normal(k, w.shape))
            for w, k in zip(leaves, keys, strict=True)
        ]
        return f(jax.tree.unflatten(structure, moved), state, x)

    y, drawn = jax.jit(jax.vmap(draw))(jax.random.split(KEY, DRAWS))
    pairs = [(gaussian.var, y)]
    pairs += [(after["bn"][name].var, drawn["bn"][name]) for name in ("mean", "var")]
    for var, samples in pairs:
        # The median of ratios has a smaller standard error than one, sqrt(2 / draws); first order
        # is right to a few percent at this noise.
        ratio = np.median(var / samples.var(0))
        assert abs(ratio - 1) < 0.05 + 3 * np.sqrt(2 / DRAWS)


def test_an_estimators_stop_stays():
    def f(w, x):
        y = x @ w
        rounded = y + jax.lax.stop_gradient(jnp.round(y) - y)
        return rounded, jax.lax.stop_gradient(rounded.mean())

    w, x = jnp.full((3, 2), 0.4), jnp.ones((4, 3))
    y, mean = jaxeff.moments(f, method="linear")(Gaussian(w, jnp.full_like(w, 0.01)), x)
    np.testing.assert_allclose(y.var, 0.03, rtol=1e-5)
    np.testing.assert_allclose(mean.var, 0.015, rtol=1e-5)  # of two independent columns
