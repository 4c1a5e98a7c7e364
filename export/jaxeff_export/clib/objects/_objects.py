"""Compiling, archiving and looking into object files, by the target's own tools."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxeff_export.clib.objects._errors import CLibraryError
from jaxeff_export.targets import CToolchain, ToolchainError

WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
_HALF = ".text.tvm.fp16.conv"  # conversions of half floats, which TVM adds to every module
_MEMORY = frozenset({"memcpy", "memset", "memmove", "memcmp"})
_MATH = re.compile(
    r"(a?(cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp(2|10|m1)?|fabs|fdim|floor|fma|fmax|fmin"
    r"|fmod|frexp|hypot|ldexp|lgamma|ll?r(int|ound)|log(2|10|1p|b)?|modf|nearbyint|nextafter|pow"
    r"|remainder|rint|round(even)?|sqrt|tgamma|trunc)[fl]?"
)


def compile_c(tools: CToolchain, source: Path, made: Path) -> None:
    """Compiles a C or assembler file into an object file, in the file's own folder."""
    strict = WARNINGS if source.suffix == ".c" else ()
    # Archives are linked into shared libraries too, except where there are none.
    anywhere = () if tools.board else ("-fPIC",)
    command = [tools.compiler, *tools.flags, *strict, "-O2", *anywhere, "-c", source.name]
    call([*command, "-o", str(made)], source.parent)


def trim(tools: CToolchain, made: Path) -> None:
    """Removes what only debuggers read, and conversions of half floats that nothing calls."""
    # Unwinding tables serve exceptions, of which C has none.
    unwinding = (".eh_frame", ".rela.eh_frame", ".ARM.exidx", ".rel.ARM.exidx")
    removed = [x for name in unwinding for x in ("-R", name)]
    # What reads the tables of 32-bit ARM would bring an allocator and more.
    removed += ["-N", "__aeabi_unwind_cpp_pr0"]
    call([tools.tool("objcopy"), "--strip-debug", *removed, str(made)])
    section, half = "", re.compile(r"__(truncsfhf2|extendhfsf2)|\.text\.tvm\.fp16")
    for line in call([tools.tool("readelf"), "-rW", str(made)]).splitlines():
        # A relocation elsewhere that names a conversion is a call of it: then both stay.
        if line.startswith("Relocation section"):
            section = line
        elsewhere = ".text" in section and "exidx" not in section and _HALF not in section
        if elsewhere and half.search(line):
            return
    more = [x for name in (_HALF, f".ARM.exidx{_HALF}") for x in ("-R", name, "-R", f".rel{name}")]
    symbols = ["-N", "__truncsfhf2", "-N", "__extendhfsf2"]
    call([tools.tool("objcopy"), *symbols, *more, str(made)])


def wanted(tools: CToolchain, made: Path, prefix: str) -> list[str]:
    """Lists the functions of a prefix that an object file takes from elsewhere."""
    words = [line.split() for line in call([tools.tool("nm"), "-u", str(made)]).splitlines()]
    return sorted(word[-1] for word in words if word and word[-1].startswith(prefix))


def rename(tools: CToolchain, made: Path, names: Mapping[str, str]) -> None:
    """Renames symbols of an object file."""
    pairs = [x for old, new in names.items() for x in ("--redefine-sym", f"{old}={new}")]
    call([tools.tool("objcopy"), *pairs, str(made)])


def archive(tools: CToolchain, members: Sequence[Path], made: Path) -> None:
    """Puts object files into an archive; the same members make the same bytes."""
    made.unlink(missing_ok=True)
    # D: neither times nor owners, which would make equal archives differ.
    call([tools.tool("ar"), "rcsD", str(made), *map(str, members)])


def code_size(tools: CToolchain, members: Iterable[Path]) -> int:
    """Sums the bytes of code and its constants in object files."""
    lines = call([tools.tool("size"), *map(str, members)]).splitlines()[1:]
    # The columns text and data; bss has none, for kernels keep no state.
    return sum(int(line.split()[0]) + int(line.split()[1]) for line in lines)


def require_self_contained(
    tools: CToolchain, made: Path, *, threads: bool = False
) -> tuple[str, ...]:
    """Lists what an archive takes from elsewhere: libm, copies, a compiler's own helpers.

    With `threads` those of POSIX threads too.

    Raises:
        CLibraryError: if it needs anything else.
    """
    defined, wanted = set(), set()
    for line in call([tools.tool("nm"), str(made)]).splitlines():
        parts = line.split()
        # Undefined symbols have no address, so their lines are a word shorter.
        if len(parts) == 2 and parts[0] in "Uw":
            wanted.add(parts[1])
        elif len(parts) == 3:
            defined.add(parts[2])
    # The linker makes the table of offsets itself.
    foreign = sorted(wanted - defined - {"_GLOBAL_OFFSET_TABLE_"})
    bad = [
        name
        for name in foreign
        if not (_allowed(name) or (threads and name.startswith("pthread_")))
    ]
    if bad:
        raise CLibraryError(
            f"the kernels call {', '.join(bad[:5])}, which no C library has; an operation of the "
            "function has no static kernel"
        )
    return tuple(foreign)


def call(command: Sequence[str], folder: Path | None = None) -> str:
    """Runs a tool and returns what it prints.

    Raises:
        ToolchainError: if it fails, with the last line it printed.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "it gives no reason").splitlines()
        raise ToolchainError(f"{Path(command[0]).name} failed: {lines[0]} … {lines[-1]}")
    return done.stdout


def _allowed(name: str) -> bool:
    """Tells whether every C compiler brings a function.

    Helpers of its own begin with underscores.
    """
    return (
        name in _MEMORY
        or bool(_MATH.fullmatch(name))
        or (name.startswith("__") and "tvm" not in name.lower())
    )
