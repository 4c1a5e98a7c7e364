"""`render`: C text from the templates of this package.

A template has `${name}` where a value stands. A value that is a list is whole lines: its
placeholder has a line of its own, which is gone where the list is empty. Conditions and loops are
in Python, so that the C can be read, and compilers' messages found, in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

_TEMPLATES = Path(__file__).with_name("templates")
_ALONE = re.compile(r"^\$\{(\w+)\}\n", re.MULTILINE)


def render(template: str, **values: str | int | Sequence[str]) -> str:
    """Fills in a template.

    Args:
        template: Name of the file, without `.in`.
        **values: Text or number for each placeholder, or a list of whole lines.

    Raises:
        KeyError: A placeholder has no value.
    """
    blocks = {
        key: "".join(f"{line}\n" for line in value)
        for key, value in values.items()
        if not isinstance(value, str | int)
    }
    text = (_TEMPLATES / f"{template}.in").read_text(encoding="utf-8")

    def line(found: re.Match[str]) -> str:
        # The lines of a block end themselves: an empty one must leave no blank line.
        return found[0].removesuffix("\n") if found[1] in blocks else found[0]

    text = _ALONE.sub(line, text)
    return Template(text).substitute({**values, **blocks})


__all__ = ["render"]
