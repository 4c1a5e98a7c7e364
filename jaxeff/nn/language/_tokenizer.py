"""Byte-level byte pair encoding by the vocabulary and the merges of a file.

Text is cut into words, a word into bytes, and the neighbours that come first in the list of merges
are joined until none are left (Sennrich et al., arXiv 1508.07909; on bytes: Radford et al. 2019).

Sharp edge: how text is cut differs from model to model. The cuts of GPT-2 and SmolLM are known.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Letters, numbers and other signs by one character each, so that `re`, which knows no classes of
# Unicode, can cut: a space and an apostrophe stay, and so do the letters of English endings.
_ENDINGS = "strevmdl"
_CUT = re.compile(
    rf"'(?:s|t|re|ve|m|ll|d)| ?[L{_ENDINGS}]+| ?N+| ?[O']+|[ B]+(?![^ B])|[ B]+",
)
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
        found: list[int] = []
        for i, part in enumerate(parts):
            if i % 2:
                found.append(self._number(part))
                continue
            for word in _words(part, single_digits=_CUTS[self.cut]):
                found.extend(self._number(token) for token in self._merge(word))
        return found

    def decode(self, numbers: Iterable[int]) -> str:
        """Gives the text of tokens; bytes that are no text become U+FFFD."""
        made = bytearray()
        for number in numbers:
            token = self.tokens[int(number)]
            # Besides special tokens, files have unused ones, whose characters stand for no bytes.
            plain = token in self.special or any(letter not in _BYTES for letter in token)
            made += token.encode() if plain else bytes(_BYTES[letter] for letter in token)
        return made.decode(errors="replace")

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
