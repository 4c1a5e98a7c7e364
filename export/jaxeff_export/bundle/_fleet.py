"""Runs the same work on several boards at once, each with an outcome of its own.

```python
import jax.numpy as jnp
import numpy as np

from jaxeff_export import deploy, run_on_boards

bundle = deploy(lambda w, x: x @ w, (jnp.eye(3), jnp.ones((2, 3))))
x = np.ones((2, 3), np.float32)
here, lost = run_on_boards(bundle, ["local", "rpc://localhost:1"], lambda runner: runner.run(x))
assert here.error is None and (here.result == x).all()
assert lost.result is None and "localhost" in str(lost.error)        # nothing answers there
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from threading import Thread
from typing import Generic, TypeVar

from jaxeff.core import function_of_form, instance_of, sequence_of, validate
from jaxeff_export.boards import Board, BoardError, make_board
from jaxeff_export.bundle._bundle import Bundle
from jaxeff_export.bundle.files import BundleError
from jaxeff_export.bundle.running import Runner, require_timed

_T = TypeVar("_T")


@dataclass(frozen=True)
class BoardResult(Generic[_T]):
    """Outcome of the work on one board.

    Attributes:
      board: name of the board, as given.
      result: what the work returned; None if it failed.
      error: why it failed; None if it did not.
    """

    board: str
    result: _T | None
    error: BoardError | BundleError | None


@validate(
    bundle=instance_of(Bundle),
    work=function_of_form("work(runner)"),
    report=function_of_form("report(outcome)"),
    boards=sequence_of(instance_of(str, Board)),
)
def run_on_boards(
    bundle: Bundle,
    boards: Sequence[str | Board],
    work: Callable[[Runner], _T],
    *,
    timed: bool = False,
    report: Callable[[BoardResult[_T]], None] | None = None,
) -> tuple[BoardResult[_T], ...]:
    """Runs the same work with a bundle on several boards at once.

    Boards that are one machine (``local`` and a server on it) compete for its cores.

    Args:
      bundle: the bundle; it must fit every board.
      boards: boards as `Bundle.on` takes them; a tracker's boards may be named several times.
      work: what to do, e.g. ``lambda runner: runner.benchmark()``; called in a thread per board.
      timed: whether the work is timing, which boards are refused that cannot be timed.
      report: called with each outcome as soon as there is one; a board that hangs is only given up
        when its session's time is up.

    Returns:
      One outcome per board, in order.
    """

    def one(board: str | Board, future: Future[BoardResult[_T]]) -> None:
        try:
            future.set_result(_outcome(bundle, board, work, timed))
        # An error that is no board's belongs to the caller, who gets it where results are read.
        except BaseException as error:
            future.set_exception(error)

    futures: list[Future[BoardResult[_T]]] = [Future() for _ in boards]
    for pair in zip(boards, futures, strict=True):
        # Daemons: whoever interrupts the waiting does not want to wait for a board that hangs.
        Thread(target=one, args=pair, daemon=True).start()
    for future in as_completed(futures):
        if report is not None:
            report(future.result())
    return tuple(future.result() for future in futures)


def _outcome(
    bundle: Bundle, board: str | Board, work: Callable[[Runner], _T], timed: bool
) -> BoardResult[_T]:
    name = board.name if isinstance(board, Board) else board
    try:
        if timed:
            require_timed(make_board(board))
        with bundle.on(board) as runner:
            return BoardResult(name, work(runner), None)
    except (BoardError, BundleError) as error:
        return BoardResult(name, None, error)
