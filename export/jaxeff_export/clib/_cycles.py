"""Cycles of a library's call, without a board: what is executed, by a static model of the core.

qemu tells which straight runs of instructions a call executes, and how often; llvm-mca how many
cycles each takes when it is repeated. Their products are added up, by the call of a kernel.

Sharp edges:
    Memory is ideal: code, parameters and arrays come without a wait, as from tightly coupled
    memory. Branches are predicted. How much longer boards take was not measured: published cycles
    of the same networks are those of other kernels.
    A run is modelled as if it followed itself: what overlaps the runs around it is not seen.
    Instructions that llvm-mca has no model of count as one cycle.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jaxeff_export.clib._counting import execute
from jaxeff_export.clib._library import CLibrary
from jaxeff_export.clib.objects import call
from jaxeff_export.targets import (
    ToolchainError,
    find_c_toolchain,
    find_modeller,
    target_machine,
)

_ITERATIONS = 100
_LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S.*)$")
_PLACE = re.compile(r"\b[0-9a-f]+ <[^>]*>")
_REGION = re.compile(r"Code Region - r(\d+)\n.*?Total Cycles:\s+(\d+)", re.DOTALL)
_REFUSED = re.compile(r"<stdin>:(\d+):\d+: error")
_UNKNOWN = re.compile(r"unsupported instruction.*\n.*instruction:\s*(\S+)")
_LIKE = {"cortex-m85": "cortex-m55", "generic-rv32": "sifive-e31"}
"""Cores that llvm-mca of LLVM 14 has no name or no model for, and those whose model stands in."""


@dataclasses.dataclass(frozen=True)
class _Assembler:
    """How instructions are written for an architecture.

    Attributes:
        triple: its name for llvm-mca.
        comment: the sign that begins a comment.
        remark: what objdump adds to an instruction.
        calls: instructions that call a function.
        features: options that name more instructions than the architecture has by default.
    """

    triple: str
    comment: str
    remark: str
    calls: tuple[str, ...]
    features: tuple[str, ...] = ()


_ARM = _Assembler("thumbv8.1m.main-none-eabihf", "@", r"\s*[;@].*$", ("bl", "blx"))
# `#` begins a comment in one of them and a number in the other.
_RISCV = _Assembler("riscv32-unknown-elf", "#", r"\s*#.*$", ("jal", "jalr"), ("-mattr=+m,+c",))


@dataclasses.dataclass(frozen=True)
class CallModel:
    """A call of a kernel, as a core executes it by a static model.

    Attributes:
        kernel: the kernel's name.
        instructions: executed, exactly.
        cycles: estimated, with memory that nothing waits for.
    """

    kernel: str
    instructions: int
    cycles: float

    @property
    def name(self) -> str:
        """The kernel's name, as that of a `LoopModel`."""
        return self.kernel

    @property
    def total(self) -> float:
        """Cycles of the call."""
        return self.cycles

    def __str__(self) -> str:
        return f"{self.kernel}: {self.instructions:,} instructions, {self.cycles:,.0f} cycles"


def model_calls(library: CLibrary, core: str, like: str | None = None) -> tuple[CallModel, ...]:
    """Models the calls of a library's kernels on a core, in their order.

    Args:
        library: a library of a microcontroller.
        core: its processor, such as `"cortex-m7"`.
        like: the core whose instructions llvm-mca models, by default the same.

    Raises:
        CLibraryError: if the emulator takes no plugins, or the program fails.
        ToolchainError: if a compiler, the emulator or llvm-mca is missing.
    """
    with tempfile.TemporaryDirectory(prefix="jaxeff-cycles-") as temporary:
        ran = execute(library, core, Path(temporary))
        text = _disassembled(library, ran.program)
        spans = sorted({(run.begin, run.length) for run in ran.runs})
        written = _RISCV if target_machine(library.target) == "riscv32" else _ARM
        lines = [_lines(text, *span, written) for span in spans]
        turns = _cycles(lines, like or str(library.target.get("mcpu", core)), written)
        cycles = dict(zip(spans, turns, strict=True))
        found = [[0, 0.0] for _ in library.steps]
        for run in ran.runs:
            if (place := run.step(len(found))) is not None:
                found[place][0] += run.length * run.times
                found[place][1] += cycles[run.begin, run.length] * run.times
    return tuple(
        CallModel(step.kernel, int(instructions), cycles)
        for step, (instructions, cycles) in zip(library.steps, found, strict=True)
    )


def _disassembled(library: CLibrary, program: Path) -> list[tuple[int, str]]:
    objdump = find_c_toolchain(library.target).tool("objdump")
    lines = call([objdump, "-d", "--no-show-raw-insn", str(program)]).splitlines()
    found = [match for line in lines if (match := _LINE.match(line))]
    return [(int(match[1], 16), match[2]) for match in found]


def _lines(
    text: Sequence[tuple[int, str]], begin: int, length: int, written: _Assembler
) -> list[str]:
    """Returns the instructions of a run, as llvm-mca's assembler reads them."""
    first = next(i for i, (at, _) in enumerate(text) if at == begin)
    lines, conditional = [], 0
    for _, line in text[first : first + length]:
        name, _, operands = re.sub(written.remark, "", line).replace("\t", " ").partition(" ")
        # Which encoding an instruction has is no matter of time.
        name = re.sub(r"\.[nw]$", "", name)
        if re.fullmatch(r"it[te]*", name):
            conditional = len(name) - 1
            continue
        if conditional:
            # A model that knows no `it` is given the instruction that runs under it.
            conditional, name = conditional - 1, re.sub(r"^([a-z0-9]+?)(..)(\.|$)", r"\1\3", name)
        lines.append(
            "nop" if name in written.calls else f"{name} {_PLACE.sub('0', operands)}".strip()
        )
    return lines


def _cycles(runs: Sequence[Sequence[str]], core: str, written: _Assembler) -> list[float]:
    """Asks llvm-mca for the cycles of a turn of each run."""
    analyser = find_modeller("llvm-mca", "llvm")
    named = f"-mtriple={written.triple}", f"-mcpu={_LIKE.get(core, core)}"
    command = [analyser, *named, *written.features]
    left = [list(run) for run in runs]
    spare = [0.0] * len(runs)
    while True:
        text, places = _regions(left, written.comment)
        done = subprocess.run(
            [*command, f"-iterations={_ITERATIONS}", "-"],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        refused = sorted({int(n) - 1 for n in _REFUSED.findall(done.stderr)}, reverse=True)
        # It assembles some that it has no times of, and ends at the first of them.
        if (unknown := _UNKNOWN.search(done.stderr)) and not refused:
            alike = [at for at, (run, i) in places.items() if left[run][i].split()[0] == unknown[1]]
            refused = sorted(alike, reverse=True)
        if not refused:
            break
        # What isn't assembled is taken out, and counts as a cycle.
        for line in refused:
            run, i = places[line]
            del left[run][i]
            spare[run] += 1
    found = {int(n): int(cycles) / _ITERATIONS for n, cycles in _REGION.findall(done.stdout)}
    if not found:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise ToolchainError(f"llvm-mca has no model of {core}: {reason}")
    return [found.get(i, 0.0) + spare[i] for i in range(len(runs))]


def _regions(runs: Sequence[Sequence[str]], comment: str) -> tuple[str, dict[int, tuple[int, int]]]:
    """Writes runs one after the other, and tells which instruction stands in which line."""
    lines: list[str] = []
    places = {}
    for number, run in enumerate(runs):
        lines.append(f"{comment} LLVM-MCA-BEGIN r{number}")
        for i, line in enumerate(run):
            places[len(lines)] = number, i
            lines.append(line)
        lines.append(f"{comment} LLVM-MCA-END")
    return "\n".join(lines) + "\n", places
