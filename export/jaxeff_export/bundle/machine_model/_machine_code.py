"""Machine code of a library: its functions, their innermost loops, and counts of instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxeff_export.targets import ToolchainError, find_modeller

TRIPLES = {"aarch64": "aarch64-linux-gnu", "x86_64": "x86_64-linux-gnu"}
_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_LINE = re.compile(r"^\s*(?P<at>[0-9a-f]+):\s+(?P<text>\S.*)$")
_TARGET = re.compile(r"\b(?P<at>[0-9a-f]{3,})\s+<")
_BRANCH = re.compile(r"^(b\.\w+|b|cbn?z|tbn?z|j\w+)\s")
_WIDTHS = {"zmm": 512, "ymm": 256, "xmm": 128}
_ARM_VECTOR = re.compile(r"\bv\d+\.|\bq\d+\b")
_STACK = re.compile(r"\(%rsp|\(%rbp|\[sp")


def functions(library: Path, triple: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yields the functions of a library: names, and addresses with instructions.

    Raises:
      ToolchainError: if objdump isn't installed, or can't read it.
    """
    name = ""
    body: list[tuple[int, str]] = []
    for line in _disassembled(library, triple):
        if start := _FUNCTION.match(line):
            if body:
                yield name, body
            name, body = start["name"], []
        elif found := _LINE.match(line):
            # objdump appends the symbol or the value of an address as a comment.
            text = re.sub(r"\s*(//|#\s).*$", "", found["text"].replace("\t", " ")).strip()
            if text:
                body.append((int(found["at"], 16), text))
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


def products(body: Sequence[str]) -> int:
    """Counts multiply-accumulates of a stretch of code, or bit products if it counts bits."""
    counted = sum(_counted(line) for line in body)
    # Products of one bit are population counts; what such a loop multiplies is scaling.
    return counted or sum(_multiplied(line) for line in body)


def multiplies(body: Sequence[str]) -> int:
    """Counts the instructions that multiply and accumulate, or count bits."""
    return sum(bool(_multiplied(line) or _counted(line)) for line in body)


def width(line: str) -> int:
    """Returns the bits of the widest vector register in an instruction; 0 without one."""
    widest = next((bits for register, bits in _WIDTHS.items() if register in line), 0)
    if widest:
        return widest
    return 128 if _ARM_VECTOR.search(line) else 0


def loads(body: Sequence[str]) -> int:
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
            total += small.get(name, width(line) // 8)
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
