"""``tune``: faster schedules for a bundle's kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jaxeff_export.cli._terminal import BundlePath, complain, console, failures_in_one_line


def tune(
    bundle: BundlePath,
    database: Annotated[
        Path, typer.Option(help="The folder that keeps every measurement; made if need be.")
    ],
    trials: Annotated[
        int, typer.Option(help="Candidates per kernel, those already in the database included.")
    ] = 64,
    operators: Annotated[
        list[str] | None,
        typer.Option(
            help="Kernels to tune, a glob pattern such as 'fused_conv2d*'; may be repeated. By "
            "default those that multiply and accumulate; elementwise kernels and pooling only if "
            "named here. The names are those that `profile` shows."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Kernels to leave out, as a pattern; may be repeated.")
    ] = None,
    board: Annotated[
        str,
        typer.Option(help="Where to measure: local, rpc://host:port or rpc://tracker:port/key."),
    ] = "local",
    space: Annotated[
        str,
        typer.Option(
            help="tiles: this package's own schedules, seconds per kernel. metaschedule: TVM's "
            "general search, for hours."
        ),
    ] = "tiles",
    output: Annotated[
        Path | None,
        typer.Option(help="The tuned bundle's folder; by default the bundle itself is replaced."),
    ] = None,
) -> None:
    """Search faster schedules for a bundle's kernels, and compile it with them.

    Stop it whenever you like: every measurement is kept, and the same command goes on. A schedule
    is used only where it beat the default one. `compile --database` uses what is known.
    """
    try:
        with failures_in_one_line():
            # JAX takes seconds to import: `--help` and other commands do without.
            from jaxeff_export.bundle import Bundle
            from jaxeff_export.tuning import tune as tune_bundle

            tuned = tune_bundle(
                Bundle.load(bundle),
                database,
                trials=trials,
                operators=operators or None,
                exclude=exclude or (),
                board=board,
                space=space,
                path=output or bundle,
                console=console,
            )
    except KeyboardInterrupt:
        complain(f"stopped; what was measured is in {database}, and the same command goes on")
        # 128 + 2, the number of the signal, as shells have it.
        raise typer.Exit(code=130) from None
    console.print(f"{tuned.folder} is compiled with what {database} holds", markup=False)
