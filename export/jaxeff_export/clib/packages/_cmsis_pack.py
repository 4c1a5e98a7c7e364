"""CMSIS-Pack: a description of one component, and the pack, which is a ZIP file of all of it.

Elements and attributes are those of the schema ``PACK.xsd`` 1.7 of Open-CMSIS-Pack. Keil, IAR and
the CMSIS-Toolbox read it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from xml.sax.saxutils import escape

from jaxeff_export.clib.codegen import render
from jaxeff_export.clib.objects import CLibraryError
from jaxeff_export.clib.packages._package import VERSION, Package

VENDOR = "jaxeff"
LEAST, MOST = 2, 32  # letters of a component's name, by the schema
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first date of ZIP files: the same library makes the same pack."""


def require_arm(core: str) -> None:
    """Refuses processors that the format has no name for.

    Raises:
        CLibraryError: if it is none of Arm's Cortex processors.
    """
    if not core.startswith("cortex-"):
        raise CLibraryError(
            f"style='cmsis-pack' describes Arm's Cortex processors, and {core} is none; take "
            "style='cmake'"
        )


def cmsis_pack(package: Package) -> Mapping[str, str | bytes]:
    """Writes the description and the pack."""
    n = package.name
    if not LEAST <= len(n) <= MOST:
        raise CLibraryError(
            f"style='cmsis-pack' takes names of {LEAST} to {MOST} letters, and {n!r} has {len(n)}"
        )
    description = render(
        "pack.pdsc",
        vendor=VENDOR,
        name=n,
        NAME=package.library.upper,
        version=VERSION,
        sentence=escape(package.sentence),
        # LLVM's cortex-m0plus is Cortex-M0+ there.
        core=f"Cortex-{package.core.removeprefix('cortex-').replace('plus', '+').upper()}",
        headers=[f'        <file category="header" name="{h}"/>' for h in sorted(package.headers)],
    )
    pdsc = f"{VENDOR}.{n}.pdsc"
    content: dict[str, str | bytes] = {pdsc: description, f"lib{n}.a": package.archive}
    content |= package.headers
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(content.items()):
            # Dates of files would make each pack another one.
            file.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return {pdsc: description, f"{VENDOR}.{n}.{VERSION}.pack": packed.getvalue()}
