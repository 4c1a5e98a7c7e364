"""``c``: from a bundle to a C library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jaxeff_export.cli._terminal import BundlePath, console, failures_in_one_line, table

_COLUMNS = ("parameters", "reads", "writes", "scratch", "live")


def c(
    bundle: BundlePath,
    folder: Annotated[Path, typer.Argument(help="The library's folder, written or replaced.")],
    name: Annotated[
        str | None, typer.Option(help="What its names in C begin with; by default the folder's.")
    ] = None,
    blob: Annotated[
        bool, typer.Option("--blob", help="Keep the parameters in a file that the board loads.")
    ] = False,
    flash: Annotated[
        str | None, typer.Option(help="Bytes for code and parameters: 524288, 512k or 2M.")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(help="Bytes for workspace, arguments, results and stack.")
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(help="A folder that tune filled, for faster schedules where it knows some."),
    ] = None,
    threads: Annotated[
        int, typer.Option(help="How many threads may share the loops of a call.")
    ] = 1,
    style: Annotated[
        str,
        typer.Option(help="Package for: cmake, arduino, platformio, zephyr or cmsis-pack."),
    ] = "cmake",
    steps: Annotated[
        bool, typer.Option("--steps", help="Print what each call of a kernel takes, too.")
    ] = False,
) -> None:
    """Write a bundle's function as a C library: a header, an archive, an example, no runtime.

    With --flash or --ram, one that does not fit is refused before it is linked.
    """
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        with console.status(f"compiling for {loaded.manifest.target_name}"):
            library = loaded.export_c(
                folder,
                name=name,
                embed=not blob,
                flash=flash,
                ram=ram,
                database=database,
                threads=threads,
                style=style,
            )
        sizes = library.sizes
        for what, size in sizes.to_json().items():
            console.print(f"{what}: {size:,} bytes", highlight=False)
        if steps:
            made = table(
                "kernel", *_COLUMNS, "held for later", title="bytes of each call, in order"
            )
            for step in library.steps:
                sizes_of = (f"{getattr(step, name):,}" for name in _COLUMNS)
                held = ", ".join(f"{size:,} of {kernel}" for kernel, size in step.held)
                made.add_row(step.kernel, *sizes_of, held)
            console.print(made, markup=False)
        console.print(f"{library.folder}: README.md says how its example is built", markup=False)
