"""Noise that is drawn for all sites at once is the noise that each site draws by itself."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, Dropout, Mixed, Multiplicative, UniformNoise, noisy
from jaxeff.noise.models import Draw, _protocol, counted_keys, drawn_together, is_counted
from jaxeff.pruning import Prune, masked, prune_plan, pruned

KEY = jax.random.key(3)
F, PARAMS, (X, _) = small_classifier(4)
SPEC = {
    "conv1": Additive(0.3), "relu*": Mixed(0.1, 0.2), "avg_pool*": Dropout(0.4),
    "fc1": Multiplicative(0.1, at="weights"), "fc2": UniformNoise(0.5, at="input"),
}  # fmt: skip


class Alone:
    """A model that says nothing about what it draws."""

    def __init__(self, model):
        self.perturb, self.at = model.perturb, model.at


def test_draws_are_those_of_each_alone_bit_for_bit():
    draws = [
        Draw((3, 5), jnp.float32), Draw((300,), jnp.float32, normal=False), Draw((), jnp.float32),
        Draw((257, 2), jnp.float32), Draw((1,), jnp.float32, normal=False),
    ]  # fmt: skip
    keys = jax.random.split(KEY, len(draws))
    for draw, key, ours in zip(draws, keys, jax.jit(drawn_together, static_argnums=0)(
        tuple(draws), keys), strict=True):  # fmt: skip
        np.testing.assert_array_equal(ours, draw.numbers(key))


def scans(jaxpr):
    """How many loops it has; JAX 0.12 keeps functions that are to be inlined until it compiles."""
    return sum(
        eqn.primitive.name == "scan" or ("jaxpr" in eqn.params and scans(eqn.params["jaxpr"].jaxpr))
        for eqn in jaxpr.eqns
    )


def test_draws_of_several_loops_are_those_of_each(monkeypatch):
    draws = [Draw((3, 100), jnp.float32) for _ in range(4)]
    keys = jax.random.split(KEY, len(draws))
    monkeypatch.setattr(_protocol, "_MOST", 700)  # two draws in a loop
    jaxpr = jax.make_jaxpr(lambda keys: drawn_together(draws, keys))(keys)
    assert scans(jaxpr) == 2
    for draw, key, ours in zip(draws, keys, drawn_together(draws, keys), strict=True):
        np.testing.assert_array_equal(ours, draw.numbers(key))


def test_counted_keys_are_folded_ones():
    names, uses = (7, 2**32 - 1, 0), (0, 1, 5)
    for key, name, use in zip(counted_keys(KEY, (names, uses)), names, uses, strict=True):
        assert key == jax.random.fold_in(jax.random.fold_in(KEY, np.uint32(name)), use)


def test_a_second_call_outside_of_jit_compiles_nothing(caplog):
    g = noisy(F, SPEC)
    g(KEY, PARAMS, X)
    with jax.log_compiles():
        g(KEY, PARAMS, X)
        assert not [line for line in caplog.messages if "XLA compilation" in line]
        jax.jit(lambda x: 3 * x)(X)
    assert [line for line in caplog.messages if "XLA compilation" in line]


def test_equal_layers_share_what_reads_their_noise():
    """A function per layer would compile for as long as all layers do."""
    shape = 8, 300

    def compiled(layers):
        def f(params, x):
            for w in params:
                x = jnp.tanh(x @ w)
            return x

        params = [jnp.ones((shape[1], shape[1]))] * layers
        g = jax.jit(noisy(f, {"*": Additive(0.1)}))
        return g.lower(KEY, params, jnp.ones(shape)).compile().as_text()

    def functions(text):
        """The bodies of fused functions, without names."""
        bodies = re.findall(r"fused_computation[^{]*\{(.*?)^\}", text, re.S | re.M)
        return {re.sub(r"%[\w.\-]+|, metadata=\{[^}]*\}", "", body) for body in bodies}

    few, many = (functions(compiled(layers)) for layers in (3, 9))
    assert len(many) <= len(few) + 2


@pytest.mark.slow
def test_channels_go_from_around_noise():
    """What is left has the noise that it had, also where noise is drawn for all sites at once."""
    spec = {"conv1": Additive(0.3), "relu*": Mixed(0.1, 0.2), "fc1": Multiplicative(0.1)}
    plan = prune_plan(F, PARAMS, X, {"conv1": Prune(0.5), "fc1": Prune(0.5)})
    g = noisy(F, spec)
    ours = jax.jit(pruned(g, plan))(KEY, plan.shrink(PARAMS), X)
    theirs = jax.jit(masked(g, plan))(KEY, PARAMS, X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("key", [KEY, jax.random.PRNGKey(3)])
def test_every_site_has_the_noise_of_its_own_key(key):
    together = jax.jit(noisy(F, SPEC))(key, PARAMS, X)
    alone = {site: Alone(model) for site, model in SPEC.items()}
    for g in (noisy(F, SPEC, together=False), noisy(F, alone)):
        apart = jax.jit(g)(key, PARAMS, X)
        np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)
    assert np.abs(np.asarray(together - F(PARAMS, X))).max() > 0.1


@pytest.mark.slow
def test_noise_of_many_keys_is_that_of_each():
    keys = jax.random.split(KEY, 3)
    mapped = jax.jit(jax.vmap(noisy(F, SPEC), (0, None, None)))(keys, PARAMS, X)
    one = jax.jit(noisy(F, SPEC))(keys[1], PARAMS, X)
    np.testing.assert_allclose(mapped[1], one, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_other_generators_draw_site_by_site():
    """Numbers of a generator without counters aren't a function of a key and a place."""
    key = jax.random.key(0, impl="rbg")
    assert is_counted(KEY)
    assert not is_counted(key)
    assert noisy(F, SPEC)(key, PARAMS, X).shape == (4, 10)


def test_many_sites_are_one_call_of_the_generator():
    def f(params, x):
        for _ in range(12):
            x = jnp.tanh(x)
        return x

    text = str(jax.make_jaxpr(noisy(f, {"*": Additive(0.1)}))(KEY, {}, jnp.ones((2, 3))))
    assert text.count("erf_inv") == 1
    assert "random_bits" not in text
