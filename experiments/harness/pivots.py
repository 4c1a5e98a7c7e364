"""Selections that set the values of several rows side by side, as tables show them."""

from collections.abc import Sequence
from typing import Any

from experiments.harness.report import Report, Row
from experiments.harness.rows import Chosen, Entry, Selection, cell, entry


def beside(
    of: Selection, by: Sequence[str], head: Entry, value: Entry, order: Sequence[str] | None = None
) -> Chosen:
    """Selects a row per group of another selection, with a column for each of the group's rows.

    Args:
        of: The selection; rows without the value are left out.
        by: Columns that the rows of a group agree in.
        head: Column, template or function that names a row's column.
        value: What stands there.
        order: Names of columns as they are to stand, others left out; as they come if None.
    """

    def select(report: Report) -> list[Row]:
        found: dict[tuple[Any, ...], Row] = {}
        rows = [(str(cell(row, head)), row) for row in of(report) if entry(row, value) is not None]
        names = dict.fromkeys(name for name, _ in rows)
        shown = [name for name in names if order is None or name in order]
        if order is not None:
            shown.sort(key=order.index)
        for name, row in rows:
            if name in shown:
                place = tuple(row[column] for column in by)
                empty = {**dict(zip(by, place, strict=True)), **dict.fromkeys(shown)}
                found.setdefault(place, empty)[name] = entry(row, value)
        return list(found.values())

    return select
