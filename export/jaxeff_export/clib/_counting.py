"""Instructions that a library's call executes, counted by qemu: the same number every time.

A count is no time: loads, branches and dependences cost cycles that it doesn't see. It is exact,
so kernels are compared by it without a board, and a regression is a number that differs.
"""

from __future__ import annotations

import bisect
import dataclasses
import subprocess
import tempfile
from collections import Counter
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
        by_call: instructions of each call of a kernel with all that it calls, in order, as
            `CLibrary.steps` lists them.
    """

    by_function: Mapping[str, int]
    by_call: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Instructions of the whole call."""
        return sum(self.by_function.values())


@dataclasses.dataclass(frozen=True)
class Run:
    """A straight run of instructions, executed without a branch into or out of it.

    Attributes:
        call: number of the kernel's call that executes it, from 1; 0 for what precedes them.
        begin: its address.
        length: number of its instructions.
        times: how often it is executed.
    """

    call: int
    begin: int
    length: int
    times: int

    def step(self, count: int) -> int | None:
        """Finds which of so many calls of kernels it is counted to; None before the first."""
        # What follows the last call, copies of results, is counted to it.
        return min(self.call, count) - 1 if self.call and count else None


@dataclasses.dataclass(frozen=True)
class Execution:
    """What a call of a library executes.

    Attributes:
        program: the program, a file.
        functions: where its functions begin, and their names, in order.
        runs: straight runs of instructions, by the kernel's call.
    """

    program: Path
    functions: tuple[tuple[int, str], ...]
    runs: tuple[Run, ...]

    def owner(self, address: int) -> str:
        """Finds the function that an address belongs to."""
        # Local labels of assembler have no size, and belong to what is before them.
        at = bisect.bisect_right(self.functions, (address, "\uffff")) - 1
        return self.functions[at][1] if at >= 0 else "elsewhere"


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
        ran = execute(library, core, Path(temporary))
        by_function: Counter[str] = Counter()
        by_call = [0] * len(library.steps)
        for run in ran.runs:
            by_function[ran.owner(run.begin)] += run.length * run.times
            if (place := run.step(len(by_call))) is not None:
                by_call[place] += run.length * run.times
        ordered = sorted(by_function.items(), key=lambda item: (-item[1], item[0]))
        return InstructionCount(dict(ordered), tuple(by_call))


def execute(library: CLibrary, core: str, folder: Path) -> Execution:
    """Runs a call of a library in the emulator, and notes what is executed how often.

    Args:
        library: a library of a target whose programs qemu runs.
        core: the name of the target.
        folder: an empty folder, in which the program is built.

    Raises:
        CLibraryError: if the emulator takes no plugins, or the program fails.
        ToolchainError: if a compiler or the emulator is missing.
    """
    for entry in library.folder.iterdir():
        (folder / entry.name).write_bytes(entry.read_bytes())
    # Without checks of pointers the caller calls the function itself, not what checks them.
    call([*library.build, "-DNDEBUG", "-o", "program"], folder)
    functions = _functions(library, folder / "program")
    begin, _ = functions[f"{library.name}_run"]
    main, size = functions["main"]
    kernels = {f"{library.name}_{step.kernel}" for step in library.steps}
    entries = [str(at) for name, (at, _) in functions.items() if name in kernels]
    (folder / "kernels.txt").write_text("\n".join(entries))
    given = f"first={begin:#x},begin={main:#x},end={main + size:#x},made={folder / _COUNTS}"
    given += f",kernels={folder / 'kernels.txt'}"
    command = emulation(core, library.target, folder / "program")
    said = []
    for version in _VERSIONS:
        (folder / "counter.c").write_text(render("counter.c", version=version))
        call(["cc", "-O2", "-fPIC", "-shared", "counter.c", "-o", "counter.so"], folder)
        plugin = ["-plugin", f"{folder / 'counter.so'},{given}"]
        said.append(_run([command[0], *plugin, *command[1:]], folder))
        if (folder / _COUNTS).exists():
            lines = (folder / _COUNTS).read_text().splitlines()
            runs = tuple(Run(*map(int, line.split())) for line in lines)
            starts = sorted((at, name) for name, (at, _) in functions.items())
            return Execution(folder / "program", tuple(starts), runs)
    # A version that qemu refuses isn't why a program failed under the one that it takes.
    reasons = [line for line in said if "API version" not in line] or said
    raise CLibraryError(f"{Path(command[0]).name} counted no instructions: {reasons[0]}")


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
