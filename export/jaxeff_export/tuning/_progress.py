"""Shows the progress of tuning: a line per kernel, and the remaining time."""

from __future__ import annotations

from typing import Any, Self

from rich.console import Console
from rich.progress import TextColumn

from jaxeff.core import progress_bars
from jaxeff_export.schedules import ScheduleChoice


class Display:
    """A progress display; use it in a with statement.

    Args:
      console: console that it is drawn on.
      kernels: number of kernels to tune.
    """

    def __init__(self, console: Console, kernels: int) -> None:
        kernel = TextColumn("{task.description}", markup=False)
        best = TextColumn("{task.fields[best]}", markup=False)
        self._progress = progress_bars(console, kernel, after=[best])
        self._kernels = kernels
        self._trials = 0
        self._all = self._progress.add_task(f"all {kernels} kernels", total=None, best="")
        self._current = self._all
        self._finished = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._progress.stop()

    def begin(self, kernel: str, done: int, trials: int) -> None:
        """Shows a new bar for a kernel."""
        self._trials = trials
        self._show_all(done)
        self._current = self._progress.add_task(kernel, total=trials, completed=done, best="")

    def advance(self, best: float | None, default: float) -> None:
        """Counts one candidate more."""
        self._progress.advance(self._all)
        self._progress.advance(self._current)
        text = f"default {_time(default)}"
        if best is not None:
            text += f", best {_time(best)} ({default / best:.2f}× faster)"
        self._progress.update(self._current, best=text)

    def decide(self, kernel: str, choice: ScheduleChoice) -> None:
        """Replaces the bar by a line that stays."""
        self._finished += 1
        if self._current != self._all:
            self._progress.remove_task(self._current)
            self._current = self._all
        self._show_all(0)
        gain = choice.default_microseconds / choice.microseconds
        verdict = f"{gain:.2f}× faster" if choice.trace is not None else "the default stays"
        self._progress.console.print(
            f"{kernel}: {_time(1e-6 * choice.default_microseconds)} → "
            f"{_time(1e-6 * choice.microseconds)}, {verdict} ({choice.trials} candidates)",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _show_all(self, done: int) -> None:
        """Shows the progress of all kernels; some have fewer candidates than were asked for."""
        # Finished kernels count in full, whatever they tried: else the bar would never end.
        completed = self._finished * self._trials + done
        total = self._kernels * self._trials or None
        self._progress.update(self._all, completed=completed, total=total)


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.4g} µs"
