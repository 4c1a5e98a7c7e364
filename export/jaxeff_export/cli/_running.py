"""``run`` and ``check``: a bundle on boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxeff_export.cli._terminal import (
    BoardName,
    BoardNames,
    BundlePath,
    complain,
    console,
    failures_in_one_line,
)

if TYPE_CHECKING:
    from jaxeff_export.bundle import BoardResult
    from jaxeff_export.bundle.files import SelfCheck


def run(
    bundle: BundlePath,
    inputs: Annotated[Path, typer.Argument(help="An npz file, one array per input name.")],
    outputs: Annotated[Path, typer.Argument(help="The npz file to write, one array per result.")],
    board: BoardName = "local",
) -> None:
    """Call the function on arrays from a file; `inspect` shows their names."""
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle
        from jaxeff_export.cli._arrays import read_arrays, require_place, write_arrays

        # Before the call, which may take long on a board: its results would have no place.
        require_place(outputs)
        loaded = Bundle.load(bundle)
        manifest = loaded.manifest
        arrays = read_arrays([inputs], manifest.inputs)
        with console.status(f"running on {board}"), loaded.on(board) as runner:
            results = runner.run_leaves(arrays)
        write_arrays(outputs, manifest.outputs, results)
    console.print(f"{outputs}: {', '.join(spec.name for spec in manifest.outputs)}", markup=False)


def check(bundle: BundlePath, boards: BoardNames = ["local"]) -> None:  # noqa: B006
    """Replay the recorded inputs on boards and compare with what JAX computed.

    The exit status is 1 if a result disagrees or a board fails.
    """
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle, run_on_boards

        loaded = Bundle.load(bundle)
        with console.status(f"checking on {', '.join(boards)}"):
            outcomes = run_on_boards(
                loaded, boards, lambda runner: runner.check(), report=_announce
            )
    # After all boards have answered: one that fails must not hide the others' results.
    if not all(outcome.result is not None and outcome.result.passed for outcome in outcomes):
        raise typer.Exit(code=1)


def _announce(outcome: BoardResult[SelfCheck]) -> None:
    if outcome.result is None:
        complain(outcome.error)
    else:
        console.print(str(outcome.result), markup=False)
