"""A tokenizer as a file of a bundle, so that a decoder's bundle is all that texts need."""

from __future__ import annotations

import json

from jaxeff.nn import Tokenizer
from jaxeff_export.artifact import COUNT, require_form
from jaxeff_export.bundle.files._manifest import TOKENIZER, BundleError

_LISTS = ("tokens", "merges", "special")


def pack_tokenizer(tokenizer: Tokenizer) -> bytes:
    """Writes a tokenizer."""
    content = {
        "tokens": list(tokenizer.tokens),
        "merges": list(tokenizer.merges),
        "special": sorted(tokenizer.special),
        "cut": tokenizer.cut,
        "end": tokenizer.end,
    }
    return json.dumps(content, ensure_ascii=False).encode()


def unpack_tokenizer(data: bytes) -> Tokenizer:
    """Reads what `pack_tokenizer` wrote.

    Raises:
      BundleError: if it is of another form, or its parts contradict each other.
    """
    try:
        content = json.loads(data)
        require_form(content, {**{name: [str] for name in _LISTS}, "cut": str}, "")
        if (end := content.get("end")) is not None:
            require_form(end, COUNT, "end")
        tokens, merges, special = (content[name] for name in _LISTS)
        return Tokenizer(tokens, merges, frozenset(special), content["cut"], end)
    # Of a stranger's making: deep nesting and broken UTF-8 are its errors too.
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{TOKENIZER} is damaged: {error}") from error
