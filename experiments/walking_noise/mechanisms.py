"""Self-binarization of slots that survive huge multiplicative noise, and guided repetition.

The latter is uniform against guided executions of noisy layers (Klein's thesis, table 6.1).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.harness import Row
from experiments.trainable import Network
from experiments.walking_noise.findings import CHANCE, KEEPS, kept_shares
from experiments.walking_noise.recipe import Repetition, Sweep
from experiments.walking_noise.training import Bench, accuracies, train_clean
from jaxeff.noise import Additive, Multiplicative, Repeated, walking_noise
from jaxeff.robustness import (
    Binarized,
    activations,
    allocate_repetitions,
    fit_midpoint,
    noisy_accuracy,
    peaks,
)
from jaxeff.training import SweepResult

SHOWN = 1000
"""Test images whose values are looked at."""
THRESHOLDS = 25


Look = dict[str, np.ndarray]
"""Of the slot with the deepest valley: its values under the noise (`noisy`), what the noise acts on
(`before`), what the least noise acts on in the network trained with that (`least`), `thresholds`
where noisy values are cut in two, and `accuracies` of the network under the noise for each."""


def binarization(
    bench: Bench, plan: Sweep, rows: list[Row], result: SweepResult
) -> tuple[list[Row], Look]:
    """A row for every slot that keeps its accuracy, and a closer look at one of them.

    What is looked at are a sweep of multiplicative noise, slot by slot, its rows and its models.
    """
    network, count = bench.network, len(plan.levels)
    shares = kept_shares(rows, str(plan.case))
    measured_rows: list[tuple[Row, list[np.ndarray]]] = []
    for place, site in enumerate(network.slots):
        if shares[site] < KEEPS or site == "input":  # no network learns its input
            continue
        read = activations(network.evaluate, [site])
        values = [
            np.asarray(read(*_model(result, setting), bench.images.test[0][:SHOWN])[site])
            for setting in (place * count + count - 1, place * count)
        ]
        strong, weak = (peaks(v, scale="log") for v in values)
        row = {
            "case": str(plan.case), "site": site, "level": float(plan.levels[-1]),
            "kept": shares[site], "valley": strong.valley, "low_peak": strong.low,
            "high_peak": strong.high, "zero": strong.zero, "valley_least_noise": weak.valley,
            "accuracy": None, "accuracy_binarized": None,
        }  # fmt: skip
        measured_rows.append((row, values))
    if not measured_rows:
        return [], {}
    row, (before, least) = min(measured_rows, key=lambda item: item[0]["valley"])
    model = _model(result, network.slots.index(row["site"]) * count + count - 1)
    look = {"before": before, "least": least, **_quantize(bench, row, model)}
    row["accuracy_binarized"] = float(look["accuracies"].max())
    return [row for row, _ in measured_rows], look


def _quantize(bench: Bench, row: Row, model: tuple[Any, Any]) -> Look:
    """The threshold check, without retraining: every noisy value becomes one of two."""
    (params, state), key, network = model, bench.key, bench.network
    images = bench.images
    site, level = row["site"], row["level"]
    noise = Multiplicative(jnp.asarray(level, jnp.float32))
    read = activations(jaxeff.noisy(network.evaluate, {site: noise}), [site])
    values = np.asarray(read(key, params, state, images.test[0][:SHOWN])[site])
    thresholds = np.geomspace(1e-3 * level, np.max(np.abs(values)), THRESHOLDS)

    def accuracy(setting: Any) -> np.ndarray:
        return np.asarray(accuracies(key, network, params, state, {site: setting}, images.test))

    many, one = (Multiplicative(jnp.full(n, level, jnp.float32)) for n in (THRESHOLDS, 1))
    row["accuracy"] = float(accuracy(one)[0])
    binarized = accuracy(Binarized(jnp.asarray(thresholds, jnp.float32), after=many))
    return {"noisy": values, "thresholds": thresholds, "accuracies": binarized}


def _model(result: SweepResult, setting: int) -> tuple[Any, Any]:
    """Parameters and state of the first seed's network of a setting."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf[0, setting]), (result.params, result.state or {})
    )


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


def repetition(bench: Bench, row: Repetition, walked: Midpoints) -> Row:
    """One row of the table: a network trained without noise, tested with.

    Three guided lists are tested: the thesis' own; one of midpoints of networks that are trained
    with noise in one slot at a time, where it is walked; and one of midpoints of the same networks
    under noise at evaluation, which costs no training.
    """
    network, images = bench.network, bench.images
    trained = train_clean(bench, epochs=row.epochs, seeds=row.seeds)
    test_key = jax.random.fold_in(bench.key, row.seeds)  # seeds have the numbers before it

    def measure(specs: Any, test: Any = images.test, draws: int = DRAWS) -> np.ndarray:
        """Accuracy of every network at every level of a spec, over draws, `[seeds, levels]`."""
        repeats = []
        for seed in range(row.seeds):
            take = functools.partial(jax.tree.map, lambda leaf: leaf[seed, 0])  # noqa: B023
            drawn = noisy_accuracy(
                test_key, network.evaluate, take(trained.params), test, specs, repeats=draws,
                state=take(trained.state or {}),
            )  # fmt: skip
            repeats.append(np.asarray(drawn).mean(axis=0))
        return np.stack(repeats)

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
    repeats = {name: repeated(times) for name, times in lists.items()}
    return {
        "case": str(row.case), "sigma": row.sigma, "clean": float(clean.mean()), "guided": None,
        **{name: float(accuracy.mean()) for name, accuracy in repeats.items()},
        **{f"{name}_std": float(accuracy.std()) for name, accuracy in repeats.items()},
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
