"""Figures of uncertain predictions and of their quality, drawn onto given matplotlib axes.

```python
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jaxeff.uncertainty import decompose_regression, draw_regression

x, draws = jnp.linspace(-3, 3, 50), jax.random.normal(jax.random.key(0), (30, 1))
outputs = jnp.stack([jnp.sin(x)[None] + 0.1 * draws * x[None], jnp.full((30, 50), -4.0)], -1)
train = x[10:40:3, None], jnp.sin(x[10:40:3])
figure, axes = plt.subplots(3, 1, sharex=True)
draw_regression(axes, x, decompose_regression(outputs), train, jnp.full(50, 0.1), x**2)
```

What every panel shows is labelled; titles, legends and files are the caller's. All arrays may be of
JAX or NumPy. Nothing but the axes is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxeff.core import string_mapping, validate
from jaxeff.uncertainty._decomposition import RegressionUncertainty
from jaxeff.uncertainty._scores import Reliability
from jaxeff.uncertainty._selective import RiskCoverage

# Axes are the caller's, who has matplotlib by then.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet

CLASS_COLORS = ("C0", "C3")


def draw_regression(
    axes: Sequence[Axes],
    x: Float[Array, " n"],
    parts: RegressionUncertainty,
    train: tuple[Float[Array, "examples 1"], Float[Array, " examples"]],
    true_std: Float[Array, " n"],
    sparsity: Float[Array, " n"],
    target: Float[Array, " n"] | None = None,
) -> None:
    """Draws a one-dimensional regression in three rows (Klein's thesis, figure 7.3).

    Top: predictive mean, a band of one total standard deviation, and the training samples. Middle:
    aleatoric standard deviation, predicted and true. Bottom: epistemic standard deviation and,
    dashed on an axis of its own, the negative log density of the training inputs.

    Args:
        axes: Three, from top to bottom.
        x: Inputs in rising order.
        parts: Prediction for them, one target each.
        train: Inputs and targets of the training set.
        true_std: Standard deviation of the noise; NaN where it is not defined.
        sparsity: `jaxeff.uncertainty.negative_log_density` of the inputs.
        target: The function without noise, drawn thin if given.
    """
    top, middle, bottom = axes
    parts = jax.tree.map(np.ravel, parts)
    band = np.sqrt(parts.total)
    top.fill_between(
        np.asarray(x), parts.mean - band, parts.mean + band, color="C0", alpha=0.25, lw=0
    )
    top.plot(x, parts.mean, color="C0", label="mean, total std")
    if target is not None:
        top.plot(x, target, color="black", lw=0.7, label="without noise")
    top.plot(np.ravel(train[0]), train[1], ".", color="gray", ms=2, label="training data")
    top.set_ylabel("y")
    # Uncertainty may grow without bound beyond the data; the data must stay readable.
    low, high = float(np.min(train[1])), float(np.max(train[1]))
    room = high - low
    top.set_ylim(low - room, high + room)

    middle.plot(x, np.sqrt(parts.aleatoric), color="C1", label="predicted")
    middle.plot(x, true_std, color="black", lw=1.5, label="true")
    highest = float(np.nanmax(np.asarray(true_std)))
    # The scale is that of the true noise: a prediction far off must not flatten it.
    middle.set_ylim(0, 3 * highest)
    middle.set_ylabel("aleatoric std")

    bottom.plot(x, np.sqrt(parts.epistemic), color="C2", label="epistemic")
    bottom.set_ylabel("epistemic std")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("x")
    # Epistemic uncertainty and density have different units: compared in shape alone.
    beside = bottom.twinx()
    beside.plot(x, sparsity, "--", color="gray", lw=1, label="negative log density")
    beside.set_ylabel("neg. log KDE", color="gray")
    beside.tick_params(axis="y", colors="gray")


def draw_plane(
    axes: Sequence[Axes],
    grid: tuple[Float[Array, "rows columns"], Float[Array, "rows columns"]],
    probability: Float[Array, "rows columns"],
    epistemic: Float[Array, "rows columns"],
    ood: Bool[Array, "rows columns"],
    train: tuple[Float[Array, "examples 2"], Int[Array, " examples"]],
) -> tuple[QuadContourSet, QuadContourSet]:
    """Draws a classification of the plane into two in two panels (Klein's thesis, figure 7.5).

    Left: mean prediction with the decision boundary. Right: mutual information, and dashed the
    border of what counts as out of domain. The training samples on both.

    ```python
    import jax, jax.numpy as jnp, matplotlib.pyplot as plt
    from jaxeff.uncertainty import decompose_logits, draw_plane

    grid = jnp.meshgrid(jnp.linspace(-2, 2, 20), jnp.linspace(-2, 2, 20))
    weights = jnp.array([[3.0, 2.0, 3.0], [0.5, -0.5, 0.0]])             # of three members
    score = jnp.stack(grid, -1) @ weights                                # [20, 20, members]
    parts = decompose_logits(jnp.moveaxis(jnp.stack([-score, score], -1) / 2, 2, 0))
    train = jnp.array([[-1.0, 0.0], [1.0, 0.0]]), jnp.array([0, 1])
    figure, axes = plt.subplots(1, 2)
    probability, far = jax.nn.sigmoid(score).mean(-1), jnp.hypot(*grid) > 1.5
    mean, information = draw_plane(axes, grid, probability, parts.epistemic, far, train)
    figure.colorbar(mean, ax=axes[0])
    ```

    Args:
        axes: Two, from left to right.
        grid: Coordinates of the points, as ``np.meshgrid`` gives them.
        probability: Mean probability of class 1.
        epistemic: Mutual information in nats.
        ood: Mask of the points that are out of domain.
        train: Points and classes (0 or 1) of the training set.

    Returns:
        The filled contours of both panels, for colour bars.
    """
    left, right = axes
    first, second = (np.asarray(g) for g in grid)
    filled: dict[str, Any] = {"levels": np.linspace(0, 1, 21), "cmap": "coolwarm", "alpha": 0.8}
    mean = left.contourf(first, second, probability, **filled)
    left.contour(first, second, probability, levels=[0.5], colors="black", linewidths=1)
    # Two classes: at most log 2, so panels of several networks share one scale.
    levels = np.linspace(0, np.log(2), 15)
    shown = np.clip(epistemic, 0, np.log(2))
    information = right.contourf(first, second, shown, levels=levels, cmap="viridis")
    border: dict[str, Any] = {"levels": [0.5], "colors": "white", "linestyles": "dashed"}
    right.contour(first, second, np.asarray(ood, float), linewidths=1, **border)
    points, classes = (np.asarray(t) for t in train)
    for axis in axes:
        for label, color in enumerate(CLASS_COLORS):
            of_class = points[classes == label]
            axis.plot(*of_class.T, "o", ms=2, color=color, mec="white", mew=0.2)
        axis.set_xlim(float(first.min()), float(first.max()))
        axis.set_ylim(float(second.min()), float(second.max()))
    return mean, information


def draw_reliability(axes: Axes, diagram: Reliability) -> None:
    """Draws accuracy by confidence, the share of predictions in each bin, and perfection dashed.

    ```python
    import jax.numpy as jnp
    import matplotlib.pyplot as plt
    from jaxeff.uncertainty import draw_reliability, reliability

    probs, labels = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), jnp.array([0, 1, 1])
    draw_reliability(plt.subplots()[1], reliability(probs, labels))
    ```

    Args:
        axes: Axes to draw on.
        diagram: What `reliability` computed.
    """
    confidence, accuracy, size = (np.asarray(part, float) for part in diagram)
    width = 1 / len(size)
    centres = (np.arange(len(size)) + 0.5) * width
    shares = size / max(size.sum(), 1)
    axes.bar(centres, shares, width, color="lightgray", label="share of predictions")
    axes.plot([0, 1], [0, 1], "--", color="gray", lw=1)
    filled = size > 0
    axes.plot(confidence[filled], accuracy[filled], "o-", ms=4, label="accuracy")
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))


@validate(curves=string_mapping)
def draw_risk_coverage(axes: Axes, curves: Mapping[str, RiskCoverage]) -> None:
    """Draws the risk of each method by the share of inputs that it accepts.

    ```python
    import jax.numpy as jnp
    import matplotlib.pyplot as plt
    from jaxeff.uncertainty import draw_risk_coverage, risk_coverage

    probs, labels = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), jnp.array([0, 1, 1])
    curve = risk_coverage(1 - probs.max(-1), probs.argmax(-1) != labels)
    draw_risk_coverage(plt.subplots()[1], {"confidence": curve})
    ```

    Args:
        axes: Axes to draw on.
        curves: What `risk_coverage` computed, by the label of its line.
    """
    for label, curve in curves.items():
        axes.plot(np.asarray(curve.coverage), np.asarray(curve.risk), label=label)
    axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))
    axes.set_ylim(bottom=0)
