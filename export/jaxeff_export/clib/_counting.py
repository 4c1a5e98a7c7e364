"""Instructions that a library's call executes, counted by qemu: the same number every time.

A count is no time: loads, branches and dependences cost cycles that it doesn't see. It is exact,
so kernels are compared by it without a board, and a regression is a number that differs.
"""

from __future__ import annotations

import bisect
import dataclasses
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jaxeff_export.clib._library import CLibrary
from jaxeff_export.clib.codegen import render
from jaxeff_export.clib.objects import CLibraryError, call
from jaxeff_export.targets import emulation, find_c_toolchain

_COUNTS = "counts.txt"
_VERSIONS = (1, 2, 3, 4, 5)
"""Of the interface of qemu's plugins: an emulator takes some of them."""


@dataclasses.dataclass(frozen=True)
class InstructionCount:
    """Instructions that a call executes.

    Attributes:
        by_function: instructions by the name of the function they belong to, most first: kernels,
            and what they call.
    """

    by_function: Mapping[str, int]

    @property
    def total(self) -> int:
        """Instructions of the whole call."""
        return sum(self.by_function.values())


def count_instructions(library: CLibrary, core: str) -> InstructionCount:
    """Counts the instructions of a call of a library, on its recorded arguments.

    Args:
        library: a library of a target whose programs qemu runs.
        core: the name of the target, such as `"cortex-m7"`.

    Returns:
        Exact counts, of the call alone: neither its caller nor the start of the program.

    Raises:
        CLibraryError: if the emulator takes no plugins, or the program fails.
        ToolchainError: if a compiler or the emulator is missing.
    """
    with tempfile.TemporaryDirectory(prefix="jaxeff-count-") as temporary:
        folder = Path(temporary)
        for entry in filter(Path.is_file, library.folder.iterdir()):
            (folder / entry.name).write_bytes(entry.read_bytes())
        # Without checks of pointers the caller calls the function itself, not what checks them.
        call([*library.build, "-DNDEBUG", "-o", "program"], folder)
        functions = _functions(library, folder / "program")
        begin, _ = functions[f"{library.name}_run"]
        main, size = functions["main"]
        given = f"first={begin:#x},begin={main:#x},end={main + size:#x},made={folder / _COUNTS}"
        command = emulation(core, library.target, folder / "program")
        for version in _VERSIONS:
            (folder / "counter.c").write_text(render("counter.c", version=version))
            call(["cc", "-O2", "-fPIC", "-shared", "counter.c", "-o", "counter.so"], folder)
            plugin = ["-plugin", f"{folder / 'counter.so'},{given}"]
            said = _run([command[0], *plugin, *command[1:]], folder)
            if (folder / _COUNTS).exists():
                return InstructionCount(_by_function(functions, folder / _COUNTS))
    raise CLibraryError(f"{Path(command[0]).name} counted no instructions: {said}")


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]


def _functions(library: CLibrary, program: Path) -> dict[str, tuple[int, int]]:
    """Reads where functions begin, and their sizes."""
    nm = find_c_toolchain(library.target).tool("nm")
    found = {}
    for line in call([nm, "-S", str(program)]).splitlines():
        parts = line.split()
        if len(parts) == 4 and parts[2] in "TtWw":
            # The lowest bit of a Thumb function's address says that it is one.
            found[parts[3]] = int(parts[0], 16) & ~1, int(parts[1], 16)
    return found


def _by_function(functions: Mapping[str, tuple[int, int]], counts: Path) -> dict[str, int]:
    # Local labels of the C library's assembler have no size, and belong to what is before them.
    starts = sorted((begin, name) for name, (begin, _) in functions.items())
    found: dict[str, int] = {}
    for line in counts.read_text().splitlines():
        address, many = map(int, line.split())
        at = bisect.bisect_right(starts, (address, "\uffff")) - 1
        name = starts[at][1] if at >= 0 else "elsewhere"
        found[name] = found.get(name, 0) + many
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
