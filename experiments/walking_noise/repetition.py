"""Uniform against guided executions of noisy layers (Klein's thesis, table 6.1)."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import Row
from experiments.trainable import Images, Network
from experiments.walking_noise.findings import CHANCE
from experiments.walking_noise.recipe import Repetition, Settings
from experiments.walking_noise.training import train_clean
from jaxeff.noise import Additive, Repeated, walking_noise
from jaxeff.robustness import allocate_repetitions, fit_midpoint, noisy_accuracy

LEVELS = np.logspace(-2, 3, 21)
"""Noise levels that find each slot's midpoint in a network trained without noise."""
UNIFORM = 2
"""Executions of every slot that the budget is worth."""
WALKED_IMAGES = 2000
"""Test images behind every point of those curves."""
DRAWS = 3
"""Passes over all test images per accuracy of the table."""


def run(
    key: jax.Array,
    row: Repetition,
    network: Network,
    images: Images,
    settings: Settings,
    folder: Path,
) -> Row:
    """One row of the table: a network trained without noise, tested with.

    Two guided lists are tested: the source's, and one of our own, from the midpoints of the same
    networks with noise in one slot at a time.
    """
    trained = train_clean(
        key, row.case, network, images, settings, folder, epochs=row.epochs, seeds=row.seeds
    )
    test_key = jax.random.fold_in(key, row.seeds)  # seeds have the numbers before it

    def measure(specs: Any, test: Any = images.test, draws: int = DRAWS) -> np.ndarray:
        """Accuracy of every network at every level of a spec, over draws, `[seeds, levels]`."""
        found = []
        for seed in range(row.seeds):
            take = functools.partial(jax.tree.map, lambda leaf: leaf[seed, 0])  # noqa: B023
            drawn = noisy_accuracy(
                test_key, network.evaluate, take(trained.params), specs, test,
                repeats=draws, state=take(trained.state or {}),
            )  # fmt: skip
            found.append(np.asarray(drawn).mean(axis=0))
        return np.stack(found)

    def repeated(times: Sequence[int]) -> np.ndarray:
        noise = Additive(jnp.full(1, row.sigma))
        executions = zip(network.slots, times, strict=True)
        return measure({site: Repeated(noise, n) for site, n in executions})[:, 0]

    spec, _ = walking_noise(network.slots, LEVELS, Additive)
    few = tuple(part[:WALKED_IMAGES] for part in images.test)
    walked = measure(spec, few, 1).reshape(row.seeds, len(network.slots), len(LEVELS))
    midpoints = {
        site: fit_midpoint(LEVELS, curve, chance=CHANCE, scale="log").mu
        for site, curve in zip(network.slots, walked.swapaxes(0, 1), strict=True)
    }
    tolerated = {site: mu if np.isfinite(mu) else np.inf for site, mu in midpoints.items()}
    ours = list(allocate_repetitions(tolerated, UNIFORM * len(network.slots)).values())
    clean = measure({"*": Additive(jnp.zeros(1))})[:, 0]
    uniform = repeated([UNIFORM] * len(network.slots))
    lists = {"source's": list(row.guided), "ours": ours}
    found = {name: repeated(times) for name, times in lists.items()}
    return {
        "case": str(row.case), "sigma": row.sigma, "clean": float(clean.mean()),
        "uniform": float(uniform.mean()), "uniform_std": float(uniform.std()),
        "guided_by_source": float(found["source's"].mean()),
        "guided": float(found["ours"].mean()), "guided_std": float(found["ours"].std()),
        "source_uniform": row.source[0], "source_guided": row.source[1],
        "executions_source": lists["source's"], "executions": ours,
        "midpoints": {s: mu if np.isfinite(mu) else None for s, mu in midpoints.items()},
        "epochs": row.epochs, "seeds": row.seeds,
    }  # fmt: skip
