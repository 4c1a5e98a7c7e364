"""Means over seeds, as tables and checks need them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.harness.report import Row


def mean(values: Iterable[Any]) -> float | None:
    """The mean of the values that there are."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def error(values: Iterable[Any]) -> float | None:
    """Its standard error, where there are two."""
    found = [value for value in values if value is not None]
    return float(np.std(found, ddof=1) / len(found) ** 0.5) if len(found) > 1 else None


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in some columns, by what they have there."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row.get(name) for name in names)].append(row)
    return dict(found)


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
    found = []
    for key, same in grouped(rows, *by).items():
        row: Row = {**dict(zip(by, key, strict=True)), "seeds": len(same)}
        for name in columns:
            row[name] = mean(one[name] for one in same)
            if name in (columns[-1:] if errors is None else errors):
                row[f"{name} error"] = error(one[name] for one in same)
        found.append(row)
    return found
