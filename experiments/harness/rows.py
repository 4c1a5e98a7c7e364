"""Selections of a report's rows, as claims, tables and plots name them.

A selection is a function from the report to rows: `every`, `where(part="train")`,
`having("speedup")`, `means(...)` of another one, or a study's own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from experiments.harness.means import averaged
from experiments.harness.report import Report, Row

Selection: TypeAlias = Callable[[Report], Iterable[Row]]
Entry: TypeAlias = str | Callable[[Row], Any]
"""A column's name, or a function of the row."""


def every(report: Report) -> list[Row]:
    """Selects all rows."""
    return report.rows


def where(**columns: Any) -> Selection:
    """Selects the rows that have these values."""

    def select(report: Report) -> list[Row]:
        wanted = columns.items()
        return [row for row in report.rows if all(row.get(k) == value for k, value in wanted)]

    return select


def having(*columns: str) -> Selection:
    """Selects the rows in which these columns aren't None."""

    def select(report: Report) -> list[Row]:
        return [row for row in report.rows if all(row.get(k) is not None for k in columns)]

    return select


def extra(*path: str) -> Selection:
    """Selects the rows that are a further entry of the JSON."""

    def select(report: Report) -> list[Row]:
        found: Any = report.extra
        for name in path:
            found = found[name]
        rows: list[Row] = found
        return rows

    return select


def means(
    of: Selection, by: Sequence[str], columns: Sequence[str], errors: Sequence[str] | None = None
) -> Selection:
    """Selects a row per group of another selection, see `averaged`."""
    return lambda report: averaged(of(report), by, columns, errors)


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
