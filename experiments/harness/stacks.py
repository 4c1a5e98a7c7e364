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
        bars = axis.containers
        # Of many bars side by side each is narrower than its number is long.
        upright = len(bars) > 3 and all(getattr(b, "orientation", "") == "vertical" for b in bars)
        turned = {"rotation": 90, "padding": 2} if upright else {"padding": 1}
        for container in bars:
            axis.bar_label(container, fmt=form, **{"fontsize": 6, **turned, **style})  # type: ignore[arg-type]
        axis.margins(y=0.2 if upright else 0.12)

    return write
