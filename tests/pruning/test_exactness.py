"""A pruned network is the masked one; where statistics cross channels, it is the narrower one."""

import functools

import jax
import numpy as np
import pytest

import jaxeff
from jaxeff.pruning import Plan, channels, masked, pruned
from tests.pruning.networks import NETWORKS

# Flax's layers promote, when they are traced; what is pruned was traced before.
pytestmark = pytest.mark.promotes("dtype", "rank")


def drawn(found, seed, groups):
    """A plan that removes half of what can be removed."""
    rng = np.random.default_rng(seed)
    keep = {}
    for group in groups:
        keep[group.name] = where = rng.random(group.size) < 0.5
        where[rng.integers(group.size)] = True
    return Plan(keep, found)


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


@functools.cache
def read(name):
    network = NETWORKS[name]()
    return network, channels(network.f, network.params, *network.args)


@pytest.mark.parametrize("name", NETWORKS)
def test_pruned_is_masked(name):
    network, found = read(name)
    groups = [group for group in found.free if not group.crossed]
    whole = jax.jit(lambda plan, p: computed(masked(network.f, plan), network.args)(p))
    assert groups
    for seed in range(3):
        plan = drawn(found, seed, groups)
        g, small = pruned(network.f, plan), plan.shrink(network.params)
        expected, gradient = whole(plan, network.params)
        out, ours = jax.jit(computed(g, network.args))(small)
        assert_same(out, expected)
        assert_same(ours, plan.shrink(gradient))
        before, after = (sum(x.size for x in jax.tree.leaves(t)) for t in (network.params, small))
        assert after < before
    assert jaxeff.sites(g, small, *network.args) == jaxeff.sites(
        network.f, network.params, *network.args
    )


CROSSED = [name for name in NETWORKS if NETWORKS[name]().narrow]


@pytest.mark.parametrize("name", CROSSED)
def test_where_statistics_cross_it_is_the_narrower_one(name):
    network, found = read(name)
    assert any(group.crossed for group in found.free)
    for seed in range(3):
        plan = drawn(found, seed, found.free)
        small = plan.shrink(network.params)
        kept = {group.name: group.size for group in found}
        kept |= {group: int(np.sum(keep)) for group, keep in plan.keep.items()}
        ours = jax.jit(computed(pruned(network.f, plan), network.args))(small)
        theirs = jax.jit(computed(network.narrow(kept), network.args))(small)
        assert_same(ours, theirs)
