"""Times of a bundle on a board, whole and per compiled operator.

Every compiled operator is timed where it runs, by the instrument that each library carries. TVM's
interpreter, which runs the function `operator_by_operator`, calls an instrument before and
after each operator. ``instrument.c`` is one that lives in the library itself, so it works on a
board across RPC, to which no Python function can be sent, and adds no interpreter's time to an
operator's.

Sharp edge: a library has one instrument, so one virtual machine of it is profiled at a time.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxeff.core import Table, shown_as_table
from jaxeff_export.boards import Board, BoardError
from jaxeff_export.bundle.files import BundleError


@dataclass(frozen=True, repr=False)
class Timing:
    """Duration of one call on a board.

    Attributes:
      board: name of the board that it was measured on.
      number: calls per measurement, of which the mean is taken.
      times_ms: one mean per repetition, in milliseconds.
      cycles: the median in cycles of the board's own counter, if it counts them.
    """

    board: str
    number: int
    times_ms: tuple[float, ...]
    cycles: float | None = None

    @property
    def median_ms(self) -> float:
        """The median over the repetitions, in milliseconds."""
        return statistics.median(self.times_ms)

    def __str__(self) -> str:
        counted = "" if self.cycles is None else f" ({self.cycles:,.0f} cycles)"
        return (
            f"{self.board}: median {self.median_ms:.3g} ms{counted} of "
            f"{len(self.times_ms)} measurements, "
            f"{min(self.times_ms):.3g} to {max(self.times_ms):.3g} ms, {self.number} calls each"
        )

    __repr__ = __str__

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
      cycles: the same as `ms` by the board's own counter, if it counts cycles.
    """

    name: str
    calls: float
    ms: float
    share: float
    cycles: float | None = None


@shown_as_table
class OperatorTimes(tuple[OperatorTime, ...]):
    """Times of all operators, slowest first; prints as a table."""

    __slots__ = ()

    def _table(self) -> Table:
        rows = [(one.name, f"{one.calls:g}", f"{one.ms:.3g}", f"{one.share:.0%}") for one in self]
        total = ("total", "", f"{sum(one.ms for one in self):.3g}", "")
        return Table(("operator", "calls>", "ms>", "share>"), rows, total, "of a call")


def require_timed(board: Board) -> None:
    """Raises `BoardError` if timings on `board` mean nothing."""
    if board.untimed_because:
        raise BoardError(f"{board.name} is not timed: {board.untimed_because}")


def operator_times(
    measurements: Sequence[Sequence[tuple[str, int, int]]], number: int
) -> OperatorTimes:
    """Summarizes what an instrument recorded, slowest first.

    Measurements are name, calls and nanoseconds per operator over `number` calls, without the
    virtual machine's own builtins. Returns the median of each: one that another process disturbed
    doesn't move it.
    """
    calls: dict[str, int] = {}
    spent: dict[str, list[int]] = defaultdict(list)
    for recorded in measurements:
        for name, count, nanoseconds in recorded:
            if not name.startswith("vm.builtin"):
                calls[name] = count
                spent[name].append(nanoseconds)
    medians = {name: statistics.median(times) for name, times in spent.items()}
    total = sum(medians.values()) or 1
    return OperatorTimes(
        OperatorTime(name, calls[name] / number, time / number / 1e6, time / total)
        for name, time in sorted(medians.items(), key=lambda item: -item[1])
    )


_SOURCE = Path(__file__).with_name("instrument.c")


def instrument_sources() -> dict[str, list[str]]:
    """Lists what ``export_library`` takes to compile the instrument into a library."""
    from tvm_ffi import libinfo

    folders = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
    options = ["-O2", *(f"-I{folder}" for folder in dict.fromkeys(folders))]
    return {"addons": [str(_SOURCE)], "options": options}


class Instrument:
    """The instrument of a loaded library.

    Args:
      library: the library, on whatever board it was loaded.
    """

    def __init__(self, library: Any) -> None:
        try:
            self._register = library.get_function("profile_register", True)
            self._entry = library.get_function("profile_entry", True)
        except AttributeError as error:
            raise BundleError(
                "the library carries no instrument; deploy the model again"
            ) from error

    def attach(self, machine: Any) -> None:
        """Sets it on a virtual machine of the library, with nothing recorded yet."""
        machine.module["set_instrument"](self._register())

    def read(self) -> list[tuple[str, int, int]]:
        """Reads name, calls and nanoseconds of every operator that ran since it was attached."""
        recorded: list[tuple[str, int, int]] = []
        while line := self._entry(len(recorded)):
            calls, nanoseconds, name = line.split(" ", 2)
            recorded.append((name, int(calls), int(nanoseconds)))
        return recorded
