"""What timing a bundle on a board gives, whole and per compiled operator."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from jaxeff_export.boards import Board, BoardError


@dataclass(frozen=True)
class Timing:
    """How long one call takes on a board.

    Attributes:
      board: where it was measured.
      number: calls per measurement, of which the mean is taken.
      times_ms: one mean per repetition, in milliseconds.
    """

    board: str
    number: int
    times_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The median over the repetitions, in milliseconds."""
        return statistics.median(self.times_ms)

    @property
    def spread_ms(self) -> float:
        """Slowest minus fastest repetition, in milliseconds."""
        return max(self.times_ms) - min(self.times_ms)


@dataclass(frozen=True)
class OperatorTime:
    """The time spent in one compiled operator, per call of the whole function.

    Attributes:
      name: of the compiled operator.
      calls: how often it runs per call of the function.
      ms: milliseconds, all its calls together.
      share: of the sum over all operators, 0 to 1.
    """

    name: str
    calls: float
    ms: float
    share: float


def require_timed(board: Board) -> None:
    """Raises `BoardError` if timings on `board` mean nothing."""
    if board.untimed_because:
        raise BoardError(f"{board.name} is not timed: {board.untimed_because}")


def operator_times(
    recorded: Iterable[tuple[str, int, int]], number: int
) -> tuple[OperatorTime, ...]:
    """The times of what an instrument recorded over `number` calls, slowest first.

    Args:
      recorded: name, calls and nanoseconds per operator; the virtual machine's own builtins among
        them are left out.
      number: calls of the whole function.
    """
    own = [entry for entry in recorded if not entry[0].startswith("vm.builtin")]
    total = sum(nanoseconds for _, _, nanoseconds in own) or 1
    return tuple(
        OperatorTime(name, calls / number, nanoseconds / number / 1e6, nanoseconds / total)
        for name, calls, nanoseconds in sorted(own, key=lambda entry: -entry[2])
    )
