"""Arduino: a precompiled library, by Arduino's library specification (revision 2.2).

Its rules: with ``precompiled=true`` archives are looked for in ``src/{build.mcu}``, where the
board's platform says what ``build.mcu`` is; ``ldflags`` name them to the linker; only ``src`` is
compiled and searched for headers where it exists, so that ``main.c`` beside it is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxeff_export.clib.codegen import render
from jaxeff_export.clib.packages._package import VERSION, Package


def arduino(package: Package) -> Mapping[str, str | bytes]:
    """Writes the files of a library for the Arduino IDE and `arduino-cli`."""
    n = package.name
    properties = {
        "name": n,
        "version": VERSION,
        "author": "jaxeff",
        "maintainer": "jaxeff",
        "sentence": package.sentence,
        "paragraph": "Header and archive. No allocation, no runtime.",
        "category": "Data Processing",
        "url": "https://github.com",
        # Not one platform's alone: many of them have boards with the same core.
        "architectures": "*",
        "includes": f"{n}.hpp",
        "precompiled": "true",
        "ldflags": f"-l{n} -lm",
    }
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    arrays = [*package.library.given, *package.library.returned]
    taken = {field.name for field in package.library.given}
    names = [f.name for f in package.library.given]
    names += [f"out_{f.name}" if f.name in taken else f.name for f in package.library.returned]
    buffers = [
        f"static {field.kind} {name}[{field.count or 1}];"
        for field, name in zip(arrays, names, strict=True)
    ]
    sketch = render("sketch.ino", name=n, buffers=buffers, arguments=", ".join(names))
    headers = {f"src/{name}": content for name, content in package.headers.items()}
    return {
        "library.properties": text,
        f"src/{package.core}/lib{n}.a": package.archive,
        f"examples/{n}_example/{n}_example.ino": sketch,
        **headers,
    }
