"""Random damage to StableHLO text and artifacts, from a seed."""

import random
import re
from collections.abc import Callable, Iterator, Sequence

_TOKEN = re.compile(r"[%@#]?[\w.]+|\S")
_NUMBER = re.compile(r"(?<![\w%@#.])-?\d+(?![\w.])")
_TYPE = re.compile(r"\b(?:f32|i32|i1|bf16|i64|f64|ui8|f16)\b(?=>)")
_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "7",
    "-9223372036854775808",
    "9223372036854775807",
    "4294967296",
    "99999999999",
    "99999999999999999999999",
)
_TYPES = (
    "f32",
    "i1",
    "i4",
    "ui64",
    "bf16",
    "f8E4M3FN",
    "complex<f32>",
    "index",
    "f128",
    "none",
    "!quant.uniform<i8:f32, 0.5>",
    "tuple<tensor<f32>>",
    "i17",
    "tf32",
    "vector<4xf32>",
)

TextMutation = Callable[[random.Random, str, Sequence[str]], str]


def _flip(rng: random.Random, text: str, _: Sequence[str]) -> str:
    at = rng.randrange(len(text))
    return text[:at] + chr(rng.choice((rng.randrange(1, 128), rng.randrange(256)))) + text[at + 1 :]


def _truncate(rng: random.Random, text: str, _: Sequence[str]) -> str:
    return text[: rng.randrange(len(text))]


def _splice(rng: random.Random, text: str, others: Sequence[str]) -> str:
    lines, other = text.splitlines(), rng.choice(others).splitlines()
    start, count = rng.randrange(len(other)), rng.randrange(1, 6)
    at = rng.randrange(len(lines))
    return "\n".join([*lines[:at], *other[start : start + count], *lines[at + rng.randrange(2) :]])


def _delete_line(rng: random.Random, text: str, _: Sequence[str]) -> str:
    lines = text.splitlines()
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _repeat_line(rng: random.Random, text: str, _: Sequence[str]) -> str:
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    return "\n".join([*lines[: at + 1], *[lines[at]] * rng.choice((1, 1, 50)), *lines[at + 1 :]])


def _swap_tokens(rng: random.Random, text: str, _: Sequence[str]) -> str:
    tokens = list(_TOKEN.finditer(text))
    first = rng.randrange(len(tokens))
    near = range(max(first - 20, 0), min(first + 20, len(tokens)))
    a, b = sorted((tokens[first], tokens[rng.choice(near)]), key=lambda match: match.start())
    if a is b:
        return _delete_line(rng, text, _)
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


def _replace(pattern: re.Pattern[str], choices: Sequence[str]) -> TextMutation:
    def mutate(rng: random.Random, text: str, _: Sequence[str]) -> str:
        found = list(pattern.finditer(text))
        if not found:
            return text
        match = rng.choice(found)
        choice = rng.choice(choices)
        if rng.random() < 0.3:  # everywhere, so that types still agree
            return re.sub(rf"(?<![\w%@#.]){re.escape(match[0])}(?![\w.])", choice, text)
        return text[: match.start()] + choice + text[match.end() :]

    return mutate


_TEXT_MUTATIONS: tuple[TextMutation, ...] = (
    _flip,
    _truncate,
    _splice,
    _delete_line,
    _repeat_line,
    _swap_tokens,
    _replace(_NUMBER, _NUMBERS),
    _replace(_NUMBER, _NUMBERS[:4]),
    _replace(_TYPE, _TYPES),
)


def damaged_texts(rng: random.Random, texts: Sequence[str]) -> Iterator[str]:
    """Damages one of `texts` after the other, once to three times each, for ever."""
    while True:
        for text in texts:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                text = rng.choice(_TEXT_MUTATIONS)(rng, text, texts) or " "
            yield text


def damaged_artifacts(rng: random.Random, artifacts: Sequence[bytes]) -> Iterator[bytes]:
    """Damages one of `artifacts` after the other, for ever."""
    while True:
        for artifact in artifacts:
            data = bytearray(artifact)
            match rng.randrange(6):
                case 0:
                    del data[rng.randrange(len(data)) :]
                case 1:
                    start = rng.randrange(len(data))
                    del data[start : start + rng.randrange(1, 16)]
                case 2:
                    other = rng.choice(artifacts)
                    data = data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]
                case 3:  # the head holds the version and the sections' sizes
                    data[rng.randrange(4, 64)] = rng.randrange(256)
                case _:
                    for _ in range(rng.choice((1, 1, 2, 8))):
                        data[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(data)
