"""The C of state: a struct that the caller owns, and the function that it begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxeff_export.clib.codegen._interface import STATE

if TYPE_CHECKING:
    from jaxeff_export.clib.codegen._sources import Library

_IN_A_LINE = 16  # bytes


def declarations(library: Library) -> list[str]:
    """Writes the struct and its function, for the header."""
    if not library.state:
        return []
    n = library.name
    lines = [
        "/* What stays from one call to the next, and is updated in place. The caller owns it, one",
        f"   for each session; {n}_init sets it to what a session begins with, at any time. */",
        "typedef struct {",
    ]
    for field in library.state:
        # Inline, so that one address is all there is to a session; C has no arrays of no elements.
        lines += [
            f"    /* {field.remark} */",
            f"    {field.kind} {field.name}[{field.count or 1}];",
        ]
    return [*lines, f"}} {n}_state;", "", f"void {n}_init({n}_state *state);", ""]


def pointer(library: Library) -> list[str]:
    """Writes the field of the inputs that leads to it."""
    n = library.name
    return [f"    /* see {n}_init */", f"    {n}_state *{STATE};"] if library.state else []


def source(library: Library) -> list[str]:
    """Writes the function, for what calls the kernels."""
    if not library.state:
        return []
    constants: list[str] = []
    lines = [f"void {library.name}_init({library.name}_state *state)", "{"]
    for field, value in zip(library.state, library.initial, strict=True):
        data = np.asarray(value).tobytes()
        # An empty cache is zeros: no constant as large as itself.
        if not any(data):
            lines.append(f"    memset(state->{field.name}, 0, sizeof(state->{field.name}));")
            continue
        constants += [f"static const unsigned char first_{field.name}[] = {{", *_bytes(data), "};"]
        lines.append(f"    memcpy(state->{field.name}, first_{field.name}, {len(data)});")
    return [*constants, *lines, "}", ""]


def _bytes(data: bytes) -> list[str]:
    starts = range(0, len(data), _IN_A_LINE)
    return ["    " + "".join(f"{byte}," for byte in data[i : i + _IN_A_LINE]) for i in starts]
