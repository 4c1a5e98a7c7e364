"""Static model of a bundle's kernels on a core, from their machine code; nothing is timed.

llvm-mca (Debian: `llvm`), LLVM's static model of a core, is given one loop of every kernel: the
innermost one that multiplies most, or the longest with vectors. It models instructions, ports and
latencies; every load hits the first cache. The number of turns follows from the kernel's work in
the bundle's manifest. Arrays come once from the core's caches: a kernel's own from the level that
holds them together, its parameters from the level that holds the parameters of all kernels, which
were read since.

Sizes of caches are those of the boards that the named targets are for (Raspberry Pi 3, 4 and 5),
and of a core of AMD's Zen 5. Speeds are nominal, of a core that streams alone; nothing was
measured. Those of a first level are the width of a core's loads; what it gets from farther away
depends on the chip around it, and is a round figure.

Sharp edges:
    Branches, the call, and what a kernel does outside of that loop aren't modelled: the result is
    an upper bound of speed, a loose one for kernels of less than a microsecond.
    llvm-mca's models of cores differ in precision. Where it has none, or another core's, the most
    similar core's is used (`SIMILAR_CORES`), with its divisions and roots.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxeff.core import Table, shown_as_table
from jaxeff_export.targets import ToolchainError, find_modeller

if TYPE_CHECKING:
    from jaxeff_export.clib import CallModel

TRIPLES = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_LINE = re.compile(r"^\s*(?P<at>[0-9a-f]+):\s+(?P<text>\S.*)$")
_TARGET = re.compile(r"\b(?P<at>[0-9a-f]{3,})\s+<")
_BRANCH = re.compile(r"^(b\.\w+|b|cbn?z|tbn?z|j\w+)\s")
_WIDTHS = {"zmm": 512, "ymm": 256, "xmm": 128}
_ARM_VECTOR = re.compile(r"\bv\d+\.|\bq\d+\b")
_STACK = re.compile(r"\(%rsp|\(%rbp|\[sp")


def disassembled_functions(
    library: Path, triple: str
) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yields the functions of a library: names, and addresses with instructions."""
    name = ""
    body: list[tuple[int, str]] = []
    for line in _disassembled(library, triple):
        if start := _FUNCTION.match(line):
            if body:
                yield name, body
            name, body = start["name"], []
        elif match := _LINE.match(line):
            # objdump appends the symbol or the value of an address as a comment.
            text = re.sub(r"\s*(//|#\s).*$", "", match["text"].replace("\t", " ")).strip()
            if text:
                body.append((int(match["at"], 16), text))
    if body:
        yield name, body


def innermost_loops(lines: Sequence[tuple[int, str]]) -> list[list[str]]:
    """Finds the bodies of a function's loops that hold no other loop, without what jumps."""
    places = {at: i for i, (at, _) in enumerate(lines)}
    loops = []
    for i, (_, text) in enumerate(lines):
        target = _TARGET.search(text) if _BRANCH.match(text) else None
        start = places.get(int(target["at"], 16)) if target else None
        # A jump backwards inside of the function closes a loop.
        if start is not None and start <= i:
            loops.append((start, i))
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [[t for _, t in lines[a:b] if not _BRANCH.match(t)] for a, b in inner]


def count_products(body: Sequence[str]) -> int:
    """Counts multiply-accumulates of a stretch of code, or bit products if it counts bits."""
    counted = sum(_counted(line) for line in body)
    # Products of one bit are population counts; what such a loop multiplies is scaling.
    return counted or sum(_multiplied(line) for line in body)


def count_multiplies(body: Sequence[str]) -> int:
    """Counts the instructions that multiply and accumulate, or count bits."""
    return sum(bool(_multiplied(line) or _counted(line)) for line in body)


def vector_bits(line: str) -> int:
    """Returns the bits of the widest vector register in an instruction; 0 without one."""
    widest = next((bits for register, bits in _WIDTHS.items() if register in line), 0)
    if widest:
        return widest
    return 128 if _ARM_VECTOR.search(line) else 0


def count_loads(body: Sequence[str]) -> int:
    """Counts the instructions that read memory, the stack apart, as operands too."""
    return sum(_reads(line) for line in body)


def stored_bytes(body: Sequence[str]) -> int:
    """Counts the bytes that vector stores write in a turn, the stack apart."""
    total = 0
    for line in body:
        name, operands = line.split()[0], line.split(" ", 1)[-1].strip()
        if _STACK.search(line):
            continue
        # AT&T syntax: the destination is the last operand, and memory is in parentheses.
        if name.startswith("vmov") and operands.endswith(")"):
            small = {"vmovss": 4, "vmovsd": 8, "vmovlps": 8, "vmovhps": 8}
            total += small.get(name, vector_bits(line) // 8)
        elif name in {"str", "stur", "stp"} and re.match(r"[qds]\d", operands):
            size = {"q": 16, "d": 8, "s": 4}[operands[0]]
            total += size * (2 if name == "stp" else 1)
        # Up to four registers of 16 bytes, listed in braces.
        elif name == "st1":
            total += 16 * operands.split("}")[0].count("v")
    return total


def is_spill(line: str) -> bool:
    """Tells whether an instruction moves a vector to or from the stack."""
    name = line.split()[0]
    arm = name in {"ldr", "str", "ldp", "stp", "ldur", "stur"} and re.search(r"\sq\d+.*\[sp", line)
    x86 = name.startswith("vmov") and ("(%rsp" in line or "(%rbp" in line)
    return bool(arm or x86)


def _multiplied(line: str) -> int:
    name = line.split()[0]
    # Lanes of a vector: four float32, or two float64, of 128 bits.
    if name in {"fmla", "fmls"}:
        return 4 if ".4s" in line else 2
    # Bytes times bytes, of half a vector: eight products of 16 bits each.
    if name in {"smull", "smull2", "smlal", "smlal2"} and "b" in line.split(",")[-1]:
        return 8
    if name in {"sdot", "udot"}:
        return 16
    # x86: a product per byte (VNNI), per 16-bit integer, or per float32.
    bits = next((n for register, n in _WIDTHS.items() if register in line), 0)
    if name.startswith("vpdpbusd"):
        return bits // 8
    if name.startswith("vpmaddwd"):
        return bits // 16
    if name.startswith(("vfmadd", "vfnmadd")) and name.endswith("ps"):
        return bits // 32
    return 0


def _counted(line: str) -> int:
    name = line.split()[0]
    if name == "cnt":
        return 128 if ".16b" in line else 64
    if name.startswith("vpopcnt"):
        return next((n for register, n in _WIDTHS.items() if register in line), 0)
    return 0


def _reads(line: str) -> bool:
    name = line.split()[0]
    if _STACK.search(line):
        return False
    if "[" in line and name.startswith(("ld", "prfm")):
        return True
    # AT&T syntax: a move whose last operand is memory stores; any other such operand is read.
    if "(" not in line or name.startswith(("lea", "nop", "prefetch")):
        return False
    return not line.endswith(")") or not name.startswith(("mov", "vmov"))


def _disassembled(library: Path, triple: str) -> list[str]:
    cross = shutil.which(f"{triple}-objdump")
    command = cross or find_modeller("objdump", "binutils")
    done = subprocess.run(
        [command, "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise ToolchainError(f"{command} cannot read {library.name}: {reason}")
    return done.stdout.splitlines()


KIB, MIB = 1024, 1024**2


@dataclass(frozen=True)
class Level:
    """A cache, or memory.

    Attributes:
        name: such as `L1`.
        size: bytes it holds.
        speed: bytes it gives in a cycle.
    """

    name: str
    size: float
    speed: float


CORES: Mapping[str, tuple[Level, ...]] = {
    "cortex-a53": (Level("L1", 32 * KIB, 8), Level("L2", 512 * KIB, 4), Level("memory", 1e30, 2)),
    "cortex-a72": (Level("L1", 32 * KIB, 16), Level("L2", MIB, 8), Level("memory", 1e30, 3)),
    "cortex-a76": (
        Level("L1", 64 * KIB, 32),
        Level("L2", 512 * KIB, 16),
        Level("L3", 2 * MIB, 8),
        Level("memory", 1e30, 4),
    ),
    "znver5": (
        Level("L1", 48 * KIB, 128),
        Level("L2", MIB, 64),
        Level("L3", 32 * MIB, 32),
        Level("memory", 1e30, 8),
    ),
}


def level_of(core: str, size: int) -> Level | None:
    """Finds the smallest level of a core that holds so many bytes.

    There is none for a core without figures.
    """
    return next((level for level in CORES.get(core, ()) if size <= level.size), None)


SIMILAR_CORES: Mapping[str, str] = {"znver5": "sapphirerapids"}
"""Cores by whose instructions others are modelled: up to LLVM 19 Zen 5 is unknown, or Zen 4, whose
vectors are half as wide."""
_ITERATIONS = 100
_CYCLES = re.compile(r"Total Cycles:\s+(\d+)")
_PLACE = re.compile(r"\b[0-9a-f]+ <[^>]*>")
_BODY = re.compile(r"(_compute_)?(\.\w+)*$")


@dataclass(frozen=True)
class LoopModel:
    """The innermost loop of a kernel that multiplies most.

    Attributes:
        kernel: the name of the kernel's function.
        instructions: number of instructions of one turn.
        products: multiply-accumulates of one turn; bit products where bits are counted.
        cycles: processor cycles of one turn, on average.
        spills: loads and stores of vectors on the stack in one turn.
        multiplies: instructions of one turn that make the products.
        loads: instructions of one turn that read memory, the stack apart.
        widths: number of instructions of one turn by the width of their widest register.
        turns: number of turns in a call of the kernel; None where the bundle doesn't know.
        bytes: size of the kernel's arrays, read and written; None where the bundle doesn't know.
        level: the core's cache that holds them; empty for a core without figures.
        transfer: cycles they take from there, at the least.
    """

    kernel: str
    instructions: int
    products: int
    cycles: float
    spills: int
    multiplies: int = 0
    loads: int = 0
    widths: tuple[tuple[int, int], ...] = ()
    turns: float | None = None
    bytes: int | None = None
    level: str = ""
    transfer: float = 0.0

    @property
    def name(self) -> str:
        """The kernel's name in profiles and in the manifest."""
        return _name(self.kernel)

    @property
    def per_cycle(self) -> float:
        """Products in a cycle."""
        return self.products / self.cycles

    @property
    def loads_per_multiply(self) -> float:
        """Loads to an instruction that multiplies; 0 without any."""
        return self.loads / self.multiplies if self.multiplies else 0.0

    @property
    def width(self) -> int:
        """Bits of the widest vector in it."""
        return max((bits for bits, _ in self.widths), default=0)

    @property
    def total(self) -> float | None:
        """Cycles of a call: those of all turns, or of the transfer if that takes longer."""
        return None if self.turns is None else max(self.turns * self.cycles, self.transfer)


@shown_as_table
class KernelModels(tuple["LoopModel | CallModel", ...]):
    """The models of a bundle's kernels; prints as a table with a total.

    Attributes:
        core: the processor core.
        mhz: its clock in megahertz; None if nothing is known.
    """

    core: str
    mhz: float | None

    @classmethod
    def of(
        cls, models: Sequence[LoopModel | CallModel], core: str, mhz: float | None = None
    ) -> KernelModels:
        """Collects the models of a core's kernels.

        Args:
          models: of each, in order.
          core: the processor core.
          mhz: its clock in megahertz.
        """
        collected = cls(models)
        collected.core, collected.mhz = core, mhz
        return collected

    @property
    def instructions(self) -> int | None:
        """Instructions of a whole call; None where only loops are known."""
        if any(isinstance(model, LoopModel) for model in self):
            return None
        return sum(model.instructions for model in self)

    @property
    def cycles(self) -> float:
        """Cycles of a whole call: those of all kernels that have some."""
        return sum(model.total or 0.0 for model in self)

    def milliseconds(self, mhz: float | None = None) -> float:
        """Computes what the cycles take.

        Args:
          mhz: the processor's clock in megahertz; that of the bundle's `Processor` by default.
        """
        clock = self.mhz if mhz is None else mhz
        if clock is None:
            raise ValueError(f"milliseconds: nothing says the clock of {self.core}; give mhz=80")
        return self.cycles / clock / 1e3

    def table(self, mhz: float | None = None) -> Table:
        """Makes the table, with two digits of what is estimated.

        Args:
          mhz: the processor's clock in megahertz, for a column of microseconds.
        """
        exact = self.instructions is not None
        columns = ["kernel", *(["instructions>"] if exact else []), "cycles>", "share>"]
        columns += ["µs>"] if mhz else []

        def row(name: str, instructions: int, cycles: float | None) -> tuple[str, ...]:
            cells = [name, *([f"{instructions:,}"] if exact else [])]
            if cycles is None:
                return (*cells, "", "", *([""] if mhz else []))
            cells += [two_digits(cycles), f"{cycles / (self.cycles or 1):.0%}"]
            return (*cells, *([two_digits(cycles / mhz)] if mhz else []))

        rows = [row(model.name, model.instructions, model.total) for model in self]
        total = row("total", self.instructions or 0, self.cycles)
        memory = "memory that nothing waits for" if exact else "loops alone"
        caption = f"cycles of a {self.core} by llvm-mca, a static model with {memory}"
        return Table(columns, rows, total, caption)

    def _table(self) -> Table:
        return self.table()


class ExplainedKernel(NamedTuple):
    """A kernel that a call of the model runs.

    Attributes:
        layer: The layer whose weights it reads, or that it follows.
        kernel: The name, which says what was fused and which builder wrote it.
        tile: Extents of a product's result up to the last that registers hold at once; empty if it
            is no product.
        instructions: How many it executes; None but for microcontrollers.
        cycles: What a static model of the core says; None where it knows nothing of the kernel.
    """

    layer: str
    kernel: str
    tile: tuple[int, ...]
    instructions: int | None
    cycles: float | None


@shown_as_table
class ExplainedKernels(tuple[ExplainedKernel, ...]):
    """The kernels of a bundle with their layers, in order; prints as a table."""

    def _table(self) -> Table:
        layers = [row.layer for row in self]
        rows = [
            (
                "" if i and layers[i - 1] == row.layer else row.layer,
                row.kernel,
                " × ".join(map(str, row.tile)),
                "" if row.instructions is None else f"{row.instructions:,}",
                "" if row.cycles is None else two_digits(row.cycles),
            )
            for i, row in enumerate(self)
        ]
        return Table(["layer", "kernel", "tile", "instructions>", "cycles>"], rows)


def explained(
    calls: Sequence[tuple[str, str, tuple[int, ...]]], models: Sequence[LoopModel | CallModel]
) -> ExplainedKernels:
    """Puts models beside the calls that they are of.

    `calls` are layer, kernel, tile of each; models are of kernels, or of microcontrollers' calls,
    in order.
    """
    loops = {model.name: model for model in models if isinstance(model, LoopModel)}
    if loops or not models:
        totals = {name: loop.total for name, loop in loops.items()}
        return ExplainedKernels(ExplainedKernel(*call, None, totals.get(call[1])) for call in calls)
    return ExplainedKernels(
        ExplainedKernel(layer, model.name, tile, model.instructions, model.total)
        for (layer, _, tile), model in zip(calls, models, strict=True)
    )


def two_digits(value: float) -> str:
    """Formats an estimate with two digits: as many as a model's are worth."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def model_library(
    library: Path,
    machine: str,
    core: str,
    work: Mapping[str, Mapping[str, int]] | None = None,
    like: str | None = None,
) -> tuple[LoopModel, ...]:
    """Models the kernels of a library by llvm-mca.

    `core` is as LLVM names it, such as `cortex-a72`. `work` has per kernel the bytes `read` and
    `written` and the `products`, as the manifest has it. `like` is the core whose instructions
    llvm-mca models; `SIMILAR_CORES` or `core` by default.
    """
    analyser = find_modeller("llvm-mca", "llvm")
    triple = TRIPLES.get(machine, machine)
    like = like or SIMILAR_CORES.get(core, core)
    # What all kernels read of parameters passes through the caches between two calls of one.
    parameters = sum(f.get("bound", 0) * f.get("calls", 1) for f in (work or {}).values())
    weights = level_of(core, parameters)
    models = []
    for name, lines in disassembled_functions(library, triple):
        facts = (work or {}).get(_name(name))
        # A kernel's products are in vectors; loops without any prepare or finish.
        loops = [body for body in innermost_loops(lines) if any(map(vector_bits, body))]
        body = max(loops, key=_weight, default=[])
        if body and (facts or count_products(body)):
            loop = _model(name, body, _cycles(analyser, body, triple, like), facts)
            models.append(_with_caches(loop, facts, core, weights) if facts else loop)
    return tuple(models)


def _model(
    name: str, body: Sequence[str], cycles: float, facts: Mapping[str, int] | None
) -> LoopModel:
    products = count_products(body)
    widths = Counter(bits for line in body if (bits := vector_bits(line)))
    loop = LoopModel(
        kernel=name,
        instructions=len(body),
        products=products,
        cycles=cycles,
        spills=sum(map(is_spill, body)),
        multiplies=count_multiplies(body),
        loads=count_loads(body),
        widths=tuple(sorted(widths.items())),
    )
    if facts is None:
        return loop
    turns = None
    # Products of a call over those of a turn; without products, what is stored.
    if facts["products"] and products:
        turns = facts["products"] / products
    elif not facts["products"] and (stored := stored_bytes(body)):
        turns = facts["written"] / stored
    return replace(loop, turns=turns, bytes=facts["read"] + facts["written"])


def _with_caches(
    loop: LoopModel, facts: Mapping[str, int], core: str, weights: Level | None
) -> LoopModel:
    """Adds what bringing its arrays takes, its parameters from the level `weights`."""
    size, bound = facts["read"] + facts["written"], facts.get("bound", 0)
    level = level_of(core, size)
    if level is None or weights is None:
        return loop
    # Parameters can't be nearer than the level that holds all of them.
    farther = min(level, weights, key=lambda level: level.speed)
    transfer = (size - bound) / level.speed + bound / farther.speed
    return replace(loop, level=level.name, transfer=transfer)


def _name(function: str) -> str:
    return _BODY.sub("", function)


def _weight(body: Sequence[str]) -> tuple[bool, int, int]:
    """Ranks loops: sums first, then by products, then by vectors.

    Sums stay in registers; a loop that stores its products prepares operands for another.
    """
    products = count_products(body)
    sums = products > 0 and not stored_bytes(body)
    return sums, products, sum(bool(vector_bits(line)) for line in body)


def _cycles(analyser: str, body: Sequence[str], triple: str, core: str) -> float:
    command = [analyser, f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={_ITERATIONS}"]
    nowhere = "#0" if triple.startswith("aarch64") else "0"  # an address stands for any
    # llvm-mca assembles what it is given, in which no symbol of the library exists.
    text = "\n".join(_PLACE.sub(nowhere, line) for line in body) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    match = _CYCLES.search(done.stdout)
    if match is None or "not a recognized processor" in done.stderr:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[0]
        raise ToolchainError(f"llvm-mca has no model of this loop on {core}: {reason}")
    return int(match[1]) / _ITERATIONS
