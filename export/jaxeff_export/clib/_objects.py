"""Object files, which the target's own tools compile, archive and read; sizes; C's numbers.

`Sizes` are what a library takes, `require_room` holds them to a device's memories, and `constant`
writes a number as a C literal.
"""

import dataclasses
import math
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxeff_export.targets import CToolchain, ToolchainError


class CLibraryError(RuntimeError):
    """A function, a target or a memory that a C library can't be made for."""


WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion")
_HALF = ".text.tvm.fp16.conv"  # conversions of half floats, which TVM adds to every module
_MEMORY = frozenset({"memcpy", "memset", "memmove", "memcmp"})
_MATH = re.compile(
    r"(a?(cos|sin|tan)h?|atan2|cbrt|ceil|copysign|erfc?|exp(2|10|m1)?|fabs|fdim|floor|fma|fmax|fmin"
    r"|fmod|frexp|hypot|ldexp|lgamma|ll?r(int|ound)|log(2|10|1p|b)?|modf|nearbyint|nextafter|pow"
    r"|remainder|rint|round(even)?|sqrt|tgamma|trunc)[fl]?"
)


def compile_c(tools: CToolchain, source: Path, object_file: Path, *, c99: bool = False) -> None:
    """Compiles a C or assembler file into an object file, in the file's own folder."""
    standard = "-std=c99" if c99 else "-std=c11"
    strict = (standard, *WARNINGS) if source.suffix == ".c" else ()
    # Archives are linked into shared libraries too, except where there are none.
    anywhere = () if tools.board else ("-fPIC",)
    command = [tools.compiler, *tools.flags, *strict, "-O2", *anywhere, "-c", source.name]
    run_tool([*command, "-o", str(object_file)], source.parent)


def trim(tools: CToolchain, object_file: Path) -> None:
    """Removes what only debuggers read, and conversions of half floats that nothing calls."""
    # Unwinding tables serve exceptions, of which C has none.
    unwinding = (".eh_frame", ".rela.eh_frame", ".ARM.exidx", ".rel.ARM.exidx")
    removed = [x for name in unwinding for x in ("-R", name)]
    # What reads the tables of 32-bit ARM would bring an allocator and more.
    removed += ["-N", "__aeabi_unwind_cpp_pr0"]
    run_tool([tools.tool("objcopy"), "--strip-debug", *removed, str(object_file)])
    section, half = "", re.compile(r"__(truncsfhf2|extendhfsf2)|\.text\.tvm\.fp16")
    for line in run_tool([tools.tool("readelf"), "-rW", str(object_file)]).splitlines():
        # A relocation elsewhere that names a conversion is a call of it: then both stay.
        if line.startswith("Relocation section"):
            section = line
        elsewhere = ".text" in section and "exidx" not in section and _HALF not in section
        if elsewhere and half.search(line):
            return
    more = [x for name in (_HALF, f".ARM.exidx{_HALF}") for x in ("-R", name, "-R", f".rel{name}")]
    symbols = ["-N", "__truncsfhf2", "-N", "__extendhfsf2"]
    run_tool([tools.tool("objcopy"), *symbols, *more, str(object_file)])


def rename(tools: CToolchain, object_file: Path, names: Mapping[str, str]) -> None:
    """Renames symbols of an object file."""
    pairs = [x for old, new in names.items() for x in ("--redefine-sym", f"{old}={new}")]
    run_tool([tools.tool("objcopy"), *pairs, str(object_file)])


def archive(tools: CToolchain, members: Sequence[Path], path: Path) -> None:
    """Puts object files into an archive; the same members make the same bytes."""
    path.unlink(missing_ok=True)
    # D: neither times nor owners, which would make equal archives differ.
    run_tool([tools.tool("ar"), "rcsD", str(path), *map(str, members)])


def code_size(tools: CToolchain, members: Iterable[Path]) -> int:
    """Sums the bytes of code and its constants in object files."""
    lines = run_tool([tools.tool("size"), *map(str, members)]).splitlines()[1:]
    # The columns text and data; bss has none, for kernels keep no state.
    return sum(int(line.split()[0]) + int(line.split()[1]) for line in lines)


def require_self_contained(
    tools: CToolchain, object_file: Path, *, threads: bool = False
) -> tuple[str, ...]:
    """Lists the symbols that an archive takes from elsewhere, and refuses those that nobody has.

    Allowed are the mathematical functions of C, copies of memory (`memcpy`), a compiler's own
    helpers (`__aeabi_fadd`) and, with `threads`, those of POSIX threads.
    """
    defined, wanted = set(), set()
    for line in run_tool([tools.tool("nm"), str(object_file)]).splitlines():
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


def run_tool(command: Sequence[str], folder: Path | None = None) -> str:
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
    """Tells whether every C compiler brings a function; its own helpers begin with underscores."""
    return (
        name in _MEMORY
        or bool(_MATH.fullmatch(name))
        or (name.startswith("__") and "tvm" not in name.lower())
    )


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}


@dataclasses.dataclass(frozen=True, repr=False)
class Sizes:
    """What a library takes, in bytes.

    Attributes:
        code: machine code and its own constants.
        parameters: what is bound.
        workspace: the memory that a call needs beside its arguments.
        live: the most of the workspace that is in use at once; the rest is lost between arrays.
        arrays: arguments and results, which the caller holds.
        stack: arrays on the stack of the kernel with most of them; spilled registers not counted.
    """

    code: int
    parameters: int
    workspace: int
    live: int
    arrays: int
    stack: int

    def to_json(self) -> dict[str, Any]:
        """Returns the sizes as plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return (
            f"code {self.code:,} bytes, parameters {self.parameters:,}, workspace "
            f"{self.workspace:,}, arguments and results {self.arrays:,}, arrays on the stack "
            f"{self.stack:,}"
        )

    __repr__ = __str__


def require_room(
    sizes: Sizes, flash: int | None, ram: int | None, *, embedded: bool = True
) -> None:
    """Refuses a library that a device's memories don't hold.

    Args:
        sizes: what it takes.
        flash: bytes for code and embedded parameters; None if they are no matter.
        ram: bytes for the workspace, arguments, results and the stack's arrays.
        embedded: whether the parameters are constants of the library.
    """
    # Flash holds what never changes; parameters that a board loads lie wherever it puts them.
    constants = sizes.code + (sizes.parameters if embedded else 0)
    if flash is not None and constants > flash:
        raise CLibraryError(
            f"flash: {constants:,} bytes are needed ({sizes.code:,} of code, {sizes.parameters:,} "
            f"of parameters), {flash:,} are there; quantize the weights (jaxeff.compression), or "
            "load the parameters from elsewhere (embed=False)"
        )
    # A lower bound: spilled registers and the caller's own data come on top.
    data = sizes.workspace + sizes.arrays + sizes.stack
    if ram is not None and data > ram:
        raise CLibraryError(
            f"RAM: {data:,} bytes are needed ({sizes.workspace:,} of workspace, {sizes.arrays:,} "
            f"of arguments and results, {sizes.stack:,} on the stack), {ram:,} are there; deploy "
            "for a smaller batch, or quantize activations (jaxeff.integer)"
        )


def bytes_of(text: str | int) -> int:
    """Reads a number of bytes: ``524288``, ``"512k"`` or ``"2M"``.

    Raises:
        CLibraryError: if it is none.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([kKmM]?[bB]?)\s*", str(text))
    if not match:
        raise CLibraryError(f"{text!r} is no number of bytes; write 524288, 512k or 2M")
    return int(match[1]) * _UNITS[match[2].lower()]


HALF = ("float16", "bfloat16")


TYPES = {
    "bool": "uint8_t",
    "float32": "float",
    "float64": "double",
    **dict.fromkeys(HALF, "uint16_t"),
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""What holds an element; of half floats their bits."""


def constant(value: float, dtype: str) -> str:
    """Writes a number of a dtype, exactly."""
    if dtype.startswith("float"):
        if dtype == "float16":
            return f"{int(np.float16(value).view(np.uint16))}u"
        number = float(value)
        end = "f" if dtype == "float32" else ""
        sign = "-" if math.copysign(1.0, number) < 0 else ""
        if math.isnan(number):
            return "(float)NAN" if end else "(double)NAN"
        if math.isinf(number):
            text = f"{sign}{'(float)' if end else '(double)'}INFINITY"
        elif number == int(number) and abs(number) < 1e7:
            text = f"{sign}{abs(int(number))}.0{end}"
        else:
            text = f"{number.hex()}{end}"  # exactly the number
        return f"({text})" if sign else text
    number = int(value)
    if dtype == "bool":
        return str(int(bool(number)))
    if dtype in ("int64", "uint64"):
        if number == -(2**63):
            return "(-INT64_C(9223372036854775807) - 1)"
        text = f"{'U' if dtype[0] == 'u' else ''}INT64_C({abs(number)})"
    elif dtype == "uint32":
        text = f"{number}u"
    elif number == -(2**31):
        return "(-2147483647 - 1)"
    else:
        text = str(abs(number))
    return f"(-{text})" if number < 0 else text
