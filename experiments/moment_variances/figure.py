"""Error against cost, beside sampling."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.harness import Report
from experiments.moment_variances.judging import by_network
from experiments.moment_variances.methods import BOTH, CALIBRATED, CORRELATED, DIAGONAL

MARKERS = {DIAGONAL: "o", CALIBRATED: "s", CORRELATED: "^", BOTH: "*"}
COLUMNS = 6


def draw(report: Report) -> dict[str, Figure]:
    """A panel per network: sampling is a line, every pass a point."""
    if not report.config["rounds"]:
        return {}
    networks = by_network(report)
    columns = min(COLUMNS, len(networks))
    lines = -(-len(networks) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.6 * columns + 1, 2.5 * lines + 0.6), layout="constrained",
        sharey=True, squeeze=False,
    )  # fmt: skip
    cost = "over diagonal, batch 10"
    for axis, (network, methods) in zip(axes.flat, networks.items(), strict=False):
        sampled = [row for method, row in methods.items() if method.endswith(" samples")]
        axis.loglog(
            [r[cost] for r in sampled], [r["error"] for r in sampled], ".-", color="gray",
            label="sampling",
        )  # fmt: skip
        for i, (method, marker) in enumerate(MARKERS.items()):
            row = methods[method]
            axis.loglog([row[cost]], [row["error"]], marker, color=f"C{i}", ms=8, label=method)
        axis.axhline(0.05, color="black", lw=0.6, ls=":")
        axis.set_title(network, fontsize=9)
    for axis in axes.flat[len(networks) :]:
        axis.set_visible(False)
    figure.supxlabel("cost over the diagonal pass, batch 10")
    figure.supylabel("median error of variances")
    _one_legend(figure, axes.flat[0])
    return {"pareto": figure}


def _one_legend(figure: Figure, axis: plt.Axes) -> None:
    """One legend for all panels."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)
    for each in figure.axes:
        for artist in each.get_lines():
            artist.set_label("_")
