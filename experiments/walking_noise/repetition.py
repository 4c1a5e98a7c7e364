"""Uniform against guided executions of noisy layers (Klein's thesis, table 6.1)."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import Row
from experiments.trainable import Network
from experiments.walking_noise.findings import CHANCE
from experiments.walking_noise.network import Bench
from experiments.walking_noise.recipe import Repetition
from experiments.walking_noise.training import train_clean
from jaxeff.noise import Additive, Repeated, walking_noise
from jaxeff.robustness import allocate_repetitions, fit_midpoint, noisy_accuracy

LEVELS = np.logspace(-2, 3, 21)
"""Noise levels that find each slot's midpoint in a network trained without noise."""
Midpoints = dict[str, float]
"""Noise that each slot tolerates; not finite where it has no midpoint."""
UNIFORM = 2
"""Executions of every slot that the budget is worth."""
EVALUATED = 2000
"""Training images behind every point of those curves, which score nothing else."""
DRAWS = 3
"""Passes over all test images per accuracy of the table."""


def run(bench: Bench, row: Repetition, walked: Midpoints) -> Row:
    """One row of the table: a network trained without noise, tested with.

    Three guided lists are tested: the source's own; one of midpoints of walking noise, networks
    trained with noise in one slot at a time, as in the source; and one of ours, from the midpoints
    of the same networks under noise at evaluation, which costs no training.

    Args:
        bench: The case's network.
        row: What is to be measured.
        walked: Midpoints of walking noise; none where it isn't walked.
    """
    network, images = bench.network, bench.images
    trained = train_clean(bench, epochs=row.epochs, seeds=row.seeds)
    test_key = jax.random.fold_in(bench.key, row.seeds)  # seeds have the numbers before it

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
    few = tuple(part[:EVALUATED] for part in images.train)
    curves = measure(spec, few, 1).reshape(row.seeds, len(network.slots), len(LEVELS))
    evaluated = {
        site: fit_midpoint(LEVELS, curve, chance=CHANCE, scale="log").mu
        for site, curve in zip(network.slots, curves.swapaxes(0, 1), strict=True)
    }
    clean = measure({"*": Additive(jnp.zeros(1))})[:, 0]
    lists = {
        "uniform": [UNIFORM] * len(network.slots), "guided_by_source": list(row.guided),
        "guided_by_evaluation": allocated(network, evaluated),
    }  # fmt: skip
    if walked:
        lists["guided"] = allocated(network, walked)
    found = {name: repeated(times) for name, times in lists.items()}
    return {
        "case": str(row.case), "sigma": row.sigma, "clean": float(clean.mean()), "guided": None,
        **{name: float(accuracy.mean()) for name, accuracy in found.items()},
        **{f"{name}_std": float(accuracy.std()) for name, accuracy in found.items()},
        "source_uniform": row.source[0], "source_guided": row.source[1], "executions": lists,
        "midpoints": known(walked), "midpoints_by_evaluation": known(evaluated),
        "epochs": row.epochs, "seeds": row.seeds,
    }  # fmt: skip


def allocated(network: Network, midpoints: Midpoints) -> list[int]:
    """Spends the uniform budget on the slots that tolerate least."""
    tolerated = {s: mu if np.isfinite(mu) else np.inf for s, mu in midpoints.items()}
    budget = UNIFORM * len(network.slots)
    return list(allocate_repetitions({s: tolerated[s] for s in network.slots}, budget).values())


def known(midpoints: Midpoints) -> dict[str, float | None]:
    """The midpoints as JSON has them."""
    return {site: mu if np.isfinite(mu) else None for site, mu in midpoints.items()}
