"""What a core would do with a bundle's kernels, read from their machine code: a model, no timing.

Of every kernel the innermost loop that multiplies most is given to llvm-mca (Debian: `llvm`),
LLVM's static model of a core: instructions, ports and latencies; every load hits the first cache.

Sharp edges:
    Caches, branches and memory are not in it: it bounds a kernel's speed from above.
    A loop without products (elementwise kernels) isn't listed.
    llvm-mca's models of cores differ in care.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxeff_export.targets.toolchain import ToolchainError

_ITERATIONS = 100
_TRIPLES = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_LINE = re.compile(r"^\s*(?P<at>[0-9a-f]+):\s+(?P<text>\S.*)$")
_TARGET = re.compile(r"\b(?P<at>[0-9a-f]{3,})\s+<")
_BRANCH = re.compile(r"^(b\.\w+|b|cbn?z|tbn?z|j\w+)\s")
_CYCLES = re.compile(r"Total Cycles:\s+(\d+)")
_WIDTHS = {"zmm": 512, "ymm": 256, "xmm": 128}


@dataclass(frozen=True)
class LoopModel:
    """The innermost loop of a kernel that multiplies most.

    Attributes:
        kernel: its function.
        instructions: of one turn.
        products: multiply-accumulates of one turn; bit products where bits are counted.
        cycles: of one turn, on average.
        spills: loads and stores of vectors on the stack in one turn.
    """

    kernel: str
    instructions: int
    products: int
    cycles: float
    spills: int

    @property
    def per_cycle(self) -> float:
        """Products in a cycle."""
        return self.products / self.cycles


def model_library(library: Path, machine: str, core: str) -> tuple[LoopModel, ...]:
    """The kernels of a library as llvm-mca sees them.

    Args:
      library: its file.
      machine: its processor architecture.
      core: a core as LLVM names it, such as `cortex-a72`.

    Raises:
      ToolchainError: if a program isn't installed, or llvm-mca doesn't know the core.
    """
    analyser = _program("llvm-mca", "llvm")
    triple = _TRIPLES.get(machine, machine)
    found = []
    for name, lines in _functions(_disassembled(library, triple)):
        loops = [(products(body), body) for body in _innermost(lines)]
        most, body = max(loops, key=lambda loop: loop[0], default=(0, []))
        if most:
            turns = _cycles(analyser, body, triple, core)
            spills = sum(_is_spill(line) for line in body)
            found.append(LoopModel(name, len(body), most, turns, spills))
    return tuple(found)


def products(body: Sequence[str]) -> int:
    """Multiply-accumulates of a stretch of code, or bit products if it counts bits."""
    counted = sum(_counted(line) for line in body)
    return counted or sum(_multiplied(line) for line in body)


def _multiplied(line: str) -> int:
    name = line.split()[0]
    if name in {"fmla", "fmls"}:
        return 4 if ".4s" in line else 2
    if name in {"smull", "smull2", "smlal", "smlal2"} and "b" in line.split(",")[-1]:
        return 8
    if name in {"sdot", "udot"}:
        return 16
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


def _is_spill(line: str) -> bool:
    name = line.split()[0]
    arm = name in {"ldr", "str", "ldp", "stp", "ldur", "stur"} and re.search(r"\sq\d+.*\[sp", line)
    x86 = name.startswith("vmov") and ("(%rsp" in line or "(%rbp" in line)
    return bool(arm or x86)


def _disassembled(library: Path, triple: str) -> list[str]:
    cross = shutil.which(f"{triple}-objdump")
    command = cross or _program("objdump", "binutils")
    done = subprocess.run(
        [command, "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise ToolchainError(f"{command} cannot read {library.name}: {reason}")
    return done.stdout.splitlines()


def _functions(lines: Sequence[str]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Names, and addresses with instructions."""
    name = ""
    body: list[tuple[int, str]] = []
    for line in lines:
        if start := _FUNCTION.match(line):
            if body:
                yield name, body
            name, body = start["name"], []
        elif found := _LINE.match(line):
            text = re.sub(r"\s*(//|#).*$", "", found["text"].replace("\t", " ")).strip()
            if text:
                body.append((int(found["at"], 16), text))
    if body:
        yield name, body


def _innermost(lines: Sequence[tuple[int, str]]) -> list[list[str]]:
    """The bodies of loops that hold no other loop, without what jumps."""
    places = {at: i for i, (at, _) in enumerate(lines)}
    loops = []
    for i, (_, text) in enumerate(lines):
        target = _TARGET.search(text) if _BRANCH.match(text) else None
        start = places.get(int(target["at"], 16)) if target else None
        if start is not None and start <= i:
            loops.append((start, i))
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [[t for _, t in lines[a:b] if not _BRANCH.match(t)] for a, b in inner]


def _cycles(analyser: str, body: Sequence[str], triple: str, core: str) -> float:
    command = [analyser, f"-mtriple={triple}", f"-mcpu={core}", f"-iterations={_ITERATIONS}"]
    done = subprocess.run(
        command, input="\n".join(body) + "\n", capture_output=True, text=True, check=False
    )
    found = _CYCLES.search(done.stdout)
    if found is None or "not a recognized processor" in done.stderr:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[0]
        raise ToolchainError(f"llvm-mca has no model of this loop on {core}: {reason}")
    return int(found[1]) / _ITERATIONS


def _program(name: str, package: str) -> str:
    if found := shutil.which(name):
        return found
    raise ToolchainError(
        f"{name} not found, which models kernels; install it (Debian, Ubuntu: apt-get install "
        f"{package})"
    )
