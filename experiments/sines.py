"""Pictures of networks on the noisy sine, which several studies draw."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from jaxeff.uncertainty import RegressionUncertainty, draw_regression


def draw_sines(
    panels: Mapping[str, Mapping[str, Any]],
    train: Any,
    at: Any,
    noise: Any,
    sparsity: Any,
    target: Any,
    *,
    columns: int,
) -> Figure:
    """Draws for each network its prediction, the noise it predicts, and its doubt.

    Args:
        panels: By title, the fields of `RegressionUncertainty`, and ``train`` and ``sparsity``
            where they differ.
        train: Inputs and targets.
        at: Inputs of the predictions.
        noise: The true deviation there.
        sparsity: How rare data are there.
        target: The true function there.
        columns: Networks side by side.
    """
    lines = -(-len(panels) // columns)
    figure = plt.figure(figsize=(4.6 * columns, 4.4 * lines), layout="constrained")
    places = np.ravel(np.asarray(figure.subfigures(lines, columns, squeeze=False)))
    for place, (title, own) in zip(places, panels.items(), strict=False):
        axes = place.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1, 1)})
        parts = RegressionUncertainty(*(own[name] for name in RegressionUncertainty._fields))
        rare, data = own.get("sparsity", sparsity), own.get("train", train)
        draw_regression(axes, at, parts, data, noise, rare, target)
        for axis in place.axes:
            axis.xaxis.label.set_fontsize(7)
            axis.yaxis.label.set_fontsize(7)
            axis.tick_params(labelsize=7)
        place.suptitle(title, fontsize=9)
    found = [axis.get_legend_handles_labels() for axis in places[0].axes]
    handles, labels = ([one for own in part for one in own] for part in zip(*found, strict=True))
    figure.legend(handles, labels, loc="outside lower center", fontsize=7, ncols=len(labels))
    return figure
