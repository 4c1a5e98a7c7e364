"""The light alone: its variance, and sums of it."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.harness import Row, Run
from experiments.photonic.recipe import Settings
from jaxeff.photonics import (
    MODES,
    fit_light,
    photon_counts,
)

PHOTONS, ELECTRONIC, SATURATION = 100.0, 0.05, 3.0
"""Per unit of intensity; of a reading; where the detector of the dashed curve saturates."""
INTENSITIES = np.linspace(0.1, 4.0, 20)
SHOWN = [0, 2, 5, 10, 19]
EDGES = np.linspace(-0.3, 8.0, 120)


def measure(run: Run[Settings]) -> list[Row]:
    """All rows about the light."""
    first, second = jax.random.split(run.key)
    return _variances(first, run.settings) + _sums(second, run.settings)


def _variances(key: jax.Array, settings: Settings) -> list[Row]:
    key, read = jax.random.split(key)
    means = jnp.asarray(INTENSITIES * PHOTONS, jnp.float32)
    shape = (settings.draws, len(means))
    counts = np.asarray(photon_counts(key, means[None], MODES, shape), np.float64)
    noise = ELECTRONIC * np.asarray(jax.random.normal(read, shape), np.float64)
    readings, cut = counts / PHOTONS + noise, np.minimum(counts / PHOTONS, SATURATION) + noise
    rows: list[Row] = [
        {
            "part": "light", "what": "variance", "intensity": x, "mean": a.mean(),
            "variance": a.var(), "saturated": b.var(), "skewness": stats.skew(a),
            "pvalue": _pvalue(c, x * PHOTONS),
            "source_variance": x / PHOTONS + x**2 / MODES + ELECTRONIC**2,
        }
        for x, a, b, c in zip(INTENSITIES, readings.T, cut.T, counts.T, strict=True)
    ]  # fmt: skip
    fit = fit_light(readings.mean(0), readings.var(0))
    rows.append({"part": "light", "what": "fit", "source_modes": MODES, **fit._asdict()})
    shown = zip(INTENSITIES[SHOWN], readings.T[SHOWN], strict=True)
    rows += [_histogram(values, x) for x, values in shown]
    return rows


def _pvalue(counts: np.ndarray, mean: float) -> float:
    """Of a chi-square test against scipy's negative binomial, in about twenty equal bins."""
    law = stats.nbinom(MODES, MODES / (MODES + mean))
    edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
    histogram = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    expected = np.diff([0, *law.cdf(edges), 1]) * len(counts)
    return float(stats.chisquare(histogram, expected).pvalue)


def _sums(key: jax.Array, settings: Settings) -> list[Row]:
    """Equal carriers added up, read once; and one intensity that is split over as many."""
    rows: list[Row] = []
    carriers, shape = 8, (settings.draws, 8)
    draw = jax.jit(lambda key, mean: photon_counts(key, mean, MODES, shape))
    for k in range(1, carriers + 1):
        now, again, read = jax.random.split(jax.random.fold_in(key, k), 3)
        added = np.asarray(draw(now, jnp.float32(0.25 * PHOTONS)), np.float64)[:, :k].sum(1)
        noise = ELECTRONIC * np.asarray(jax.random.normal(read, shape[:1]))
        readings = added / PHOTONS + noise
        split = np.asarray(draw(again, jnp.float32(2 * PHOTONS / k)), np.float64)[:, :k].sum(1)
        expected = 2 * PHOTONS + (2 * PHOTONS) ** 2 / (k * MODES)
        rows.append({
            "part": "light", "what": "sum", "carriers": k, "mean": readings.mean(),
            "std": readings.std(), "without": added.std() / PHOTONS,
            "split": split.var() / expected,
        })  # fmt: skip
    return rows


def _histogram(values: np.ndarray, intensity: float) -> Row:
    density, _ = np.histogram(values, EDGES, density=True)
    return {
        "part": "light", "what": "distribution", "intensity": intensity,
        "density": [*map(float, density)],
    }  # fmt: skip
