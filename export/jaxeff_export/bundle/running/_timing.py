"""Times of a bundle on a board, whole and per compiled operator."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxeff_export.boards import Board, BoardError


@dataclass(frozen=True)
class Timing:
    """Duration of one call on a board.

    Attributes:
      board: name of the board that it was measured on.
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
    """Time spent in one compiled operator, per call of the whole function.

    Attributes:
      name: name of the compiled operator.
      calls: number of runs per call of the function.
      ms: milliseconds, all its calls together.
      share: share of the sum over all operators, 0 to 1.
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
    measurements: Sequence[Sequence[tuple[str, int, int]]], number: int
) -> tuple[OperatorTime, ...]:
    """Summarizes what an instrument recorded, slowest first.

    Args:
      measurements: what it recorded over `number` calls, as often as that was measured: name, calls
        and nanoseconds per operator. The virtual machine's own builtins are left out.
      number: calls of the whole function per measurement.

    Returns:
      Per operator the median over the measurements, which a disturbed one does not move.
    """
    calls: dict[str, int] = {}
    spent: dict[str, list[int]] = defaultdict(list)
    for recorded in measurements:
        for name, count, nanoseconds in recorded:
            if not name.startswith("vm.builtin"):
                calls[name] = count
                spent[name].append(nanoseconds)
    # The median: a measurement that another process disturbed doesn't move it.
    medians = {name: statistics.median(times) for name, times in spent.items()}
    total = sum(medians.values()) or 1
    return tuple(
        OperatorTime(name, calls[name] / number, time / number / 1e6, time / total)
        for name, time in sorted(medians.items(), key=lambda item: -item[1])
    )
