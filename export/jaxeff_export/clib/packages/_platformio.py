"""PlatformIO: a ``library.json`` and the script that names the archive to its linker.

A manifest can say where headers lie, and has no field for an archive: the script adds it. The file
is the one that a library's own facts stand in already; PlatformIO leaves keys alone that it does
not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxeff_export.clib.codegen import render
from jaxeff_export.clib.packages._package import VERSION, Package

SCRIPT = "platformio_link.py"


def platformio(package: Package) -> Mapping[str, str | bytes]:
    """Writes the script; `manifest` has the keys."""
    return {SCRIPT: render(SCRIPT, name=package.name)}


def manifest(package: Package) -> dict[str, Any]:
    """Makes the keys of ``library.json`` that PlatformIO reads."""
    return {
        "name": package.name,
        "version": VERSION,
        "description": package.sentence,
        "headers": sorted(package.headers),
        "frameworks": "*",
        "platforms": "*",
        # Sources are in the archive already: none is compiled.
        "build": {"srcFilter": "-<*>", "includeDir": ".", "srcDir": ".", "extraScript": SCRIPT},
    }
