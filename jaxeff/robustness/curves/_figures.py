"""Pictures of robustness as in Klein's thesis, drawn onto given matplotlib axes.

```python
import matplotlib.pyplot as plt
import numpy as np

from jaxeff.robustness import fit_midpoint, logistic, summarize
from jaxeff.robustness.curves import draw_curve

levels = np.logspace(-1, 1, 9)
curve = summarize(levels, logistic(levels, 1.0, 0.2, 0.98, 0.1) + [[-0.01], [0.01]])  # two seeds
figure, axis = plt.subplots()
draw_curve(axis, curve, fit_midpoint(curve.levels, curve.draws), label="LeNet-5")
```

What every panel shows is labelled; titles, legends and files are the caller's. All arrays may be of
JAX or NumPy. Nothing but the axes is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float

from jaxeff.robustness.curves._curve import Curve
from jaxeff.robustness.curves._midpoint import Midpoint, logistic
from jaxeff.robustness.curves._values import bin_edges

# Axes are the caller's, who has matplotlib by then.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet
    from matplotlib.image import AxesImage


def draw_curve(
    axis: Axes,
    curve: Curve,
    midpoint: Midpoint | None = None,
    *,
    label: str = "",
    color: str = "C0",
) -> None:
    """Draws accuracy over noise with its confidence band, the fitted logistic and the midpoint.

    Args:
        axis: Gets a logarithmic noise axis, linear between zero and the lowest positive level.
        curve: From `accuracy_curve` or `summarize`.
        midpoint: The fit; one without a midpoint isn't drawn.
        label: Label of the curve; its midpoint is added.
        color: Color of everything that is drawn.
    """
    levels = curve.levels
    positive = levels[levels > 0]
    # Level zero is where a curve begins, and a logarithmic axis has no place for it.
    if not positive.size:
        axis.set_xscale("linear")
    elif positive.size < levels.size:
        axis.set_xscale("symlog", linthresh=float(positive.min()))
    else:
        axis.set_xscale("log")
    axis.fill_between(levels, curve.low, curve.high, color=color, alpha=0.25, lw=0)
    points = "-"
    if midpoint is not None and midpoint.exists:
        _draw_fit(axis, levels, midpoint, color)
        points = "none"  # the fitted curve takes the place of the connecting line
        label += f"{', ' if label else ''}μ = {midpoint.mu:.3g} ± {midpoint.mu_std:.2g}"
    axis.plot(levels, curve.mean, ".", ls=points, color=color, label=label)
    axis.set_xlabel("noise level σ")
    axis.set_ylabel("accuracy")


def _draw_fit(axis: Axes, levels: Any, midpoint: Midpoint, color: str) -> None:
    mu, spread = midpoint.mu, midpoint.mu_std
    if np.isfinite(midpoint.slope):
        positive = levels[levels > 0]
        fine: Any = np.geomspace(positive.min(), levels.max(), 400)
        fit = (midpoint.slope, midpoint.a_max, midpoint.a_min)
        axis.plot(fine, logistic(fine, mu, *fit, midpoint.scale), color=color, lw=1.2)
    axis.axvline(mu, color=color, ls="--", lw=0.9)
    if np.isfinite(spread):
        axis.axvspan(max(mu - spread, 1e-3 * mu), mu + spread, color=color, alpha=0.12, lw=0)


def draw_midpoints(
    axis: Axes,
    midpoints: Mapping[str, Midpoint],
    *,
    color: str = "C0",
    offset: float = 0.0,
    width: float = 0.8,
    label: str = "",
) -> None:
    """Draws the midpoint of every layer as a bar; a layer without one gets a cross.

    Args:
        axis: Gets a logarithmic axis of midpoints.
        midpoints: Midpoints by layer, in order.
        color: Color of the bars.
        offset: Shifts the bars, for several nets side by side.
        width: Width of the bars.
        label: Name of the network in the legend.
    """
    names = list(midpoints)
    place = np.arange(len(names)) + offset
    has_midpoint = [m.exists for m in midpoints.values()]
    height = np.array([m.mu for m in midpoints.values()])
    error = np.array([m.mu_std for m in midpoints.values()])
    error = np.where(np.isfinite(error), error, 0)
    # A lower whisker that reaches zero has no place on a logarithmic axis.
    whiskers = np.stack([np.minimum(error, 0.9 * np.nan_to_num(height)), error])
    axis.bar(place, height, width, yerr=whiskers, capsize=2, color=color, label=label)
    axis.set_yscale("log")
    missing = place[~np.array(has_midpoint, bool)]
    ground = axis.get_xaxis_transform()
    axis.plot(missing, np.full(len(missing), 0.03), "x", color=color, transform=ground, ms=5)
    axis.set_xticks(np.arange(len(names)), names, rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("midpoint noise level μ (× none)")


def draw_histograms(
    axis: Axes,
    values: Mapping[str, Float[Array | np.ndarray, "..."]],
    *,
    scale: str = "linear",
    bins: int = 80,
) -> None:
    """Draws histograms of a layer's values, such as with and without noise.

    Args:
        axis: Gets the scale of the values.
        values: Values by label. On the log scale magnitudes are shown, and the label says how many
            are zero.
        scale: "linear" or "log".
        bins: Number of bins.
    """
    arrays: dict[str, Any] = {k: np.ravel(np.asarray(a, float)) for k, a in values.items()}
    if scale == "log":
        arrays = {
            f"{label} ({np.mean(a == 0):.0%} zero)": np.abs(a[a != 0])
            for label, a in arrays.items()
        }
    edges = bin_edges(list(arrays.values()), bins=bins, scale=scale)
    for i, (label, array) in enumerate(arrays.items()):
        # Shares, so that arrays of different sizes can be compared.
        weights = np.full(array.size, 1 / max(array.size, 1))
        axis.hist(array, edges.tolist(), weights=weights, alpha=0.6, label=label, color=f"C{i}")
    axis.set_xscale(scale)
    # Values of a layer fall off over decades: the tails, where noise acts, would vanish otherwise.
    axis.set_yscale("log" if scale == "linear" else "linear")
    axis.set_xlabel("activation" if scale == "linear" else "|activation|")
    axis.set_ylabel("share of values")


def draw_contour(
    axis: Axes,
    add: Float[Array | np.ndarray, " rows"],
    mul: Float[Array | np.ndarray, " columns"],
    accuracies: Float[Array | np.ndarray, "rows columns"],
) -> QuadContourSet:
    """Draws accuracy over additive and multiplicative noise, with the points of measurement.

    Args:
        axis: Gets two logarithmic axes.
        add: Positive levels of the additive noise.
        mul: Positive levels of the multiplicative noise.
        accuracies: At every pair; NaN leaves a hole.

    Returns:
        The filled contours, for a colour bar.
    """
    x, y = np.meshgrid(np.asarray(mul), np.asarray(add))
    shown = np.ma.masked_invalid(np.asarray(accuracies, float))
    filled = axis.contourf(x, y, shown, levels=np.linspace(0, 1, 21), cmap="viridis")
    axis.plot(x.ravel(), y.ravel(), ".", color="black", ms=2)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("multiplicative σ")
    axis.set_ylabel("additive σ")
    return filled


def draw_heatmap(
    axis: Axes,
    values: Float[Array | np.ndarray, "rows columns"],
    rows: Sequence[float],
    columns: Sequence[float],
    *,
    percent: bool = True,
) -> AxesImage:
    """Draws a table of rAUC or preserved accuracy with its numbers.

    Args:
        axis: The labels are the caller's: which settings are rows, which columns.
        values: Shares; NaN cells stay empty.
        rows: Names of the rows, from bottom to top.
        columns: Names of the columns.
        percent: Whether to write percentages.

    Returns:
        The image, for a colour bar.
    """
    table = np.asarray(values, float)
    image = axis.imshow(np.ma.masked_invalid(table), origin="lower", aspect="auto", cmap="viridis")
    axis.set_xticks(range(len(columns)), [f"{c:g}" for c in columns])
    axis.set_yticks(range(len(rows)), [f"{r:g}" for r in rows])
    low, high = image.get_clim()
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            text = f"{100 * value:.1f}" if percent else f"{value:.2f}"
            dark = value < (low + high) / 2
            axis.text(
                j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "black"
            )
    return image
