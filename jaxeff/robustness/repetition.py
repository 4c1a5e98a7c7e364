"""Guided repetition: noisy hardware executes sensitive layers several times and averages.

```python
>>> from jaxeff.nn import small_classifier
>>> from jaxeff.noise import Additive, Repeated, noisy
>>> from jaxeff.robustness import allocate_repetitions
>>> midpoints = {"conv1": 0.4, "relu": 2.1, "fc1": 1.0}  # noise each layer tolerates alone
>>> times = allocate_repetitions(midpoints, budget=2 * len(midpoints))
>>> times
{'conv1': 4, 'relu': 1, 'fc1': 1}
>>> f, params, (x, y) = small_classifier()
>>> g = noisy(f, {site: Repeated(Additive(0.2), n) for site, n in times.items()})

```

Averaging n executions divides a layer's noise variance by n. With a budget of executions for the
whole network, a layer gets its share in proportion to its sensitivity 1/midpoint.

References:
    Borras et al., "Walking Noise", arXiv:2212.10430 (T2149).
"""

from collections.abc import Mapping

import numpy as np


def allocate_repetitions(midpoints: Mapping[str, float], budget: int) -> dict[str, int]:
    """Shares executions out among layers, in proportion to 1 / midpoint.

    Args:
        midpoints: The noise level at which each layer alone brings the accuracy halfway to
            chance; infinite for a layer that never does.
        budget: Executions of all layers together.

    Returns:
        Executions per layer, each at least one, that sum to the budget. What proportionality
        leaves over goes to the largest remainders.

    Raises:
        ValueError: The budget is below one execution per layer, or a midpoint isn't positive.
    """
    if budget < len(midpoints):
        raise ValueError(
            f"A budget of {budget} executions is less than one for each of {len(midpoints)} layers."
        )
    for site, midpoint in midpoints.items():
        if not midpoint > 0:
            raise ValueError(f"The midpoint of {site!r} must be positive, but is {midpoint}.")
    sensitivity = 1 / np.array(list(midpoints.values()), float)
    if not sensitivity.any():
        sensitivity += 1
    exact = _proportional(sensitivity, budget)
    times = np.floor(exact).astype(int)
    left = budget - times.sum()
    times[np.argsort(times - exact, kind="stable")[:left]] += 1
    return dict(zip(midpoints, times.tolist(), strict=True))


def _proportional(weights: np.ndarray, budget: int) -> np.ndarray:
    """Proportional shares of at least one: who would get less gets one, the others the rest."""
    free = np.ones(len(weights), bool)
    while True:
        rest = budget - np.count_nonzero(~free)
        shares = np.where(free, rest * weights / max(weights[free].sum(), 1e-300), 1.0)
        low = free & (shares < 1)
        if not low.any():
            return shares
        free &= ~low
