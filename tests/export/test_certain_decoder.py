"""A deployed decoder that says of every token how sure it is, on this machine and another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

import jaxeff
from jaxeff.adapters import LoRA, init_lora, lora, untied
from jaxeff.bayes import laplace, to_gaussians
from jaxeff.contrib import Decoder, DecoderConfig
from jaxeff.ensembles import Members
from jaxeff.uncertainty import token_uncertainty

CONFIG = DecoderConfig(vocabulary=24, width=16, hidden=24, depth=2, heads=2, key_heads=1)
F, PARAMS = jaxeff.functional(Decoder(CONFIG, rngs=nnx.Rngs(0)))
WORDS = jnp.arange(12).reshape(2, 6) * 5 % 24
TOKENS, CACHE = WORDS[:1, :1], CONFIG.empty_cache(1, 8)


def of_a_random_head():
    """Mean and variance of logits: a posterior of independent weights of the head, in one pass."""
    g, untied_params = untied(F, PARAMS, WORDS, "embed#1")
    posterior = laplace(
        jax.random.key(0), g, untied_params, (WORDS, WORDS), "embed#1", "diag", prior_precision=40.0
    )
    moments = jaxeff.moments(g, method="diagonal")

    def step(posterior, token, cache):
        logits, cache = moments(posterior, token, cache)
        # Nothing before the head is random: the cache is certain.
        certain = jax.tree.map(lambda g: g.mean, (cache.keys, cache.values), is_leaf=is_gaussian)
        said = logits.mean, logits.var, token_uncertainty(logits)
        return said, type(cache)(*certain, cache.length)

    return step, to_gaussians(posterior), (lambda p, words: laplace_says(posterior, words))


def is_gaussian(value):
    return isinstance(value, jaxeff.Gaussian)


def laplace_says(posterior, words):
    logits = posterior.marginals(words)
    return logits.mean, logits.var, token_uncertainty(logits)


def of_members():
    """Logits of members: adapters behind the last keys and values, so that all share one cache."""
    spec = {"blocks/1/attn/out": LoRA(2), "blocks/1/down": LoRA(2)}
    start = lambda key: init_lora(key, F, PARAMS, WORDS, spec)  # noqa: E731
    adapted = lora(F, spec)
    g, members = jaxeff.ensemble(
        jax.random.key(1), lambda adapters, *args: adapted(PARAMS, adapters, *args),
        start(jax.random.key(0)), {"*": Members(3)}, init=start,
    )  # fmt: skip
    members = jax.tree.map(
        lambda leaf: leaf + 0.2 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), members
    )

    def step(members, token, cache):
        logits, caches = g(members, token, cache)
        return (logits, token_uncertainty(logits)), jax.tree.map(lambda leaf: leaf[0], caches)

    def whole(members, words):
        logits = g(members, words)
        return logits, token_uncertainty(logits)

    return step, members, whole


def check(stepped, whole):
    """Compares token by token with all at once, as JAX computes them."""
    for ours, theirs in zip(*map(jax.tree.leaves, (stepped, whole)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def at(whole, i):
    """The part of one token."""
    return jax.tree.map(lambda a: a[:, i : i + 1] if a.shape[0] == 1 else a[:, :, i : i + 1], whole)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("make", [of_a_random_head, of_members])
def test_every_token_has_its_uncertainty(make, tmp_path):
    step, params, of_all = make()
    bundle = deploy(step, (params, TOKENS, CACHE), path=tmp_path / "host", state=("cache",))
    session, all_tokens = bundle.session(), of_all(params, WORDS[:1])
    assert min(float(a.min()) for a in jax.tree.leaves(all_tokens[-1].epistemic)) > 0
    for i in range(4):
        check(session.step(WORDS[:1, i : i + 1]), at(all_tokens, i))


@pytest.mark.arm
@pytest.mark.promotes("dtype", "rank")  # NumPyro
@pytest.mark.parametrize("make", [of_a_random_head, of_members])
def test_an_emulated_core_says_the_same(make, arm_linker, emulated_board, tmp_path):
    step, params, of_all = make()
    bundle = deploy(step, (params, TOKENS, CACHE), "cortex-a72", path=tmp_path / "a72")
    cache, all_tokens = CACHE, of_all(params, WORDS[:1])
    with bundle.on(emulated_board) as runner:
        for i in range(2):
            said, cache = runner.run(WORDS[:1, i : i + 1], cache)
            check(said, at(all_tokens, i))
