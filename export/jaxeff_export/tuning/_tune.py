"""Tuning a bundle: one call, measured on one board, kept in one folder.

```python
import jax.numpy as jnp

from jaxeff_export import deploy, tune

f, args = lambda w, x: x @ w, (jnp.ones((16, 8)), jnp.ones((4, 16)))
bundle = deploy(f, args)
tuned = tune(bundle, "tuned", trials=1)                  # some dozens, in practice
assert tuned.check()
again = deploy(f, args, database="tuned")                # takes what was found
```

A `Display` shows a line per kernel, and the remaining time.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import TextColumn

from jaxeff.core import instance_of, path_like, progress_bars, static_integer, validate
from jaxeff.store import require_absent
from jaxeff_export.boards import Board, BoardError, make_board
from jaxeff_export.bundle import Bundle, Example, NamedTarget, build, lift
from jaxeff_export.bundle.files import MANIFEST, own_files
from jaxeff_export.schedules import ScheduleChoice, TuningDatabase, TuningError
from jaxeff_export.targets import require_extra, target_machine

if TYPE_CHECKING:
    from jaxeff_export.compiler import UnscheduledKernel


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


SPACES = ("tiles", "metaschedule")


# 9 parameters: what a user chooses of a search, as the options of the command `tune`.
@validate(
    bundle=instance_of(Bundle),
    database=path_like,
    trials=static_integer(),
    board=instance_of(str, Board),
)
def tune(
    bundle: Bundle,
    database: str | Path,
    *,
    trials: int = 64,
    operators: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    board: str | Board = "local",
    space: str = "tiles",
    path: str | Path | None = None,
    console: Console | None = None,
) -> Bundle:
    """Searches faster schedules for a bundle's kernels, and compiles it with what was found.

    Every candidate is checked against the plain loops of its kernel and written down as soon as it
    is measured. Stopped at any moment, the same call goes on where it was. The best candidates of
    a kernel then meet the default schedule in alternating measurements, and replace it only if
    they win.

    Args:
      bundle: the bundle to tune; it is not changed.
      database: the folder that keeps the measurements, made if it does not exist.
        ``deploy(..., database=...)`` uses them for any function with the same kernels.
      trials: candidates to measure per kernel, those already in the database included.
      operators: glob patterns of kernel names (``bundle.profile()`` lists them); by default the
        kernels that multiply and accumulate. Elementwise kernels and pooling are tuned only if
        their names are asked for.
      exclude: glob patterns of kernel names to leave out; the more specific of two patterns
        decides (`jaxeff.program`).
      board: board to measure on, ``"local"`` or an ``"rpc://"`` board of the bundle's target.
      space: ``"tiles"``, the register tiles of this project's own schedules, or
        ``"metaschedule"``, TVM's general space and evolutionary search.
      path: the folder of the new bundle (it may be the old one's); None for a temporary one.
      console: console that shows progress; None for silence.

    Returns:
      The new bundle.

    Raises:
      MissingExtraError: if TVM is not installed.
      TuningError: if the database is none, damaged, of another TVM version or in use, a pattern
        matches or decides no kernel, the bundle takes any batch, or its target cannot be measured
        on this board.
      BoardError: if the board fails; what was measured is kept.
      FileExistsError: if `path` holds anything but a bundle's own files.
    """
    require_extra("tvm", "tuning")
    # They import TVM: the line above says what is missing.
    from jaxeff_export.tuning._measuring import Bench
    from jaxeff_export.tuning._session import TuningSession

    _check_tunable(bundle, space, path)
    records, settings = TuningDatabase(database), bundle.manifest.target
    place = make_board(board, target=settings)
    _require_timings(bundle, place)
    example, target = bundle.example, NamedTarget.of_manifest(bundle.manifest)
    kernels = _kernels(example, target, _patterns(operators), _patterns(exclude) or [])
    with contextlib.ExitStack() as stack:
        # One writer at a time: lines of two processes would mix in the same files.
        stack.enter_context(records.locked(settings))
        workspace = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxeff-tune-"))
        # A board that the caller opened stays open.
        if not isinstance(board, Board):
            stack.enter_context(place)
        display = stack.enter_context(Display(console or Console(quiet=True), len(kernels)))
        bench = Bench(target, place, Path(workspace))
        session = TuningSession(settings, records, bench, space, trials, display)
        for kernel in kernels:
            session.tune(kernel)
    # Compiled anew: the new choices are found in the database like any others.
    return build(example, target, path, lambda _: None, records)


def _check_tunable(bundle: Bundle, space: str, path: str | Path | None) -> None:
    """Checks what is wrong whatever the database holds, and wherever is measured."""
    if space not in SPACES:
        raise TuningError(f"unknown space {space!r}; there are {' and '.join(SPACES)}")
    if path is not None:
        require_absent(Path(path), MANIFEST, own_files)
    if bundle.manifest.any_batch:
        raise TuningError(
            "the bundle takes any batch, and kernels are tuned for one; tune one deployed without "
            "any_batch"
        )


def _kernels(
    example: Example, target: NamedTarget, include: Sequence[str] | None, exclude: Sequence[str]
) -> list[UnscheduledKernel]:
    # TVM, which `tune` has asked for.
    from jaxeff_export.compiler import compilation_target, fused_kernels
    from jaxeff_export.tuning._spaces import select_kernels

    fused = fused_kernels(lift(example, target).main, compilation_target(target.settings))
    return select_kernels(fused, include, exclude)


def _patterns(patterns: str | Sequence[str] | None) -> list[str] | None:
    if patterns is None:
        return None
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _require_timings(bundle: Bundle, board: Board) -> None:
    """Refuses a board that cannot run the bundle's code, or whose timings mean nothing."""
    target = bundle.manifest.target
    wanted = f"{bundle.manifest.target_name} ({target_machine(target)})"
    way_out = "give an RPC board of that kind, e.g. board='rpc://raspberrypi:9090'"
    if board.untimed_because:
        raise BoardError(f"{board.name} cannot tune: {board.untimed_because}; {way_out}")
    if board.machine is not None and board.machine != target_machine(target):
        raise TuningError(
            f"kernels for {wanted} cannot be measured on {board.name} ({board.machine}); {way_out}"
        )
    if lacking := board.missing_features(target):
        raise TuningError(
            f"kernels for {wanted} need {', '.join(lacking)}, which {board.name} lacks; {way_out}"
        )
