"""Panels of stacked bars, and numbers beside the bars of any panel."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from experiments.harness.plots import _Marks
from experiments.harness.report import Report, Row
from experiments.harness.rows import cell


class Stacks(_Marks):
    """Horizontal bars at named places (`x`), the columns of `y` one behind the other."""

    def _marks(self, axis: Axes, rows: Sequence[Row], report: Report) -> None:
        names = [str(cell(row, self.x)) for row in rows]
        ends = [0.0] * len(rows)
        for label, column, same in self._lines(rows):
            places = [i for i, row in enumerate(rows) if row in same]
            widths = [rows[i][column] for i in places]
            colour = f"C{list(self.y).index(column)}"  # the same in every panel
            starts = [ends[i] for i in places]
            axis.barh(places, widths, left=starts, label=label, color=colour)
            for i, width in zip(places, widths, strict=True):
                ends[i] += width
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()


def labelled(form: str | Callable[[float], str], **style: Any) -> Callable[[Axes, Report], None]:
    """Writes each bar's number beside it; for the `then` of panels.

    Args:
        form: As of `Axes.bar_label`.
        **style: Likewise; small text if none is given.
    """

    def write(axis: Axes, report: Report) -> None:
        for bars in axis.containers:
            axis.bar_label(bars, fmt=form, **{"fontsize": 6, "padding": 1, **style})  # type: ignore[arg-type]
        axis.margins(y=0.12)

    return write
