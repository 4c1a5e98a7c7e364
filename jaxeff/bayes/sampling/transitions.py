"""One transition of one chain, by BlackJAX or NumPyro, in one form.

Positions are vectors: a step of a small network costs as many operations as the position has
arrays, not as many as it has numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import hmc as numpyro_hmc
from numpyro.infer.util import ParamInfo

from jaxeff.bayes.sampling.kernels import HMC, NUTS, SGHMC, Hamiltonian, StochasticGradient

LogDensity = Callable[..., Float[Array, ""]]
"""``log_density(position, data, weight=1)``, in nats."""


class Point(NamedTuple):
    """Where a chain is.

    Attributes:
        position: Parameters as a vector.
        log_density: Of the position, in nats; NaN for a sampler that doesn't compute it.
        gradient: Of the log-density.
    """

    position: Float[Array, " d"]
    log_density: Float[Array, ""]
    gradient: Float[Array, " d"]


class Step(NamedTuple):
    """What a transition reports.

    Attributes:
        acceptance: Probability, averaged over the trajectory.
        divergent: Whether the integrator left the trajectory's energy.
        steps: Steps of the integrator, each one gradient.
        energy: Hamiltonian of the new state, in nats.
    """

    acceptance: Array
    divergent: Array
    steps: Array
    energy: Array


def evaluate(log_density: LogDensity, position: Array, data: Any) -> Point:
    """The point at a position."""
    return Point(position, *jax.value_and_grad(log_density)(position, data))


def hamiltonian_step(
    kernel: Hamiltonian,
    shared_key: PRNGKeyArray,
    key: PRNGKeyArray,
    point: Point,
    log_density: Callable[[Array], Array],
    step_size: Array,
    inverse_mass: Array,
) -> tuple[Point, Step]:
    """Move a chain by `NUTS` or `HMC`.

    Args:
        kernel: The settings.
        shared_key: Of the iteration, the same for all chains.
        key: Of the iteration and the chain.
        point: Where the chain is.
        log_density: Of a position.
        step_size: Of the integrator.
        inverse_mass: Inverse mass matrix: its diagonal, or all of it.

    Returns:
        Where the chain is next, and the report.
    """
    length = None
    if isinstance(kernel, HMC):
        # The same for all chains, so that none waits for another.
        length = jax.random.randint(shared_key, (), 1, 2 * kernel.steps)
    if kernel.engine == "numpyro":
        return _numpyro_step(kernel, key, point, log_density, step_size, inverse_mass, length)
    state = blackjax.mcmc.hmc.HMCState(*point)
    if isinstance(kernel, NUTS):
        step = blackjax.nuts.build_kernel()
        state, info = step(key, state, log_density, step_size, inverse_mass, kernel.max_depth)
    else:
        step = blackjax.hmc.build_kernel()
        state, info = step(key, state, log_density, step_size, inverse_mass, length)
    report = Step(info.acceptance_rate, info.is_divergent, info.num_integration_steps, info.energy)
    return Point(*state), report


def _numpyro_step(
    kernel: Hamiltonian,
    key: PRNGKeyArray,
    point: Point,
    log_density: Callable[[Array], Array],
    step_size: Array,
    inverse_mass: Array,
    length: Array | None,
) -> tuple[Point, Step]:
    init, step = numpyro_hmc(
        lambda position: -log_density(position), algo="NUTS" if length is None else "HMC"
    )
    # No warm-up: NumPyro only moves the chain. Potential and gradient are given, not computed.
    state = init(
        ParamInfo(point.position, -point.log_density, -point.gradient),
        num_warmup=0,
        step_size=step_size,
        inverse_mass_matrix=inverse_mass,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        dense_mass=kernel.dense,
        num_steps=length,
        trajectory_length=None,
        max_tree_depth=kernel.max_depth if isinstance(kernel, NUTS) else 10,
        rng_key=key,
    )
    state = step(state)
    report = Step(state.accept_prob, state.diverging, state.num_steps, state.energy)
    return Point(state.z, -state.potential_energy, -state.z_grad), report


def stochastic_step(
    kernel: StochasticGradient,
    iteration: Array,
    key: PRNGKeyArray,
    point: Point,
    log_density: LogDensity,
    batch: Any,
    weight: float,
) -> Point:
    """Move a chain by `SGLD` or `SGHMC`.

    Args:
        kernel: The settings.
        iteration: For the schedule of the step size.
        key: Of the iteration and the chain.
        point: Where the chain is.
        log_density: Of a position and a mini-batch.
        batch: The mini-batch.
        weight: Size of the data set over that of the mini-batch.

    Returns:
        Where the chain is next; only its position is known.
    """

    def gradient(position: Array, batch: Any) -> Array:
        return jax.grad(log_density)(position, batch, weight)

    size, temperature = kernel.step_size_at(iteration), kernel.temperature
    start = point.position
    if isinstance(kernel, SGHMC):
        step = blackjax.sghmc.build_kernel(alpha=kernel.friction)
        position = step(key, start, gradient, batch, size, kernel.steps, temperature)
    else:
        step = blackjax.sgld.build_kernel()
        position = step(key, start, gradient, batch, size, temperature)
    return point._replace(position=position.astype(start.dtype))
