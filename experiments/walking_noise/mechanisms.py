"""Self-binarization: what the slot that survives huge multiplicative noise does with its values."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.walking_noise.findings import HUGE, most_kept
from experiments.walking_noise.network import Images, Network
from experiments.walking_noise.recipe import Sweep
from experiments.walking_noise.training import Row
from jaxeff.noise import Multiplicative
from jaxeff.robustness import Binarized, activations, bimodality, noisy_accuracy
from jaxeff.training import SweepResult

SHOWN = 1000
"""Test images whose values are shown."""


@dataclass(frozen=True)
class Binarization:
    """Values of one slot, and what is left of the accuracy if each becomes one of two.

    Attributes:
        case: The network and its data.
        site: The slot.
        level: The noise it was trained with.
        noisy: Its values under that noise, of the network trained with it.
        clean: Its values in the network trained with the least noise.
        thresholds: Where values are cut in two.
        accuracies: Of the threshold-quantized network, under the noise.
        accuracy: Without quantization, under the noise.
        row: The numbers of the above for the report.
    """

    case: str
    site: str
    level: float
    noisy: np.ndarray
    clean: np.ndarray
    thresholds: np.ndarray
    accuracies: np.ndarray
    accuracy: float
    row: Row


def binarization(
    key: jax.Array, plan: Sweep, network: Network, images: Images, rows: list[Row], result: Any
) -> Binarization:
    """Looks at the slot that keeps most of the accuracy at the strongest noise above `HUGE`."""
    site, kept = most_kept(rows, plan.case.name)
    levels = np.asarray(plan.levels)
    strongest = int(np.flatnonzero(levels >= HUGE)[0])
    level = float(levels[strongest])
    place = network.slots.index(site) * len(levels)
    noise = Multiplicative(jnp.asarray(level, jnp.float32))
    noisy_values, params, state = _values(
        key, network, images, site, noise, result, place + strongest
    )
    clean_values, *_ = _values(key, network, images, site, Multiplicative(0.0), result, place)
    score = bimodality(noisy_values, scale="log")
    ends = max(float(score.low), 1e-9 * level), float(jnp.max(noisy_values))
    thresholds = np.append(np.geomspace(*ends, 25), float(score.threshold))
    specs = {site: Binarized(jnp.asarray(thresholds, jnp.float32), after=_stacked(noise, 26))}

    def accuracy(specs: Any) -> np.ndarray:
        return np.asarray(
            noisy_accuracy(
                key, network.evaluate, params, specs, images.test, repeats=1, state=state
            )[0]
        )

    found = accuracy(specs)
    plain = float(accuracy({site: _stacked(noise, 1)})[0])
    row = {
        "case": plan.case.name, "site": site, "level": level, "kept": kept,
        "separability": float(score.separability), "two_peaks": bool(score.two_peaks),
        "separability_clean": float(bimodality(clean_values, scale="log").separability),
        "low_peak": float(score.low), "high_peak": float(score.high),
        "high_peak_over_sigma": float(score.high) / level,
        "accuracy": plain, "accuracy_binarized": float(found.max()),
        "accuracy_binarized_at_best_cut": float(found[-1]), "size": rows[0]["size"],
    }  # fmt: skip
    return Binarization(
        plan.case.name, site, level, np.asarray(noisy_values), np.asarray(clean_values),
        thresholds[:-1], found[:-1], plain, row,
    )  # fmt: skip


def _values(
    key: jax.Array,
    network: Network,
    images: Images,
    site: str,
    noise: Multiplicative,
    result: SweepResult,
    setting: int,
) -> tuple[jax.Array, Any, Any]:
    """A slot's values after its noise, and the network they are from."""
    params, state = jax.tree.map(
        lambda leaf: jnp.asarray(leaf[0, setting]), (result.params, result.state or {})
    )
    read = activations(jaxeff.noisy(network.evaluate, {site: noise}), [site])
    return read(key, params, state, images.test[0][:SHOWN])[site], params, state


def _stacked(noise: Any, count: int) -> Any:
    return jax.tree.map(lambda level: jnp.full(count, level), noise)
