"""The noisy sine: one-dimensional regression with known noise, and gaps with no data at all.

    y = sin(x) + 0.05 x + e,   e ~ N(0, sigma(x)^2)

The inputs come from regimes along the axis (Klein's thesis, section 7.4.1): dense ones with sigma
0.05, ones of half that density with sigma 0.25, and gaps between them. What lies outside all
regimes, beyond the first and last too, is a gap. The thesis gives neither borders nor counts; those
here are ours:

```python
import jax
import jax.numpy as jnp

from jaxeff.data import noisy_sine, sine

x, y = noisy_sine(jax.random.key(0))
grid = jnp.linspace(*sine.span(margin=1.0), 400)
inside = sine.in_regime(grid)
```
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxeff.core import non_negative, validate

DENSE_NOISE, MID_NOISE = 0.05, 0.25
"""Standard deviation of the noise in dense and in mid-density regimes (the thesis')."""
DENSITY = 16.0
"""Examples per unit of length in a dense regime; mid-density regimes have half of it."""


@dataclass(frozen=True)
class Regime:
    """Interval of the input axis that holds data.

    Attributes:
        start: Left border.
        stop: Right border, beyond ``start``.
        density: Training examples per unit of length.
        noise: Standard deviation of the noise.
    """

    start: float
    stop: float
    density: float
    noise: float

    def __post_init__(self) -> None:
        if not self.start < self.stop or self.count < 1 or self.noise < 0:
            raise ValueError(
                f"{self} must have start < stop, at least one example (density times length) and "
                "noise of zero or more"
            )

    @property
    def count(self) -> int:
        """Number of training examples."""
        return round(self.density * (self.stop - self.start))


def dense(start: float, stop: float) -> Regime:
    """Makes a densely sampled regime with little noise."""
    return Regime(start, stop, DENSITY, DENSE_NOISE)


def mid(start: float, stop: float) -> Regime:
    """Makes a regime of half the density and much noise."""
    return Regime(start, stop, DENSITY / 2, MID_NOISE)


REGIMES = (dense(-6.0, -4.0), mid(-4.0, -2.0), dense(1.0, 3.0), mid(3.0, 5.0))
"""The default layout: 96 examples, gaps from -2 to 1 and beyond -6 and 5."""


def target(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Computes the function without noise."""
    return jnp.sin(x) + 0.05 * x


@validate()
def noisy_sine(
    key: PRNGKeyArray, regimes: Sequence[Regime] = REGIMES
) -> tuple[Float[Array, "n 1"], Float[Array, " n"]]:
    """Draws the training set, uniform within each regime.

    Args:
        key: Random key.
        regimes: Intervals that hold data; they may touch, but not overlap.

    Returns:
        Inputs and targets, sorted by input.

    Raises:
        ValueError: No regimes, or two that overlap.
    """
    starts, stops, noises = _borders(regimes)
    # Counts are NumPy's, known when the rest is traced: they are the sizes of arrays.
    counts = np.array([regime.count for regime in sorted(regimes, key=lambda r: r.start)])
    input_key, noise_key = jax.random.split(key)
    total = int(counts.sum())
    place = jax.random.uniform(input_key, (total,))
    x = jnp.repeat(starts, counts) + place * jnp.repeat(stops - starts, counts)
    y = target(x) + jnp.repeat(noises, counts) * jax.random.normal(noise_key, (total,))
    order = jnp.argsort(x)
    return x[order, None], y[order]


def noise_std(x: Float[Array, " n"], regimes: Sequence[Regime] = REGIMES) -> Float[Array, " n"]:
    """Computes the true standard deviation of the noise; NaN in gaps, where there is none."""
    _, _, noises = _borders(regimes)
    inside = _membership(x, regimes)
    # On a border that two regimes share, `argmax` takes the first, which is the left one.
    return jnp.where(inside.any(0), jnp.asarray(noises)[inside.argmax(0)], jnp.nan)


def in_regime(x: Float[Array, " n"], regimes: Sequence[Regime] = REGIMES) -> Bool[Array, " n"]:
    """Tells whether an input lies in a regime (borders included) rather than in a gap."""
    return _membership(x, regimes).any(0)


@validate(margin=non_negative)
def span(regimes: Sequence[Regime] = REGIMES, margin: float = 0.0) -> tuple[float, float]:
    """Returns the first border and the last, moved outwards by ``margin``."""
    starts, stops, _ = _borders(regimes)
    return float(starts[0]) - margin, float(stops[-1]) + margin


def midpoints(
    regimes: Sequence[Regime] = REGIMES,
) -> tuple[Float[Array, " regimes"], Float[Array, " gaps"]]:
    """Computes the middles of the regimes and of the gaps: the thesis' evaluation points."""
    starts, stops, _ = _borders(regimes)
    between = (stops[:-1] + starts[1:]) / 2
    # Regimes that touch have no gap between them.
    return (starts + stops) / 2, between[starts[1:] > stops[:-1]]


def _membership(x: Array, regimes: Sequence[Regime]) -> Array:
    starts, stops, _ = _borders(regimes)
    return (x[None] >= starts[:, None]) & (x[None] <= stops[:, None])


def _borders(regimes: Sequence[Regime]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts the regimes and returns starts, stops and noises, from left to right."""
    if not regimes:
        raise ValueError("the noisy sine needs at least one regime")
    ordered = sorted(regimes, key=lambda regime: regime.start)
    for left, right in pairwise(ordered):
        if right.start < left.stop:
            raise ValueError(f"regimes must not overlap: {left} and {right}")
    fields = [(regime.start, regime.stop, regime.noise) for regime in ordered]
    starts, stops, noises = np.array(fields, np.float32).T
    return starts, stops, noises
