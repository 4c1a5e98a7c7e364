"""``jaxeff-export generate``: texts of a tiny decoder of bytes, and what is refused."""

import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_line import call, refused
from flax import nnx
from jaxeff_export import Bundle, BundleError, deploy, resolve_target
from jaxeff_export.bundle.files import TOKENIZER, unpack_tokenizer

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig, Tokenizer, generate

HOST = {**resolve_target("host"), "num-cores": 1}
CONFIG = DecoderConfig(vocabulary=256, width=16, hidden=24, depth=1, heads=2, key_heads=1)
F, PARAMS = jaxeff.functional(Decoder(CONFIG, rngs=nnx.Rngs(0)))
ROOM = 24
PROMPT = "Once upon a"


# Bytes as their visible characters, from the last to the first.
VISIBLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = [chr(b) for b in VISIBLE] + [chr(256 + i) for i in range(256 - len(VISIBLE))]
BACKWARDS = Tokenizer(LETTERS[::-1], [], frozenset("!"), end=255)


def bundle(folder, length, words=256, held=0, tokenizer=None):
    def step(params, tokens, count, cache):
        logits, cache = F(params, tokens, cache, count)
        return logits[:, :words], cache

    cache = CONFIG.empty_cache(1, ROOM)._replace(length=jnp.int32(held))
    example = PARAMS, jnp.ones((1, length), jnp.int32), jnp.int32(1), cache
    return deploy(step, example, HOST, folder, state=("cache",), tokenizer=tokenizer).folder


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
        generated = call("generate", one, "--prompt", PROMPT, *how, *more)
        assert generated.exit_code == 0, generated.output
        *lines, speed = generated.stdout.rstrip("\n").split("\n")
        assert "\n".join(lines) == PROMPT + text
        assert speed.startswith("9 tokens, ")
        assert speed.endswith(" a second")
    lines = call("generate", one, "--prompt", PROMPT, *how, "--certainty").stdout.splitlines()
    assert len(lines) == 10
    assert all(0 < float(line.split()[0]) < 1 for line in lines[:9])
    # The cache ends the text: 24 slots, 11 of them the prompt's.
    generated = call("generate", one, "--prompt", PROMPT)
    assert generated.stdout.splitlines()[-1].startswith("13 tokens, ")


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


@pytest.mark.parametrize("seed", [2**63, 10**30, -(2**63) - 1])
def test_seeds_have_64_bits(tmp_path, seed):
    generated = call("generate", str(tmp_path), "--prompt", "a", f"--seed={seed}")
    assert generated.exit_code == 2
    assert "--seed" in generated.stderr


@pytest.mark.slow
def test_the_largest_seed_is_taken(folders):
    for seed in (2**63 - 1, -(2**63)):
        one = call("generate", str(folders[0]), "--prompt", "a", f"--seed={seed}", "--tokens", "1")
        assert one.exit_code == 0, one.output


def test_bytes_that_are_no_text_are_no_prompt(tmp_path):
    generated = call("generate", str(tmp_path), "--prompt", os.fsdecode(b"a\xff"))
    assert generated.exit_code == 2
    assert "no text in UTF-8" in generated.stderr


def command(*arguments, **where):
    line = [sys.executable, "-m", "jaxeff_export", *map(str, arguments)]
    if not where:
        line = ["sh", "-c", 'exec "$@" >&-', "sh", *line]
    return subprocess.Popen(line, stderr=subprocess.PIPE, **where)


@pytest.mark.process
def test_output_that_nobody_takes(deployed_mlp, tmp_path):
    folder = tmp_path / os.fsdecode(b"of \xff bytes")
    shutil.copytree(deployed_mlp.folder, folder)
    for arguments in (["inspect", folder], ["--help"], ["generate", "--help"]):
        read, write = os.pipe()
        gone = command(*arguments, stdout=write)
        os.close(read)
        os.close(write)
        closed = command(*arguments)  # without any
        kept = command(*arguments, stdout=subprocess.PIPE)
        assert b"Traceback" not in gone.communicate(timeout=300)[1]
        assert gone.returncode == 1
        words = b"error: standard output is closed; redirect it"
        assert closed.communicate(timeout=300)[1].startswith(words)
        assert closed.returncode == 1
        output, errors = kept.communicate(timeout=300)
        assert not errors
        assert output
        assert kept.returncode == 0


@pytest.mark.slow
def test_a_bundle_with_its_tokenizer_needs_nothing_else(tmp_path):
    folder = bundle(tmp_path / "made", 1, tokenizer=BACKWARDS)
    # A copy, and what is built again of it, have it too.
    for kept in (Bundle.load(folder).save(tmp_path / "copy"), Bundle.load(tmp_path / "copy")):
        assert kept.tokenizer == kept.example.tokenizer == BACKWARDS
    numbers = BACKWARDS.encode(PROMPT)
    assert numbers != list(PROMPT.encode())
    cache = CONFIG.empty_cache(1, ROOM)
    drawn, _ = generate(
        jax.random.key(0), F, PARAMS, jnp.array([numbers]), cache, 3, temperature=0.0
    )
    lines = call("generate", str(folder), "--prompt", PROMPT, "--tokens", "3", "--certainty")
    assert lines.exit_code == 0, lines.output
    texts = [line.split("  ")[1] for line in lines.stdout.splitlines()[:-1]]
    assert texts == [repr(BACKWARDS.decode([n])) for n in drawn[0]][: len(texts)]
    assert texts
    assert "tokenizer.json" in call("inspect", str(folder)).stdout
    few = bundle(tmp_path / "few", 1, tokenizer=Tokenizer(["a"], []))
    refused(call("generate", str(few), "--prompt", "a"), "1 tokens, the decoder 256")
    (folder / TOKENIZER).write_text("{}")
    refused(call("generate", str(folder), "--prompt", "a"), "tokenizer.json is damaged")
    with pytest.raises(TypeError, match="tokenizer"):
        deploy(F, (PARAMS, jnp.ones((1, 1), jnp.int32)), HOST, tokenizer="smollm")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "object"),
        ("{", "damaged"),
        ("[" * 100_000, "damaged"),
        ('{"tokens": ["a"], "merges": ["ab"], "special": [], "cut": "gpt-2"}', "'ab' is no pair"),
        ('{"tokens": [], "merges": [], "special": [], "cut": "gpt-2"}', "no tokens"),
        ('{"tokens": ["a"], "merges": [], "special": [], "cut": "b"}', "'b' cuts text"),
        ('{"tokens": ["a"], "merges": [], "special": [], "cut": "gpt-2", "end": 1}', "token 1 of"),
        ('{"tokens": ["a"], "merges": [], "special": [], "cut": "gpt-2", "end": -1}', "end"),
        ('{"tokens": [1], "merges": [], "special": [], "cut": "gpt-2"}', "tokens"),
    ],
)
def test_foreign_tokenizers_are_refused(content, words):
    with pytest.raises(BundleError, match=words):
        unpack_tokenizer(content.encode())
