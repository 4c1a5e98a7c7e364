"""Runs a library's example, here or on another processor in software, and says what a call costs.

`count_instructions` counts by qemu: the same number every time. A count is no time: loads, branches
and dependences cost cycles that it doesn't see. It is exact, so kernels are compared by it without
a board, and a regression is a number that differs.

`model_calls` gives cycles without a board. qemu tells which straight runs of instructions a call
executes, and how often; llvm-mca how many cycles each takes when it is repeated. Their products are
added up, by the call of a kernel.

Sharp edges:
    Memory is ideal: code, parameters and arrays come without a wait, as from tightly coupled
    memory. Branches are predicted. How much longer boards take was not measured: published cycles
    of the same networks are those of other kernels.
    A run is modelled as if it followed itself: what overlaps the runs around it is not seen.
    Instructions that llvm-mca has no model of count as one cycle.
"""

import bisect
import dataclasses
import re
import shutil
import subprocess
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxeff_export import targets
from jaxeff_export.artifact import arrays_of_bytes, dtype_of
from jaxeff_export.clib._library import CLibrary
from jaxeff_export.clib._objects import CLibraryError, run_tool
from jaxeff_export.clib.codegen import record, render
from jaxeff_export.targets import find_c_toolchain, find_modeller

CALLS, RESULTS = "calls.bin", "results.bin"
TIMEOUT = 600.0  # seconds; an emulator takes long for large networks
_SECONDS, _MOST_CALLS = 10.0, 4096
"""Of one program, about, and its calls at most."""


class ExampleProgram:
    """A library's example, built once, to be run on any arguments; `close` removes it.

    Args:
        library: library that the example belongs to.
        core: the processor that is emulated; None to run here.

    Raises:
        ToolchainError: if it can't be built, or the emulator is missing.
    """

    def __init__(self, library: CLibrary, core: str | None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jaxeff-replay-"))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # A copy: the library may be gone later. What packages add in folders has no part in it.
        for entry in filter(Path.is_file, library.folder.iterdir()):
            (self._folder / entry.name).write_bytes(entry.read_bytes())
        files = f'-DREPLAY_CALLS="{CALLS}"', f'-DREPLAY_FILE="{RESULTS}"'
        self._build: list[str] | None = [*library.build, *files, "-o", "program"]
        program = self._folder / "program"
        self._command = [str(program)]
        if core is not None:
            self._command = targets.emulation(core, library.target, program)
        self._outputs = library.outputs
        results = [
            np.zeros([int(n) for n in spec.shape], dtype_of(spec.dtype)) for spec in library.outputs
        ]
        # The recorded arguments lie in front of the recorded results.
        recorded = (self._folder / "recorded.bin").read_bytes()
        self._recorded = recorded[: len(recorded) - len(record((), results).blob)]
        self._size = sum(result.nbytes for result in results)

    def run(self, inputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Calls the function once.

        Args:
            inputs: the arguments, flattened; by default the recorded ones.

        Returns:
            The results, flattened.

        Raises:
            CLibraryError: if the program fails, or hangs.
        """
        return next(self.run_all([inputs]))

    def run_all(
        self, calls: Sequence[Sequence[np.ndarray] | None]
    ) -> Generator[list[np.ndarray], None, None]:
        """Calls the function many times, hundreds of calls in one program.

        Args:
            calls: the arguments of each call, flattened; None for the recorded ones.

        Yields:
            The results of each call, flattened.

        Raises:
            CLibraryError: if the program fails, or hangs.
        """
        if self._build is not None:
            run_tool(self._build, self._folder)
            self._build = None
        begin, count = 0, 1
        while begin < len(calls):
            rows = [
                self._recorded if inputs is None else record(inputs, ()).blob
                for inputs in calls[begin : begin + count]
            ]
            started = time.monotonic()
            for row in self._results(rows):
                yield arrays_of_bytes(row, self._outputs)
            begin += len(rows)
            # Programs of some seconds: starts cost little then, and a progress bar moves.
            rate = len(rows) / max(time.monotonic() - started, 1e-3)
            count = max(1, min(int(_SECONDS * rate), 4 * count, _MOST_CALLS))

    def _results(self, rows: Sequence[bytes]) -> list[bytes]:
        """Runs the program, and reads what it wrote of each call."""
        size = max(1, len(self._recorded))  # as `RecordedCall.row` has them
        (self._folder / CALLS).write_bytes(b"".join(row.ljust(size, b"\0") for row in rows))
        results = self._folder / RESULTS
        # Results of an earlier call must not pass for those of this one.
        results.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                self._command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CLibraryError(f"the program did not end within {TIMEOUT:g} s") from error
        if done.returncode or not results.exists():
            lines = (done.stderr + done.stdout).strip().splitlines() or ["it said nothing"]
            raise CLibraryError(f"the program failed with status {done.returncode}: {lines[-1]}")
        written = results.read_bytes()
        return [written[i * self._size : (i + 1) * self._size] for i in range(len(rows))]


_COUNTS = "counts.txt"
_VERSIONS = (1, 2, 3, 4, 5)
"""Of the interface of qemu's plugins: an emulator takes some of them."""


@dataclasses.dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        most = ", ".join(f"{name} {count:,}" for name, count in [*self.by_function.items()][:3])
        return f"{self.total:,} instructions, most in {most}"


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

    The program is built in `folder`, which is empty.

    Raises:
        ToolchainError: if a compiler or the emulator is missing.
    """
    for entry in library.folder.iterdir():
        (folder / entry.name).write_bytes(entry.read_bytes())
    # Without checks of pointers the caller calls the function itself, not what checks them.
    run_tool([*library.build, "-DNDEBUG", "-o", "program"], folder)
    functions = _functions(library, folder / "program")
    begin, _ = functions[f"{library.name}_run"]
    main, size = functions["main"]
    kernels = {f"{library.name}_{step.kernel}" for step in library.steps}
    entries = [str(at) for name, (at, _) in functions.items() if name in kernels]
    (folder / "kernels.txt").write_text("\n".join(entries))
    plugin_options = (
        f"first={begin:#x},begin={main:#x},end={main + size:#x},made={folder / _COUNTS}"
    )
    plugin_options += f",kernels={folder / 'kernels.txt'}"
    command = targets.emulation(core, library.target, folder / "program")
    said = []
    for version in _VERSIONS:
        (folder / "counter.c").write_text(render("counter.c", version=version))
        run_tool(["cc", "-O2", "-fPIC", "-shared", "counter.c", "-o", "counter.so"], folder)
        plugin = ["-plugin", f"{folder / 'counter.so'},{plugin_options}"]
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
    spans = {}
    for line in run_tool([nm, "-S", str(program)]).splitlines():
        parts = line.split()
        if len(parts) == 4 and parts[2] in "TtWw":
            # The lowest bit of a Thumb function's address says that it is one.
            spans[parts[3]] = int(parts[0], 16) & ~1, int(parts[1], 16)
    return spans


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
        written = _RISCV if targets.target_machine(library.target) == "riscv32" else _ARM
        lines = [_lines(text, *span, written) for span in spans]
        turns = _cycles(lines, like or str(library.target.get("mcpu", core)), written)
        cycles = dict(zip(spans, turns, strict=True))
        totals = [[0, 0.0] for _ in library.steps]
        for run in ran.runs:
            if (place := run.step(len(totals))) is not None:
                totals[place][0] += run.length * run.times
                totals[place][1] += cycles[run.begin, run.length] * run.times
    return tuple(
        CallModel(step.kernel, int(instructions), cycles)
        for step, (instructions, cycles) in zip(library.steps, totals, strict=True)
    )


def _disassembled(library: CLibrary, program: Path) -> list[tuple[int, str]]:
    objdump = find_c_toolchain(library.target).tool("objdump")
    lines = run_tool([objdump, "-d", "--no-show-raw-insn", str(program)]).splitlines()
    matches = [match for line in lines if (match := _LINE.match(line))]
    return [(int(match[1], 16), match[2]) for match in matches]


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
    cycles_of = {int(n): int(cycles) / _ITERATIONS for n, cycles in _REGION.findall(done.stdout)}
    if not cycles_of:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise targets.ToolchainError(f"llvm-mca has no model of {core}: {reason}")
    return [cycles_of.get(i, 0.0) + spare[i] for i in range(len(runs))]


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
