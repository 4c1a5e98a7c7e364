"""Parameters as one block of constants: part of the archive, or a file that a board loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.clib.objects import CLibraryError

if TYPE_CHECKING:
    from jaxeff_export.clib.kernels import KernelProgram


@dataclasses.dataclass(frozen=True)
class Parameters:
    """A block of constants.

    Attributes:
        blob: the bytes.
        offsets: offset of each array in it.
        alignment: in bytes, of the block and of every array in it.
    """

    blob: bytes
    offsets: Mapping[int, int]
    alignment: int


def pack(program: KernelProgram, operands: Sequence[np.ndarray], alignment: int) -> Parameters:
    """Lays the operands and constants of a program one after the other.

    Args:
        program: what reads them; those that nothing reads are left out.
        operands: the values of ``program.operands``.
        alignment: in bytes.
    """
    values = [*zip(program.operands, operands, strict=True), *program.constants]
    # A function may have a result that is bound, which no kernel reads.
    read = {number for call in program.calls for number in call.arguments} | {*program.outputs}
    blob, offsets = bytearray(), {}
    for number, value in values:
        if number not in read:
            continue
        data = np.asarray(value).tobytes()
        # C has no check of its own: a kernel would read past the end of what a damaged bundle has.
        if len(data) != program.sizes[number]:
            raise CLibraryError(
                f"an array of {len(data)} bytes is bound where {program.sizes[number]} are read; "
                "deploy the model again"
            )
        # Zeros up to the alignment: kernels load vectors from the beginning of every array.
        blob.extend(bytes(-len(blob) % alignment))
        offsets[number] = len(blob)
        blob.extend(data)
    return Parameters(bytes(blob), offsets, alignment)


def assembly(symbol: str, file: str, alignment: int, *, arm: bool) -> str:
    """Writes an assembler file that puts a file's bytes into read-only memory.

    They have a section of their own.
    """
    sign = "%" if arm else "@"  # on ARM an @ begins a comment
    return render("block.S", symbol=symbol, file=file, alignment=alignment, sign=sign)
