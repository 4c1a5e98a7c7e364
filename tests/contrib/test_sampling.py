"""Tokens drawn from logits: greedy, by temperature, of the top k, of a nucleus; texts of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig, generate, sample
from jaxeff.contrib._decoder import Int8Rows

PROBS = np.array([0.4, 0.3, 0.2, 0.06, 0.04])
DRAWS = 20_000
CONFIG = DecoderConfig(vocabulary=30, width=16, hidden=24, depth=2, heads=4, key_heads=2)


def frequencies(key, **how):
    logits = jnp.tile(jnp.log(PROBS), (DRAWS, 1))
    return np.bincount(sample(key, logits, **how), minlength=5) / DRAWS


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, PROBS),
        ({"temperature": 0.0}, [1, 0, 0, 0, 0]),
        ({"temperature": 0.5}, PROBS**2),
        ({"top_k": 2}, [0.4, 0.3, 0, 0, 0]),
        ({"top_k": 9}, PROBS),
        ({"top_p": 0.8}, [0.4, 0.3, 0.2, 0, 0]),
        ({"top_p": 0.05}, [1, 0, 0, 0, 0]),
        # Of the two that are left, the first has 4/7 of the probability.
        ({"top_k": 2, "top_p": 0.5}, [1, 0, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.6}, [0.4, 0.3, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_by_the_probabilities_that_are_left(how, expected):
    expected = np.asarray(expected) / np.sum(expected)
    shares = frequencies(jax.random.key(3), **how)
    # Five standard errors of a frequency; what may not be drawn never is.
    errors = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(shares - expected) <= 5 * errors).all()


@pytest.mark.parametrize("how", [{"top_k": 2}, {"top_p": 0.4}])
def test_of_equal_tokens_no_more_than_asked_are_drawn(how):
    logits = jnp.log(jnp.tile(jnp.array([0.1, 0.3, 0.3, 0.3]), (500, 1)))
    drawn = sample(jax.random.key(0), logits, **how)
    assert set(drawn.tolist()) == {1, 2}


@pytest.fixture(scope="module")
def decoder():
    return jaxeff.functional(Decoder(CONFIG, rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_a_text_continues_by_its_own_tokens(decoder):
    f, params = decoder
    key, prompt = jax.random.key(1), jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    how = {"temperature": 0.7, "top_k": 8}
    speak = jax.jit(lambda params, *given: generate(key, f, params, *given, 6, **how))
    tokens, cache = speak(params, prompt, CONFIG.empty_cache(2, 12))
    assert cache.length == 11
    text = prompt
    for i in range(6):  # without a cache: the whole text anew for each token
        logits = jax.jit(f)(params, text)[:, -1]
        token = sample(jax.random.fold_in(key, i), logits, **how)
        np.testing.assert_array_equal(token, tokens[:, i])
        text = jnp.concatenate([text, token[:, None]], 1)
    with pytest.raises(ValueError, match="5 tokens and 8 more don't fit a cache of 12"):
        generate(key, f, params, prompt, CONFIG.empty_cache(2, 12), 8)


@pytest.mark.slow
def test_what_does_not_fit_is_refused(decoder):
    f, params = decoder
    prompt, cache = jnp.array([[3, 1, 4]]), CONFIG.empty_cache(1, 8)

    def speak(cache, steps, count=None):
        return generate(jax.random.key(1), f, params, prompt, cache, steps, count=count)

    _, full = speak(cache, 2)
    with pytest.raises(ValueError, match="3 tokens and 1 more don't fit a cache of 8 of which 5"):
        speak(full, 1)
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"count must be 1 to 3, not {count}"):
            speak(cache, 1, jnp.int32(count))
        with pytest.raises(ValueError, match=f"Decoder: count must be 1 to 3, not {count}"):
            f(params, prompt, cache, jnp.int32(count))
    with pytest.raises(ValueError, match="3 more tokens don't fit a cache of 8 of which 6 are"):
        f(params, prompt, full._replace(length=jnp.int32(6)), jnp.int32(3))
    with pytest.raises(ValueError, match="9 tokens at a time don't fit a cache of 8"):
        jax.jit(f)(params, jnp.zeros((1, 9), int), cache)
    with pytest.raises(TypeError, match="keys and values are floating or int8, not int32"):
        CONFIG.empty_cache(1, 8, jnp.int32)


@pytest.mark.slow
def test_padding_after_a_prompt_changes_nothing(decoder):
    f, params = decoder
    key, prompt = jax.random.key(1), jnp.array([[3, 1, 4]])
    speak = jax.jit(
        lambda params, tokens, count: generate(
            key, f, params, tokens, CONFIG.empty_cache(1, 16), 5, count=count
        )
    )
    exact, _ = speak(params, prompt, None)
    padded = jnp.pad(prompt, ((0, 0), (0, 5)), constant_values=7)
    filled, cache = speak(params, padded, jnp.int32(3))
    np.testing.assert_array_equal(filled, exact)
    assert cache.length == 8
    # Padding needs no room where what counts is known: 8 slots, of which all are taken.
    tight = CONFIG.empty_cache(1, 8)
    tokens, cache = generate(key, f, params, padded, tight, 5, count=jnp.int32(3))
    np.testing.assert_array_equal(tokens, exact)
    assert cache.length == 8


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int8])
def test_a_padded_block_at_the_end_of_a_cache_moves_nothing(decoder, dtype):
    f, params = decoder
    tokens = jnp.arange(11, 19)[None] % 30
    read = jax.jit(lambda tokens, count, cache: f(params, tokens, cache, count))
    exact, whole = read(tokens, jnp.int32(8), CONFIG.empty_cache(1, 8, dtype))
    _, cache = read(tokens[:, :6], jnp.int32(6), CONFIG.empty_cache(1, 8, dtype))
    block = jnp.pad(tokens[:, 6:], ((0, 0), (0, 2)), constant_values=29)
    logits, full = read(block, jnp.int32(2), cache)
    np.testing.assert_allclose(logits, exact, rtol=0, atol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(full), jax.tree.leaves(whole), strict=True):
        # A code may fall to the other side of a tie.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 if ours.dtype == jnp.int8 else 2e-5)
    # Beyond the room there is no answer, and what is there stays.
    beyond, after = read(block, jnp.int32(1), full)
    assert jnp.isnan(beyond).all()
    jax.tree.map(
        np.testing.assert_array_equal, (after.keys, after.values), (full.keys, full.values)
    )
    assert (jax.jit(sample)(jax.random.key(0), beyond) == -1).all()
    for count in (0, 5):
        assert jnp.isnan(read(block, jnp.int32(count), cache)[0]).all()


@pytest.mark.slow
def test_a_cache_of_8_bits_is_within_its_steps_and_smaller(decoder):
    f, params = decoder
    x = jax.random.normal(jax.random.key(0), (2, 3, 4, 8))
    x = x.at[0, 0, 0].set(0.0)
    rows = Int8Rows.of(x)
    error = jnp.abs(rows.floats() - x)
    assert (error <= rows.steps[..., None] / 2 * (1 + 1e-6)).all()
    assert (rows.floats()[0, 0, 0] == 0).all()
    wide, small = (CONFIG.empty_cache(1, 16, dtype) for dtype in (jnp.float32, jnp.int8))
    sizes = [sum(a.nbytes for a in jax.tree.leaves(c)) for c in (wide, small)]
    assert sizes[1] < 0.51 * sizes[0]  # heads of 4: a step of 4 bytes for 4 codes
    tokens = jnp.arange(10)[None]
    (exact, _), (close, cache) = (jax.jit(f)(params, tokens, c) for c in (wide, small))
    assert isinstance(cache.keys[0], Int8Rows)
    # Rounding moves logits by some hundredths of what they spread.
    assert 0 < jnp.abs(close - exact).max() < 0.05 * jnp.std(exact)
