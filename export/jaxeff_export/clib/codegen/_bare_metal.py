"""Start of a program without an operating system: vectors, memories, a first function.

For the example on an emulated board; a product has its own. Output goes through semihosting: the
debugger, or the emulator, prints it. Of RISC-V the C library brings start and linker script, which
only has to be told the memories.
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


_QUIET = ("-Wl,--gc-sections", "-Wl,-z,noexecstack")


def start(machine: str) -> tuple[str, ...]:
    """Lists what links a program with its start: its sources and flags."""
    if machine == "riscv32":
        # picolibc's own start; `hosted` ends the program with main's status.
        return ("-T", "board.ld", "--crt0=hosted", "--oslib=semihost", *_QUIET)
    return ("startup.c", "-nostartfiles", "-T", "board.ld", "--specs=rdimon.specs", *_QUIET)


def files(board: BoardMemory, machine: str) -> dict[str, str]:
    """Writes the files of the start, by name."""
    if machine == "riscv32":
        return {"board.ld": _linker_script("picolibc.ld", board)}
    return {"board.ld": _linker_script("board.ld", board), "startup.c": render("startup.c")}


def _linker_script(template: str, board: BoardMemory) -> str:
    """Writes the linker script: where the parts of a program lie."""
    (flash, flash_size), (ram, ram_size) = board.flash, board.ram
    return render(
        template,
        machine=board.machine,
        flash=f"{flash:#x}",
        flash_size=flash_size,
        ram=f"{ram:#x}",
        ram_size=ram_size,
    )
