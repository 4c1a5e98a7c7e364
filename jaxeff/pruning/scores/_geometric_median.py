"""Score by the geometric median: channels that others can stand in for go first (FPGM).

The sum of distances from a channel's weights to those of all others of its group,

```text
s_c = sum_d |w_c - w_d|
```

is least at the geometric median, whose information the others hold (He et al., eqs. 4 to 7). A
channel with small weights may well stay, unlike by `l1`.

Source: He et al., "Filter Pruning via Geometric Median", arXiv:1811.00250.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._summing import vectors


def geometric_median(params: Any, channels: Channels) -> dict[str, np.ndarray]:
    """Returns the summed distances between what makes a channel and what makes the others."""
    found = vectors(params, channels, outputs=True)
    return {name: _distances(rows).sum(1) for name, rows in found.items()}


def _distances(rows: np.ndarray) -> np.ndarray:
    """Computes distances between rows, without the cancellation of |a|^2 - 2 ab + |b|^2."""
    return np.stack([np.sqrt(np.square(rows - row).sum(1)) for row in rows])
