"""The light alone: its variance, sums, the range of an encoding, and what correlation leaves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.harness import Row, Run
from experiments.photonic.recipe import Settings
from jaxeff.photonics import (
    MODES,
    chaotic_intensity,
    effective_samples,
    fit_light,
    photon_counts,
    physical_sample,
    sigma_bounds,
)

PHOTONS, ELECTRONIC, SATURATION = 100.0, 0.05, 3.0
"""Per unit of intensity; of a reading; where the detector of the dashed curve saturates."""
INTENSITIES = np.linspace(0.1, 4.0, 20)
SHOWN = [0, 2, 5, 10, 19]
EDGES = np.linspace(-0.3, 8.0, 120)
CASES = ((64, 1, 0.5, 0.0), (64, 1, 0.9, 0.0), (16, 8, 0.0, 0.1), (16, 8, 0.5, 0.05))


def measure(run: Run[Settings]) -> list[Row]:
    """All rows about the light."""
    keys = jax.random.split(run.key, 5)
    rows = _variances(keys[0], run.settings) + _sums(keys[1], run.settings)
    return rows + _encoding(keys[2], run.settings) + _correlation(keys[3], run.settings)


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
    rows += [_histogram("distribution", values, intensity=x) for x, values in shown]
    return rows


def _pvalue(counts: np.ndarray, mean: float) -> float:
    """Of a chi-square test against scipy's negative binomial, in about twenty equal bins."""
    law = stats.nbinom(MODES, MODES / (MODES + mean))
    edges = np.unique(law.ppf(np.linspace(0, 1, 21)[1:-1]))
    found = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    expected = np.diff([0, *law.cdf(edges), 1]) * len(counts)
    return float(stats.chisquare(found, expected).pvalue)


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


def _encoding(key: jax.Array, settings: Settings) -> list[Row]:
    """Deviations of the physical model at both ends and between, and two distributions."""
    at = jnp.linspace(0.25, settings.slots * settings.cap, 12)
    rows: list[Row] = []
    light = settings.light(model="physical", bits=None)
    low, high = sigma_bounds(at, light)
    draw = jax.jit(jax.vmap(
        lambda key, level: physical_sample(key, at, replace(light, noise=level)), (0, None)
    ))  # fmt: skip
    for level in (0.0, 0.5, 1.0):
        keys = jax.random.split(key, max(2000, settings.draws // 10))
        samples = np.asarray(draw(keys, jnp.float32(level)))
        rows += [
            {
                "part": "light", "what": "range", "level": level, "intensity": x, "std": s,
                "source_std": level * b + (1 - level) * a, "smallest": a, "largest": b,
            }
            for x, s, a, b in zip(*map(np.asarray, (at, samples.std(0), low, high)), strict=True)
        ]  # fmt: skip
        rows.append(_histogram("encoded", samples[:, 5], level=level, intensity=float(at[5])))
    return rows


def _correlation(key: jax.Array, settings: Settings) -> list[Row]:
    rows: list[Row] = []
    count = max(2000, settings.draws // 10)
    draw = jax.jit(
        lambda key, shape, a, b: chaotic_intensity(key, shape, MODES, time=a, channel=b),
        static_argnums=1,
    )
    for times, channels, time, channel in CASES:
        light = draw(key, (times, channels, count), time, channel)
        values = np.asarray(light, np.float64)
        rows.append({
            "part": "light", "what": "correlation", "times": times, "channels": channels,
            "time": time, "channel": channel,
            "effective": values.var() / values.mean((0, 1)).var(),
            "source_effective": effective_samples(times, channels, time=time, channel=channel),
        })  # fmt: skip
    return rows


def _histogram(what: str, values: np.ndarray, **rest: float) -> Row:
    density, _ = np.histogram(values, EDGES, density=True)
    return {"part": "light", "what": what, **rest, "density": [*map(float, density)]}
