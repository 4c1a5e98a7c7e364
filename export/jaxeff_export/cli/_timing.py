"""``benchmark`` and ``profile``: how long a bundle takes on boards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from jaxeff_export.cli._terminal import (
    BoardName,
    BoardNames,
    BundlePath,
    complain,
    console,
    failures_in_one_line,
    table,
)

if TYPE_CHECKING:
    from jaxeff_export.bundle import BoardResult
    from jaxeff_export.bundle.running import Timing

_BAR = 24  # characters of a whole

Number = Annotated[int, typer.Option(min=1, help="Calls per measurement.")]
Repeat = Annotated[int, typer.Option(min=1, help="Measurements, of which the median counts.")]

Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Examples per call, of a bundle for any batch: the recorded ones, repeated. By "
        "default as many as it was compiled with.",
    ),
]


def benchmark(
    bundle: BundlePath,
    boards: BoardNames = ["local"],  # noqa: B006
    number: Number = 10,
    repeat: Repeat = 10,
    batch: Batch = None,
) -> None:
    """Time one call on boards, parameters and inputs resident there.

    Each board's figures are shown as soon as they are there. A board that fails does not cost the
    others' results; the exit status is 1 then.
    """
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle, run_on_boards

        loaded = Bundle.load(bundle)
        with console.status(f"timing on {', '.join(boards)}"):
            outcomes = run_on_boards(
                loaded,
                boards,
                lambda runner: runner.benchmark(number, repeat, batch),
                timed=True,
                report=_announce,
            )
    if len(outcomes) > 1:
        console.print(_comparison(str(bundle), outcomes), markup=False)
    if any(outcome.result is None for outcome in outcomes):
        raise typer.Exit(code=1)


def _announce(outcome: BoardResult[Timing]) -> None:
    if (timing := outcome.result) is None:
        complain(outcome.error)
        return
    console.print(
        f"{outcome.board}: median {timing.median_ms:.4g} ms over "
        f"{len(timing.times_ms)} × {timing.number} calls, "
        f"{min(timing.times_ms):.4g} to {max(timing.times_ms):.4g} ms",
        markup=False,
        highlight=False,
    )


def _comparison(title: str, outcomes: Sequence[BoardResult[Timing]]) -> Table:
    made = table("board", "median ms", "fastest ms", "slowest ms", title=title)
    for outcome in outcomes:
        if (timing := outcome.result) is None:
            made.add_row(outcome.board, "failed", "", "")
        else:
            figures = (timing.median_ms, min(timing.times_ms), max(timing.times_ms))
            made.add_row(outcome.board, *(f"{figure:.4g}" for figure in figures))
    return made


def profile(
    bundle: BundlePath,
    board: BoardName = "local",
    number: Number = 10,
    repeat: Repeat = 5,
    batch: Batch = None,
) -> None:
    """Show the time per compiled operator on a board, slowest first."""
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        from jaxeff_export.bundle import Bundle

        loaded = Bundle.load(bundle)
        with console.status(f"profiling on {board}"):
            operators = loaded.profile(board, number, repeat, batch)
    made = table("operator", "calls", "total ms", "share", "", title=f"{bundle} on {board}")
    for operator in operators:
        bar = "█" * round(_BAR * operator.share)
        row = (operator.name, f"{operator.calls:g}", f"{operator.ms:.4g}", f"{operator.share:.1%}")
        made.add_row(*row, bar)
    made.caption = f"{sum(operator.ms for operator in operators):.4g} ms in all, per call"
    console.print(made, markup=False)
