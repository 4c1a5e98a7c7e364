"""One transition of one chain, by BlackJAX or NumPyro, in one form.

Positions are vectors: a step of a small network costs as many operations as the position has
arrays, not as many as it has numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.sgmcmc.diffusions import sghmc
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import hmc as numpyro_hmc
from numpyro.infer.util import ParamInfo

from jaxeff.bayes.sampling._kernels import HMC, MCLMC, NUTS, SGHMC, Hamiltonian, StochasticGradient

LogDensity = Callable[..., Float[Array, ""]]
"""``log_density(position, data, weight=1)``, in nats."""


class Point(NamedTuple):
    """Position of a chain.

    Attributes:
        position: Parameters as a vector.
        log_density: Log-density of the position, in nats; NaN for a sampler that doesn't compute
            it.
        gradient: Gradient of the log-density.
    """

    position: Float[Array, " d"]
    log_density: Float[Array, ""]
    gradient: Float[Array, " d"]


class TransitionInfo(NamedTuple):
    """Report of a transition.

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
    """Evaluates density and gradient at a position."""
    return Point(position, *jax.value_and_grad(log_density)(position, data))


def hamiltonian_step(
    kernel: Hamiltonian,
    shared_key: PRNGKeyArray,
    key: PRNGKeyArray,
    point: Point,
    log_density: Callable[[Array], Array],
    step_size: Array,
    inverse_mass: Array,
) -> tuple[Point, TransitionInfo]:
    """Moves a chain by `NUTS`, `HMC` or `MCLMC`.

    Args:
        kernel: The settings.
        shared_key: Random key of the iteration, the same for all chains.
        key: Random key of the iteration and the chain.
        point: Current position of the chain.
        log_density: Function that gives the log-density of a position.
        step_size: Step size of the integrator.
        inverse_mass: Inverse mass matrix: its diagonal, or all of it.

    Returns:
        Where the chain is next, and the report.
    """
    length = None
    if isinstance(kernel, HMC | MCLMC):
        # The same for all chains, so that none waits for another.
        length = jax.random.randint(shared_key, (), 1, 2 * kernel.steps)
    if kernel.engine == "numpyro":
        return _numpyro_step(kernel, key, point, log_density, step_size, inverse_mass, length)
    # Log-density and gradient of the point are carried along: each step costs one new
    # gradient.
    state = blackjax.mcmc.hmc.HMCState(*point)
    if isinstance(kernel, NUTS):
        step = blackjax.nuts.build_kernel()
        state, info = step(key, state, log_density, step_size, inverse_mass, kernel.max_depth)
    elif isinstance(kernel, MCLMC):
        if point.position.size < 2:
            raise ValueError("mclmc: a single random number has no direction; use nuts or hmc")
        step = blackjax.adjusted_mclmc.build_kernel()
        state, info = step(key, state, log_density, step_size, (length,), inverse_mass)
    else:
        step = blackjax.hmc.build_kernel()
        state, info = step(key, state, log_density, step_size, inverse_mass, length)
    report = TransitionInfo(
        info.acceptance_rate, info.is_divergent, info.num_integration_steps, info.energy
    )
    return Point(*state), report


def _numpyro_step(
    kernel: Hamiltonian,
    key: PRNGKeyArray,
    point: Point,
    log_density: Callable[[Array], Array],
    step_size: Array,
    inverse_mass: Array,
    length: Array | None,
) -> tuple[Point, TransitionInfo]:
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
    report = TransitionInfo(state.accept_prob, state.diverging, state.num_steps, state.energy)
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
    """Moves a chain by `SGLD` or `SGHMC`.

    Args:
        kernel: The settings.
        iteration: For the schedule of the step size.
        key: Random key of the iteration and the chain.
        point: Current position of the chain.
        log_density: Function that gives the log-density of a position on a mini-batch.
        batch: The mini-batch.
        weight: Size of the data set over that of the mini-batch.

    Returns:
        Where the chain is next; only its position is known.
    """

    def gradient(position: Array, batch: Any) -> Array:
        return jax.grad(log_density)(position, batch, weight)

    size, temperature = kernel.step_size_at(iteration), kernel.temperature_at(iteration)
    start = point.position
    if isinstance(kernel, SGHMC):
        position = _underdamped(
            key, start, lambda x: gradient(x, batch), size, kernel.steps, kernel.friction,
            temperature,
        )  # fmt: skip
    else:
        step = blackjax.sgld.build_kernel()
        position = step(key, start, gradient, batch, size, temperature)
    # The full density isn't computed: the next step takes a gradient on a batch of its own.
    return point._replace(position=position.astype(start.dtype))


def _underdamped(
    key: PRNGKeyArray,
    start: Array,
    gradient: Callable[[Array], Array],
    size: Array,
    steps: int,
    friction: float,
    temperature: float,
) -> Array:
    """Draws a momentum and takes a few steps of Langevin's equation with friction.

    BlackJAX's kernel draws momenta of variance 1 whatever the temperature, so that a short
    iteration is one at temperature 1; its integrator is used here without it.
    """
    integrate = sghmc(alpha=friction)
    momentum_key, key = jax.random.split(key)
    # Momenta have the variance that the dynamics keep: the temperature.
    momentum = jnp.sqrt(temperature) * jax.random.normal(momentum_key, start.shape, start.dtype)

    def step(state: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], None]:
        position, momentum = state
        # The integrator moves the position before it turns the momentum: the gradient is the one
        # there. With half a move taken back before all steps and added after them, that is a drift,
        # a kick and a drift, of second order; Euler's steps made variances too large.
        force = gradient(position + size * momentum)
        return integrate(key, position, momentum, force, size, temperature), None

    state = start - size / 2 * momentum, momentum
    (position, momentum), _ = jax.lax.scan(step, state, jax.random.split(key, steps))
    return position + size / 2 * momentum
