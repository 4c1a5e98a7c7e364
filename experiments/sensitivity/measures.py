"""The measures: for every slot of a network, a noise level that says how much it tolerates."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.sensitivity.recipe import KL_LEVELS, Settings
from experiments.walking_noise.findings import CHANCE
from experiments.walking_noise.network import Images, Network
from experiments.walking_noise.recipe import Sweep
from jaxeff.noise import Additive, walking
from jaxeff.robustness import (
    Budget,
    Midpoint,
    fit_midpoint,
    kl_sensitivity,
    learn_budget,
    noisy_accuracy,
    tolerated_level,
)

BUDGET = 0.1
"""Size of a budget in bits. With ten times as much, networks that train along with it no longer
learn from all of their slots: the budget ends in the first ones and the last are kept clean."""

Row = dict[str, Any]
Model = tuple[Any, Any]  # parameters and state of a network trained without noise


def midpoint_level(midpoint: Midpoint) -> float:
    """The midpoint for a ranking: infinite beyond the levels, 0 below them, NaN if unknown."""
    if midpoint.found:
        return midpoint.mu
    low, high = midpoint.bracket
    return high if np.isinf(high) else low if low == 0 else np.nan


def divergence(
    key: jax.Array, network: Network, model: Model, images: Images, settings: Settings
) -> np.ndarray:
    """The level at which a slot's noise moves the predictions by one bit."""
    params, state = model
    x = jnp.asarray(images.train[0][: settings.inputs])
    levels, draws = jnp.asarray(KL_LEVELS), settings.draws
    found = kl_sensitivity(
        key, network.evaluate, params, x, network.slots, levels, draws=draws, state=state
    )
    return tolerated_level(found)


def evaluated(
    key: jax.Array, network: Network, model: Model, images: Images, settings: Settings
) -> np.ndarray:
    """Midpoints under noise that walks at evaluation only: the same sweep without its trainings."""
    params, state = model
    specs, _ = walking(network.slots, KL_LEVELS, Additive)
    test = jax.tree.map(lambda leaf: leaf[: settings.inputs], images.test)
    found = noisy_accuracy(key, network.evaluate, params, specs, test, repeats=1, state=state)
    curves = np.asarray(found[0]).reshape(len(network.slots), len(KL_LEVELS))
    fits = [fit_midpoint(KL_LEVELS, c, chance=CHANCE, scale="log") for c in curves]
    return np.array([midpoint_level(fit) for fit in fits])


def budget_of_trained(
    key: jax.Array,
    network: Network,
    model: Model,
    images: Images,
    settings: Settings,
    level: float,
) -> np.ndarray:
    """Levels of a budget that is spread while the weights stay as they are."""
    epochs = settings.budget_epochs
    budget = _learn(key, network.evaluate, model, network, images, settings, level, epochs, None)
    return np.array([*budget.levels.values()])


def budget_in_training(
    key: jax.Array,
    network: Network,
    problem: Sweep,
    images: Images,
    settings: Settings,
    level: float,
) -> np.ndarray:
    """Levels of a budget that is spread in one training from scratch, along with the weights."""
    shared = settings.training
    steps = problem.epochs * updates_per_epoch(images, settings)
    adam = optax.adam(optax.cosine_decay_schedule(shared.learning_rate, steps))
    start = network.init(jax.random.fold_in(key, 0))
    budget = _learn(
        key, network.train, start, network, images, settings, level, problem.epochs, adam
    )
    return np.array([*budget.levels.values()])


def measure_all(
    key: jax.Array,
    network: Network,
    model: Model,
    problem: Sweep,
    images: Images,
    settings: Settings,
) -> list[Row]:
    """Every measure of one trained network, slot by slot, with the time each took."""
    shared = (key, network, model, images, settings)
    rows: list[Row] = []

    def timed(measure: str, run: Callable[[], np.ndarray], epochs: int = 0) -> np.ndarray:
        updates = epochs * updates_per_epoch(images, settings)
        begin = time.perf_counter()
        levels = run()
        seconds = time.perf_counter() - begin
        for site, level in zip(network.slots, levels.tolist(), strict=True):
            row = {"measure": measure, "site": site, "level": level}
            rows.append({**row, "seconds": seconds, "updates": updates})
        return levels

    tolerated = timed("divergence", lambda: divergence(*shared))
    timed("walking at evaluation", lambda: evaluated(*shared))
    level = total_level(tolerated)
    timed(
        "budget, trained net",
        lambda: budget_of_trained(*shared, level),
        settings.budget_epochs,
    )
    timed(
        "budget, in training",
        lambda: budget_in_training(key, network, problem, images, settings, level),
        problem.epochs,
    )
    return rows


def updates_per_epoch(images: Images, settings: Settings) -> int:
    """Gradient steps that an epoch takes."""
    return len(images.train[1]) // settings.training.batch_size


def total_level(tolerated: np.ndarray) -> float:
    """The geometric mean of a budget's levels, from what each slot tolerates for one bit.

    Noise that is weak does damage with its square, so this is about `BUDGET` bits shared among all
    slots. Only the budget's size comes from the divergence; how it is spread doesn't.
    """
    known = tolerated[np.isfinite(tolerated) & (tolerated > 0)]
    return float(np.exp(np.log(known).mean()) * np.sqrt(BUDGET / len(tolerated)))


def _learn(
    key: jax.Array,
    f: Callable[..., Any],
    start: Model,
    network: Network,
    images: Images,
    settings: Settings,
    level: float,
    epochs: int,
    optimizer: optax.GradientTransformation | None,
) -> Budget:
    steps = epochs * updates_per_epoch(images, settings)
    # Weights that start from scratch have to settle before levels can follow them.
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.05, steps // 2, steps)
    params, state = start
    return learn_budget(
        key,
        f,
        params,
        images.train,
        network.slots,
        level,
        epochs=epochs,
        batch_size=settings.training.batch_size,
        optimizer=optimizer,
        budget_optimizer=optax.adam(rate),
        state=state,
        progress=False,
    )


def take(models: Any, seed: int) -> Any:
    """One seed's model of a sweep over a single setting."""
    return jax.tree.map(functools.partial(_slice, seed), models)


def _slice(seed: int, leaf: Any) -> Any:
    return leaf[seed, 0]
