"""The midpoint noise level: a logistic function fitted to accuracy over noise.

    F(sigma) = 2 / (1 + exp((sigma - mu) / s)) * da + a_min,    da = (a_max - a_min) / 2

so that F(mu) is half-way between the accuracy without noise and that of guessing: the higher `mu`,
the more noise a network or a layer tolerates (Klein's thesis, eq. (6.1)).

```python
import jax.numpy as jnp

from jaxeff.robustness import fit_midpoint

levels = jnp.linspace(0, 2, 21)
accuracies = 0.1 + 0.8 / (1 + jnp.exp((levels - 1) / 0.1))       # falls from .9 to .1 around 1
assert abs(fit_midpoint(levels, accuracies).mu - 1) < 0.01
```

References:
    Borras et al., "Walking Noise: On Layer-Specific Robustness of Neural Architectures against
    Noisy Computations and Associated Characteristic Learning Dynamics", arXiv:2212.10430.
"""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.special import expit

from jaxeff import core


class Fit(NamedTuple):
    """Best parameters; `mu_std` is infinite where the levels don't determine it."""

    mu: float
    mu_std: float
    slope: float
    a_max: float
    a_min: float
    r2: float


@core.validate(
    sigma=core.real_array(),
    mu=core.number(finite=False),
    slope=core.finite,
    a_max=core.finite,
    a_min=core.finite,
    scale=core.one_of("linear", "log"),
)
def logistic(
    sigma: Float[Array | np.ndarray, " levels"],
    mu: float,
    slope: float,
    a_max: float,
    a_min: float,
    scale: str = "linear",
) -> Float[np.ndarray, " levels"]:
    """Returns the fitted curve at noise levels; `scale` as for `fit_midpoint`.

    `logistic` is that function. On the scale "linear" it is one of the noise level, on "log" one of
    its natural logarithm.

    ```python
    import numpy as np

    from jaxeff.robustness import logistic

    levels = np.array([0.0, 0.5, 5.0])
    accuracy = logistic(levels, mu=0.5, slope=0.1, a_max=0.9, a_min=0.1)
    assert np.isclose(accuracy[1], 0.5)                      # halfway, at the midpoint
    assert np.allclose(accuracy[[0, 2]], [0.9, 0.1], atol=0.01)
    ```
    """
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

    `weights` are standard deviations, None if all weigh alike; `chance` is held as `a_min`, fitted
    if None; `bracket` are levels around the midpoint, to start from.

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


LEAST_DROP = 0.05
LEAST_POINTS = 5
LEAST_R2 = 0.5
LARGEST_GAP = 0.1
"""Largest distance of the measured curve from its middle at the fitted midpoint, relative."""


class Midpoint(NamedTuple):
    """The fit of a logistic function, or why there is none.

    Sharp edges:
        Where the curve holds no midpoint (it is flat, never falls, falls beyond the levels) `mu` is
        NaN and `message` says why; nothing is extrapolated. A fit whose midpoint isn't where the
        measured curve crosses its middle is refused, too: that is how a long tail ends on the
        linear scale.
        The thesis fits the level itself, whatever the grid. `scale="log"` fits its logarithm: for
        curves that fall over several decades, as under multiplicative noise, on which the logistic
        of the level itself can't lie. Both give the same midpoint of a steep curve.
        With replicates the standard error holds their scatter alone (jackknife); without, what the
        fit leaves unexplained.

    Attributes:
        mu: The midpoint noise level; NaN if there is none.
        mu_std: The standard error.
        slope: The logistic's `s`, in the unit of the level (in natural logarithms of it on the log
            scale).
        a_max: Fitted accuracy without noise.
        a_min: Fitted accuracy under the strongest noise.
        bracket: Bounds of the midpoint, also if it isn't found: the two levels between which the
            measured accuracy crosses its middle, (highest level, infinity) beyond the levels, (0,
            lowest level) below them; NaN where nothing is known.
        r2: Share of the curve's variance that the fit explains.
        scale: "linear" or "log".
        message: Why there is no midpoint, or what limits it; empty for a sound fit.
    """

    mu: float
    mu_std: float
    slope: float
    a_max: float
    a_min: float
    bracket: tuple[float, float]
    r2: float
    scale: str
    message: str

    @property
    def exists(self) -> bool:
        """Whether there is a midpoint."""
        return math.isfinite(self.mu)

    def record(self) -> dict[str, Any]:
        """Returns a flat record for a JSON row; None where there is no number."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        low, high = self.bracket
        numbers |= {"bracket_low": low, "bracket_high": high}
        plain = {k: float(v) if math.isfinite(v) else None for k, v in numbers.items()}
        return {**plain, "scale": self.scale, "message": self.message}


_NUMBERS = ("mu", "mu_std", "slope", "a_max", "a_min", "r2")


class _NoMidpointError(Exception):
    """Why a curve has no midpoint, and where it lies all the same."""

    def __init__(self, reason: str, bracket: tuple[float, float] = (math.nan, math.nan)) -> None:
        super().__init__(reason)
        self.bracket = bracket


@core.validate(
    levels=core.real_array(1),
    accuracies=core.real_array(1, 2, nan=True),
    sigma=core.real_array(1),
    chance=core.probability,
    least_drop=core.non_negative,
)
def fit_midpoint(
    levels: Float[Array | np.ndarray, " levels"],
    accuracies: Float[Array | np.ndarray, "replicates levels"]
    | Float[Array | np.ndarray, " levels"],
    sigma: Float[Array | np.ndarray, " levels"] | None = None,
    *,
    scale: str = "linear",
    chance: float | None = None,
    least_drop: float = LEAST_DROP,
) -> Midpoint:
    """Fits the logistic function and its midpoint.

    Args:
        levels: Noise levels in any order, none negative.
        accuracies: One row of them, or a row per replicate (seed or draw): then their mean is
            fitted, and the standard error is their jackknife. NaN entries are left out.
        sigma: Standard deviations of the accuracies, to weight the levels; they weigh alike if
            None, as in the thesis.
        scale: "linear", or "log" to fit the level's logarithm.
        chance: Accuracy of guessing, held as `a_min`; fitted if None. Give it where the levels
            don't reach the bottom of the curve.
        least_drop: A curve that falls by less has no midpoint.

    Returns:
        The midpoint, or a result without one that says why in `message`.

    Raises:
        ValueError: Shapes that don't agree, accuracies that all are NaN, levels that are negative,
            infinite or given twice, or an unknown scale.
    """
    core.check_choice("scale", scale, ("linear", "log"))
    levels, rows, weights = _checked(levels, accuracies, sigma)
    order = np.argsort(levels)
    levels, rows = levels[order], rows[:, order]
    weights = None if weights is None else weights[order]
    missing = int((~np.isfinite(rows)).sum())
    note = f"{missing} of {rows.size} accuracies are NaN and were left out" if missing else ""
    try:
        # Replicates are averaged before the fit: single rows may be too noisy to have a midpoint.
        midpoint = _fit(levels, _mean(rows), weights, scale, chance, least_drop)
    except _NoMidpointError as reason:
        none = (math.nan,) * 5
        return Midpoint(*none, reason.bracket, math.nan, scale, _joined(str(reason), note))
    if len(rows) > 1:
        spread = _jackknife(levels, rows, weights, scale, chance, least_drop)
        if math.isfinite(spread):
            # The levels' spacing bounds what any number of replicates can tell.
            coarse = midpoint.mu_std if math.isnan(midpoint.slope) else 0.0
            midpoint = midpoint._replace(mu_std=max(spread, coarse))
        else:
            note = _joined(note, "the standard error is the fit's: single replicates have no fit")
    return midpoint._replace(message=_joined(midpoint.message, note))


def _checked(levels: Any, accuracies: Any, sigma: Any) -> tuple[Any, Any, Any]:
    levels, rows = np.asarray(levels, float), np.atleast_2d(np.asarray(accuracies, float))
    if levels.ndim != 1 or rows.ndim != 2 or rows.shape[1] != len(levels):
        raise ValueError(
            f"accuracies [levels] or [replicates, levels] are wanted for levels of shape "
            f"{levels.shape}, not an array of shape {np.shape(accuracies)}."
        )
    if not np.isfinite(rows).any():
        raise ValueError(
            f"fit_midpoint: accuracies: all of {rows.size} are NaN: look at what the network gives "
            "for the inputs without noise."
        )
    if not (np.isfinite(levels) & (levels >= 0)).all():
        raise ValueError(f"noise levels must be finite and at least 0, got {levels.tolist()}.")
    if len(np.unique(levels)) != len(levels):
        raise ValueError("a noise level is given twice: pass replicates as rows of accuracies.")
    if sigma is None:
        return levels, rows, None
    weights = np.asarray(sigma, float)
    if weights.shape != levels.shape or not (weights > 0).all():
        raise ValueError("sigma must hold one positive standard deviation per level.")
    return levels, rows, weights


def _mean(rows: Any) -> Any:
    finite = np.isfinite(rows)
    count = finite.sum(0)
    total = np.where(finite, rows, 0).sum(0)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def _fit(levels: Any, mean: Any, weights: Any, scale: str, chance: Any, drop: float) -> Midpoint:
    kept = np.isfinite(mean)
    levels, mean = levels[kept], mean[kept]
    weights = None if weights is None else weights[kept]
    if len(levels) < LEAST_POINTS:
        raise _NoMidpointError(
            f"too few points: {len(levels)} levels have an accuracy, the fit needs {LEAST_POINTS}"
        )
    high, low = mean.max(), mean.min() if chance is None else chance
    beyond, below = (float(levels[-1]), math.inf), (0.0, float(levels[0]))
    _require_fall(levels, mean, chance, drop)
    above = mean > (high + low) / 2
    # The last crossing: noise may make several near the middle.
    last = int(np.flatnonzero(above)[-1])
    bracket = (float(levels[last]), float(levels[last + 1]))
    # Without a level on the slope, a logistic fits with any steepness and any midpoint between.
    inside = (mean < high - 0.1 * (high - low)) & (mean > low + 0.1 * (high - low))
    if not inside.any():
        return _step(bracket, float(np.mean(mean[above])), float(np.mean(mean[~above])), scale)
    try:
        fit = regress(levels, mean, weights, scale, chance, bracket)
    except RuntimeError as error:
        raise _NoMidpointError("the fit of the logistic function didn't converge") from error
    if fit.r2 < LEAST_R2:
        raise _NoMidpointError(
            "a logistic function doesn't describe the curve: it explains "
            f"{max(fit.r2, 0):.0%} of its variance"
        )
    if not levels[0] <= fit.mu <= levels[-1]:
        raise _NoMidpointError(
            f"the fitted midpoint {fit.mu:g} lies outside of the levels, {levels[0]:g} to "
            f"{levels[-1]:g}",
            beyond if fit.mu > levels[-1] else below,
        )
    # The fit must agree with the measurement: at its midpoint the curve has to be near its middle.
    there, bottom = float(np.interp(fit.mu, levels, mean)), min(low, fit.a_min)
    is_inside = bracket[0] <= fit.mu <= bracket[1]
    if not is_inside and abs(there - (high + bottom) / 2) > LARGEST_GAP * (high - bottom):
        advice = "; scale='log' fits curves with long tails" if scale == "linear" else ""
        raise _NoMidpointError(
            f"a logistic function doesn't describe the curve: its midpoint would be {fit.mu:g}, "
            f"but the accuracy crosses its middle between {bracket[0]:g} and {bracket[1]:g}"
            f"{advice}",
            bracket,
        )
    message = "" if math.isfinite(fit.mu_std) else "the levels don't determine a standard error"
    return Midpoint(*fit[:5], bracket, fit.r2, scale, message)


def _require_fall(levels: Any, mean: Any, chance: Any, drop: float) -> None:
    """Refuses a curve that doesn't fall, or whose middle lies outside of the levels."""
    high, low = mean.max(), mean.min() if chance is None else chance
    beyond, below = (float(levels[-1]), math.inf), (0.0, float(levels[0]))
    if mean.max() - mean.min() < drop:
        raise _NoMidpointError(
            f"flat: all accuracies lie between {mean.min():.3f} and {mean.max():.3f} from level "
            f"{levels[0]:g} to {levels[-1]:g}",
            # Without the level of guessing, flat at the top looks like flat at the bottom.
            (math.nan, math.nan) if chance is None else beyond if high - low > 2 * drop else below,
        )
    # Where the measured curve crosses its middle brackets the midpoint without any model.
    above = mean > (high + low) / 2
    if above[-1]:
        raise _NoMidpointError(
            f"the accuracy is still {mean[-1]:.3f} at the highest level, {levels[-1]:g}, above the "
            f"middle of the curve, {(high + low) / 2:.3f}: the midpoint lies beyond the levels",
            beyond,
        )
    if not above[0]:
        raise _NoMidpointError(
            f"the accuracy is already {mean[0]:.3f} at the lowest level, {levels[0]:g}, below the "
            f"middle of the curve, {(high + low) / 2:.3f}: the midpoint lies below the levels, or "
            "the curve doesn't fall",
            below,
        )


def _step(bracket: tuple[float, float], a_max: float, a_min: float, scale: str) -> Midpoint:
    """Returns a curve that falls at once: only an interval is known, and no slope."""
    low, high = bracket
    geometric = scale == "log" and low > 0
    mu = math.sqrt(low * high) if geometric else (low + high) / 2
    width = mu * math.log(high / low) if geometric else high - low
    return Midpoint(
        # A uniform distribution over the bracket has the deviation width / sqrt(12).
        mu, width / math.sqrt(12), math.nan, a_max, a_min, bracket, math.nan, scale,
        f"the accuracy falls between two neighbouring levels: the midpoint is known only to lie "
        f"between {low:g} and {high:g}",
    )  # fmt: skip


def _jackknife(levels: Any, rows: Any, weights: Any, scale: str, chance: Any, drop: float) -> float:
    """Computes the standard error of the midpoint over replicates; NaN if one can't be left out."""
    n = len(rows)
    midpoints = []
    for i in range(n):
        try:
            rest = _mean(np.delete(rows, i, axis=0))
            midpoints.append(_fit(levels, rest, weights, scale, chance, drop).mu)
        except _NoMidpointError:
            return math.nan
    # Jackknife: Var = (n - 1) / n sum_i (mu_(i) - mean)^2.
    return math.sqrt((n - 1) * float(np.var(midpoints)))


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
