"""The measures: for every slot of a network, a noise level that says how much it tolerates.

Walking noise, the expensive one, is trained here, or read from the walking-noise study.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import Count, Refused, Row
from experiments.recipes import cosine_adam
from experiments.trainable import Images, Network
from experiments.walking_noise import training
from experiments.walking_noise.findings import CHANCE, Curve, accuracies
from experiments.walking_noise.recipe import Settings, Sweep
from experiments.walking_noise.training import Bench
from jaxeff import robustness
from jaxeff.noise import Additive, walking_noise
from jaxeff.robustness import fit_midpoint

BUDGET = 0.1
"""Size of a budget in bits. With ten times as much, networks that train along with it no longer
learn from all of their slots: the budget ends in the first ones and the last are kept clean."""

KL_LEVELS = np.logspace(-3, 4, 36)
"""Levels of the noise that only evaluates; five to a decade."""
Model = tuple[Any, Any]  # parameters and state of a network trained without noise


@dataclass(frozen=True)
class Effort(Settings):
    """What is measured, and how carefully."""

    networks: Count = 1  # networks trained without noise that are measured, per problem
    inputs: Count = 1  # training images of the divergence
    draws: Count = 1  # draws of its noise
    budget_epochs: Count = 1  # epochs of the budget of a trained network
    # JSON of the walking-noise study to take midpoints from, rather than train for them
    walking: Path | None = None


@dataclass(frozen=True)
class Subject:
    """What is measured."""

    problem: Sweep  # the network and its walking noise
    bench: Bench  # the network and its data
    settings: Effort  # the study's size

    @property
    def network(self) -> Network:
        """The network as functions."""
        return self.bench.network

    @property
    def images(self) -> Images:
        """Its data."""
        return self.bench.images


class Spreading(NamedTuple):
    """How a budget of noise is spread."""

    f: Callable[..., Any]  # the network that learns its levels
    epochs: int
    start: Callable[[], Model]
    optimizer: optax.GradientTransformation | None = None  # of the weights, which else stay


def midpoint_level(midpoint: robustness.Midpoint) -> float:
    """The midpoint for a ranking: infinite beyond the levels, 0 below them, NaN if unknown."""
    if midpoint.exists:
        return midpoint.mu
    low, high = midpoint.bracket
    return high if np.isinf(high) else low if low == 0 else np.nan


def divergence(key: jax.Array, subject: Subject, model: Model) -> np.ndarray:
    """The level at which a slot's noise moves the predictions by one bit."""
    net, (params, state) = subject.network, model
    x = jnp.asarray(subject.images.train[0][: subject.settings.inputs])
    sensitivities = robustness.kl_sensitivity(
        key, net.evaluate, params, x, net.slots, jnp.asarray(KL_LEVELS),
        draws=subject.settings.draws, state=state,
    )  # fmt: skip
    return robustness.tolerated_level(sensitivities)


def evaluated(key: jax.Array, subject: Subject, model: Model) -> np.ndarray:
    """Midpoints under noise that walks at evaluation only: the same sweep without its trainings."""
    net, (params, state) = subject.network, model
    specs, _ = walking_noise(net.slots, KL_LEVELS, Additive)
    test = jax.tree.map(lambda leaf: leaf[: subject.settings.inputs], subject.images.test)
    accuracies = robustness.noisy_accuracy(
        key, net.evaluate, params, test, specs, repeats=1, state=state
    )
    curves = np.asarray(accuracies[0]).reshape(len(net.slots), len(KL_LEVELS))
    fits = [robustness.fit_midpoint(KL_LEVELS, c, chance=CHANCE, scale="log") for c in curves]
    return np.array([midpoint_level(fit) for fit in fits])


def measure_all(key: jax.Array, subject: Subject, model: Model, seed: int) -> list[Row]:
    """Every measure of one network that was trained without noise, with the time each took.

    The key is that of the noise, the mini-batches and the initial weights of the joint training.
    """
    rows: list[Row] = []
    net, problem = subject.network, subject.problem

    def timed(measure: str, run: Callable[[], np.ndarray], epochs: int = 0) -> np.ndarray:
        begin = time.perf_counter()
        levels = run()
        cost = {"seconds": time.perf_counter() - begin, "updates": subject.bench.steps(epochs)}
        for site, level in zip(net.slots, levels.tolist(), strict=True):
            rows.append({"measure": measure, "site": site, "level": level, "seed": seed, **cost})
        return levels

    def spread(name: str, measure: str, key: jax.Array, way: Spreading) -> None:
        file = subject.bench.folder / f"{problem.case}-{name}-{seed}.safetensors"
        timed(measure, lambda: _learn(key, subject, way, level, file), way.epochs)

    tolerated = timed("divergence", lambda: divergence(key, subject, model))
    timed("walking at evaluation", lambda: evaluated(key, subject, model))
    level = total_level(tolerated)
    # A budget that is spread while the weights stay as they are, and one along with them.
    few = subject.settings.budget_epochs
    spread("budget", "budget, trained net", key, Spreading(net.evaluate, few, lambda: model))
    start, key = jax.random.split(key)
    adam = cosine_adam(subject.settings.learning_rate, subject.bench.steps(problem.epochs))
    along = Spreading(net.train, problem.epochs, lambda: net.init(start), adam)
    spread("budget-in-training", "budget, in training", key, along)
    return rows


def total_level(tolerated: np.ndarray) -> float:
    """The geometric mean of a budget's levels, from what each slot tolerates for one bit.

    Noise that is weak does damage with its square, so this is about `BUDGET` bits shared among all
    slots. Only the budget's size comes from the divergence; how it is spread doesn't.
    """
    known = tolerated[np.isfinite(tolerated) & (tolerated > 0)]
    return float(np.exp(np.log(known).mean()) * np.sqrt(BUDGET / len(tolerated)))


def _learn(
    key: jax.Array, subject: Subject, way: Spreading, level: float, checkpoint: Path
) -> np.ndarray:
    """The levels of a budget, learnt by themselves or, by an optimizer, along with the weights."""
    steps = subject.bench.steps(way.epochs)
    # Weights that start from scratch have to settle before levels can follow them.
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.05, steps // 2, steps)
    params, state = way.start()
    budget = robustness.learn_budget(
        key, way.f, params, subject.images.train, subject.network.slots, level, epochs=way.epochs,
        batch_size=subject.settings.batch_size, optimizer=way.optimizer,
        budget_optimizer=optax.adam(rate), state=state, checkpoint=checkpoint,
    )  # fmt: skip
    return np.array([*budget.levels.values()])


def take(models: Any, seed: int) -> Any:
    """One seed's model of a sweep over a single setting."""
    return jax.tree.map(lambda leaf: leaf[seed, 0], models)


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
        midpoints = json.loads(path.read_text())["midpoints"]
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise Refused(f"{path} is no JSON of the walking-noise study: {error}") from error
    wanted = (str(problem.case), "add", "layers")
    fits = {m["site"]: m for m in midpoints if (m["case"], m["kind"], m["where"]) == wanted}
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
