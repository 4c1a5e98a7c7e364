"""Figures as data: a `Plot` has panels, each made from rows by `Curves`, `Dots` or `Bars`.

```text
Plot("speed", Curves("batch", "speedup", hue="{net}", axes={"xscale": "log"}))
```

A study's own panels are a function from the report to `Panel`s.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.report import Report, Row
from experiments.harness.rows import Entry, Selection, cell, every, text


class Panel(NamedTuple):
    """One set of axes."""

    title: str  # above it; none if empty
    paint: Callable[[Axes], Any]  # draws into the axes


def painted(title: str, draw: Callable[[Axes], Any], **axes: Any) -> Panel:
    """Makes a panel that a function draws, and whose axes `Axes.set` is then told the rest of."""

    def paint(axis: Axes) -> None:
        draw(axis)
        axis.set(**axes)

    return Panel(title, paint)


def histograms(values: Mapping[str, Any], bins: Any, **options: Any) -> Callable[[Axes], None]:
    """Makes a function that draws the densities of labelled values over the same bins."""

    def draw(axis: Axes) -> None:
        for label, sample in values.items():
            axis.hist(sample, [*bins], density=True, alpha=0.5, label=label, **options)

    return draw


Panels: TypeAlias = Callable[[Report], Iterable[Panel]]


class Plot:
    """A figure of panels, left to right; nothing is drawn where there are no rows.

    Attributes:
        name: Of the file.
        panels: Functions that make its panels from the report.
        columns: Panels of a line; all of them if None.
        size: Inches of a panel.
    """

    def __init__(
        self,
        name: str,
        *panels: Panels,
        columns: int | None = None,
        size: tuple[float, float] = (4.6, 3.6),
    ) -> None:
        self.name, self.panels, self.columns, self.size = name, panels, columns, size

    def __call__(self, report: Report) -> dict[str, Figure]:
        """Draws the figure."""
        shown = [panel for panels in self.panels for panel in panels(report)]
        if not shown:
            return {}
        columns = min(self.columns or len(shown), len(shown))
        lines = -(-len(shown) // columns)
        width, height = self.size
        figure, grid = plt.subplots(
            lines, columns, figsize=(width * columns, height * lines), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        axes = grid.ravel()
        for panel, axis in zip(shown, axes, strict=False):
            panel.paint(axis)
            if panel.title:
                axis.set_title(panel.title, fontsize=9)
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        return {self.name: figure}


@dataclass(frozen=True)
class _Marks:
    """What the kinds of panels share."""

    x: Entry  # column, template or function of the places
    y: str | Mapping[str, str]  # column of the values, or several with their labels
    of: Selection = every  # selection of rows
    # label of a row's line, with its columns in braces; rows of one label are one line
    hue: Entry = ""
    facet: Entry = ""  # title of a row's panel, likewise
    error: bool = False  # whether rows have the spread of `y` as ``<y> error``
    # format of a line, with columns of its first row in braces; or by the column of `y`
    style: Entry | Mapping[str, str] = "o-"
    guides: Sequence[float] = ()  # values that a grey line marks
    axes: Mapping[str, Any] = field(default_factory=dict)  # given to `Axes.set`, such as ``xlabel``
    # called with the axes and the report once all is drawn
    then: Callable[[Axes, Report], Any] | None = None

    def __call__(self, report: Report) -> list[Panel]:
        """Makes a panel for every facet."""
        facets = _grouped(self.of(report), self.facet)
        return [
            Panel(title, functools.partial(self._paint, rows, report))
            for title, rows in facets.items()
        ]

    def _paint(self, rows: Sequence[Row], report: Report, axis: Axes) -> None:
        self._marks(axis, rows, report)
        axis.set(**self.axes)
        if self.then:
            self.then(axis, report)

    def _marks(self, axis: Axes, rows: Sequence[Row], report: Report) -> None:
        raise NotImplementedError

    def _lines(self, rows: Sequence[Row]) -> Iterable[tuple[str, str, list[Row]]]:
        """Splits a panel's rows into lines: a label, a column, and the rows that have it."""
        several = not isinstance(self.y, str)
        columns = self.y if isinstance(self.y, Mapping) else {self.y: ""}
        for hue, same in _grouped(rows, self.hue).items():
            for column, label in columns.items():
                known = [row for row in same if row.get(column) is not None]
                if known:
                    yield ", ".join(filter(None, (hue, label if several else ""))), column, known

    def _format(self, row: Row, column: str) -> str:
        if isinstance(self.style, Mapping):
            return self.style.get(column, "o-")
        return text(row, self.style)

    def _errors(self, rows: Sequence[Row], column: str) -> list[float] | None:
        return [row.get(f"{column} error") or 0.0 for row in rows] if self.error else None


class Curves(_Marks):
    """A line per hue over a numeric column; a row may hold a whole curve in lists.

    Its places then are a list of the row, or of the settings.
    """

    def _marks(self, axis: Axes, rows: Sequence[Row], report: Report) -> None:
        for label, column, same in self._lines(rows):
            for x, y, error in self._points(same, column, report):
                axis.errorbar(
                    x, y, error, fmt=self._format(same[0], column), ms=4, lw=1, label=label or None
                )  # fmt: skip
        for value in self.guides:
            axis.axhline(value, color="grey", linestyle=":")

    def _points(self, rows: Sequence[Row], column: str, report: Report) -> Iterable[Any]:
        if isinstance(rows[0][column], list):
            for row in rows:
                places = cell(row, self.x)
                yield (
                    (places if places is not None else report.config[str(self.x)]),
                    row[column],
                    None,
                )
        else:
            yield (
                [cell(row, self.x) for row in rows],
                [row[column] for row in rows],
                self._errors(rows, column),
            )


class Dots(_Marks):
    """Values along the horizontal axis, named places (`x`) along the vertical one."""

    def _marks(self, axis: Axes, rows: Sequence[Row], report: Report) -> None:
        names = list(dict.fromkeys(str(cell(row, self.x)) for row in rows))[::-1]
        lines = list(self._lines(rows))
        for i, (label, column, same) in enumerate(lines):
            offset = min(0.2, 0.6 / len(lines)) * (0.5 * (len(lines) - 1) - i)
            places = [names.index(str(cell(row, self.x))) + offset for row in same]
            axis.errorbar(
                [row[column] for row in same], places, xerr=self._errors(same, column),
                fmt="o", ms=4, lw=1, label=label or None,
            )  # fmt: skip
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.margins(y=0.2 if len(names) < 6 else 0.05)
        axis.grid(axis="x", alpha=0.3)
        for value in self.guides:
            axis.axvline(value, color="grey", linestyle=":")


class Bars(_Marks):
    """Bars side by side at named places."""

    def _marks(self, axis: Axes, rows: Sequence[Row], report: Report) -> None:
        names = list(dict.fromkeys(str(cell(row, self.x)) for row in rows))
        lines = list(self._lines(rows))
        width = 0.8 / max(1, len(lines))
        for i, (label, column, same) in enumerate(lines):
            places = np.array([names.index(str(cell(row, self.x))) for row in same])
            axis.bar(
                places + width * (i - 0.5 * (len(lines) - 1)), [row[column] for row in same], width,
                yerr=self._errors(same, column), label=label or None,
            )  # fmt: skip
        axis.set_xticks(range(len(names)), names, fontsize=8)
        for value in self.guides:
            axis.axhline(value, color="grey", linestyle=":")


def _grouped(rows: Iterable[Row], template: Entry) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(text(row, template) if template else "", []).append(row)
    return groups
