"""The logistic function of accuracy over noise, and its least-squares fit.

On the scale "linear" it is a function of the noise level, on "log" one of its natural logarithm.
`jaxeff.robustness.fit_midpoint` decides whether a curve can be fitted and judges the result.

```python
import numpy as np

from jaxeff.robustness import logistic

levels = np.array([0.0, 0.5, 5.0])
accuracy = logistic(levels, mu=0.5, slope=0.1, a_max=0.9, a_min=0.1)
assert np.isclose(accuracy[1], 0.5)                      # halfway, at the midpoint
assert np.allclose(accuracy[[0, 2]], [0.9, 0.1], atol=0.01)
```
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.special import expit

from jaxeff.core import finite, number, one_of, real_array, validate


class Fit(NamedTuple):
    """Best parameters; `mu_std` is infinite where the levels don't determine it."""

    mu: float
    mu_std: float
    slope: float
    a_max: float
    a_min: float
    r2: float


@validate(
    sigma=real_array(),
    mu=number(finite=False),
    slope=finite,
    a_max=finite,
    a_min=finite,
    scale=one_of("linear", "log"),
)
def logistic(
    sigma: Float[Array | np.ndarray, " levels"],
    mu: float,
    slope: float,
    a_max: float,
    a_min: float,
    scale: str = "linear",
) -> Float[np.ndarray, " levels"]:
    """Returns the fitted curve at noise levels; `scale` as for `fit_midpoint`."""
    x, centre = (_position(np.asarray(v, float), scale) for v in (sigma, mu))
    return (a_max - a_min) * expit((centre - x) / slope) + a_min


def regress(
    levels: Float[np.ndarray, " levels"],
    accuracy: Float[np.ndarray, " levels"],
    weights: Float[np.ndarray, " levels"] | None,
    scale: str,
    chance: float | None,
    bracket: tuple[float, float],
) -> Fit:
    """Fits the logistic function by least squares.

    Args:
        levels: Noise levels.
        accuracy: At each of them.
        weights: Standard deviations, or None if all weigh alike.
        scale: "linear" or "log".
        chance: Held as `a_min`; fitted if None.
        bracket: Levels around the midpoint, to start from.

    Raises:
        RuntimeError: The fit doesn't converge.
    """
    low, high = _position(np.array(bracket), scale)
    # Level zero has no logarithm: a bracket that begins there starts a unit below its end.
    low = low if math.isfinite(low) else high - 1
    # In units of the starting guess, all parameters are of order one whatever the levels are.
    centre = (low + high) / 2
    unit = centre if scale == "linear" else 1.0
    x = _position(levels, scale) / unit
    top, bottom = accuracy.max(), max(accuracy.min(), 0.0)
    # A logistic falls over about four slopes: the bracket's width over four is a fair start.
    start = [centre / unit, max((high - low) / unit, 1e-3) / 4, top - bottom, bottom]
    # Bounds keep the curve a falling one: height and slope can't both change sign.
    lowest = [0.0 if scale == "linear" else -np.inf, 1e-6, 0.0, 0.0]
    free = 4 if chance is None else 3

    def model(x: Any, mu: float, slope: float, height: float, floor: Any = chance) -> Any:
        return height * expit((mu - x) / slope) + floor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # a singular covariance is infinite
        best, covariance = curve_fit(
            model, x, accuracy, start[:free], weights, absolute_sigma=weights is not None,
            bounds=(lowest[:free], np.inf), max_nfev=5000,
            check_finite=False,  # the logarithm of level 0 is infinite, the model there is not
        )  # fmt: skip
    # mu and its error back in the units of the levels; on the log scale by the delta
    # method, d mu = mu d log mu.
    residual = accuracy - model(x, *best)
    r2 = 1 - float((residual**2).sum() / ((accuracy - accuracy.mean()) ** 2).sum())
    mu, slope, height, floor = (float(b) for b in (*best, chance)[:4])
    mu, mu_std = mu * unit, math.sqrt(covariance[0, 0]) * unit
    if scale == "log":
        mu = math.exp(mu)
        mu_std *= mu
    return Fit(mu, mu_std, slope * unit, floor + height, floor, r2)


def _position(sigma: Any, scale: str) -> Any:
    if scale == "linear":
        return sigma
    # No level is minus infinity on a log scale: there the model takes its upper value.
    return np.log(sigma, out=np.full(np.shape(sigma), -np.inf), where=sigma > 0)
