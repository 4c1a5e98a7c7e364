"""What packages are written from."""

from __future__ import annotations

import dataclasses

from jaxeff_export.clib.codegen import driver

VERSION = "1.0.0"
"""Of every package: a network has no version of its own; whoever releases one writes theirs."""


@dataclasses.dataclass(frozen=True)
class Package:
    """A library that is packed.

    Attributes:
        library: what its C was written from.
        core: LLVM's name of the processor.
        flags: what names the processor to the compiler.
        archive: content of the archive.
        headers: content of the headers by name.
    """

    library: driver.Library
    core: str
    flags: tuple[str, ...]
    archive: bytes
    headers: dict[str, str]

    @property
    def name(self) -> str:
        """The library's name."""
        return self.library.name

    @property
    def sentence(self) -> str:
        """What it is, in a sentence."""
        return f"A neural network compiled for {self.library.made_for}."
