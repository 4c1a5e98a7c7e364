"""``jaxeff-export generate``: texts of a tiny decoder of bytes, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import call, refused
from flax import nnx
from jaxeff_export import deploy, resolve_target

import jaxeff
from jaxeff.nn import Decoder, DecoderConfig, generate

HOST = {**resolve_target("host"), "num-cores": 1}
CONFIG = DecoderConfig(vocabulary=256, width=16, hidden=24, depth=1, heads=2, key_heads=1)
F, PARAMS = jaxeff.functional(Decoder(CONFIG, rngs=nnx.Rngs(0)))
ROOM = 24
PROMPT = "Once upon a"


def bundle(folder, length, words=256, held=0):
    def step(params, tokens, count, cache):
        logits, cache = F(params, tokens, cache, count)
        return logits[:, :words], cache

    cache = CONFIG.empty_cache(1, ROOM)._replace(length=jnp.int32(held))
    example = PARAMS, jnp.ones((1, length), jnp.int32), jnp.int32(1), cache
    return deploy(step, example, HOST, folder, state=("cache",)).folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("decoders")
    return bundle(root / "one", 1), bundle(root / "eight", 8)


def expected(steps, **how):
    prompt = jnp.asarray([list(PROMPT.encode())])
    speak = jax.jit(
        lambda params, cache: generate(jax.random.key(7), F, params, prompt, cache, steps, **how)
    )
    tokens = speak(PARAMS, CONFIG.empty_cache(1, ROOM))[0]
    return bytes(np.asarray(tokens[0]).tolist())


@pytest.mark.slow
def test_texts_are_those_of_jax_however_the_prompt_is_read(folders):
    one, eight = map(str, folders)
    how = ["--seed", "7", "--temperature", "0.8", "--top-k", "20", "--tokens", "9"]
    text = expected(9, temperature=0.8, top_k=20).decode(errors="replace").rstrip("\ufffd")
    for more in ([], ["--prefill", eight]):
        made = call("generate", one, "--prompt", PROMPT, *how, *more)
        assert made.exit_code == 0, made.output
        *lines, speed = made.stdout.rstrip("\n").split("\n")
        assert "\n".join(lines) == PROMPT + text
        assert speed.startswith("9 tokens, ")
        assert speed.endswith(" a second")
    lines = call("generate", one, "--prompt", PROMPT, *how, "--certainty").stdout.splitlines()
    assert len(lines) == 10
    assert all(0 < float(line.split()[0]) < 1 for line in lines[:9])
    # The cache ends the text: 24 slots, 11 of them the prompt's.
    made = call("generate", one, "--prompt", PROMPT)
    assert made.stdout.splitlines()[-1].startswith("13 tokens, ")


@pytest.mark.slow
def test_what_is_no_decoder_or_no_text_of_it_is_refused(folders, deployed_mlp, tmp_path):
    one = str(folders[0])
    refused(call("generate", one, "--prompt", "x" * 25), "room for 24 tokens")
    refused(call("generate", one, "--prompt", ""), "at least one token")
    refused(call("generate", str(deployed_mlp.folder), "--prompt", "a"), "keeps no state")
    refused(call("generate", str(tmp_path), "--prompt", "a"), "is no bundle")
    other = str(bundle(tmp_path / "other", 1, words=100))
    refused(call("generate", other, "--prompt", "a"), "100 tokens, which are no bytes")
    held = str(bundle(tmp_path / "held", 1, held=20))
    refused(call("generate", held, "--prompt", "x" * 5), "room for 24 tokens; 20 are read")
    absent = str(tmp_path / "absent.gguf")
    refused(call("generate", one, "--prompt", "a", "--tokenizer", absent), "absent.gguf")
