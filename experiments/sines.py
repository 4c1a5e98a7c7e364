"""The noisy sine as several studies judge and draw it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from jaxeff import uncertainty as unc
from jaxeff.data import sine
from jaxeff.uncertainty import RegressionUncertainty, draw_regression

MARGIN = 3.0
"""How far beyond the data predictions are judged, in all studies, so that they can be compared."""


class Scene(NamedTuple):
    """Training data, and what is known at the evaluation points."""

    train: tuple[jax.Array, jax.Array]  # inputs ``[n, 1]`` and targets ``[n]``, as drawn
    x: jax.Array  # evaluation points ``[m]``, evenly spaced
    target: jax.Array  # the function without noise
    noise: jax.Array  # standard deviation of the noise; NaN in gaps
    inside: jax.Array  # whether there are data
    sparsity: jax.Array  # negative log density of the training inputs

    def inputs(self, x: jax.Array) -> jax.Array:
        """Standardises inputs, so that a network's kinks lie where the data are."""
        return (x - self.train[0].mean()) / self.train[0].std()

    def figures(self, parts: RegressionUncertainty) -> dict[str, float]:
        """Computes the columns of the thesis' table from what is predicted at `x`."""
        std, doubt = jnp.sqrt(parts.aleatoric), jnp.sqrt(parts.epistemic)
        decompositions = {
            "mse_prediction": unc.prediction_mse(parts.mean, self.target, self.inside),
            "mse_aleatoric": unc.aleatoric_mse(std, self.noise, self.inside),
            "euc": unc.euc(doubt, self.sparsity),
            "auroc": unc.auroc(doubt[self.inside], doubt[~self.inside]),
        }
        return {name: float(value) for name, value in decompositions.items()}


def grid(margin: float, points: int) -> jax.Array:
    """Makes the evaluation points."""
    return jnp.linspace(*sine.span(margin=margin), points)


def scene(train: Any, margin: float, points: int) -> Scene:
    """Evaluates what is known of the noisy sine beside some training data."""
    x = grid(margin, points)
    sparsity = unc.negative_log_density(x[:, None], train[0])
    return Scene(train, x, sine.target(x), sine.noise_std(x), sine.in_regime(x), sparsity)


def doubt_at_midpoints(x: Any, epistemic: Any) -> float:
    """Computes the doubt in the middle of gaps over that in the middle of regimes.

    These are the points that Klein's thesis, section 7.4.1, names: too few for an AUROC. Given are
    evaluation points and the epistemic variance there.
    """
    regimes, gaps = (np.interp(at, x, np.sqrt(epistemic)) for at in sine.midpoints())
    return float(gaps.mean() / regimes.mean())


def draw_sines(
    # by title, the fields of `RegressionUncertainty`, and ``train`` and ``sparsity`` where they
    # differ
    panels: Mapping[str, Mapping[str, Any]],
    train: Any,  # inputs and targets
    at: Any,  # inputs of the predictions
    noise: Any,  # the true deviation there
    sparsity: Any,  # how rare data are there
    target: Any,  # the true function there
    *,
    columns: int,  # networks side by side
) -> Figure:
    """Draws for each network its prediction, the noise it predicts, and its doubt."""
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
    legends = [axis.get_legend_handles_labels() for axis in places[0].axes]
    handles, labels = ([one for own in part for one in own] for part in zip(*legends, strict=True))
    figure.legend(handles, labels, loc="outside lower center", fontsize=7, ncols=len(labels))
    return figure
