"""What a study claims, as data: `Claim("{net}: speedup", "ratio", at_least(3))`."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.harness.report import Report, Row
from experiments.harness.rows import Entry, Filter, Selection, cell, entry, every, text


@dataclass(frozen=True)
class Rule:
    """A comparison with a bound."""

    compare: Callable[[Any, Any], Any]  # of the value and the bound
    bound: Any  # a number, or what an entry of the row says

    def of(self, row: Row) -> Any:
        """Evaluates the bound for a row."""
        return entry(row, self.bound) if callable(self.bound) else row.get(self.bound, self.bound)

    def __call__(self, row: Row, value: Any) -> bool:
        """Compares."""
        return bool(self.compare(value, self.of(row)))


def at_least(bound: Any) -> Rule:
    """Requires a value to be no less than a number or column."""
    return Rule(operator.ge, bound)


def at_most(bound: Any) -> Rule:
    """Requires a value to be no more than a number or column."""
    return Rule(operator.le, bound)


def above(bound: Any) -> Rule:
    """Requires a value to exceed a number or column."""
    return Rule(operator.gt, bound)


def below(bound: Any) -> Rule:
    """Requires a value to stay under a number or column."""
    return Rule(operator.lt, bound)


def equals(bound: Any) -> Rule:
    """Requires a value to be that of a number, text or column."""
    return Rule(operator.eq, bound)


def near(bound: Any, tolerance: float | str) -> Callable[[Row, Any], bool]:
    """Requires a value to be no farther than a tolerance from another; numbers or columns."""
    expected, far = Rule(operator.eq, bound), Rule(operator.eq, tolerance)
    return lambda row, value: bool(abs(value - expected.of(row)) <= far.of(row))


def true(row: Row, value: Any) -> bool:
    """Requires a value to be true."""
    return bool(value)


@dataclass(frozen=True)
class Claim:
    """A claim about every row of a selection, one check for each."""

    # what is claimed: a function of the row, or a text with its columns in braces and the rule's
    # ``{bound}``
    text: Entry
    value: Entry  # the column or function of the row that is judged; a row without it doesn't count
    holds: Callable[[Row, Any], Any]  # rule, called with the row and the value
    # the thesis' value: a function of the row, a text with columns in braces, or what it is; None
    # where it reports none
    source: Any = None
    of: Selection = every  # selection of rows
    needs: str = "fast"  # the smallest size that can decide it
    # what the report says in place of the value, if that is another column
    shown: Entry | None = None
    when: Callable[[Row], Any] = lambda row: True  # which of the selected rows count
    # settings that its rows don't depend on: a run with less of them decides it nonetheless
    regardless: tuple[str, ...] = ()

    def __call__(self, report: Report) -> None:
        """Adds a check for every row."""
        for row in filter(self.when, self.of(report)):
            value = entry(row, self.value)
            if value is None:
                continue
            known = row
            if isinstance(self.holds, Rule):
                known = {**row, "bound": self.holds.of(row)}
            source = self.source(row) if callable(self.source) else self.source
            if isinstance(source, str):
                source = text(known, source)
            shown = value if self.shown is None else cell(row, self.shown)
            passed = self.holds(row, value)
            # Means, maxima and the like say something else once there are more rows.
            complete = isinstance(self.of, Filter)
            report.check(text(known, self.text), source, shown, passed, self.needs, complete)
