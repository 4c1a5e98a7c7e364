"""Instructions beside a library: building and running its example, in words and for CMake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxeff_export.clib.codegen._bare_metal import start
from jaxeff_export.clib.codegen._sources import Library
from jaxeff_export.clib.objects import Sizes
from jaxeff_export.targets import CToolchain, emulation, has_runtime, packages, target_machine


def example_sources(library: Library) -> list[str]:
    """Lists the files of the example."""
    more = [] if library.embedded else [f"{library.name}_parameters.S"]
    return ["main.c", "recorded.S", *more]


def example_command(
    library: Library, tools: CToolchain, machine: str, made: str, more: Sequence[str] = ()
) -> list[str]:
    """Makes the command that builds the example, in the library's folder.

    Args:
        library: what it calls.
        tools: tools of the target.
        machine: the target's architecture.
        made: the program.
        more: flags.
    """
    # Static: under an emulator no libraries of the other processor have to be found.
    placed = start(machine) if tools.board else ("-static",)
    shared = ("-pthread",) if library.threads > 1 else ()
    flags = ("-std=c11", "-O2", *tools.flags, *shared, *more)
    files = (*example_sources(library), f"lib{library.name}.a")
    return [tools.compiler, *flags, *files, *placed, "-lm", "-o", made]


def readme(
    library: Library, tools: CToolchain, core: str, target: Mapping[str, Any], sizes: Sizes
) -> str:
    """Writes ``README.md``."""
    n, u = library.name, library.upper
    program = "./example.elf" if tools.board else "./example"
    build = example_command(library, tools, target_machine(target), program[2:])
    # The folder goes elsewhere: no path of this machine.
    build[0] = build[0].rpartition("/")[2]
    run = [program]
    if tools.board or not has_runtime(target) or target_machine(target) == "aarch64":
        run = emulation(core, target, Path(program[2:]))
        run[0] = run[0].rpartition("/")[2]
    arrays = [
        f"| {role} | `{field.name}` | {'x'.join(map(str, field.spec.shape)) or 'one number'} "
        f"| {field.spec.dtype} | {field.size:,} |"
        for role, fields in (
            ("argument", library.given),
            ("state", library.state),
            ("result", library.returned),
        )
        for field in fields
    ]
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
{u}_NOT_A_NUMBER and writes nothing. An infinity becomes an end of its range.
"""
    timed = ""
    if not tools.board:
        timed = "With `-DNDEBUG -DREPLAY_TIMES=1000` it also prints how long a call takes.\n\n"
    return f"""# {n}

A network compiled for {library.made_for}: a header, an archive, no runtime.

    {n}_inputs inputs;      /* pointers to arguments, see {n}.h */
    {n}_outputs outputs;    /* pointers to results */
    {n}_run(&inputs, &outputs, workspace, {u}_WORKSPACE_BYTES);

It allocates nothing and keeps no state, so threads may call it at the same time, each with a
workspace of its own. It returns {u}_OK, or {u}_WORKSPACE_TOO_SMALL; where `NDEBUG` is not
defined, pointers are checked too ({u}_MISALIGNED, {u}_NULL_POINTER). The archive needs libm and
`memcpy`, and the compiler's own helpers.
{blob}{kept}{shared}{refused}
|  | name | shape | dtype | bytes |
|---|---|---|---|---|
{chr(10).join(arrays)}

| bytes of | |
|---|---|
| code | {sizes.code:,} |
| parameters, in the section `.rodata.{n}_parameters` | {sizes.parameters:,} |
| workspace, aligned to {library.memory.alignment} | {sizes.workspace:,} |
| the same, needed at the same time | {sizes.live:,} |
| arrays on the stack, spilled registers not counted | {sizes.stack:,} |

The example replays a recorded call and compares with what JAX computed:

    {" ".join(build)}
    {" ".join(run)}

{timed}With CMake: `cmake -S . -B build && cmake --build build`.

{_compilers(tools, target)}
"""


def cmake(library: Library, tools: CToolchain, machine: str) -> str:
    """Writes ``CMakeLists.txt``: the library as an imported target, and the example."""
    n = library.name
    flags = " ".join(tools.flags)
    assembled = " ".join(name for name in example_sources(library) if name.endswith(".S"))
    started = start(machine) if tools.board else ("-static",)
    sources = " ".join([*example_sources(library), *(s for s in started if s.endswith(".c"))])
    # CMake builds in a folder of its own.
    script = "${CMAKE_CURRENT_SOURCE_DIR}/board.ld"
    flags_of = [s.replace("board.ld", script) for s in started if not s.endswith(".c")]
    placed = " ".join(flags_of)
    found, linked = "", "m"
    if library.threads > 1:
        found, linked = "find_package(Threads REQUIRED)\n", '"m;Threads::Threads"'
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

{found}add_library({n} STATIC IMPORTED GLOBAL)
set_target_properties({n} PROPERTIES
    IMPORTED_LOCATION "${{CMAKE_CURRENT_SOURCE_DIR}}/lib{n}.a"
    INTERFACE_INCLUDE_DIRECTORIES "${{CMAKE_CURRENT_SOURCE_DIR}}"
    INTERFACE_LINK_LIBRARIES {linked})

if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)  # not where a project includes it
    set(CMAKE_C_STANDARD 11)
    separate_arguments(processor UNIX_COMMAND "{flags}")
    add_executable({n}_example {sources})
    target_compile_options({n}_example PRIVATE ${{processor}})
    target_include_directories({n}_example PRIVATE "${{CMAKE_CURRENT_SOURCE_DIR}}")
    set_source_files_properties({assembled} PROPERTIES
        COMPILE_OPTIONS "-I${{CMAKE_CURRENT_SOURCE_DIR}}")
    separate_arguments(placed UNIX_COMMAND "{flags} {placed}")
    target_link_libraries({n}_example PRIVATE {n} ${{placed}})
    {suffix}
endif()
"""


def _compilers(tools: CToolchain, target: Mapping[str, Any]) -> str:
    """Describes where the tools come from, and the flags that clang needs."""
    text = f"On Debian and Ubuntu the tools are in the packages {', '.join(packages(target))}. "
    compiler = tools.compiler.rpartition("/")[2]
    if target_machine(target) == "riscv32":
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
