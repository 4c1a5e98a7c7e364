"""The firmware's end of a serial line: ``NAME_serial.c`` with its header, and ``serial_main.c``.

``NAME_serial.c`` is C99 that allocates nothing: it keeps arguments and results beside one request
of the protocol, and calls the library. `jaxeff_export.boards.SerialBoard` is the other end. With
``-DNAME_MLPERF`` it speaks MLPerf Tiny's protocol, in which a runner sends all bytes of the
arguments and is told the first result.
``serial_main.c`` has the four functions that a board brings, for the board that is emulated or for
standard input and output.
"""

import re
from collections.abc import Sequence

from jaxeff_export import targets
from jaxeff_export.clib._objects import HALF, TYPES
from jaxeff_export.clib.codegen._interface import STATE, Field, Library
from jaxeff_export.clib.codegen._rendering import render

_BOARDS = {"mps2-an505": ("0x50200000", 20), "mps3-an547": ("0x59303000", 32)}
"""Registers of the UART of Arm's boards, and MHz, where they aren't those of the first ones."""


def serial_files(
    library: Library, machine: str, board: targets.BoardMemory | None, model: str
) -> dict[str, str]:
    """Writes the files of a firmware on a serial line, by name.

    Args:
        library: what they call.
        machine: the processor's architecture.
        board: the board of a microcontroller; None where there is an operating system.
        model: the hash by which the computer knows the firmware.
    """
    n = library.name
    return {
        f"{n}_serial.h": render("serial.h", name=n, NAME=library.upper),
        f"{n}_serial.c": _protocol(library, model),
        "serial_main.c": _main(library, machine, board),
    }


def serial_build(library: Library, command: Sequence[str]) -> list[str]:
    """Changes the command that builds the example to one that builds the firmware."""
    n = library.name
    files = ["serial_main.c", f"{n}_serial.c", f"{n}.c", f"-D{library.upper}_PROFILE"]
    rest = [
        word for word in command if word not in ("main.c", f"{n}.c", "recorded.S", "recorded.c")
    ]
    # Behind the compiler: what the archive has of it is linked where nothing else is found.
    return [rest[0], *files, *rest[1:]]


def _main(library: Library, machine: str, board: targets.BoardMemory | None) -> str:
    if board is None:
        return render("serial_hosted.c", name=library.name)
    if machine == "riscv32":
        return render("serial_virt.c", name=library.name)
    uart, mhz = _BOARDS.get(board.machine, ("0x40004000", 25))
    return render(
        "serial_mps2.c", name=library.name, machine=board.machine, uart=uart, hertz=1000000 * mhz
    )


def _protocol(library: Library, model: str) -> str:
    n = library.name
    passed = {field.name: f"argument_{i}" for i, field in enumerate(library.passed)}
    returned = {field.name: f"result_{i}" for i, field in enumerate(library.returned)}
    # Arrays of their elements' type, so that they are aligned as these are.
    buffers = [
        f"static {field.kind} {names[field.name]}[{max(1, field.count)}];"
        for fields, names in ((library.passed, passed), (library.returned, returned))
        for field in fields
    ]
    if library.state:
        buffers.append(f"static {n}_state state;")
    assignments = [f"    inputs.{field} = {name};" for field, name in passed.items()]
    assignments += [f"    outputs.{field} = {name};" for field, name in returned.items()]
    if library.state:
        assignments.append(f"    inputs.{STATE} = &state;")
    parameters = []
    if not library.embedded:
        assignments.append(f"    inputs.parameters = {n}_parameters;")
        parameters = [f"extern const unsigned char {n}_parameters[];"]
    made_for = re.sub(r'[^ -~]|["\\?]', "_", library.made_for.partition(" (")[0])
    kernels = [call.kernel for call in library.program.calls]
    return render(
        "serial.c",
        name=n,
        NAME=library.upper,
        steps=len(kernels),
        identity=f"{model} {n} {made_for}",
        kernels=[f'    "{name}\\n"' for name in kernels[:-1]] + [f'    "{(kernels or [""])[-1]}";'],
        parameters=parameters,
        buffers=buffers,
        argument_parts=_parts(library.inputs, passed),
        result_parts=_parts(library.outputs, returned),
        assignments=assignments,
        mlperf=_mlperf(library, returned).splitlines(),
    )


def _mlperf(library: Library, names: dict[str, str]) -> str:
    """Writes the part that speaks MLPerf Tiny's protocol."""
    field = next((field for field in library.returned if field.count), None)
    unsupported = []
    # Told by the compiler, and only where the protocol is asked for: other firmwares have any.
    if field is None or field.spec.dtype not in TYPES or field.spec.dtype in HALF:
        what = "there is no result" if field is None else f"{field.name} is {field.spec.dtype}"
        unsupported = [f"#error {what}: a result of MLPerf Tiny is an array of float32 or integers"]
    return render(
        "mlperf.c",
        name=library.name,
        NAME=library.upper,
        unsupported=unsupported,
        results=0 if field is None else field.count,
        result="counts" if field is None else names[field.name],
    )


def _parts(fields: Sequence[Field], names: dict[str, str]) -> list[str]:
    """Lists arrays in the function's order, state among them."""
    parts = [
        f"    {{{f'state.{field.name}' if field.kept else names[field.name]}, {field.size}}},"
        for field in fields
        if field.size
    ]
    return [*parts, "    {NULL, 0},"]
