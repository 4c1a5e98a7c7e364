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
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jaxeff.core import instance_of, path_like, static_integer, validate
from jaxeff.store import require_absent
from jaxeff_export.boards import Board, BoardError, make_board
from jaxeff_export.bundle import Bundle, Example, NamedTarget, build, lift
from jaxeff_export.bundle.files import MANIFEST, own_files
from jaxeff_export.schedules import TuningDatabase, TuningError
from jaxeff_export.targets import require_extra, target_machine
from jaxeff_export.tuning._progress import Display

if TYPE_CHECKING:
    from jaxeff_export.compiler import UnscheduledKernel

SPACES = ("tiles", "metaschedule")


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

    if space not in SPACES:
        raise TuningError(f"unknown space {space!r}; there are {' and '.join(SPACES)}")
    records = TuningDatabase(database)
    if path is not None:
        require_absent(Path(path), MANIFEST, own_files)
    if bundle.manifest.any_batch:
        raise TuningError(
            "the bundle takes any batch, and kernels are tuned for one; tune one deployed without "
            "any_batch"
        )
    settings = bundle.manifest.target
    place = make_board(board, cpu=settings.get("mcpu"))
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


def _kernels(
    example: Example, target: NamedTarget, include: Sequence[str] | None, exclude: Sequence[str]
) -> list[UnscheduledKernel]:
    # TVM, which `tune` has asked for.
    from jaxeff_export.compiler import compilation_target, fused_kernels
    from jaxeff_export.tuning._selection import select

    fused = fused_kernels(lift(example, target).main, compilation_target(target.settings))
    return select(fused, include, exclude)


def _patterns(given: str | Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    return [given] if isinstance(given, str) else list(given)


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
