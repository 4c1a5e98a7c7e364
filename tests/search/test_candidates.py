"""Candidates and sensitivities: one program for all policies, the numbers of smaller models."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import quantized
from jaxeff.nn import small_classifier
from jaxeff.pruning import masked
from jaxeff.search import Actions, Candidates, FewBitLayers, Policy, SearchSpace, sensitivity
from jaxeff.training import cross_entropy, fit

pytestmark = pytest.mark.promotes("dtype", "rank")
KEY = jax.random.key(0)
ACTIONS = Actions(round_to=4)


@functools.cache
def trained():
    import optax

    f, params, data = small_classifier(512)
    result = fit(KEY, cross_entropy(f), params, data, optimizer=optax.adam(1e-2), epochs=3,
                 batch_size=64, progress=False)  # fmt: skip
    space = SearchSpace.read(f, result.params, data[0][:1], few_bit_layers=FewBitLayers(last=True))
    return f, result.params, data, space


def drawn(space, seed):
    actions = np.random.default_rng(seed).uniform(size=(len(space.sites), 3)) * 0.9
    return jax.tree.map(np.asarray, ACTIONS.policy(space, actions.astype(np.float32)))


class Normed(nnx.Module):
    def __init__(self, features, norm):
        rngs = nnx.Rngs(0)
        self.first, self.norm = nnx.Linear(features, 8, rngs=rngs), norm(8, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(jax.nn.gelu(self.norm(self.first(x))))


@pytest.mark.slow
def test_one_trace_for_all_policies():
    f, params, data, space = trained()
    traces = []

    def counted(params, x):
        traces.append(x.shape)
        return f(params, x)

    candidates = Candidates(counted, params, data, data, space, steps=2, batch_size=32)
    first = candidates.accuracy(KEY, drawn(space, 0))
    before = len(traces)
    found = {candidates.accuracy(KEY, drawn(space, seed)) for seed in range(1, 6)}
    assert len(traces) == before
    assert len(found | {first}) > 2
    assert candidates.accuracy(KEY, drawn(space, 0)) == first


@pytest.mark.slow
def test_smaller_models_have_the_statistics_that_were_measured():
    f, params = jaxeff.functional(Normed(6, nnx.LayerNorm))
    x = jax.random.normal(KEY, (4, 6))
    space = SearchSpace.read(f, params, x)
    policy = dataclasses.replace(space.uncompressed, kept=np.array([5], np.int32))
    data = (x, np.arange(4) % 3)
    candidates = Candidates(f, params, data, data, space, steps=0, batch_size=4)
    small = candidates.smaller(policy)
    assert small.params["first"]["kernel"].shape == (6, 5)
    theirs = masked(f, space.plan(policy))(params, x)
    np.testing.assert_allclose(small.f(small.params, x), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_untrained_candidates_are_their_smaller_models(seed):
    f, params, (x, y), space = trained()
    x = x + 0.1 * jax.random.normal(KEY, x.shape)  # digits have few values, which lie on ties
    candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=256)
    policy = drawn(space, seed)
    small = candidates.smaller(policy)
    logits = jax.jit(small.f)(small.params, x)
    close = masked(quantized(f, space.spec(policy)), space.plan(policy))(params, x)
    # Rounding to a grid may go the other way where sums have another order.
    assert np.mean(np.abs(logits - close) > 1e-3 * np.abs(close).max()) < 0.02
    accuracy = float(jnp.mean(logits.argmax(-1) == y))
    assert abs(candidates.accuracy(KEY, policy) - accuracy) <= 2 / 512


@pytest.mark.slow
def test_training_helps_and_leaves_the_model_alone():
    f, params, data, space = trained()
    policy = drawn(space, 1)
    measured = [
        Candidates(f, params, data, data, space, steps=n, batch_size=64).accuracy(KEY, policy)
        for n in (0, 8)
    ]
    assert measured[1] > measured[0]


@pytest.mark.slow
def test_states_are_carried():
    model = Normed(5, nnx.BatchNorm)
    train, *_ = jaxeff.functional(model, mutable=True)
    model.eval()
    f, params, state = jaxeff.functional(model, mutable=True)
    x = jax.random.normal(KEY, (96, 5))
    data = x, jnp.argmax(x[:, :3], -1)
    space = SearchSpace.read(f, params, state, x[:1])
    candidates = Candidates(
        f, params, data, data, space, state=state, train=train, steps=3, batch_size=32
    )
    assert 0 < candidates.accuracy(KEY, space.uncompressed) <= 1
    small = candidates.smaller(Policy(np.array([3]), *list(vars(space.uncompressed).values())[1:]))
    assert small.state["norm"]["mean"].shape == (3,)
    assert small.f(small.params, small.state, x)[0].shape == (96, 3)


@pytest.mark.slow
def test_results_are_trained_in_their_bits():
    f, params, data, space = trained()
    small = Candidates(f, params, data, data, space, steps=0, batch_size=64).smaller(
        drawn(space, 1)
    )
    better = small.retrained(KEY, data, epochs=1, batch_size=64, progress=False)
    right = [
        float(jnp.mean(jax.jit(s.f)(s.params, data[0]).argmax(-1) == data[1]))
        for s in (small, better)
    ]
    assert right[1] > right[0]
    g, codes = better.integer(data[0])  # computes what was trained
    ours, trained_on = jax.jit(g)(codes, data[0]), jax.jit(better.f)(better.params, data[0])
    assert np.mean(ours.argmax(-1) != trained_on.argmax(-1)) <= 0.01
    same = jax.tree.map(lambda a, b: a.shape == b.shape, small.params, better.params)
    assert jax.tree.all(same)


@pytest.mark.slow
def test_sensitivities_are_divergences_of_single_layers():
    f, params, (x, _), space = trained()
    x = x[:64]
    sensitivities = sensitivity(f, params, x, space, ACTIONS, strengths=4)
    assert sensitivities.pruning.shape == (3, 4)
    assert (sensitivities.pruning[:, 0] < 1e-6).all()  # nothing goes
    assert (sensitivities.pruning[-1] == 0).all()  # decides about nothing
    assert sensitivities.weights[1, -1] > sensitivities.weights[1, 0] >= 0
    uncompressed = space.uncompressed
    bits = np.array(uncompressed.weights)
    bits[1] = int(ACTIONS.width(np.array([0.5 + 0.75 / 2]))[0])
    policy = Policy(uncompressed.kept, uncompressed.datatypes, bits, uncompressed.activations)
    clean = jax.nn.log_softmax(f(params, x))
    changed = jax.nn.log_softmax(quantized(f, space.spec(policy))(params, x))
    by_hand = float((jnp.exp(clean) * (clean - changed)).sum(-1).mean())
    assert sensitivities.weights[1, 3] == pytest.approx(by_hand, rel=1e-3)


def test_mistakes():
    f, params, data, space = trained()
    with pytest.raises(ValueError, match="less than one batch of 600"):
        Candidates(f, params, data, data, space, batch_size=600)
    with pytest.raises(ValueError, match="an epoch has 16"):
        Candidates(f, params, data, data, space, steps=17, batch_size=32)
