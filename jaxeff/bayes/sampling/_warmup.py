"""Warm-up: step size by dual averaging, mass matrix in windows, for each chain or for all together.

The schedule and both estimators are Stan's, from BlackJAX. Shared between chains, dual averaging
follows their mean acceptance, and the covariance is the mean of the covariances within the
chains: what lies between chains that sit in different modes is no scale to step by.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import WelfordAlgorithmState, welford_algorithm
from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule
from jaxtyping import Array, Float

from jaxeff.bayes.sampling._kernels import Hamiltonian


class Phase(IntEnum):
    """Phase of warm-up: what an iteration does to the adaptation."""

    SAMPLE = 0
    FAST = 1
    """Adapt the step size."""
    SLOW = 2
    """Adapt the step size and gather variances."""
    WINDOW_END = 3
    """As `SLOW`; then take a new mass matrix from the variances and start anew."""
    LAST = 4
    """As `FAST`; then settle on the averaged step size."""


class Adaptation(NamedTuple):
    """State of warm-up. The first axis of each array is that of the chains, unless shared.

    Attributes:
        step_size: The integrator's.
        inverse_mass: Inverse mass matrix, or its diagonal.
        averaging: State of dual averaging.
        variances: State of Welford's algorithm; of each chain, shared or not.
    """

    step_size: Float[Array, "*chains"]
    inverse_mass: Float[Array, "*chains d"]
    averaging: DualAveragingAdaptationState
    variances: WelfordAlgorithmState


def phases(warmup: int) -> np.ndarray:
    """Schedules the phase of each iteration of warm-up."""
    schedule = np.asarray(build_schedule(warmup), int).reshape(warmup, 2)
    phase = np.where(schedule[:, 0] == 0, Phase.FAST, np.where(schedule[:, 1], 3, Phase.SLOW))
    # The last iteration takes the averaged step size: single ones of dual averaging
    # fluctuate.
    phase[-1:] = Phase.LAST
    return phase.astype(np.int32)


def init(kernel: Hamiltonian, positions: Float[Array, "chains d"]) -> Adaptation:
    """Makes the adaptation before the first iteration: a mass matrix of one."""
    dimensions, dtype = positions.shape[1], positions.dtype
    averaging_init, _, _ = dual_averaging_adaptation(kernel.target_acceptance)
    welford_init, _, _ = welford_algorithm(not kernel.dense)
    step_size = jnp.asarray(kernel.step_size, dtype)
    one = Adaptation(
        step_size,
        (jnp.eye if kernel.dense else jnp.ones)(dimensions, dtype=dtype),
        averaging_init(step_size),
        welford_init(dimensions),
    )
    # Dtypes as the updates leave them, so that a loop can carry them.
    one = jax.tree.map(lambda x: jnp.asarray(x, dtype if np.ndim(x) or _is_float(x) else int), one)
    every = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(positions), *x.shape)), one)
    # Variances stay each chain's own: pooled, they are averaged at the end of a window.
    return one._replace(variances=every.variances) if kernel.pooled else every


def update(
    kernel: Hamiltonian,
    chains: int,
    pool_mean: Callable[[Any], Any],
    phase: Array,
    state: Adaptation,
    positions: Float[Array, "chains d"],
    acceptance: Float[Array, " chains"],
) -> Adaptation:
    """Adapts after one iteration.

    Args:
        kernel: The settings.
        chains: Number of chains.
        pool_mean: Mean over the leading axis of all chains, wherever they are.
        phase: A `Phase`, traced and the same for all chains.
        state: The adaptation so far.
        positions: Positions of the chains after the iteration.
        acceptance: Acceptance probabilities of the iteration.

    Returns:
        The adaptation for the next iteration.
    """
    averaging = dual_averaging_adaptation(kernel.target_acceptance)
    welford_init, welford_update, welford_final = welford_algorithm(not kernel.dense)
    averaging_init, averaging_update, averaging_final = (
        averaging if kernel.pooled else map(jax.vmap, averaging)
    )

    def keep(state: Adaptation) -> Adaptation:
        return state

    def fast(state: Adaptation) -> Adaptation:
        # Pooled, one step size follows the mean acceptance: less noise, so a shorter warm-up.
        rate = pool_mean(acceptance) if kernel.pooled else acceptance
        after = averaging_update(state.averaging, rate)
        return state._replace(averaging=after, step_size=jnp.exp(after.log_step_size))

    def slow(state: Adaptation) -> Adaptation:
        variances = jax.vmap(welford_update)(state.variances, positions)
        return fast(state._replace(variances=variances))

    def window_end(state: Adaptation) -> Adaptation:
        state = slow(state)
        covariance, count, _ = jax.vmap(welford_final)(state.variances)
        if kernel.pooled:
            # The mean of the chains' own covariances: that of all draws together would
            # count chains that have not met yet as posterior variance.
            covariance, count = pool_mean(covariance), chains * count[0]
        inverse_mass = _regularized(kernel, covariance, count)
        # A new metric changes what a good step size is: dual averaging starts anew from its
        # average.
        after = averaging_init(averaging_final(state.averaging))
        # Each window measures anew: the first ones saw the way to the bulk of the posterior.
        fresh = welford_init(positions.shape[1])
        fresh = jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), fresh, state.variances)
        return Adaptation(jnp.exp(after.log_step_size), inverse_mass, after, fresh)

    def last(state: Adaptation) -> Adaptation:
        state = fast(state)
        return state._replace(step_size=averaging_final(state.averaging))

    def typed(branch: Callable[[Adaptation], Adaptation]) -> Callable[[Adaptation], Adaptation]:
        # Branches of a switch must agree in dtypes, which some updates promote.
        return lambda state: jax.tree.map(
            lambda new, old: jnp.asarray(new, old.dtype), branch(state), state
        )

    branches = [typed(branch) for branch in (keep, fast, slow, window_end, last)]
    return jax.lax.switch(phase, branches, state)


def _regularized(kernel: Hamiltonian, covariance: Array, count: Array) -> Array:
    """Shrinks towards a thousandth of the identity, as by five more draws (Stan's rule)."""
    unit = jnp.eye(covariance.shape[-1]) if kernel.dense else jnp.ones(covariance.shape[-1])
    # (n C + 5 * 1e-3 I) / (n + 5): keeps a metric from few draws positive definite.
    extra = covariance.ndim - count.ndim
    count = count.reshape(*count.shape, *[1] * extra)
    return (count * covariance + 5e-3 * unit) / (count + 5)


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)
