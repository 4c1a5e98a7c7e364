"""``targets`` and ``boards``: what can be compiled for, and where it can run."""

from __future__ import annotations

from jaxeff_export.cli._terminal import console, failures_in_one_line, table
from jaxeff_export.targets import (
    MissingExtraError,
    ToolchainError,
    find_linker,
    require_extra,
    resolve_target,
    target_machine,
    target_names,
)


def targets() -> None:
    """List the named targets, and whether this machine can compile for each."""
    made = table("target", "architecture", "processor", "cores", "linker")
    with failures_in_one_line():
        for name in target_names():
            try:
                require_extra("tvm", "compiling")
                settings = resolve_target(name)
                linker = find_linker(settings)
            except (MissingExtraError, ToolchainError) as error:
                made.add_row(name, "", "", "", f"no: {error}")
                continue
            row = (target_machine(settings), settings["mcpu"], str(settings["num-cores"]), linker)
            made.add_row(name, *row)
    console.print(made, markup=False)


def boards() -> None:
    """List the kinds of boards, and whether each can be used here."""
    # JAX takes seconds to import: `--help` and other commands do without.
    from jaxeff_export.boards import CORES, PROGRAM_CORES, board_kinds

    made = table("board", "what it is", "usable here")
    with failures_in_one_line():
        for kind in board_kinds():
            made.add_row(kind.name, kind.what, f"no: {kind.missing}" if kind.missing else "yes")
    made.caption = f"emulated cores: {', '.join(CORES)}; by programs: {', '.join(PROGRAM_CORES)}"
    console.print(made, markup=False)
