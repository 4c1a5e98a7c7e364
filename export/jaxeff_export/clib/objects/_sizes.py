"""Sizes of a library, and whether a device's memories hold it."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from jaxeff_export.clib.objects._errors import CLibraryError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes.

    Attributes:
        code: machine code and its own constants.
        parameters: what is bound.
        workspace: what a call needs beside its arguments.
        live: the largest part of these, the largest number needed at the same time.
        arrays: arguments and results, which the caller holds.
        stack: arrays on the stack of the kernel with most of them; spilled registers not counted.
    """

    code: int
    parameters: int
    workspace: int
    live: int
    arrays: int
    stack: int

    def to_json(self) -> dict[str, Any]:
        """Returns the sizes as plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return (
            f"code {self.code:,} bytes, parameters {self.parameters:,}, workspace "
            f"{self.workspace:,}, arguments and results {self.arrays:,}, arrays on the stack "
            f"{self.stack:,}"
        )


def require_room(
    sizes: Sizes, flash: int | None, ram: int | None, *, embedded: bool = True
) -> None:
    """Refuses a library that a device's memories don't hold.

    Args:
        sizes: what it takes.
        flash: bytes for code and embedded parameters; None if they are no matter.
        ram: bytes for the workspace, arguments, results and the stack's arrays.
        embedded: whether the parameters are constants of the library.

    Raises:
        CLibraryError: saying what is needed, what is there and what could be done.
    """
    # Flash holds what never changes; parameters that a board loads lie wherever it puts them.
    constants = sizes.code + (sizes.parameters if embedded else 0)
    if flash is not None and constants > flash:
        raise CLibraryError(
            f"flash: {constants:,} bytes are needed ({sizes.code:,} of code, {sizes.parameters:,} "
            f"of parameters), {flash:,} are there; quantize the weights (jaxeff.compression), or "
            "load the parameters from elsewhere (embed=False)"
        )
    # A lower bound: spilled registers and the caller's own data come on top.
    data = sizes.workspace + sizes.arrays + sizes.stack
    if ram is not None and data > ram:
        raise CLibraryError(
            f"RAM: {data:,} bytes are needed ({sizes.workspace:,} of workspace, {sizes.arrays:,} "
            f"of arguments and results, {sizes.stack:,} on the stack), {ram:,} are there; deploy "
            "for a smaller batch, or quantize activations (jaxeff.integer)"
        )


def bytes_of(text: str | int) -> int:
    """Reads a number of bytes: ``524288``, ``"512k"`` or ``"2M"``.

    Raises:
        CLibraryError: if it is none.
    """
    found = re.fullmatch(r"\s*(\d+)\s*([kKmM]?[bB]?)\s*", str(text))
    if not found:
        raise CLibraryError(f"{text!r} is no number of bytes; write 524288, 512k or 2M")
    return int(found[1]) * _UNITS[found[2].lower()]
