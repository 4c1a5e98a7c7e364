"""A C library in a folder: everything that is written, compiled and checked for it.

NAME.h             the interface
NAME.hpp           the same for C++
libNAME.a          kernels, what calls them, parameters
NAME.c             what calls the kernels, to read
main.c             the example, with recorded.S and recorded.bin, what it replays
NAME_serial.c, .h  a firmware's end of a serial line, with serial_main.c of one board
README.md          how to build and run it, sizes
CMakeLists.txt     the same for CMake
startup.c board.ld where there is no operating system (of RISC-V board.ld alone)
library.json       sizes, what each call of a kernel takes, and the list of these files

A package for another build system has these, and a few more (`packages`).
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxeff.store import atomic_folder, write_atomically
from jaxeff_export import targets
from jaxeff_export.artifact import TensorSpec
from jaxeff_export.clib import _objects as objects
from jaxeff_export.clib import codegen
from jaxeff_export.clib._objects import CLibraryError, Sizes, require_room
from jaxeff_export.clib._packages import Package, cpp_header, facts_of, package_files, require_style
from jaxeff_export.clib._steps import CallCost, steps_of

if TYPE_CHECKING:
    import tvm

FACTS = "library.json"
_DOUBLES = {"float64", "complex128"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryParts:
    """Ingredients of a library.

    Attributes:
        name: prefix of the names in C.
        target_name: the processor, as it was asked for.
        target: the TVM target dict.
        module: the function, whose first arguments are bound.
        operands: their values.
        inputs: Further arguments.
        outputs: the results.
        arguments: recorded values of its arguments.
        expected: what JAX computed from them.
        tolerances: what results may differ, each relative to its largest magnitude.
        tuned: same as for `jaxeff_export.compile_module`.
        embed: whether the archive has the parameters.
        flash: bytes of it that are there.
        ram: bytes of it that are there.
        limited: whether a library that these don't hold is refused.
        threads: the most threads that may share a loop.
        rounds_inputs: whether arguments are rounded to codes, so that a call refuses NaN.
        state: indices of arguments that calls update, each with that of the result it becomes.
        style: the build system that it is packed for.
        kernel_target: what kernels are scheduled for, by default the target.
        source: whether kernels are C99 source in place of machine code.
        model: hash of the function, by which a firmware on a serial line is known.
    """

    name: str
    target_name: str
    target: Mapping[str, Any]
    module: tvm.IRModule
    operands: Sequence[np.ndarray]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    arguments: Sequence[np.ndarray]
    expected: Sequence[np.ndarray]
    tolerances: Sequence[float]
    tuned: Callable[..., Any] | None = None
    embed: bool = True
    flash: int | None = None
    ram: int | None = None
    limited: bool = True
    threads: int = 1
    rounds_inputs: bool = False
    state: Sequence[tuple[int, int]] = ()
    style: str = "cmake"
    kernel_target: Mapping[str, Any] | None = None
    source: bool = False
    model: str = "0" * 16


@dataclasses.dataclass(frozen=True, repr=False)
class CLibrary:
    """A C library in a folder.

    Attributes:
        folder: path of the folder.
        name: prefix of the names in C.
        target_name: the processor.
        target: the TVM target dict.
        outputs: the results.
        sizes: what it takes.
        needs: functions it takes from elsewhere: libm's, copies, the compiler's.
        build: the command that builds its example, in the folder, but for the program's name.
        serial_build: the same of the firmware on a serial line.
        steps: what each call of a kernel takes, in order.
        source: whether it is C source alone.
    """

    folder: Path
    name: str
    target_name: str
    target: Mapping[str, Any]
    outputs: tuple[TensorSpec, ...]
    sizes: Sizes
    needs: tuple[str, ...]
    build: tuple[str, ...]
    steps: tuple[CallCost, ...] = ()
    source: bool = False
    serial_build: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.folder}: {self.sizes}"

    __repr__ = __str__


def write_library(order: LibraryParts, path: Path) -> CLibrary:
    """Writes a library into a folder, whole or not at all.

    Raises:
        CLibraryError: if an operation has no static kernel, a size varies, it doesn't fit, there
            is no operating system for its threads, or no unit for its numbers of 64 bits.
        FileExistsError: if `path` holds anything but a library's own files.
        TargetError: if the target has no floating-point unit.
        ToolchainError: if a compiler is missing, or fails.
    """
    _require_its_floats(order)
    tools = targets.find_c_toolchain(order.target)
    # The name becomes part of every symbol: it is not changed behind the caller's back.
    codegen.require_name(order.name)
    if order.threads < 1 or (order.threads > 1 and tools.board):
        raise CLibraryError(
            f"threads={order.threads}: there has to be one, the caller's"
            if order.threads < 1
            else f"threads={order.threads}: {order.target_name} has no operating system that would "
            "run them; leave threads at 1"
        )
    core = targets.name_of(order.target)
    require_style(
        order.style, None if order.source else core, embed=order.embed, threads=order.threads
    )
    with atomic_folder(path, FACTS, own_files) as folder:
        library, sizes, needs = _compile(order, tools, folder)
        # Without `-o` and a name, which whoever builds it adds.
        build = codegen.example.example_command(
            library, tools, targets.target_machine(order.target), ""
        )[:-2]
        _write_example(order, library, tools, sizes, folder)
        facts: dict[str, Any] = {"format": "jaxeff-c-library", "model": order.model}
        facts |= facts_of(order.style, _pack(order, library, tools, core, folder))
        written = [
            entry.relative_to(folder).as_posix() for entry in folder.rglob("*") if entry.is_file()
        ]
        ending = ".elf" if tools.board else ""
        files = sorted([*written, f"example{ending}", f"firmware{ending}"])  # as README builds
        steps = steps_of(library)
        facts["files"] = files
        facts |= {"sizes": sizes.to_json(), "steps": [step.to_json() for step in steps]}
        facts |= {"target_name": order.target_name, "target": dict(order.target), "needs": needs}
        write_atomically(folder / FACTS, json.dumps(facts, indent=2) + "\n")
    return CLibrary(
        folder=path,
        name=order.name,
        target_name=order.target_name,
        target=order.target,
        outputs=tuple(order.outputs),
        sizes=sizes,
        needs=needs,
        build=tuple(build),
        steps=steps,
        source=order.source,
        serial_build=tuple(codegen.serial.serial_build(library, build)),
    )


def own_files(data: bytes) -> frozenset[str]:
    """Lists the files beside a ``library.json`` that are its library's.

    Raises:
        CLibraryError: if it is none.
    """
    try:
        facts = json.loads(data)
        if facts["format"] != "jaxeff-c-library":
            raise ValueError("it is of another kind")
        # A path that leads out of the folder is none of a library's to replace.
        paths = (PurePosixPath(name) for name in facts["files"])
        return frozenset(
            str(path) for path in paths if not path.is_absolute() and ".." not in path.parts
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CLibraryError(f"{FACTS} lists no files of a C library: {error}") from error


def scheduled(order: LibraryParts) -> tuple[tvm.IRModule, Any]:
    """Schedules the kernels as a bundle of the function runs them, and returns their target."""
    # TVM only where kernels are compiled: a written library is opened and replayed without it.
    from jaxeff_export.clib._program import with_narrow_constants, with_views
    from jaxeff_export.compiler import compilation
    from jaxeff_export.operators.integer import shortcuts_in_bands

    target = dict(order.kernel_target or order.target)
    if order.threads > 1:  # of one core schedules mark no loops
        target["num-cores"] = order.threads
    module = compilation.schedule_module(order.module, target, order.tuned)
    module = with_views(shortcuts_in_bands(module))
    if targets.processor_of(order.target):
        module = with_narrow_constants(module)
    return module, compilation.compilation_target(target)


def _require_its_floats(order: LibraryParts) -> None:
    """Refuses float64 where the processor has no unit for it, as JAX_ENABLE_X64 makes it."""
    if targets.has_double_precision(order.target):
        return
    dtypes = {
        **{f"argument {spec.name}": spec.dtype for spec in order.inputs},
        **{f"result {spec.name}": spec.dtype for spec in order.outputs},
    }
    wide = [f"{what} is {dtype}" for what, dtype in dtypes.items() if dtype in _DOUBLES]
    if wide:
        others = f" (and {len(wide) - 1} more)" if len(wide) > 1 else ""
        raise CLibraryError(
            f"{wide[0]}{others}, and {order.target_name} has no unit for numbers of 64 bits: give "
            "float32, x.astype(jnp.float32), where JAX_ENABLE_X64 makes them float64"
        )


def _compile(
    order: LibraryParts, tools: targets.CToolchain, folder: Path
) -> tuple[codegen.driver.Library, Sizes, tuple[str, ...]]:
    """Writes and compiles the library, and lists what it takes from elsewhere."""
    # TVM, as above.
    from jaxeff_export.clib import _kernels as lowering
    from jaxeff_export.clib._program import plan, program_of

    n, machine = order.name, targets.target_machine(order.target)
    wide = 64 if machine in ("x86_64", "aarch64") else 16  # a line of the cache; a vector
    module, where = scheduled(order)
    stack = lowering.FEW_STACK_BYTES if targets.processor_of(order.target) else lowering.STACK_BYTES
    program = program_of(module, len(order.operands))
    inputs, outputs = _fields(order)
    # Object files are made elsewhere: the library's folder has their archive alone.
    with tempfile.TemporaryDirectory(prefix="jaxeff-c-") as temporary:
        workspace = Path(temporary)
        lines = None
        if order.source:
            lines, kernels = lowering.kernels_in_c(module, where, n, order.threads, stack)
        else:
            kernels = lowering.compile_kernels(
                module, where, n, workspace / "kernels.o", order.threads, stack
            )
        library = codegen.driver.Library(
            name=n,
            made_for=_made_for(order),
            inputs=inputs,
            outputs=outputs,
            program=program,
            kernels=kernels,
            memory=plan(program, kernels, wide),
            parameters=codegen.pack(program, order.operands, wide),
            embedded=order.embed,
            threads=order.threads,
            rounds_inputs=order.rounds_inputs,
            initial=[order.arguments[old] for old, _ in sorted(order.state)],
            kernel_source=None if lines is None else tuple(lines),
        )
        write_atomically(folder / f"{n}.h", codegen.driver.header(library))
        write_atomically(folder / f"{n}.c", codegen.driver.source(library))
        objects.compile_c(tools, folder / f"{n}.c", workspace / "driver.o", c99=order.source)
        code = _code_files(order, tools, module, workspace)
        sizes = _sizes(order, library, objects.code_size(tools, code))
        # Before parameters are written and linked: a library that doesn't fit is never finished.
        if order.limited:
            _require_room(order, sizes)
        compiled = _linked(order, library, tools, code, workspace, folder)
        # A symbol that nobody has would show at the user's linker, and name no operation.
        needs = objects.require_self_contained(tools, compiled, threads=order.threads > 1)
    return library, sizes, needs


def _fields(
    order: LibraryParts,
) -> tuple[tuple[codegen.Field, ...], tuple[codegen.Field, ...]]:
    """Names the fields of the struct of inputs and of that of outputs."""
    # Fields of its own that the struct may have: an argument of such a name gets another one.
    ours = {"parameters": not order.embed, codegen.driver.THREADS_FIELD: order.threads > 1}
    ours[codegen.STATE] = bool(order.state)
    inputs = codegen.fields_of(
        order.inputs, frozenset(name for name, there in ours.items() if there)
    )
    return codegen.kept_apart(inputs, codegen.fields_of(order.outputs), order.state)


def _sizes(order: LibraryParts, library: codegen.driver.Library, code: int) -> Sizes:
    """Lists the bytes of a library, of `code` bytes of compiled files."""
    # In source they are constants beside the code, without gaps between them.
    beside = order.source and order.embed
    packed = library.parameters
    parameters = sum(v.nbytes for v in packed.values.values()) if beside else len(packed.blob)
    return Sizes(
        code=code - (parameters if beside else 0),
        parameters=parameters,
        workspace=library.memory.size,
        live=library.memory.live,
        arrays=sum(field.size for field in (*library.inputs, *library.returned)),
        stack=library.stack,
    )


def _linked(
    order: LibraryParts, library: codegen.driver.Library, tools: targets.CToolchain,
    code: list[Path], workspace: Path, folder: Path,
) -> Path:  # fmt: skip
    """Writes the parameters and the archive, and returns the file that has the compiled code."""
    symbol, packed = f"{order.name}_parameters", library.parameters
    if not (order.source and order.embed):
        where = workspace if order.embed else folder
        _write_block(order, where, symbol, symbol, packed.blob, packed.alignment)
    if order.source:
        return workspace / "driver.o"
    if order.embed:
        objects.compile_c(tools, workspace / f"{symbol}.S", workspace / "parameters.o")
        code = [*code, workspace / "parameters.o"]
    path = folder / f"lib{order.name}.a"
    objects.archive(tools, code, path)
    return path


def _require_room(order: LibraryParts, sizes: Sizes) -> None:
    """Refuses a library that the memories don't hold."""
    processor = targets.processor_of(order.target)
    # A microcontroller's memories are known; elsewhere only what the caller names is a limit.
    flash, ram = processor.limits if processor else (None, None)
    flash = flash if order.flash is None else order.flash
    ram = ram if order.ram is None else order.ram
    require_room(sizes, flash, ram, embedded=order.embed)


def _code_files(
    order: LibraryParts, tools: targets.CToolchain, module: Any, workspace: Path
) -> list[Path]:
    """Returns the object files of a library's code: its driver, and kernels that aren't source."""
    from jaxeff_export.operators.integer import dual_functions  # TVM, as above

    driver, kernels, layers = workspace / "driver.o", workspace / "kernels.o", workspace / "dual.o"
    if order.source:
        return [driver]
    # Before sizes are taken: what is left out here takes no room on a device.
    objects.trim(tools, kernels)
    functions = dual_functions(module)
    if not functions:
        return [kernels, driver]
    # Two libraries in one program may have the same layers: names are the library's own.
    names = {name: f"{order.name}_{name.removeprefix('jaxeff_')}" for name in sorted(functions)}
    objects.rename(tools, kernels, names)
    sources = {name: functions[symbol] for symbol, name in names.items()}
    write_atomically(workspace / "dual.c", codegen.dual.source(sources))
    objects.compile_c(tools, workspace / "dual.c", layers)
    return [kernels, driver, layers]


def _made_for(order: LibraryParts) -> str:
    """Says what a library can be built with."""
    if order.source:
        return "any compiler of C99"
    machine = targets.target_machine(order.target)
    return f"{order.target_name} ({order.target.get('mcpu', machine)}, {machine})"


def _pack(
    order: LibraryParts,
    library: codegen.driver.Library,
    tools: targets.CToolchain,
    core: str,
    folder: Path,
) -> Package:
    """Writes the header for C++, and what the style adds to the folder."""
    n, hpp = order.name, cpp_header(library)
    # Of source there is a file and its header, unless a package has the one for C++ too.
    if not order.source or order.style != "cmake":
        write_atomically(folder / f"{n}.hpp", hpp)
    headers = {f"{n}.h": (folder / f"{n}.h").read_text(), f"{n}.hpp": hpp}
    code = f"{n}.c" if order.source else f"lib{n}.a"
    package = Package(library, core, tools.flags, code, (folder / code).read_bytes(), headers)
    for name, content in package_files(order.style, package).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)
    return package


def _is_arm(order: LibraryParts) -> bool:
    """Tells whether it is 32-bit ARM, whose assembler has marks of its own."""
    return targets.target_machine(order.target).startswith(("arm", "thumb"))


def _write_block(
    order: LibraryParts, folder: Path, file: str, symbol: str, blob: bytes, alignment: int
) -> None:
    """Writes bytes as a file, and beside it what links them into a program."""
    write_atomically(folder / f"{file}.bin", blob)
    if order.source:
        write_atomically(folder / f"{file}.c", codegen.example.block_c(symbol, blob, alignment))
    else:
        text = codegen.assembly(symbol, f"{file}.bin", alignment, arm=_is_arm(order))
        write_atomically(folder / f"{file}.S", text)


def _write_example(
    order: LibraryParts,
    library: codegen.driver.Library,
    tools: targets.CToolchain,
    sizes: Sizes,
    folder: Path,
) -> None:
    recorded = codegen.example.record(order.arguments, order.expected)
    _write_block(
        order, folder, "recorded", f"{order.name}_recorded", recorded.blob,
        library.memory.alignment,
    )  # fmt: skip
    write_atomically(folder / "main.c", codegen.example.main_c(library, recorded, order.tolerances))
    machine = targets.target_machine(order.target)
    for file, text in codegen.serial.serial_files(
        library, machine, tools.board, order.model
    ).items():
        write_atomically(folder / file, text)
    core = targets.name_of(order.target)
    readme = codegen.example.readme(library, tools, core, order.target, sizes)
    write_atomically(folder / "README.md", readme)
    write_atomically(
        folder / "CMakeLists.txt",
        codegen.example.cmake(library, tools, machine),
    )
    if tools.board:
        # The linker script describes the emulated board; a caller who names more memory gets it.
        board = codegen.example.at_least(tools.board, order.flash, order.ram)
        for file, content in codegen.example.start_files(board, machine).items():
            write_atomically(folder / file, content)
