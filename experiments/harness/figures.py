"""What all figures share: legends beside the points, ticks that don't collide, files.

A study labels what it draws and leaves the rest to `save`.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import ScaledTranslation

from jaxeff.store import atomic_file

DPI = 120
SMALL = 8


def save(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Finishes the figures and writes them as PNG.

    Args:
        figures: By name.
        folder: Where they go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        finish(figure)
        paths.append(folder / f"{name}.png")
        with atomic_file(paths[-1]) as temporary:
            figure.savefig(temporary, dpi=DPI, format="png")
        plt.close(figure)
    return paths


def finish(figure: Figure) -> None:
    """Gives a figure its legends and keeps its ticks apart."""
    if figure.get_layout_engine() is None:
        figure.set_layout_engine("constrained")
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_minor_formatter(NullFormatter())
    figure.draw_without_rendering()
    for axes in figure.axes:
        if colliding(axes):
            plt.setp(axes.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
    _legends(figure)
    figure.draw_without_rendering()


def colliding(axes: Axes) -> list[tuple[str, str]]:
    """Neighbouring labels of the horizontal axis that touch; the figure has been drawn."""
    low, high = sorted(axes.get_xlim())
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=False)
    labels = [label for place, label in ticks if low <= place <= high and label.get_text()]
    if not axes.get_visible() or not axes.axison or (labels and labels[0].get_rotation()):
        return []
    boxes = [(label.get_text(), label.get_window_extent().padded(1)) for label in labels]
    boxes = sorted((box for box in boxes if box[1].width > 2), key=lambda box: box[1].x0)
    return [(a, b) for (a, first), (b, second) in pairwise(boxes) if first.overlaps(second)]


def _legends(figure: Figure) -> None:
    """One for all panels where one of them has it whole, else one below each panel."""
    handles: dict[Axes, dict[str, Any]] = {}
    for axes in figure.axes:
        legend = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if legend and axes.get_legend() is None and axes.get_visible():
            handles[axes] = legend
    if not handles or figure.legends:
        return
    longest = max(handles.values(), key=len)
    if all(_same(legend, longest) for legend in handles.values()):
        columns = _columns(longest, figure.get_figwidth())
        figure.legend(
            [*longest.values()],
            [*longest],
            loc="outside lower center",
            fontsize=SMALL,
            ncols=columns,
        )
        return
    for axes, legend in handles.items():
        panel, around = axes.get_window_extent(), axes.get_tightbbox()
        depth = max(0.0, panel.y0 - around.y0) / figure.dpi if around else 0.0
        below = axes.transAxes + ScaledTranslation(0, -depth, figure.dpi_scale_trans)
        axes.legend(
            [*legend.values()], [*legend], loc="upper center", bbox_to_anchor=(0.5, 0),
            bbox_transform=below, fontsize=SMALL - 1,
            ncols=_columns(legend, panel.width / figure.dpi),
        )  # fmt: skip


def _same(legend: Mapping[str, Any], longest: Mapping[str, Any]) -> bool:
    """Whether every label is in a legend, and means the same there."""
    return all(
        label in longest and same_color(_colour(longest[label]), _colour(handle))
        for label, handle in legend.items()
    )


def _columns(labels: Mapping[str, Any], width: float) -> int:
    """How many stand side by side in so many inches."""
    return max(1, min(len(labels), int(width / (0.5 + 0.06 * max(map(len, labels))))))


def _colour(handle: Any) -> Any:
    """The colour of what a legend shows."""
    while isinstance(handle, tuple | list):
        handle = handle[0]
    if hasattr(handle, "get_children") and not hasattr(handle, "get_facecolor"):
        children = handle.get_children()
        handle = children[0] if children else handle
    for name in ("get_color", "get_edgecolor", "get_facecolor"):
        if hasattr(handle, name):
            colour = getattr(handle, name)()
            if isinstance(colour, str) or getattr(colour, "ndim", 1) == 1:
                return colour
            return colour[0] if len(colour) else "none"
    return "none"
