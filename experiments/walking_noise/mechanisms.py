"""Self-binarization: what slots that survive huge multiplicative noise do with their values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.harness import Row
from experiments.walking_noise.findings import KEEPS, kept_shares
from experiments.walking_noise.network import Bench
from experiments.walking_noise.recipe import Sweep
from experiments.walking_noise.training import accuracies
from jaxeff.noise import Multiplicative
from jaxeff.robustness import Binarized, activations, peaks
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

    Args:
        bench: Its network.
        plan: The sweep of multiplicative noise, slot by slot.
        rows: Its rows.
        result: Its trained models.
    """
    network, count = bench.network, len(plan.levels)
    shares = kept_shares(rows, str(plan.case))
    found: list[tuple[Row, list[np.ndarray]]] = []
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
        found.append((row, values))
    if not found:
        return [], {}
    row, (before, least) = min(found, key=lambda item: item[0]["valley"])
    model = _model(result, network.slots.index(row["site"]) * count + count - 1)
    look = {"before": before, "least": least, **_quantize(bench, row, model)}
    row["accuracy_binarized"] = float(look["accuracies"].max())
    return [row for row, _ in found], look


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
    found = accuracy(Binarized(jnp.asarray(thresholds, jnp.float32), after=many))
    return {"noisy": values, "thresholds": thresholds, "accuracies": found}


def _model(result: SweepResult, setting: int) -> tuple[Any, Any]:
    """Parameters and state of the first seed's network of a setting."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf[0, setting]), (result.params, result.state or {})
    )
