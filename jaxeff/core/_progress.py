"""Progress of long runs: a bar on a terminal and in a notebook, lines in a log on request.

```python
from jaxeff.core import progress_bar

with progress_bar(None, "epoch", 20) as advance:
    for epoch in range(20):
        advance(1, "loss 0.31")
```

Functions that run for long take ``progress``. None shows it on a terminal or in a notebook and
nowhere else. True shows it anywhere, in a log file as one line per half minute. False never shows
it. Of several processes only the first shows it.
"""

import html
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

Advance = Callable[[float, str], None]


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C during a run. The message says how to go on, and what is finished isn't lost.

    Attributes:
      result: What the run would have returned, as far as it came; None if there is nothing. In a
        notebook: ``sys.last_value.result``.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


@contextmanager
def keeps_finished(so_far: Callable[[], tuple[str, Any]]) -> Iterator[None]:
    """Gives Ctrl-C a message, and what is finished.

    Args:
      so_far: Called at Ctrl-C: what to say, and what the run would return now.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        message, result = so_far()
        if isinstance(error, InterruptedRun):  # of a run inside, which says more of itself
            message = f"{message} ({error})"
        if result is not None:
            message += "; the error's result holds it (in a notebook: sys.last_value.result)"
        raise InterruptedRun(message, result) from None


LOG_SECONDS = 30.0
"""Between two lines of a log file."""
NOTEBOOK_SECONDS = 0.25
"""Between two drawings of a notebook's bar."""


@contextmanager
def progress_bar(
    show: bool | None,
    unit: str,
    total: float | None,
    done: float = 0,
    *,
    console: Console | None = None,
) -> Iterator[Advance]:
    """Shows how far a run is, on standard error.

    Args:
      show: None shows it on a terminal and in a notebook, True anywhere, False nowhere.
      unit: What is counted.
      total: Number of units in all; None where it isn't known.
      done: Number of units done already.
      console: Console to show it on instead.

    Yields:
      A function of how many more are done and of a line about them.
    """
    from jaxeff.core._processes import is_first  # JAX, which nobody needs for a bar of their own

    console = console or Console(stderr=True)
    watched = console.is_terminal or console.is_jupyter
    if show is False or (show is None and not watched) or not is_first():
        yield lambda more, line: None
    elif console.is_terminal:
        line_column = TextColumn("{task.description}", markup=False)
        with progress_bars(console, TextColumn(unit), after=[line_column]) as bar:
            task = bar.add_task("", total=total)
            bar.update(task, completed=done)
            yield lambda more, line: bar.update(task, advance=more, description=line)
    else:
        in_notebook = console.is_jupyter
        draw = _notebook_bar() if in_notebook else _log(console)
        count = _Count(unit, total, done, draw, NOTEBOOK_SECONDS if in_notebook else LOG_SECONDS)
        try:
            yield count.advance
        finally:
            count.draw()


def progress_bars(
    console: Console, *before: ProgressColumn, after: list[ProgressColumn] | None = None
) -> Progress:
    """Makes a display of one or more bars, all of the same look.

    Args:
      console: Console to show them on.
      *before: Columns that stand before the bar.
      after: Columns that stand after the time that is left.
    """
    return Progress(
        *before, BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(),
        *(after or []), console=console,
    )  # fmt: skip


class _Count:
    """Counts, and draws now and then."""

    def __init__(
        self,
        unit: str,
        total: float | None,
        done: float,
        show: Callable[[str, float | None, str], None],
        every: float,
    ):
        self._unit, self._total, self._done, self._first = unit, total, done, done
        self._show, self._every, self._line = show, every, ""
        self._began = self._drawn = time.monotonic()

    def advance(self, more: float, line: str) -> None:
        """Counts steps that are done, and draws if the last drawing is long ago."""
        self._done, self._line = self._done + more, line
        # Drawing may take longer than a step, so its frequency is bounded by time, not by steps.
        if time.monotonic() - self._drawn >= self._every:
            self.draw()

    def draw(self) -> None:
        """Shows the count, the time left and the last line."""
        self._drawn = time.monotonic()
        # The rate of this process: steps that an earlier one finished took none of its time.
        passed, new = self._drawn - self._began, self._done - self._first
        total = self._total
        left = passed / new * (total - self._done) if new and total is not None else None
        rest = "" if not left else f"{timedelta(seconds=round(left))} left"
        head = f"{self._unit} {self._done:.10g}" + ("" if total is None else f"/{total:.10g}")
        share = None if total is None else self._done / total if total else 1.0
        self._show(head, share, "  ".join(part for part in (rest, self._line) if part))


def _log(console: Console) -> Callable[[str, float | None, str], None]:
    def show(head: str, share: float | None, rest: str) -> None:
        console.print(f"{head}  {rest}", markup=False, highlight=False, soft_wrap=True)

    return show


def _notebook_bar() -> Callable[[str, float | None, str], None]:
    """Displays a bar that any notebook shows, without widgets."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)

    def show(head: str, share: float | None, rest: str) -> None:
        value = "" if share is None else f'value="{share:.4f}"'
        text = f'{html.escape(head)} <progress max="1" {value}></progress> '
        bundle = {"text/plain": f"{head}  {rest}", "text/html": text + html.escape(rest)}
        handle.update(bundle, raw=True)

    return show
