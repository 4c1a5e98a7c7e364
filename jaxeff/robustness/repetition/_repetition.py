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
    Borras et al., "Walking Noise", arXiv:2212.10430; Klein's thesis, table 6.1.
"""

import math
import warnings
from collections.abc import Mapping

import numpy as np

from jaxeff.core import static_integer, string_mapping, validate
from jaxeff.robustness.curves import Midpoint


@validate(midpoints=string_mapping, budget=static_integer())
def allocate_repetitions(
    midpoints: Mapping[str, float | Midpoint | None], budget: int
) -> dict[str, int]:
    """Shares executions out among layers, in proportion to 1 / midpoint.

    A layer whose midpoint wasn't found gets its share all the same: by the highest level that was
    measured where the accuracy is still above its middle there (that much it tolerates), by the
    lowest where it is already below, and as the median of the other layers where nothing is known.

    Args:
        midpoints: The noise level at which each layer alone brings the accuracy halfway to
            chance, as a number or as `fit_midpoint` gives it; infinite for a layer that never
            does, NaN or None where nothing is known.
        budget: Executions of all layers together.

    Returns:
        Executions per layer, each at least one, that sum to the budget. What proportionality
        leaves over goes to the largest remainders.

    Raises:
        ValueError: The budget is below one execution per layer, or a midpoint isn't positive.

    Warns:
        UserWarning: Midpoints were not found; it says by which levels these layers got a share.
    """
    if budget < len(midpoints):
        raise ValueError(
            f"A budget of {budget} executions is less than one for each of {len(midpoints)} layers."
        )
    sensitivity = 1 / np.array(list(_tolerated(midpoints).values()), float)
    # All midpoints infinite: no layer needs more than any other.
    if not sensitivity.any():
        sensitivity += 1
    exact = _proportional(sensitivity, budget)
    times = np.floor(exact).astype(int)
    left = budget - times.sum()
    # Largest remainders: rounding down leaves fewer executions than layers, which go to
    # those that lost most.
    times[np.argsort(times - exact, kind="stable")[:left]] += 1
    return dict(zip(midpoints, times.tolist(), strict=True))


def _tolerated(midpoints: Mapping[str, float | Midpoint | None]) -> dict[str, float]:
    """Returns a level for every layer, with a warning about those that were not found."""
    levels, notes = {}, []
    for site, midpoint in midpoints.items():
        level, note = _level(midpoint)
        if level <= 0:
            raise ValueError(f"The midpoint of {site!r} must be positive, but is {level}.")
        levels[site] = level
        if note:
            notes.append(f"{site!r} counts as {level:.4g}, {note}")
    unknown = [site for site, level in levels.items() if math.isnan(level)]
    if unknown:
        known = [level for level in levels.values() if not math.isnan(level)]
        # The median neither favours nor penalizes the layers that nothing is known of.
        middle = float(np.median(known)) if known else 1.0
        what = f"as {middle:.4g}, the median of the others" if known else "alike"
        notes.append(f"nothing is known of {', '.join(map(repr, unknown))}, counted {what}")
        levels |= dict.fromkeys(unknown, middle)
    if notes:
        warnings.warn(
            f"Midpoints that were not found: {'; '.join(notes)}.", UserWarning, stacklevel=3
        )
    return levels


def _level(midpoint: float | Midpoint | None) -> tuple[float, str]:
    """Returns a layer's midpoint or what stands for it, and why; NaN where nothing is known."""
    if midpoint is None:
        return math.nan, ""
    if not isinstance(midpoint, Midpoint):
        return float(midpoint), ""
    low, high = midpoint.bracket
    if midpoint.found:
        return midpoint.mu, ""
    if low > 0 and math.isinf(high):
        return low, "the highest level measured"
    if low == 0 and math.isfinite(high):
        return high, "the lowest level measured"
    if math.isfinite(low) and math.isfinite(high):
        # The geometric middle: levels are usually spaced by ratios.
        return math.sqrt(low * high), "between the levels where its accuracy crosses the middle"
    return math.nan, ""


def _proportional(weights: np.ndarray, budget: int) -> np.ndarray:
    """Computes proportional shares; layers that would get less than one get one."""
    free = np.ones(len(weights), bool)
    while True:
        rest = budget - np.count_nonzero(~free)
        shares = np.where(free, rest * weights / max(weights[free].sum(), 1e-300), 1.0)
        # Who is set to one leaves less for the others, of whom more may fall below: until
        # none does.
        low = free & (shares < 1)
        if not low.any():
            return shares
        free &= ~low
