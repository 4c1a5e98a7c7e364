"""A progress bar for long runs, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(
    show: bool, unit: str, total: int, done: int
) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Args:
      show: Whether to show it at all.
      unit: What is counted.
      total: How many there are.
      done: How many are done already.

    Yields:
      A function of how many more are done and of a line about them.
    """
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda more, line: None
        return
    columns = (
        TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda more, line: bar.update(task, advance=more, description=line)
