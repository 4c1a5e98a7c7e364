"""Decoders as bundles: attention to filled slots, caches of 8 bits, prompts, texts in one loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy, export, resolve_target

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig, generate
from jaxeff.contrib._decoder import Int8Rows, cached_attention

HOST = {**resolve_target("host"), "num-cores": 1}
CONFIG = DecoderConfig(vocabulary=30, width=16, hidden=24, depth=2, heads=4, key_heads=2)
F, PARAMS = jaxeff.functional(Decoder(CONFIG, rngs=nnx.Rngs(0)))
ROOM = 16


def step(params, tokens, count, cache):
    return F(params, tokens, cache, count)


def deployed(length, dtype=jnp.float32, target=HOST):
    example = PARAMS, jnp.ones((1, length), jnp.int32), jnp.int32(1)
    return deploy(step, (*example, CONFIG.empty_cache(1, ROOM, dtype)), target, state=("cache",))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int8])
def test_prompts_of_any_length_and_tokens_share_a_cache(dtype):
    one, several = deployed(1, dtype), deployed(4, dtype)
    tokens = np.random.default_rng(0).integers(0, 30, ROOM).astype(np.int32)
    # The last block holds two tokens and is filled up, with whatever.
    session = one.session()
    reader = several.session(shared=session)
    for start in (0, 4, 8):
        block = np.full(4, 29, np.int32)
        count = min(4, 10 - start)
        block[:count] = tokens[start : start + count]
        logits = reader.step(block[None], np.int32(count))
    cache = CONFIG.empty_cache(1, ROOM, dtype)
    expected, cache = jax.jit(step)(PARAMS, tokens[None, :10], jnp.int32(10), cache)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    for token in tokens[10:14]:
        expected, cache = jax.jit(step)(PARAMS, token[None, None], jnp.int32(1), cache)
        ours = session.step(token[None, None], np.int32(1))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)
    # Two slots are left: what fills the block up finds no room, and moves nothing.
    last = np.concatenate([tokens[14:], np.full(2, 29, np.int32)])
    expected, cache = jax.jit(step)(PARAMS, tokens[None, 14:], jnp.int32(2), cache)
    before = session.state()["cache"]
    logits = reader.step(last[None], np.int32(2))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    full = session.state()["cache"]
    assert full.length == ROOM
    for old, new in zip(jax.tree.leaves(before.keys), jax.tree.leaves(full.keys), strict=True):
        np.testing.assert_array_equal(new[:, :14], old[:, :14])
    # There is no room for another token: its logits say so, and the others stay.
    assert np.isnan(session.step(tokens[:1, None], np.int32(1))).all()
    after = session.state()["cache"]
    for old, new in zip(jax.tree.leaves(full.values), jax.tree.leaves(after.values), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "length", "heads", "shared", "size", "room", "coded"),
    [
        (1, 1, 4, 4, 8, 5, False),
        (2, 3, 6, 2, 64, 40, False),
        (1, 2, 3, 1, 7, 33, False),
        (2, 2, 4, 2, 48, 20, True),
        (1, 1, 3, 1, 5, 9, True),
    ],
)
def test_the_kernel_is_masked_attention(batch, length, heads, shared, size, room, coded):
    rng = np.random.default_rng(size)
    query = rng.normal(size=(batch, length, heads, size)).astype(np.float32)
    rows = [rng.normal(size=(batch, room, shared, size)).astype(np.float32) for _ in range(2)]
    if coded:
        rows = [jax.tree.map(np.asarray, Int8Rows.of(jnp.asarray(x))) for x in rows]

    def f(query, keys, values, before):
        return cached_attention(3.0 * query, keys, values, before)

    bundle = deploy(f, (query, *rows, np.int32(2)), HOST, parameters=0)
    assert b"jaxeff.cached_attention" in bundle.artifact.stablehlo
    jitted = jax.jit(f)
    for before in (0, 1, room - length, room + 3):
        given = query, *rows, np.int32(before)
        np.testing.assert_allclose(bundle.run(*given), jitted(*given), rtol=0, atol=3e-6)


@pytest.mark.slow
def test_slots_that_are_not_filled_are_not_read():
    room = 4096
    rng = np.random.default_rng(0)
    query = rng.normal(size=(1, 1, 4, 64)).astype(np.float32)
    rows = [rng.normal(size=(1, room, 4, 64)).astype(np.float32) for _ in range(2)]
    for array in rows:
        array[:, 8:] = np.nan

    def f(query, before, keys, values):
        return cached_attention(query, keys, values, before), keys, values

    clean = [np.nan_to_num(x) for x in rows]
    example = (query, np.int32(7), *clean)
    session = deploy(f, example, HOST, parameters=0, state=("keys", "values")).session()
    expected = session.step(query, np.int32(7))
    session.restore(dict(zip(("keys", "values"), rows, strict=True)))
    np.testing.assert_array_equal(session.step(query, np.int32(7)), expected)


@pytest.mark.slow
def test_a_sampled_text_deploys_as_one_loop_with_the_same_tokens():
    def speak(params, seed, prompt, count, cache):
        return generate(
            jax.random.wrap_key_data(seed), F, params, prompt, cache, 6,
            temperature=0.9, top_k=10, top_p=0.95, count=count,
        )  # fmt: skip

    prompt = jnp.array([[3, 1, 4, 0, 0, 0, 0, 0]], jnp.int32)
    seed, count = jax.random.key_data(jax.random.key(5)), jnp.int32(3)
    example = PARAMS, seed, prompt, count, CONFIG.empty_cache(1, ROOM)
    bundle = deploy(speak, example, HOST, state=("cache",))
    session = bundle.session()
    cache = example[-1]
    for n in range(2):  # the second text goes on where the first one ended
        length = jnp.int32(3 if n == 0 else 1)
        tokens, cache = jax.jit(speak)(PARAMS, seed, prompt, length, cache)
        np.testing.assert_array_equal(session.step(seed, prompt, length), tokens)
    assert session.state()["cache"].length == cache.length


def test_other_dtypes_stay_plain_operations():
    query, rows = jnp.ones((1, 1, 2, 4)), jnp.ones((1, 3, 2, 4), jnp.bfloat16)
    f = jax.jit(lambda q, k, v, n: cached_attention(q, k, v, n))
    artifact = export(f, (query, rows, rows, jnp.int32(1)), parameters=0)
    assert b"jaxeff.cached_attention" not in artifact.stablehlo
