"""Reliability and risk-coverage diagrams, drawn onto given matplotlib axes.

```python
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jaxeff.uncertainty import draw_reliability, draw_risk_coverage, reliability, risk_coverage

probs, labels = jnp.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), jnp.array([0, 1, 1])
figure, (left, right) = plt.subplots(1, 2)
draw_reliability(left, reliability(probs, labels))
curve = risk_coverage(1 - probs.max(-1), probs.argmax(-1) != labels)
draw_risk_coverage(right, {"confidence": curve})
```

Titles and files are the caller's; nothing but the axes is changed.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from jaxeff.core import string_mapping, validate
from jaxeff.uncertainty._calibration import Reliability
from jaxeff.uncertainty._selective import RiskCoverage


def draw_reliability(axes: Axes, found: Reliability) -> None:
    """Draws accuracy by confidence, the share of predictions in each bin, and perfection dashed.

    Args:
        axes: Axes to draw on.
        found: What `reliability` computed.
    """
    confidence, accuracy, size = (np.asarray(part, float) for part in found)
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

    Args:
        axes: Axes to draw on.
        curves: What `risk_coverage` computed, by the label of its line.
    """
    for label, curve in curves.items():
        axes.plot(np.asarray(curve.coverage), np.asarray(curve.risk), label=label)
    axes.set(xlabel="coverage", ylabel="risk", xlim=(0, 1))
    axes.set_ylim(bottom=0)
