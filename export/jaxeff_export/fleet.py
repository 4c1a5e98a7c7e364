"""The same work on several boards at once; one that fails does not cost the others' results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxeff_export.boards import Board, BoardError, make_board
from jaxeff_export.bundle import Bundle, BundleError
from jaxeff_export.runner import Runner
from jaxeff_export.timing import require_timed

_T = TypeVar("_T")


@dataclass(frozen=True)
class Outcome(Generic[_T]):
    """What came of the work on one board.

    Attributes:
      board: as it was asked for.
      result: what the work returned; None if it failed.
      error: why it failed; None if it did not.
    """

    board: str
    result: _T | None
    error: BoardError | BundleError | None


def on_boards(
    bundle: Bundle,
    boards: Sequence[str | Board],
    work: Callable[[Runner], _T],
    *,
    timed: bool = False,
) -> tuple[Outcome[_T], ...]:
    """Does the same with a bundle on several boards at once.

    Boards that are one machine (``local`` and a server on it) compete for its cores.

    Args:
      bundle: the bundle; it must fit every board.
      boards: boards as `Bundle.on` takes them; a tracker's boards may be named several times.
      work: what to do, e.g. ``lambda runner: runner.benchmark()``; called in a thread per board.
      timed: whether the work is timing, which boards are refused that cannot be timed.

    Returns:
      One outcome per board, in order.
    """

    def one(board: str | Board) -> Outcome[_T]:
        name = board.name if isinstance(board, Board) else board
        try:
            if timed:
                require_timed(make_board(board))
            with bundle.on(board) as runner:
                return Outcome(name, work(runner), None)
        except (BoardError, BundleError) as error:
            return Outcome(name, None, error)

    with ThreadPoolExecutor(max_workers=max(1, len(boards))) as threads:
        return tuple(threads.map(one, boards))
