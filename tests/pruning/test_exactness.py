"""A pruned network is the masked one; where statistics cross channels, it is the narrower one."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.pruning import Plan, Prune, channels, masked, prune_plan, pruned
from tests.pruning.networks import NETWORKS
from tests.pruning.networks.convolutional import resnet50
from tests.pruning.networks.making import of_nnx

# Flax's layers promote, when they are traced; what is pruned was traced before.
pytestmark = pytest.mark.promotes("dtype", "rank")


def drawn(found, seed, network=None):
    """A plan that removes half of what can be removed."""
    rng = np.random.default_rng(seed)
    keep = {}
    for group in found.free:
        keep[group.name] = where = rng.random(group.size) < 0.5
        where[rng.integers(group.size)] = True
    for one, other in itertools.pairwise(network.alike if network else ()):
        keep[network.sizes[other]] = keep[network.sizes[one]]
    return Plan(keep, found, {group.name: "left" for group in found.free if group.crossed})


def computed(f, args):
    """Results, and the gradients of a sum of them, as one program."""

    def total(params, *args):
        out = f(params, *args)
        weights = np.cos(np.arange(out.size, dtype=np.float32)).reshape(out.shape)
        return (out * weights).sum(), out

    def g(params):
        (_, out), gradient = jax.value_and_grad(total, has_aux=True)(params, *args)
        return out, gradient

    return g


def assert_same(ours, theirs):
    """To 1e-5 of a leaf; of a hundredth of the largest one where a leaf is nothing but rounding."""
    floor = 0.01 * max(float(np.abs(x).max()) for x in jax.tree.leaves(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        largest = max(float(np.abs(other).max()), floor)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * largest)


def linear_attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    return q @ (k.T @ v) @ p["o"]


def unit_length(p, x):
    y = x @ p["q"]
    return y / jnp.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) @ p["o"]


def pooled(p, x):
    least = jnp.square(x @ p["q"]).min(-1, keepdims=True)
    return least + jax.nn.relu(x @ p["k"]).sum(-1, keepdims=True)


def mean_elsewhere(p, x):
    total = jax.jit(lambda y: y.sum(-1, keepdims=True))
    return total(x @ p["q"]) / jnp.float32(6) + total(x @ p["k"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "crossed"),
    [
        (linear_attention, {"k:1"}),  # positive at zero: the product is over channels
        (unit_length, set()),  # zeros add nothing to a length
        (pooled, {"q:1"}),
        (mean_elsewhere, {"q:1"}),  # the count is known outside of the call that sums
    ],
)
def test_what_crosses_is_what_differs_from_the_masked_one(f, crossed):
    rng = np.random.default_rng(0)
    shapes = {"q": (3, 6), "k": (3, 6), "v": (3, 6), "o": (6, 2)}
    params = {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}
    used = {name: w for name, w in params.items() if f is linear_attention or name != "v"}
    x = rng.standard_normal((4, 3), dtype=np.float32)
    coupled = channels(f, used, x)
    assert {group.name for group in coupled.free if group.crossed} == crossed
    for group in coupled.free:
        keep = np.arange(group.size) < group.size - 1
        plan = Plan({group.name: keep}, coupled, {name: "left" for name in crossed})
        small = plan.shrink(used)
        ours, theirs = pruned(f, plan)(small, x), masked(f, plan)(used, x)
        assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-5) == (group.name not in crossed)
        if f is not mean_elsewhere:
            np.testing.assert_allclose(ours, f(small, x), rtol=1e-5, atol=1e-5)


def reparametrised(key, p, x):
    h = x @ p["q"]
    return (h + jnp.exp(0.1 * h) * jax.random.normal(key, h.shape)) @ p["o"]


def dropped(key, p, x):
    h = jax.nn.relu(x @ p["q"])
    kept = jax.checkpoint(lambda k: jax.random.bernoulli(k, 0.5, h.shape))(key)
    return jnp.where(kept, 2 * h, 0.0) @ p["o"]


def each_with_its_key(key, p, x):
    def one(key, x):
        h = x @ p["q"]
        return (h * jax.random.uniform(key, h.shape)) @ p["o"]

    return jax.vmap(one)(jax.random.split(key, 4), x)


def noisy_site(key, p, x):
    return jaxeff.noisy(lambda p, x: x @ p["q"] @ p["o"], {"q": jaxeff.Additive(0.5)})(key, p, x)


@pytest.mark.parametrize("f", [reparametrised, dropped, each_with_its_key, noisy_site])
def test_noise_of_channels_is_that_of_the_masked_network(f):
    rng = np.random.default_rng(0)
    shapes = {"q": (3, 6), "o": (6, 2)}
    params = {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}
    x = rng.standard_normal((4, 3), dtype=np.float32)
    key = jax.random.key(0)
    coupled = channels(f, key, params, x)
    (group,) = coupled.free
    plan = Plan({group.name: np.array([True, False, True, False, False, True])}, coupled)
    g, small = jax.jit(pruned(f, plan)), plan.shrink(params)
    for k in (key, jax.random.key(1)):
        theirs = jax.jit(masked(f, plan))(k, params, x)
        np.testing.assert_allclose(g(k, small, x), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "f",
    [
        lambda y: jax.ops.segment_sum(y, jnp.array([0, 1, 0, 2]), 3),
        lambda y: jnp.zeros((5, 6)).at[jnp.array([0, 4, 1, 2])].set(y),
        lambda y: jnp.stack([y, jnp.tanh(y)], 1).sum(1),
        lambda y: jnp.fft.fft(y, axis=0).real,
        lambda y: jnp.sort(y, 0),
        lambda y: jnp.cumsum(y, 0)[::-1],
        lambda y: jax.lax.linalg.triangular_solve(jnp.tri(4) + jnp.eye(4), y, left_side=True),
    ],
)
def test_what_mixes_rows_alone_holds_no_channel(f):
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 6), "b": (6, 2)}
    params = {name: rng.standard_normal(s, dtype=np.float32) for name, s in shapes.items()}
    x = rng.standard_normal((4, 3), dtype=np.float32)

    def network(p, x):
        return f(x @ p["a"]) @ p["b"]

    coupled = channels(network, params, x)
    (group,) = coupled.free
    assert not group.crossed
    plan = Plan({group.name: np.array([True, False, True, False, False, True])}, coupled)
    ours = jax.jit(pruned(network, plan))(plan.shrink(params), x)
    theirs = jax.jit(masked(network, plan))(params, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@functools.cache
def read(name):
    network = NETWORKS[name]()
    return network, channels(network.f, network.params, *network.args)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_pruned_is_masked_or_the_narrower_one(name):
    network, coupled = read(name)
    crossed = [group for group in coupled.free if group.crossed]
    assert bool(crossed) == bool(network.narrow)
    masked_output = jax.jit(lambda plan, p: computed(masked(network.f, plan), network.args)(p))
    for seed in range(3):
        plan = drawn(coupled, seed, network)
        g, small = pruned(network.f, plan, rescale=bool(crossed)), plan.shrink(network.params)
        out, ours = jax.jit(computed(g, network.args))(small)
        if network.narrow:
            left = {size: int(np.sum(plan.keep[group])) for size, group in network.sizes.items()}
            narrow = jax.jit(computed(network.narrow(**left), network.args))
            expected, gradient = narrow(small)
        else:
            expected, gradient = masked_output(plan, network.params)
            gradient = plan.shrink(gradient)
        assert_same(out, expected)
        assert_same(ours, gradient)
        before, after = (sum(x.size for x in jax.tree.leaves(t)) for t in (network.params, small))
        assert after < before
    assert jaxeff.sites(g, small, *network.args) == jaxeff.sites(
        network.f, network.params, *network.args
    )


@pytest.mark.slow
@pytest.mark.seconds(10)
def test_the_real_resnet50_is_planned():
    network = of_nnx(resnet50, np.zeros((1, 224, 224, 3), np.float32))
    plan = prune_plan(network.f, network.params, network.args, {"*:linear": Prune(0.5)})
    small = plan.shrink(network.params)
    g = pruned(network.f, plan)
    assert jax.eval_shape(g, small, *network.args).shape == (1, 5)
    # One group per stage and its stem, two inside of each of the 16 blocks.
    assert len(plan.keep) == len(plan.channels.free) == 5 + 2 * 16
    macs = [jaxeff.cost(*f, *network.args).macs for f in ((g, small), (network.f, network.params))]
    assert 0.25 < macs[0] / macs[1] < 0.26
