"""Selections of a report's rows, as claims, tables and plots name them.

A selection is a function from the report to rows: `every`, `where(part="train")`,
`having("speedup")`, `means(...)` of another one, or a study's own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from experiments.harness.report import Report, Row


def mean(values: Iterable[Any]) -> float | None:
    """The mean of the values that there are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def error(values: Iterable[Any]) -> float | None:
    """Its standard error, where there are two."""
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1) / len(known) ** 0.5) if len(known) > 1 else None


def exponent(rows: Sequence[Row], over: str, of: str) -> float:
    """The exponent of a power law of one column over another, fitted in logarithms."""
    x, y = (np.log([row[name] for row in rows]) for name in (over, of))
    return float(np.polyfit(x, y, 1)[0])


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in some columns, by what they have there."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.get(name) for name in names)].append(row)
    return dict(groups)


def averaged(
    rows: Iterable[Row],
    by: Sequence[str],
    columns: Sequence[str],
    errors: Sequence[str] | None = None,
) -> list[Row]:
    """A row per group: what its rows agree in, how many they are, means and their errors.

    Args:
        rows: Of a report.
        by: Columns that rows of a group agree in.
        columns: Columns that are averaged.
        errors: Those whose standard error is kept, as `<column> error`; the last if None.

    Returns:
        Rows of `by`, `seeds`, the columns, and their errors.
    """
    averages = []
    for key, same in grouped(rows, *by).items():
        row: Row = {**dict(zip(by, key, strict=True)), "seeds": len(same)}
        for name in columns:
            row[name] = mean(one[name] for one in same)
            if name in (columns[-1:] if errors is None else errors):
                row[f"{name} error"] = error(one[name] for one in same)
        averages.append(row)
    return averages


Selection: TypeAlias = Callable[[Report], Iterable[Row]]
Chosen: TypeAlias = Callable[[Report], list[Row]]
Entry: TypeAlias = str | Callable[[Row], Any]
"""A column's name, or a function of the row."""


@dataclass(frozen=True)
class Filter:
    """Selects rows one by one: whether there are others makes no difference."""

    keeps: Callable[[Row], bool]  # whether a row is selected

    def __call__(self, report: Report) -> list[Row]:
        """Selects the rows."""
        return [row for row in report.rows if self.keeps(row)]


every = Filter(lambda row: True)
"""Selects all rows."""


def where(**columns: Any) -> Filter:
    """Selects the rows that have these values."""
    return Filter(lambda row: all(row.get(k) == value for k, value in columns.items()))


def having(*columns: str) -> Filter:
    """Selects the rows in which these columns aren't None."""
    return Filter(lambda row: all(row.get(k) is not None for k in columns))


def extra(*path: str) -> Chosen:
    """Selects the rows that are a further entry of the JSON, none where it has no such entry."""

    def select(report: Report) -> list[Row]:
        content: Any = report.extra
        for name in path:
            content = content.get(name, {})
        return list(content)

    return select


def means(
    of: Selection, by: Sequence[str], columns: Sequence[str], errors: Sequence[str] | None = None
) -> Chosen:
    """Selects a row per group of another selection, see `averaged`."""
    return lambda report: averaged(of(report), by, columns, errors)


def summary(of: Selection, *by: str, **columns: Callable[[list[Row]], Any]) -> Chosen:
    """Selects a row per group of another selection.

    Args:
        of: The selection.
        by: Columns that the rows of a group agree in.
        **columns: What the rows of a group make of a column, such as ``auroc=average("auroc")``.
    """
    return lambda report: [
        {**dict(zip(by, key, strict=True)), **{name: f(rows) for name, f in columns.items()}}
        for key, rows in grouped(of(report), *by).items()
    ]


def pivot(
    of: Selection, by: Sequence[str], column: Entry, value: Entry,
    order: Sequence[Any] | None = None,
) -> Chosen:  # fmt: skip
    """Selects a row per group of another selection, with a column for each of the group's rows.

    Args:
        of: The selection; rows without the value are left out.
        by: Columns that the rows of a group agree in.
        column: Column, template or function that names a row's column.
        value: What stands there; None in groups that have no such row.
        order: Columns as they are to stand, others left out; as they come if None.
    """

    def select(report: Report) -> list[Row]:
        rows = [row for row in of(report) if entry(row, value) is not None]
        names = dict.fromkeys(cell(row, column) for row in rows)
        shown = names if order is None else [name for name in order if name in names]
        pivoted = []
        rows = [row for row in rows if cell(row, column) in shown]
        for key, same in grouped(rows, *by).items():
            values = {cell(row, column): entry(row, value) for row in same}
            pivoted.append({**dict(zip(by, key, strict=True)), **dict.fromkeys(shown), **values})
        return pivoted

    return select


def highest(of: Selection, what: Entry, *by: str) -> Chosen:
    """Selects of each group the row with the largest value of a column, the first of equals."""
    return lambda report: [
        max(rows, key=lambda row: entry(row, what)) for rows in grouped(of(report), *by).values()
    ]


def most(what: Entry) -> Callable[[list[Row]], Any]:
    """Reduces rows to the largest value of a column."""
    return lambda rows: max(entry(row, what) for row in rows)


def least(what: Entry) -> Callable[[list[Row]], Any]:
    """Reduces rows to the least value of a column."""
    return lambda rows: min(entry(row, what) for row in rows)


def average(what: Entry) -> Callable[[list[Row]], float | None]:
    """Reduces rows to the mean of a column, of the values that there are."""
    return lambda rows: mean(entry(row, what) for row in rows)


def entry(row: Row, name: Entry) -> Any:
    """Evaluates a column or a function of a row; None where the row has no such column."""
    return name(row) if callable(name) else row.get(name)


def text(row: Mapping[str, Any], template: Entry) -> str:
    """Fills a row's values into a template such as ``"{network}, {bits} bits"``."""
    return str(template(dict(row))) if callable(template) else template.format(**row)


def cell(row: Row, what: Entry) -> Any:
    """Evaluates a column, a function or a template."""
    return text(row, what) if isinstance(what, str) and "{" in what else entry(row, what)


def plus_minus(column: str, digits: int = 4) -> Callable[[Row], str]:
    """Formats a mean with its standard error, where the row has one."""

    def shown(row: Row) -> str:
        spread = row.get(f"{column} error")
        error = "" if spread is None else f" ± {spread:.{digits}f}"
        return f"{row[column]:.{digits}f}{error}"

    return shown
