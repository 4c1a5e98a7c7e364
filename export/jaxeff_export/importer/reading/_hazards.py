"""Text that would end the process inside MLIR's parser, refused before it gets there.

MLIR parses, prints and folds by recursion, expands aliases in full when it prints, and trusts the
dimension numbers of a convolution as the size of a list. Sound programs are far from all of these
limits. The checks are a few passes in C over the text, so they cost little beside the parser.
"""

from __future__ import annotations

import re

import numpy as np

from jaxeff_export.importer.reading._errors import StableHLOParseError

MAX_NESTING = 500  # brackets; MLIR overflows an 8 MB stack from about 3,000
MAX_EXPANSION = 1_000_000  # aliases in one alias, those that its aliases name included
MAX_DIMENSION_NUMBER = 3  # digits

_OPENING, _CLOSING = b"([{<", b")]}>"
_NOT_BRACKETS = bytes(c for c in range(256) if c not in _OPENING + _CLOSING)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(_OPENING)] = 1
_STEPS[list(_CLOSING)] = -1
_OPAQUE = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|//[^\n]*|->')
_TOKEN = re.compile(_OPAQUE.pattern + rb"|[\[\](){}<>]")
_ALIAS = re.compile(rb"^[ \t]*([#!][\w$.-]+)[ \t]*=([^\n]*)", re.MULTILINE)
_ALIAS_NAME = re.compile(rb"[#!][\w$.-]+")
_AFFINE = re.compile(rb"(?P<found>\baffine_(?:map|set)\b)")
_DIMENSION_NUMBER = re.compile(
    # Up to what comes after the numbers: types behind them may have a thousand channels.
    rb"(?:dim_numbers\s*=\s*|#stablehlo\.conv<\s*)[^<>{:\n]*?(?P<found>\d{%d,})"
    % (MAX_DIMENSION_NUMBER + 1)
)


def without_strings(text: bytes) -> bytes:
    """Returns ``text`` without strings, comments and arrows: short, whatever constants it holds."""
    return _OPAQUE.sub(b"", text)


def refuse_hazards(text: bytes, bare: bytes) -> None:
    """Checks that MLIR's parser can be trusted with ``text``.

    Args:
        text: the source.
        bare: the source without strings.

    Raises:
        StableHLOParseError: it cannot; the message says why and at which line and column.
    """
    # Whole arrays at once: texts with large constants have many millions of bytes.
    brackets = np.frombuffer(bare.translate(None, _NOT_BRACKETS), np.uint8)
    if len(brackets) > MAX_NESTING:
        depths = np.cumsum(_STEPS[brackets], dtype=np.int64)
        if depths.max() > MAX_NESTING:
            raise _refusal(
                text,
                _deepest(text),
                f"brackets nest more than {MAX_NESTING} deep; StableHLO that a compiler wrote "
                "nests less than a hundred",
            )
    if _AFFINE.search(bare):
        raise _refusal(
            text,
            _first(_AFFINE, text),
            "affine maps and sets are no part of StableHLO; lower the module to StableHLO, or "
            "remove the attribute",
        )
    if _DIMENSION_NUMBER.search(bare):
        raise _refusal(
            text,
            _first(_DIMENSION_NUMBER, text),
            "this is not the number of a convolution's dimension; a tensor has fewer dimensions",
        )
    _refuse_expansion(text, bare)


def position(text: bytes, offset: int) -> str:
    """Formats where in ``text`` a byte is, as MLIR counts: lines and columns from one."""
    line, column = text.count(b"\n", 0, offset) + 1, offset - text.rfind(b"\n", 0, offset)
    return f"line {line}, column {column}"


def _refuse_expansion(text: bytes, bare: bytes) -> None:
    expansions: dict[bytes, int] = {}
    for match in _ALIAS.finditer(bare):
        alias, body = match.groups()
        # Aliases are defined before use, so one pass in order finds every expansion's full size.
        expansions[alias] = 1 + sum(expansions.get(a, 1) for a in _ALIAS_NAME.findall(body))
        if expansions[alias] > MAX_EXPANSION:
            raise _refusal(
                text,
                text.index(alias),
                f"the alias {alias.decode()} stands for more than {MAX_EXPANSION} others; write "
                "the module without aliases",
            )


def _first(pattern: re.Pattern[bytes], text: bytes) -> int:
    match = pattern.search(text)
    return match.start("found") if match else 0


def _deepest(text: bytes) -> int:
    depth = 0
    for match in _TOKEN.finditer(text):
        if len(match[0]) == 1:
            depth += 1 if match[0] in _OPENING else -1
            if depth > MAX_NESTING:
                return match.start()
    return len(text)


def _refusal(text: bytes, offset: int, reason: str) -> StableHLOParseError:
    return StableHLOParseError(
        f"the source is not valid StableHLO: {position(text, offset)}: {reason}"
    )
