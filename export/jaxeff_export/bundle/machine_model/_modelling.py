"""Static model of a bundle's kernels on a core, from their machine code; nothing is timed.

llvm-mca (Debian: `llvm`), LLVM's static model of a core, is given one loop of every kernel: the
innermost one that multiplies most, or the longest with vectors. It models instructions, ports and
latencies; every load hits the first cache. The number of turns follows from the kernel's work in
the bundle's manifest. Arrays come once from the core's caches (`_caches.py`): a kernel's own from
the level that holds them together, its parameters from the level that holds the parameters of all
kernels, which were read since.

Sharp edges:
    Branches, the call, and what a kernel does outside of that loop aren't modelled: the result is
    an upper bound of speed, a loose one for kernels of less than a microsecond.
    llvm-mca's models of cores differ in precision. Where it has none, or another core's, the most
    similar core's is used (`SIMILAR_CORES`), with its divisions and roots.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxeff_export.bundle.machine_model import _machine_code as code
from jaxeff_export.bundle.machine_model._caches import Level, level_of
from jaxeff_export.targets import ToolchainError, find_modeller

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


def model_library(
    library: Path,
    machine: str,
    core: str,
    work: Mapping[str, Mapping[str, int]] | None = None,
    like: str | None = None,
) -> tuple[LoopModel, ...]:
    """Models the kernels of a library by llvm-mca.

    Args:
      library: the file of the library.
      machine: the processor architecture.
      core: a core as LLVM names it, such as `cortex-a72`.
      work: per kernel the bytes `read` and `written` and the `products`, as the manifest has it.
      like: the core whose instructions llvm-mca models; `SIMILAR_CORES` or `core` by default.

    Raises:
      ToolchainError: if a program isn't installed, or llvm-mca doesn't know the core.
    """
    analyser = find_modeller("llvm-mca", "llvm")
    triple = code.TRIPLES.get(machine, machine)
    like = like or SIMILAR_CORES.get(core, core)
    # What all kernels read of parameters passes through the caches between two calls of one.
    parameters = sum(f.get("bound", 0) * f.get("calls", 1) for f in (work or {}).values())
    weights = level_of(core, parameters)
    found = []
    for name, lines in code.functions(library, triple):
        facts = (work or {}).get(_name(name))
        # A kernel's products are in vectors; loops without any prepare or finish.
        loops = [body for body in code.innermost_loops(lines) if any(map(code.width, body))]
        body = max(loops, key=_weight, default=[])
        if body and (facts or code.products(body)):
            loop = _model(name, body, _cycles(analyser, body, triple, like), facts)
            found.append(_with_caches(loop, facts, core, weights) if facts else loop)
    return tuple(found)


def _model(
    name: str, body: Sequence[str], cycles: float, facts: Mapping[str, int] | None
) -> LoopModel:
    products = code.products(body)
    widths = Counter(bits for line in body if (bits := code.width(line)))
    loop = LoopModel(
        kernel=name,
        instructions=len(body),
        products=products,
        cycles=cycles,
        spills=sum(map(code.is_spill, body)),
        multiplies=code.multiplies(body),
        loads=code.loads(body),
        widths=tuple(sorted(widths.items())),
    )
    if facts is None:
        return loop
    turns = None
    # Products of a call over those of a turn; without products, what is stored.
    if facts["products"] and products:
        turns = facts["products"] / products
    elif not facts["products"] and (stored := code.stored_bytes(body)):
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
    products = code.products(body)
    sums = products > 0 and not code.stored_bytes(body)
    return sums, products, sum(bool(code.width(line)) for line in body)


def _cycles(analyser: str, body: Sequence[str], triple: str, core: str) -> float:
    command = [analyser, f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={_ITERATIONS}"]
    nowhere = "#0" if triple.startswith("aarch64") else "0"  # an address stands for any
    # llvm-mca assembles what it is given, in which no symbol of the library exists.
    text = "\n".join(_PLACE.sub(nowhere, line) for line in body) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found = _CYCLES.search(done.stdout)
    if found is None or "not a recognized processor" in done.stderr:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[0]
        raise ToolchainError(f"llvm-mca has no model of this loop on {core}: {reason}")
    return int(found[1]) / _ITERATIONS
