"""Walking noise, the expensive measure: trained here, or read from the walking-noise study."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.harness import Refused, Row
from experiments.trainable import Network
from experiments.walking_noise import training
from experiments.walking_noise.findings import CHANCE, Curve, accuracies
from experiments.walking_noise.measures import Subject, midpoint_level
from experiments.walking_noise.recipe import Sweep
from jaxeff.robustness import fit_midpoint
from jaxeff.training import SweepResult

WALKING = "walking noise"


def walk(key: jax.Array, subject: Subject, folder: Path) -> list[Row]:
    """Trains with noise in one slot at a time; a midpoint per slot and seed, and one of all seeds.

    A training that diverges counts as one that has learned nothing.
    """
    problem, network = subject.problem, subject.network
    bench = replace(subject.bench, key=key, folder=folder)
    # What another run has begun takes no meaningful time.
    begin = math.nan if (folder / problem.name).exists() else time.perf_counter()
    trained, _ = training.run(bench, problem)
    seconds = time.perf_counter() - begin
    trainings = len(network.slots) * len(problem.levels) * problem.seeds
    updates = trainings * bench.steps(problem.epochs)
    rows = []
    for site in network.slots:
        levels, table = accuracies(trained, Curve(str(problem.case), "add", "layers", site))
        table = np.where(np.isnan(table), CHANCE, table)
        for seed in (None, *range(problem.seeds)):
            chosen = table if seed is None else table[seed]
            fit = fit_midpoint(levels, chosen, chance=CHANCE, scale="log")
            rows.append(
                {
                    "measure": WALKING, "site": site, "seed": seed, "level": midpoint_level(fit),
                    "seconds": seconds, "updates": updates, "message": fit.message,
                }
            )  # fmt: skip
    return rows


def read(path: Path, problem: Sweep, network: Network) -> list[Row]:
    """Midpoints that the walking-noise study left in its JSON; none if it hasn't this problem.

    Raises:
        Refused: The file isn't that study's, or lacks some of the slots.
    """
    try:
        found = json.loads(path.read_text())["midpoints"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise Refused(f"{path} is no JSON of the walking-noise study: {error}") from error
    wanted = (str(problem.case), "add", "layers")
    fits = {m["site"]: m for m in found if (m["case"], m["kind"], m["where"]) == wanted}
    if not fits:
        return []
    missing = [site for site in network.slots if site not in fits]
    if missing:
        raise Refused(f"{path}: {problem.case} has no midpoint of {missing}")
    return [
        {
            "measure": WALKING, "site": site, "seed": None, "level": _recorded(fits[site]),
            "seconds": math.nan, "updates": None, "message": fits[site]["message"],
        }
        for site in network.slots
    ]  # fmt: skip


def _recorded(fit: Any) -> float:
    """The level of a recorded midpoint, as `midpoint_level` gives it."""
    if fit["mu"] is not None:
        return fit["mu"]
    low, high = fit["bracket_low"], fit["bracket_high"]
    return math.nan if low is None else math.inf if high is None else 0.0 if low == 0 else math.nan


def train_clean(key: jax.Array, subject: Subject) -> SweepResult:
    """Networks trained without noise, one per seed, for the cheap measures."""
    bench = replace(subject.bench, key=key)
    return training.train_clean(
        bench, epochs=subject.problem.epochs, seeds=subject.settings.networks
    )
