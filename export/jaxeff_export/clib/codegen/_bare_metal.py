"""Start of a program without an operating system: vectors, memories, a first function.

For the example on an emulated board; a product has its own. Output goes through semihosting: the
debugger, or the emulator, prints it.
"""

from __future__ import annotations

import dataclasses

from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.targets import BoardMemory


def at_least(board: BoardMemory, flash: int | None, ram: int | None) -> BoardMemory:
    """Enlarges a board to the memories that are given, where these are larger than its own."""
    (code, has), (data, holds) = board.flash, board.ram
    more = (code, max(has, flash or 0)), (data, max(holds, ram or 0))
    return dataclasses.replace(board, flash=more[0], ram=more[1])


def linker_script(board: BoardMemory) -> str:
    """Writes the linker script: where the parts of a program lie."""
    (flash, flash_size), (ram, ram_size) = board.flash, board.ram
    return render(
        "board.ld",
        machine=board.machine,
        flash=f"{flash:#x}",
        flash_size=flash_size,
        ram=f"{ram:#x}",
        ram_size=ram_size,
    )


def startup() -> str:
    """Writes the start of the example: memories, the floating-point unit, main."""
    return render("startup.c")
