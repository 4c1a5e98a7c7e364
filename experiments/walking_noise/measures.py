"""The measures: for every slot of a network, a noise level that says how much it tolerates."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.harness import Count, Row
from experiments.recipes import cosine_adam
from experiments.trainable import Images, Network
from experiments.walking_noise.findings import CHANCE
from experiments.walking_noise.network import Bench
from experiments.walking_noise.recipe import Settings, Sweep
from jaxeff import robustness
from jaxeff.noise import Additive, walking_noise

BUDGET = 0.1
"""Size of a budget in bits. With ten times as much, networks that train along with it no longer
learn from all of their slots: the budget ends in the first ones and the last are kept clean."""

KL_LEVELS = np.logspace(-3, 4, 36)
"""Levels of the noise that only evaluates; five to a decade."""
Model = tuple[Any, Any]  # parameters and state of a network trained without noise


@dataclass(frozen=True)
class Effort(Settings):
    """What is measured, and how carefully.

    Attributes:
        networks: Networks trained without noise that are measured, per problem.
        inputs: Training images of the divergence.
        draws: Draws of its noise.
        budget_epochs: Epochs of the budget of a trained network.
        walking: JSON of the walking-noise study to take midpoints from, rather than train for them.
    """

    networks: Count = 1
    inputs: Count = 1
    draws: Count = 1
    budget_epochs: Count = 1
    walking: Path | None = None


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        problem: The network and its walking noise.
        bench: The network and its data.
        settings: The study's size.
    """

    problem: Sweep
    bench: Bench
    settings: Effort

    @property
    def network(self) -> Network:
        """The network as functions."""
        return self.bench.network

    @property
    def images(self) -> Images:
        """Its data."""
        return self.bench.images


def midpoint_level(midpoint: robustness.Midpoint) -> float:
    """The midpoint for a ranking: infinite beyond the levels, 0 below them, NaN if unknown."""
    if midpoint.found:
        return midpoint.mu
    low, high = midpoint.bracket
    return high if np.isinf(high) else low if low == 0 else np.nan


def divergence(key: jax.Array, subject: Subject, model: Model) -> np.ndarray:
    """The level at which a slot's noise moves the predictions by one bit."""
    net, settings = subject.network, subject.settings
    params, state = model
    x = jnp.asarray(subject.images.train[0][: settings.inputs])
    levels, draws = jnp.asarray(KL_LEVELS), settings.draws
    found = robustness.kl_sensitivity(
        key, net.evaluate, params, x, net.slots, levels, draws=draws, state=state
    )
    return robustness.tolerated_level(found)


def evaluated(key: jax.Array, subject: Subject, model: Model) -> np.ndarray:
    """Midpoints under noise that walks at evaluation only: the same sweep without its trainings."""
    net = subject.network
    params, state = model
    specs, _ = walking_noise(net.slots, KL_LEVELS, Additive)
    test = jax.tree.map(lambda leaf: leaf[: subject.settings.inputs], subject.images.test)
    found = robustness.noisy_accuracy(
        key, net.evaluate, params, specs, test, repeats=1, state=state
    )
    curves = np.asarray(found[0]).reshape(len(net.slots), len(KL_LEVELS))
    fits = [robustness.fit_midpoint(KL_LEVELS, c, chance=CHANCE, scale="log") for c in curves]
    return np.array([midpoint_level(fit) for fit in fits])


def budget_of_trained(
    key: jax.Array, subject: Subject, model: Model, level: float, checkpoint: Path
) -> np.ndarray:
    """Levels of a budget that is spread while the weights stay as they are."""
    epochs = subject.settings.budget_epochs
    return _learn(key, subject, subject.network.evaluate, model, level, checkpoint, epochs)


def budget_in_training(
    key: jax.Array, subject: Subject, level: float, checkpoint: Path
) -> np.ndarray:
    """Levels of a budget that is spread in one training from scratch, along with the weights."""
    epochs, net = subject.problem.epochs, subject.network
    adam = cosine_adam(subject.settings.learning_rate, subject.bench.steps(epochs))
    start_key, key = jax.random.split(key)
    start = net.init(start_key)
    return _learn(key, subject, net.train, start, level, checkpoint, epochs, adam)


def measure_all(key: jax.Array, subject: Subject, model: Model, seed: int) -> list[Row]:
    """Every measure of one trained network, slot by slot, with the time each took.

    Args:
        key: Of the noise, the mini-batches and the initial weights of the joint training.
        subject: What is measured.
        model: The network trained without noise.
        seed: Which one it is.
    """
    rows: list[Row] = []

    def timed(measure: str, run: Callable[[], np.ndarray], epochs: int = 0) -> np.ndarray:
        begin = time.perf_counter()
        levels = run()
        cost = {
            "seconds": time.perf_counter() - begin,
            "updates": subject.bench.steps(epochs),
        }
        for site, level in zip(subject.network.slots, levels.tolist(), strict=True):
            rows.append({"measure": measure, "site": site, "level": level, "seed": seed, **cost})
        return levels

    def kept(name: str) -> Path:
        return subject.bench.folder / f"{subject.problem.case}-{name}-{seed}.safetensors"

    tolerated = timed("divergence", lambda: divergence(key, subject, model))
    timed("walking at evaluation", lambda: evaluated(key, subject, model))
    level = total_level(tolerated)
    timed(
        "budget, trained net",
        lambda: budget_of_trained(key, subject, model, level, kept("budget")),
        subject.settings.budget_epochs,
    )
    timed(
        "budget, in training",
        lambda: budget_in_training(key, subject, level, kept("budget-in-training")),
        subject.problem.epochs,
    )
    return rows


def total_level(tolerated: np.ndarray) -> float:
    """The geometric mean of a budget's levels, from what each slot tolerates for one bit.

    Noise that is weak does damage with its square, so this is about `BUDGET` bits shared among all
    slots. Only the budget's size comes from the divergence; how it is spread doesn't.
    """
    known = tolerated[np.isfinite(tolerated) & (tolerated > 0)]
    return float(np.exp(np.log(known).mean()) * np.sqrt(BUDGET / len(tolerated)))


def _learn(
    key: jax.Array,
    subject: Subject,
    f: Callable[..., Any],
    start: Model,
    level: float,
    checkpoint: Path,
    epochs: int,
    optimizer: optax.GradientTransformation | None = None,
) -> np.ndarray:
    steps = subject.bench.steps(epochs)
    # Weights that start from scratch have to settle before levels can follow them.
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.05, steps // 2, steps)
    params, state = start
    budget = robustness.learn_budget(
        key,
        f,
        params,
        subject.images.train,
        subject.network.slots,
        level,
        epochs=epochs,
        batch_size=subject.settings.batch_size,
        optimizer=optimizer,
        budget_optimizer=optax.adam(rate),
        state=state,
        checkpoint=checkpoint,
    )
    return np.array([*budget.levels.values()])


def take(models: Any, seed: int) -> Any:
    """One seed's model of a sweep over a single setting."""
    return jax.tree.map(functools.partial(_slice, seed), models)


def _slice(seed: int, leaf: Any) -> Any:
    return leaf[seed, 0]
