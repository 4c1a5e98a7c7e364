"""The example of a library: ``main.c``, its start without an operating system, how it is built.

``main.c`` replays what JAX recorded, on a computer or a microcontroller. The start (vectors,
memories, a first function) is for an emulated board; a product has its own. Output goes through
semihosting: the debugger, or the emulator, prints it. Of RISC-V the C library brings start and
linker script, which only has to be told the memories. Building and running are written down in
words and for CMake.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxeff_export import targets
from jaxeff_export.artifact import dtype_of
from jaxeff_export.clib._objects import Sizes
from jaxeff_export.clib.codegen._interface import Field, Library
from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.clib.codegen._serial import serial_build
from jaxeff_export.targets import packages

_ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """Recorded call as one block of bytes.

    Attributes:
        blob: inputs, then outputs.
        inputs: offset of each.
        outputs: offset of each.
    """

    blob: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def row(self) -> bytes:
        """The inputs alone, as the example reads them call after call."""
        inputs = self.blob[: self.outputs[0]] if self.outputs else self.blob
        # C has no arrays of no elements, and no file has blocks of none.
        return inputs.ljust(max(1, len(inputs)), b"\0")


def record(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> RecordedCall:
    """Lays the arrays of a recorded call out as one block of bytes."""
    blob, places = bytearray(), []
    for value in (*inputs, *outputs):
        # Aligned for any element, as the example casts pointers into the block.
        blob.extend(bytes(-len(blob) % _ALIGNMENT))
        places.append(len(blob))
        blob.extend(np.asarray(value).tobytes())
    return RecordedCall(bytes(blob), tuple(places[: len(inputs)]), tuple(places[len(inputs) :]))


def block_c(symbol: str, blob: bytes, alignment: int) -> str:
    """Writes a block of bytes as C, of a processor whose numbers begin with their lowest byte."""
    size = max(1, len(blob))
    lines = [f"    {', '.join(map(str, blob[i : i + 20]))}," for i in range(0, len(blob), 20)]
    head = f"_Alignas({alignment}) const unsigned char {symbol}[{size}] = {{"
    declared = f"extern const unsigned char {symbol}[{size}];"
    return "\n".join([declared, head, *(lines or ["    0,"]), "};", ""])


def main_c(library: Library, recorded: RecordedCall, tolerances: Sequence[float]) -> str:
    """Writes the example.

    `tolerances` is per output what may differ relative to its largest magnitude.
    """
    n, u = library.name, library.upper
    # C has no arrays of no elements.
    buffers = [
        f"static {field.kind} {field.name}_[{max(1, field.count)}];" for field in library.returned
    ]
    if library.state:
        buffers.append(f"static {n}_state state;")
    blob = []
    if not library.embedded:
        blob = [f"extern const unsigned char {n}_parameters[];"]
    refused = []
    if library.refuses_nan:
        refused = [
            f"        if (code == {u}_NOT_A_NUMBER)",
            '            printf("an argument that is rounded to codes holds NaN\\n");',
        ]
    started, stopped = [], []
    if library.threads > 1:
        started = [
            f"    if ({n}_start(&threads) != {u}_OK)",
            "        return 4;",
            "    inputs.threads = &threads;",
        ]
        stopped = [f"    {n}_stop(&threads);"]
    filled = [f"    outputs.{field.name} = {field.name}_;" for field in library.returned]
    compared = [
        f'    failures += differs("{field.name}", {_array(field)}, {n}_recorded + {place}, '
        f"{field.count}, {_kind(field.spec.dtype)}, {tolerance!r});"
        for field, place, tolerance in zip(
            library.outputs, recorded.outputs, tolerances, strict=True
        )
    ]
    written = [
        f"    fwrite({_array(field)}, 1, {field.size}, results);" for field in library.outputs
    ]
    return render(
        "main.c",
        name=n,
        NAME=u,
        floats=render("floats.c", file="main.c").splitlines(),
        parameters=blob,
        buffers=buffers or ["/* the function has no results */"],
        threads=[f"static {n}_threads threads;", ""] if library.threads > 1 else [],
        assignments=_assignments(library, recorded),
        filled=filled or ["    outputs.nothing = 0;"],
        started=started,
        refused=refused,
        compared=compared,
        written=written,
        block=len(recorded.row),
        stopped=stopped,
    )


def _assignments(library: Library, recorded: RecordedCall) -> list[str]:
    """Writes the lines that fill `inputs` with the recorded arguments."""
    assignments = [
        f"    inputs.{field.name} = (const {field.kind} *)(const void *)(arguments + {place});"
        for field, place in zip(library.inputs, recorded.inputs, strict=True)
        if not field.kept
    ] or ["    inputs.nothing = 0;", "    (void)arguments;"]
    if library.state:
        assignments += [
            f"    memcpy(state.{field.name}, arguments + {place}, {field.size});"
            for field, place in zip(library.inputs, recorded.inputs, strict=True)
            if field.kept
        ]
        assignments.append("    inputs.state = &state;")
    if not library.embedded:
        assignments.append(f"    inputs.parameters = {library.name}_parameters;")
    return assignments


def _array(field: Field) -> str:
    return f"state.{field.name}" if field.kept else f"{field.name}_"


def _kind(name: str) -> str:
    """Chooses how the example reads an element."""
    dtype = dtype_of(name)
    if name in ("float16", "bfloat16"):
        return name.upper()
    if name in ("float32", "float64"):
        return "DOUBLES" if name == "float64" else "FLOATS"
    return f"BITS + {dtype.itemsize}"  # integers, and floats of 8 bits: the same or not


def at_least(board: targets.BoardMemory, flash: int | None, ram: int | None) -> targets.BoardMemory:
    """Enlarges a board to the memories that are given, where these are larger than its own."""
    (code, has), (data, holds) = board.flash, board.ram
    more = (code, max(has, flash or 0)), (data, max(holds, ram or 0))
    return dataclasses.replace(board, flash=more[0], ram=more[1])


_QUIET = ("-Wl,--gc-sections", "-Wl,-z,noexecstack")


def start_flags(machine: str) -> tuple[str, ...]:
    """Lists what links a program with its start: its sources and flags."""
    if machine == "riscv32":
        # picolibc's own start; `hosted` ends the program with main's status.
        return ("-T", "board.ld", "--crt0=hosted", "--oslib=semihost", *_QUIET)
    return ("startup.c", "-nostartfiles", "-T", "board.ld", "--specs=rdimon.specs", *_QUIET)


def start_files(board: targets.BoardMemory, machine: str) -> dict[str, str]:
    """Writes the files of the start, by name."""
    if machine == "riscv32":
        return {"board.ld": _linker_script("picolibc.ld", board)}
    return {"board.ld": _linker_script("board.ld", board), "startup.c": render("startup.c")}


def _linker_script(template: str, board: targets.BoardMemory) -> str:
    """Writes the linker script: where the parts of a program lie."""
    (flash, flash_size), (ram, ram_size) = board.flash, board.ram
    return render(
        template,
        machine=board.machine,
        flash=f"{flash:#x}",
        flash_size=flash_size,
        ram=f"{ram:#x}",
        ram_size=ram_size,
    )


def example_sources(library: Library) -> list[str]:
    """Lists the files of the example."""
    ending = "S" if library.kernel_source is None else "c"
    more = [] if library.embedded else [f"{library.name}_parameters.{ending}"]
    more += [] if library.kernel_source is None else [f"{library.name}.c"]
    return ["main.c", f"recorded.{ending}", *more]


def example_command(
    library: Library, tools: targets.CToolchain, machine: str, program: str
) -> list[str]:
    """Makes the command that builds the example, in the library's folder."""
    # Static: under an emulator no libraries of the other processor have to be found.
    placed = start_flags(machine) if tools.board else ("-static",)
    shared = ("-pthread",) if library.threads > 1 else ()
    flags = ("-std=c11", "-O2", *tools.flags, *shared)
    archives = [f"lib{library.name}.a"] if library.kernel_source is None else []
    files = (*example_sources(library), *archives)
    return [tools.compiler, *flags, *files, *placed, "-lm", "-o", program]


def readme(
    library: Library, tools: targets.CToolchain, core: str, target: Mapping[str, Any], sizes: Sizes
) -> str:
    """Writes ``README.md``."""
    n, u = library.name, library.upper
    build, run = _example_commands(library, tools, core, target)
    arrays = [
        f"| {role} | `{field.name}` | {'x'.join(map(str, field.spec.shape)) or 'one number'} "
        f"| {field.spec.dtype} | {field.size:,} |"
        for role, fields in (
            ("argument", library.passed),
            ("state", library.state),
            ("result", library.returned),
        )
        for field in fields
    ]
    what, archive = "a header, an archive, no runtime", "archive"
    section = f", in the section `.rodata.{n}_parameters`"
    if library.kernel_source is not None:
        what, archive, section = f"C99, {n}.c and {n}.h, no runtime", "file", ""
    timed = ""
    if not tools.board:
        timed = "With `-DNDEBUG -DREPLAY_TIMES=1000` it also prints how long a call takes.\n\n"
    return f"""# {n}

A network compiled for {library.made_for}: {what}.

    {n}_inputs inputs;      /* pointers to arguments, see {n}.h */
    {n}_outputs outputs;    /* pointers to results */
    {n}_run(&inputs, &outputs, workspace, {u}_WORKSPACE_BYTES);

It allocates nothing and keeps no state, so threads may call it at the same time, each with a
workspace of its own. It returns {u}_OK, or {u}_WORKSPACE_TOO_SMALL; where `NDEBUG` is not
defined, pointers are checked too ({u}_MISALIGNED, {u}_NULL_POINTER). The {archive} needs libm and
`memcpy`, and the compiler's own helpers.
{_remarks(library)}
|  | name | shape | dtype | bytes |
|---|---|---|---|---|
{chr(10).join(arrays)}

| bytes of | |
|---|---|
| code | {sizes.code:,} |
| parameters{section} | {sizes.parameters:,} |
| workspace, aligned to {library.memory.alignment} | {sizes.workspace:,} |
| the same, needed at the same time | {sizes.live:,} |
| arrays on the stack, spilled registers not counted | {sizes.stack:,} |

`{n}_serial.c` answers a computer on a serial line, for `jaxeff-export check BUNDLE --board
serial:/dev/ttyACM0`: in a firmware of yours it takes four functions (`{n}_serial.h`), which
`serial_main.c` has for {"the emulated board" if tools.board else "standard input and output"}. With
`{n}.c` beside it and `-D{u}_PROFILE` it counts by kernel.
{_emulated_line(library, tools, build, run)}
The example replays a recorded call and compares with what JAX computed:

    {" ".join(build)}
    {" ".join(run)}

{timed}With CMake: `cmake -S . -B build && cmake --build build`.

{_compilers(tools, target)}
"""


_PLACE = "127.0.0.1:4444"


def _example_commands(
    library: Library, tools: targets.CToolchain, core: str, target: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Makes the commands that build and run the example, without paths of this machine."""
    program = "./example.elf" if tools.board else "./example"
    build = example_command(library, tools, targets.target_machine(target), program[2:])
    # The folder goes elsewhere: no path of this machine.
    build[0] = build[0].rpartition("/")[2]
    run = [program]
    if (
        tools.board
        or not targets.has_runtime(target)
        or targets.target_machine(target) == "aarch64"
    ):
        run = targets.emulation(core, target, Path(program[2:]))
        run[0] = run[0].rpartition("/")[2]
    return build, run


def _emulated_line(
    library: Library, tools: targets.CToolchain, build: list[str], run: list[str]
) -> str:
    """Says how the firmware is built, and how a computer talks to it in the emulator."""
    if not tools.board:
        return ""
    at, firmware = run.index("-serial"), "firmware.elf"
    served = [*run[:at], "-serial", f"tcp:{_PLACE},server=on,wait=off", *run[at + 2 :]]
    command = " ".join(serial_build(library, build)).replace("example.elf", firmware)
    return f"""
Built, and emulated with its line on a socket:

    {command}
    {" ".join(served).replace("example.elf", firmware)} &
    jaxeff-export check BUNDLE --board serial:socket://{_PLACE}
"""


def _remarks(library: Library) -> str:
    """Says what only some libraries have: parameters beside the code, threads, state, refusals."""
    n = library.name
    blob = ""
    if not library.embedded:
        blob = (
            f"\nThe parameters are the file `{n}_parameters.bin`, which the program has to load, "
            f"aligned to {library.parameters.alignment} bytes, and hands over as "
            "`inputs.parameters`. The example links it in.\n"
        )
    shared = ""
    if library.threads > 1:
        shared = f"""
Loops of a call are shared by up to {library.threads} threads: `{n}_start(&threads)` makes the
others, `inputs.threads = &threads` lends them to a call, `{n}_stop(&threads)` ends them. With NULL
in place of them, and while another call has them, a call runs on its caller's thread alone. The
results are the same bits. Waking threads takes some microseconds a loop. Programs are linked with
`-pthread`.
"""
    kept = ""
    if library.state:
        kept = f"""
What stays from call to call is a struct of yours, one for each session: `{n}_init(&state)` sets it
to what a session begins with, now or again, `inputs.state = &state` hands it to a call, which
updates it in place.
"""
    refused = ""
    if library.refuses_nan:
        refused = f"""
Arguments are rounded to codes, which have no NaN: a call with NaN in one of them returns
{library.upper}_NOT_A_NUMBER and writes nothing. An infinity becomes an end of its range.
"""
    if library.kernel_source is not None:
        refused += """
Floats have JAX's bits where they are computed as they are written: the file tells GCC and clang to
do so, under `-ffast-math` too. Where clang can't (off x86) such a build stops and says so; other
compilers may need an option.
"""
    return f"{blob}{kept}{shared}{refused}"


def cmake(library: Library, tools: targets.CToolchain, machine: str) -> str:
    """Writes ``CMakeLists.txt``: the library as a target, and the example."""
    n = library.name
    flags = " ".join(tools.flags)
    assembled = " ".join(name for name in example_sources(library) if name.endswith(".S"))
    started = start_flags(machine) if tools.board else ("-static",)
    sources = " ".join([*example_sources(library), *(s for s in started if s.endswith(".c"))])
    # CMake builds in a folder of its own.
    # In quotes that the command is split by: the path may have spaces.
    script = r"\"${CMAKE_CURRENT_SOURCE_DIR}/board.ld\""
    flags_of = [s.replace("board.ld", script) for s in started if not s.endswith(".c")]
    placed = " ".join(flags_of)
    finding, linked = "", "m"
    if library.threads > 1:
        finding, linked = "find_package(Threads REQUIRED)\n", '"m;Threads::Threads"'
    defined = _cmake_target(library, flags, linked)
    if library.kernel_source is not None:
        sources = sources.replace(f" {n}.c", "")
        assembled = ""
    placed_files = ""
    if assembled:
        placed_files = f"""    set_source_files_properties({assembled} PROPERTIES
        COMPILE_OPTIONS "-I${{CMAKE_CURRENT_SOURCE_DIR}}")
"""
    suffix = f'set_target_properties({n}_example PROPERTIES SUFFIX ".elf")' if tools.board else ""
    chosen = ""
    compiler = tools.compiler.rpartition("/")[2]
    if "-" in compiler:  # of another processor; where a project includes this, it has chosen
        chosen = f"""if(NOT DEFINED CMAKE_C_COMPILER AND NOT DEFINED ENV{{CC}})
    set(CMAKE_C_COMPILER {compiler})
endif()
"""
    if tools.board:  # CMake's own trial programs can't be linked
        chosen += (
            "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)\nset(CMAKE_SYSTEM_NAME Generic)\n"
        )
    return f"""cmake_minimum_required(VERSION 3.13)
{chosen}
project({n} C ASM)

{finding}{defined}
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)  # not where a project includes it
    set(CMAKE_C_STANDARD 11)
    separate_arguments(processor UNIX_COMMAND "{flags}")
    add_executable({n}_example {sources})
    target_compile_options({n}_example PRIVATE ${{processor}})
    target_include_directories({n}_example PRIVATE "${{CMAKE_CURRENT_SOURCE_DIR}}")
{placed_files}    separate_arguments(placed UNIX_COMMAND "{flags} {placed}")
    target_link_libraries({n}_example PRIVATE {n} ${{placed}})
    {suffix}
endif()
"""


def _cmake_target(library: Library, flags: str, linked: str) -> str:
    """Writes the library as a target: its source, or its archive."""
    n = library.name
    if library.kernel_source is not None:
        return f"""add_library({n} STATIC {n}.c)
separate_arguments(processor UNIX_COMMAND "{flags}")
target_compile_options({n} PRIVATE -std=c99 ${{processor}})
target_include_directories({n} PUBLIC "${{CMAKE_CURRENT_SOURCE_DIR}}")
target_link_libraries({n} PUBLIC {linked})
"""
    return f"""add_library({n} STATIC IMPORTED GLOBAL)
set_target_properties({n} PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_SOURCE_DIR}}/lib{n}.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_SOURCE_DIR}}"
    INTERFACE_LINK_LIBRARIES {linked})
"""


def _compilers(tools: targets.CToolchain, target: Mapping[str, Any]) -> str:
    """Describes where the tools come from, and the flags that clang needs."""
    text = f"On Debian and Ubuntu the tools are in the packages {', '.join(packages(target))}. "
    compiler = tools.compiler.rpartition("/")[2]
    if targets.target_machine(target) == "riscv32":
        # Specs are GCC's: they name the headers, which clang has to be told.
        return (
            f"{text}clang compiles the C\nfiles with `--target={target['mtriple']} "
            "-march=rv32imc -mabi=ilp32\n-isystem "
            f"/usr/lib/picolibc/riscv64-unknown-elf/include`; what links them is {compiler}."
        )
    if tools.board:
        return (
            f"{text}clang compiles the C\nfiles with the same flags of the processor and "
            f"`--target={target['mtriple']} -fshort-enums\n-isystem "
            f"/usr/lib/arm-none-eabi/include`; what links them is {compiler}."
        )
    if "-" in compiler:
        return f"{text}clang\ntakes the same flags and `--target={compiler.removesuffix('-gcc')}`."
    return f"{text}clang takes the\nsame flags."
