"""Monotone cubic splines, one per column, from a column's sum to its read-out.

A column's spline has evenly spaced knots over the range of its own data. Coefficients that don't
fall make a function that doesn't fall, which every integrator is; they are fitted by non-negative
least squares on their differences. Beyond its data a spline goes on as a straight line.

```python
import numpy as np

from jaxeff.analog_hardware import fit_splines

x = np.linspace(-100, 100, 200)[:, None] * np.array([1.0, 0.5])          # sums of two columns
y = 127 * np.tanh(x / 60) + np.random.default_rng(0).normal(size=x.shape)    # what was read out
splines = fit_splines(x, y)
found = splines(x.astype(np.float32))
assert np.abs(found - 127 * np.tanh(x / 60)).max() < 3
assert (np.diff(found, axis=0) >= 0).all()
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import nnls

from jaxeff.core import Setting, is_concrete, real_array, register_setting, static_integer, validate

RIDGE = 1e-3
"""Weight of the squared second differences of coefficients, beside the mean squared error."""


@register_setting
@dataclass(frozen=True)
class Splines(Setting):
    """A monotone function per column.

    Attributes:
        coefficients: Coefficients of the cubic B-splines, `[columns, intervals + 3]`, none below
            the one before.
        low: The first knot of each column, `[columns]`.
        high: The last one.

    Raises:
        ValueError: A column's coefficients fall, which no integrator does.
    """

    coefficients: Float[Array, "columns basis"]
    low: Float[Array, " columns"]
    high: Float[Array, " columns"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_concrete(self.coefficients) and np.ndim(self.coefficients) == 2:
            falls = np.diff(np.asarray(self.coefficients), axis=1).min(1)
            wrong = np.flatnonzero(falls < -1e-4 * np.ptp(np.asarray(self.coefficients)))
            if len(wrong):
                raise ValueError(
                    f"Splines: the coefficients of column {wrong[0]} (and {len(wrong) - 1} others) "
                    f"fall by up to {-falls.min():.3g}, but a column's answer never falls as its "
                    "sum grows: fit them with fit_splines, or measure with more repeats."
                )

    def __call__(self, x: Float[Array, "p c"]) -> Float[Array, "p c"]:
        """Evaluates the functions of the first columns, each at its own column of `x`."""
        columns = x.shape[-1]
        coefficients = jnp.asarray(self.coefficients, x.dtype)[:columns]
        low, high = (jnp.asarray(a, x.dtype)[:columns][None] for a in (self.low, self.high))
        intervals = coefficients.shape[1] - 3
        spacing = (high - low) / intervals
        inside = jnp.clip((x - low) / spacing, 0, intervals)
        # All coefficients but four have no part: a fifth of the work of the whole basis.
        first = jnp.clip(jnp.floor(inside), 0, intervals - 1)
        t = inside - first
        # The four cubic B-spline pieces on one interval, times 6.
        parts = (
            (1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3
        )  # fmt: skip
        at = first.astype(jnp.int32)
        column = jnp.arange(columns)[None]
        value = sum(coefficients[column, at + i] * part for i, part in enumerate(parts)) / 6
        # Linear beyond the ends, with the slope there.
        ends = coefficients[:, [2, -1]] - coefficients[:, [0, -3]]
        beyond = (x - low) / spacing - inside
        slope = jnp.where(beyond > 0, ends[None, :, 1], ends[None, :, 0]) / 2
        return value + beyond * slope


@validate(x=real_array(2), y=real_array(2), intervals=static_integer())
def fit_splines(
    x: Float[np.ndarray, "n columns"], y: Float[np.ndarray, "n columns"], intervals: int = 8
) -> Splines:
    """Fits monotone splines by least squares, one per column.

    Args:
        x: Sums of the columns.
        y: Read-outs.
        intervals: Between the knots.

    Raises:
        ValueError: There are fewer values than coefficients, or they aren't finite.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) < intervals + 3 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError(
            f"fit_splines: {len(x)} values per column for {intervals + 3} coefficients, all of "
            "which must be finite: measure more vectors, or take fewer intervals."
        )
    low, high = x.min(0), x.max(0)
    high = np.where(high > low, high, low + 1)
    fitted = [_fit(x[:, c], y[:, c], low[c], high[c], intervals) for c in range(x.shape[1])]
    return Splines(*(jnp.asarray(a, jnp.float32) for a in (np.stack(fitted), low, high)))


def _fit(x: Any, y: Any, low: float, high: float, intervals: int) -> np.ndarray:
    basis = _basis((x - low) / (high - low) * intervals, intervals)
    count = intervals + 3
    # Second differences as extra rows: a ridge that keeps intervals without data straight.
    bend = np.diff(np.eye(count), 2, axis=0) * np.sqrt(RIDGE * len(x))
    steps = np.tril(np.ones((count, count)))  # coefficients are sums of steps
    steps[:, 0] = 1
    # Non-negative steps make the coefficients rise, and a B-spline with rising coefficients
    # rises.
    design = np.concatenate([basis, bend]) @ steps
    target = np.concatenate([y, np.zeros(len(bend))])
    # The first coefficient may have any sign: two columns for it.
    found, _ = nnls(np.concatenate([design, -design[:, :1]], 1), target)
    first = found[0] - found[-1]
    return steps @ np.concatenate([[first], found[1:-1]])


def _basis(u: np.ndarray, intervals: int) -> np.ndarray:
    """Evaluates B-splines at positions in units of the knots' spacing, `[n, intervals + 3]`."""
    distance = np.abs(u[:, None] - np.arange(-1, intervals + 2))
    return (np.maximum(2 - distance, 0) ** 3 - 4 * np.maximum(1 - distance, 0) ** 3) / 6
