"""`render`: C text from the templates of this package; `pack`: parameters as one block of bytes.

A template has `${name}` where a value stands. A value that is a list is whole lines: its
placeholder has a line of its own, which is gone where the list is empty. Conditions and loops are
in Python, so that the C can be read, and compilers' messages found, in one piece.

The block of parameters is part of the archive, or a file that a board loads.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxeff_export.clib._objects import HALF, TYPES, CLibraryError, constant

if TYPE_CHECKING:
    from jaxeff_export.clib._program import KernelProgram

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

    def line(match: re.Match[str]) -> str:
        # The lines of a block end themselves: an empty one must leave no blank line.
        return match[0].removesuffix("\n") if match[1] in blocks else match[0]

    text = _ALONE.sub(line, text)
    return Template(text).substitute({**values, **blocks})


@dataclasses.dataclass(frozen=True)
class Parameters:
    """A block of constants.

    Attributes:
        blob: the bytes.
        offsets: offset of each array in it.
        alignment: in bytes, of the block and of every array in it.
        values: the arrays, each once.
        owners: of each array the number of the equal one among them.
    """

    blob: bytes
    offsets: Mapping[int, int]
    alignment: int
    values: Mapping[int, np.ndarray]
    owners: Mapping[int, int]


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
    blob, packed = bytearray(), {}
    offsets: dict[int, int] = {}
    # Equal arrays are one: tables that several calls read, biases of zeros.
    first: dict[tuple[bytes, str], int] = {}
    owners: dict[int, int] = {}
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
        owners[number] = first.setdefault((data, str(np.asarray(value).dtype)), number)
        if owners[number] != number:
            offsets[number] = offsets[owners[number]]
            continue
        # Zeros up to the alignment: kernels load vectors from the beginning of every array.
        blob.extend(bytes(-len(blob) % alignment))
        offsets[number], packed[number] = len(blob), np.asarray(value)
        blob.extend(data)
    return Parameters(bytes(blob), offsets, alignment, packed, owners)


def assembly(symbol: str, file: str, alignment: int, *, arm: bool) -> str:
    """Writes an assembler file that puts a file's bytes into read-only memory.

    They have a section of their own.
    """
    sign = "%" if arm else "@"  # on ARM an @ begins a comment
    return render("block.S", symbol=symbol, file=file, alignment=alignment, sign=sign)


def constants(values: Mapping[str, Any]) -> list[str]:
    """Writes arrays as constants of their own dtype: no order of bytes is taken for granted."""
    lines = []
    for name, value in values.items():
        array = np.asarray(value)
        dtype = str(array.dtype)
        if dtype not in TYPES or dtype in HALF:
            # Bits: C99 has no type for half floats and those of 8 bits.
            array = array.view(f"uint{8 * array.dtype.itemsize}")
            dtype = str(array.dtype)
        flat = array.reshape(-1)
        texts = [constant(number, dtype) for number in flat.tolist()] or ["0"]
        lines.append(f"static const {TYPES[dtype]} {name}[{max(1, flat.size)}] = {{")
        per_line = 16 if array.dtype.itemsize == 1 else 6
        lines += [
            "    " + ", ".join(texts[i : i + per_line]) + ","
            for i in range(0, len(texts), per_line)
        ]
        lines += ["};", ""]
    return lines
