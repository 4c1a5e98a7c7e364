"""The styles of packages by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxeff_export.clib.objects import CLibraryError
from jaxeff_export.clib.packages._arduino import arduino
from jaxeff_export.clib.packages._cmsis_pack import cmsis_pack, require_arm
from jaxeff_export.clib.packages._package import Package
from jaxeff_export.clib.packages._platformio import manifest, platformio
from jaxeff_export.clib.packages._zephyr import zephyr

_WRITERS: Mapping[str, Callable[[Package], Mapping[str, str | bytes]]] = {
    "cmake": lambda package: {},  # the library's own folder is one
    "arduino": arduino,
    "platformio": platformio,
    "zephyr": zephyr,
    "cmsis-pack": cmsis_pack,
}

STYLES = tuple(_WRITERS)
"""Names of the styles."""


def require_style(style: str, core: str, *, embed: bool, threads: int) -> None:
    """Refuses a style that there isn't, or that has no place for such a library.

    Args:
        style: its name.
        core: LLVM's name of the processor.
        embed: whether the archive has the parameters.
        threads: how many threads share loops.

    Raises:
        CLibraryError: with the way out.
    """
    if style not in STYLES:
        raise CLibraryError(f"no style {style!r}; there are {', '.join(STYLES)}")
    if style == "cmake":
        return
    # These packages are an archive and headers: nothing in them loads a file or links threads.
    if not embed:
        raise CLibraryError(
            f"style={style!r} has no place for a file of parameters; leave embed=True, or take "
            "style='cmake'"
        )
    if threads > 1:
        raise CLibraryError(
            f"style={style!r} links no threads; leave threads at 1, or take style='cmake'"
        )
    if style == "cmsis-pack":
        require_arm(core)


def package_files(style: str, package: Package) -> Mapping[str, str | bytes]:
    """Writes the files that a style adds to a library's folder, by their paths in it."""
    return _WRITERS[style](package)


def facts_of(style: str, package: Package) -> dict[str, Any]:
    """Lists what a style has to say in the library's own ``library.json``."""
    return manifest(package) if style == "platformio" else {}
