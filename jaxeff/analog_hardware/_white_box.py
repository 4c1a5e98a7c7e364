"""Models of a chip that are fitted to what it answered: linear, columnar, and the white box.

```python
import jax

from jaxeff.analog_hardware import (
    Chip, Design, characterize, fidelity, fit_columnar, fit_linear, fit_white_box
)

chip = Chip(3, rows=16, columns=8)
design = Design(rows=16, columns=8, programs=8, drives=8, vectors=64, active=(1, 8, 16))
measured = characterize(jax.random.key(0), chip, design)
errors = [
    fidelity(jax.random.key(1), model, chip, design, active=(16,)).error[0]
    for model in (fit_linear(measured), fit_columnar(measured), fit_white_box(measured))
]
assert errors[2] < errors[1] < errors[0]
```

Between a straight line and the white box lies a spline per column.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import nnls

from jaxeff import core
from jaxeff.analog_hardware._crossbar import with_gradient_of
from jaxeff.analog_hardware._measurements import Characterization, NoiseMeasurement

RIDGE = 1e-3
"""Weight of the squared second differences of coefficients, beside the mean squared error."""


@core.register_setting
class Splines(core.Setting):
    """A monotone function per column.

    `Splines` are monotone and cubic, from a column's sum to its read-out. A column's has evenly
    spaced knots over the range of its own data. Coefficients that don't fall make a function that
    doesn't fall, which every integrator is; they are fitted by non-negative least squares on their
    differences. Beyond its data a spline goes on as a straight line.

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
        if core.is_concrete(self.coefficients) and np.ndim(self.coefficients) == 2:
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


@core.validate(x=core.real_array(2), y=core.real_array(2), intervals=core.static_integer())
def fit_splines(
    x: Float[np.ndarray, "n columns"], y: Float[np.ndarray, "n columns"], intervals: int = 8
) -> Splines:
    """Fits monotone splines by least squares, one per column.

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
    # Non-negative steps make the coefficients rise, and a B-spline with rising coefficients rises.
    design = np.concatenate([basis, bend]) @ steps
    target = np.concatenate([y, np.zeros(len(bend))])
    # The first coefficient may have any sign: two columns for it.
    coefficients, _ = nnls(np.concatenate([design, -design[:, :1]], 1), target)
    first = coefficients[0] - coefficients[-1]
    return steps @ np.concatenate([[first], coefficients[1:-1]])


def _basis(u: np.ndarray, intervals: int) -> np.ndarray:
    """Evaluates B-splines at positions in units of the knots' spacing, `[n, intervals + 3]`."""
    distance = np.abs(u[:, None] - np.arange(-1, intervals + 2))
    return (np.maximum(2 - distance, 0) ** 3 - 4 * np.maximum(1 - distance, 0) ** 3) / 6


SWEEPS = 4
"""Rounds of alternating least squares; a fifth changes the table by less than 1e-3."""


@core.register_setting
class ReadOutNoise(core.Setting):
    """Noise of each column: `level**2 * (still + per_row * N)` with N active rows.

    Attributes:
        still: Variance without an active row, `[columns]`, squared counts.
        per_row: Variance that each active row adds.
        level: Share of the standard deviation: 0 is silent, 1 what was measured.
    """

    still: Float[Array, " columns"]
    per_row: Float[Array, " columns"]
    level: core.NonNegative = 1.0

    def variance(self, inputs: Float[Array, "p r"], columns: int) -> Float[Array, "p c"]:
        """Computes the variance of each read-out of the first columns."""
        active = jnp.sum(jax.lax.stop_gradient(inputs) > 0, axis=1).astype(inputs.dtype)
        still, per_row = (
            jnp.asarray(a, inputs.dtype)[:columns][None] for a in (self.still, self.per_row)
        )
        # Eq. (5.2) with a variance linear in N: active rows add independent noise.
        return jnp.asarray(self.level, inputs.dtype) ** 2 * (still + per_row * active[:, None])


class _WithNoise(core.Setting):
    """A model whose noise depends on the number of columns alone."""

    noise: ReadOutNoise

    def variance(self, inputs: Any, weights: Any) -> Any:
        """Returns the variance of the columns."""
        return self.noise.variance(inputs, weights.shape[1])


@core.register_setting
class LinearFit(_WithNoise):
    """One slope and one offset for all columns.

    Attributes:
        slope: Counts per product of codes.
        offset: In counts.
        noise: Noise of the read-out.
    """

    slope: Float[Array, ""]
    offset: Float[Array, ""]
    noise: ReadOutNoise

    def counts(self, inputs: Any, weights: Any, gain: Any) -> Any:
        """Evaluates the straight line at the ideal sum."""
        del gain
        return (inputs @ weights) * self.slope + self.offset


@core.register_setting
class Columnar(_WithNoise):
    """A spline per column on the ideal sum of products.

    Attributes:
        splines: From products of codes to counts.
        noise: Noise of the read-out.
    """

    splines: Splines
    noise: ReadOutNoise

    def counts(self, inputs: Any, weights: Any, gain: Any) -> Any:
        """Evaluates each column's spline at its ideal sum."""
        del gain
        return self.splines(inputs @ weights)


@core.register_setting
class WhiteBox(_WithNoise):
    """A factorised table of synapses, a spline per column, and noise.

    The white box is ``y_c = f_c(sum_r LUT[r, c, a, w]) + N(0, var(c, N))`` (Klein's thesis, eqs.
    (5.1) and (5.2)). The table of every synapse has 128 x 256 x 32 x 127 entries, 533 MB; here it
    is a product of what its parts depend on, ``strength[sign(w), r, c] * pulse[r, a] *
    curve[abs(w)]``, 300 kB, so that a column's sum is one product of matrices.

    Attributes:
        strength: Counts per unit of charge of a positive and a negative weight,
            `[2, rows, columns]`.
        pulse: The length of every input code, `[rows, codes]`.
        curve: The current of every magnitude of a weight code, `[codes]`.
        splines: From sums of the table to counts.
        noise: Noise of the read-out.
    """

    strength: Float[Array, "2 rows columns"]
    pulse: Float[Array, "rows inputs"]
    curve: Float[Array, " magnitudes"]
    splines: Splines
    noise: ReadOutNoise

    def sums(self, inputs: Float[Array, "p r"], weights: Float[Array, "r c"]) -> Any:
        """Sums the table in each column, in counts."""
        rows, columns = weights.shape
        strength = jnp.asarray(self.strength, weights.dtype)[:, :rows, :columns]
        size = _looked_up(jnp.asarray(self.curve, weights.dtype), jnp.abs(weights))
        # Excitatory and inhibitory synapses are different circuits: each sign has its own strength.
        charge = jnp.sign(weights) * size * jnp.where(weights > 0, strength[0], strength[1])
        # At zero a weight has no sign, and yet a gradient: that of the mean of both signs.
        unit = jnp.asarray(self.curve[1] - self.curve[0], weights.dtype)
        slope = unit * (strength[0] + strength[1]) / 2
        at_zero = jax.lax.stop_gradient(weights) == 0
        charge = jnp.where(
            at_zero, with_gradient_of(jnp.zeros_like(weights), weights * slope), charge
        )
        pulse = jnp.asarray(self.pulse, inputs.dtype)[:rows]
        codes = jnp.clip(inputs, 0, pulse.shape[1] - 1)
        # Linear between the measured lengths, which gives input codes a gradient.
        first = jnp.minimum(jnp.floor(jax.lax.stop_gradient(codes)), pulse.shape[1] - 2)
        at, row = first.astype(jnp.int32), jnp.arange(rows)[None]
        low, high = pulse[row, at], pulse[row, at + 1]
        return (low + (high - low) * (codes - first)) @ charge

    def counts(self, inputs: Any, weights: Any, gain: Any) -> Any:
        """Evaluates each column's spline at its sum."""
        del gain
        return self.splines(self.sums(inputs, weights))


def _looked_up(table: Any, x: Any) -> Any:
    """Looks up a table, linear between whole numbers, which gives it a gradient."""
    x = jnp.clip(x, 0, len(table) - 1)
    first = jnp.minimum(jnp.floor(jax.lax.stop_gradient(x)), len(table) - 2)
    at = first.astype(jnp.int32)
    return table[at] + (table[at + 1] - table[at]) * (x - first)


@core.validate(measured=core.instance_of(Characterization))
def fit_linear(measured: Characterization) -> LinearFit:
    """Fits one straight line for all columns, by least squares on full drive."""
    ideal, counts = _drive(measured)
    slope, offset = np.polyfit(ideal.ravel(), counts.ravel(), 1)
    return LinearFit(jnp.float32(slope), jnp.float32(offset), fit_noise(measured.noise))


@core.validate(measured=core.instance_of(Characterization), intervals=core.static_integer())
def fit_columnar(measured: Characterization, intervals: int = 8) -> Columnar:
    """Fits a spline per column on the ideal sum, from full drive."""
    return Columnar(fit_splines(*_drive(measured), intervals), fit_noise(measured.noise))


@core.validate(measured=core.instance_of(Characterization), intervals=core.static_integer())
def fit_white_box(measured: Characterization, intervals: int = 8) -> WhiteBox:
    """Fits the table to single rows, splines to full drive, and noise to repeats.

    Args:
        measured: Result of `characterize`.
        intervals: Between the knots of a spline.

    Raises:
        ValueError: The measurement holds NaN, or too few values.
    """
    strength, pulse, curve = fit_table(measured)
    # Any splines will do until the sums that they are fitted to are known.
    flat = Splines(
        jnp.zeros((strength.shape[2], 4)), *(jnp.full(strength.shape[2], x) for x in (0.0, 1.0))
    )
    table = WhiteBox(
        jnp.asarray(strength, jnp.float32),
        jnp.asarray(pulse, jnp.float32),
        jnp.asarray(curve, jnp.float32),
        flat,
        fit_noise(measured.noise),
    )
    drives = measured.drives
    # Splines last: they are fitted to what the table predicts for full drive, so they take
    # up saturation and whatever else single rows don't show.
    sums = np.concatenate(
        [
            np.asarray(_sums(table, jnp.asarray(a, jnp.float32), jnp.asarray(w, jnp.float32)))
            for a, w in zip(drives.inputs, drives.weights, strict=True)
        ]
    )
    counts = drives.counts.reshape(sums.shape)
    splines = fit_splines(sums, counts, intervals)
    return WhiteBox(table.strength, table.pulse, table.curve, splines, table.noise)


_sums = jax.jit(WhiteBox.sums)


def fit_table(measured: Characterization) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fits the factors of the table: strengths, pulse lengths and the curve of weights."""
    singles, design = measured.singles, measured.design
    y = singles.counts.astype(np.float32)  # [programs, rows, levels, columns]
    if not np.isfinite(y).all():
        raise ValueError("fit_white_box: the measurement of single rows holds NaN or infinity.")
    w = singles.weights
    size, positive = np.abs(w), w > 0
    curve = np.arange(design.weight_top + 1, dtype=np.float32)
    pulse = np.tile(singles.levels.astype(np.float32), (design.rows, 1))
    strength = np.ones((2, *w.shape[1:]), np.float32)
    sign = np.sign(w).astype(np.float32)
    # y = strength * pulse * curve is linear in each factor given the two others:
    # alternating least squares, each step in closed form.
    for _ in range(SWEEPS):
        # Strengths of each sign, given lengths and the curve.
        charge = sign * curve[size]
        across = np.einsum("prlc,rl->prc", y, pulse)
        power = (pulse**2).sum(1)[None, :, None]
        for i, of_sign in enumerate((positive, ~positive)):
            over = np.sum(of_sign * charge * across, 0)
            strength[i] = over / np.maximum(np.sum(of_sign * charge**2 * power, 0), 1e-9)
        scale = strength.mean()
        # A synapse that no program gave a weight of this sign has no strength: take the mean.
        strength = np.where(strength > 0, strength, scale)
        # Lengths of pulses, one per row and level.
        charge = charge * np.where(positive, strength[0], strength[1])
        pulse = np.einsum("prlc,prc->rl", y, charge) / np.sum(charge**2, (0, 2))[:, None]
        # The curve, one number per magnitude, for both signs and all synapses.
        unit = sign * np.where(positive, strength[0], strength[1])
        over = np.einsum("prlc,rl->prc", y, pulse) * unit
        under = unit**2 * (pulse**2).sum(1)[None, :, None]
        above = np.bincount(size.ravel(), over.ravel(), len(curve))
        below = np.bincount(size.ravel(), under.ravel(), len(curve))
        curve = np.where(below > 0, above / np.maximum(below, 1e-9), curve).astype(np.float32)
        curve[0] = 0
        # The factors are known up to scales: the largest codes fix that of the curve,
        # averaged over eight of them against noise.
        curve *= design.weight_top / curve[-8:].mean() * (1 - 3.5 / design.weight_top)
        # What is left of a column's offset would count once for every active row.
        charge = sign * curve[size] * np.where(positive, strength[0], strength[1])
        fitted = np.einsum("prc,rl->c", charge, pulse) / (y.shape[0] * y.shape[1] * y.shape[2])
        y = y - (y.mean((0, 1, 2)) - fitted)
    return strength, _all_codes(pulse, singles.levels, design.input_top), _smooth(curve)


def _all_codes(pulse: np.ndarray, levels: np.ndarray, top: int) -> np.ndarray:
    """Computes lengths at every input code, by a straight line per row; none at zero."""
    codes = np.arange(top + 1)
    slope, start = np.polyfit(levels, pulse.T, 1)
    lengths = np.maximum(start[:, None] + slope[:, None] * codes, 0)
    return np.where(codes > 0, lengths, 0).astype(np.float32)


def _smooth(curve: np.ndarray) -> np.ndarray:
    """Smooths the curve of weights by a cubic through zero, which averages its noise."""
    code = np.arange(len(curve)) / (len(curve) - 1)
    powers = np.stack([code, code**2, code**3], 1)
    coefficients = np.linalg.lstsq(powers, curve, rcond=None)[0]
    return (powers @ coefficients).astype(np.float32)


@core.validate(noise=core.instance_of(NoiseMeasurement))
def fit_noise(noise: NoiseMeasurement) -> ReadOutNoise:
    """Fits a variance per column without rows, and one per active row; neither is negative.

    All fitted models have this noise, which repeated read-outs show:

    ```python
    import jax
    from jaxeff.analog_hardware import Chip, Design, characterize, fit_columnar, fit_noise

    design = Design(rows=16, columns=8, programs=8, drives=8, vectors=64, active=(1, 8, 16))
    measured = characterize(jax.random.key(0), Chip(3, rows=16, columns=8), design)
    noise = fit_noise(measured.noise)
    assert (fit_columnar(measured).noise.still == noise.still).all() and noise.per_row.shape == (8,)
    ```

    Raises:
        ValueError: A variance is NaN.
    """
    if not np.isfinite(noise.variance).all():
        raise ValueError("fit_noise: a measured variance is NaN; measure with at least 8 repeats.")
    design = np.stack([np.ones(len(noise.active)), noise.active], 1)
    # A variance's own error grows with it: relative errors are what is even.
    weight = 1 / np.maximum(noise.variance.mean(1), 1e-6)
    variances = np.stack(
        [nnls(design * weight[:, None], column * weight)[0] for column in noise.variance.T]
    )
    return ReadOutNoise(*(jnp.asarray(a, jnp.float32) for a in variances.T))


def _drive(measured: Characterization) -> tuple[np.ndarray, np.ndarray]:
    """Computes the ideal sums and counts of full drive, `[n, columns]`."""
    drives = measured.drives
    ideal = np.einsum("dpr,drc->dpc", drives.inputs.astype(float), drives.weights.astype(float))
    columns = ideal.shape[-1]
    return ideal.reshape(-1, columns), drives.counts.reshape(-1, columns).astype(float)
