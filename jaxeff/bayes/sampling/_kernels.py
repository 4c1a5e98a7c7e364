"""Markov kernels: which sampler, its settings, and one transition of one chain.

`NUTS`, `HMC` and `MCLMC` use the whole data in each step and adapt their step size and mass matrix
during warm-up; `SGLD` and `SGHMC` use mini-batches, have a step size that you choose, and no
correction for its error.

Sources: Hoffman and Gelman 2014 (NUTS, dual averaging), Neal 2011 (HMC), Welling and Teh 2011
(SGLD), Chen et al. 2014 (SGHMC), Robnik et al. 2025 (MCLMC, arXiv:2503.01707), Zhang et al. 2020
(cyclical step sizes, arXiv:1902.03932).

`Cyclical` step sizes start anew, so that one chain visits several modes:

```python
import jax

from jaxeff.bayes import Cyclical, sgld
from jaxeff.nn import small_classifier

f, params, data = small_classifier()
cycle = Cyclical(1e-3, length=50)
result = sgld(
    jax.random.key(0), f, params, data, step_size=cycle, temperature=cycle.temperature,
    batch_size=32, warmup=0, thin=cycle.length, samples=4, chains=1, monitor=(),
)
```

A cycle (Zhang et al., equation (1) and algorithm 1) begins with large steps without noise, which
leave the last mode, and ends with small ones with noise, which sample the next. With
``thin=cycle.length`` the last draw of each is kept.

Transitions are BlackJAX's or NumPyro's, in one form. Positions are vectors: a step of a small
network costs as many operations as the position has arrays, not as many as it has numbers.

Sharp edge: draws of several modes are no converged chain: compare predictions, not parameters.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Required, TypedDict, get_args

import blackjax
import jax
import jax.numpy as jnp
from blackjax.sgmcmc.diffusions import sghmc
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.hmc import hmc as numpyro_hmc
from numpyro.infer.util import ParamInfo

from jaxeff.bayes.posteriors import Likelihood, Prior
from jaxeff.core import Choice, Count, Number, Setting, check_number
from jaxeff.store import Resume

Engine = Literal["blackjax", "numpyro"]
StepSize = float | Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Hamiltonian(Setting):
    """Common settings of the samplers that integrate Hamilton's equations.

    Attributes:
        step_size: The integrator's first step size; warm-up adapts it.
        target_acceptance: The mean acceptance that warm-up adapts the step size to. Nearer to 1
            means smaller steps and fewer divergences.
        dense: Whether the mass matrix is dense; its memory and time grow with the square and
            the cube of the number of parameters.
        pooled: Whether the chains share one step size and one mass matrix, adapted on all of them
            together, so that a shorter warm-up does. Variances are those within the chains.
        engine: The library whose transition is used. Warm-up is the same for both.
    """

    step_size: Annotated[float, Number(above=0)] = 0.1
    target_acceptance: Annotated[float, Number(above=0, below=1)] = 0.8
    dense: bool = False
    pooled: bool = True
    engine: Annotated[Engine, Choice(*get_args(Engine))] = "blackjax"


@dataclass(frozen=True, kw_only=True)
class NUTS(Hamiltonian):
    """The no-U-turn sampler.

    Attributes:
        max_depth: A trajectory has at most ``2**max_depth - 1`` steps; networks often reach it.
    """

    max_depth: Annotated[int, Count()] = 10


@dataclass(frozen=True, kw_only=True)
class HMC(Hamiltonian):
    """Hamiltonian Monte Carlo.

    Attributes:
        steps: Steps of a trajectory on average; their number is drawn anew, uniformly from
            1 to ``2 * steps - 1``, for each iteration, so that no trajectory length resonates.
    """

    steps: Annotated[int, Count()] = 16


@dataclass(frozen=True, kw_only=True)
class MCLMC(Hamiltonian):
    """Microcanonical Langevin Monte Carlo, adjusted: its moves are accepted or rejected.

    The particle keeps its speed, whatever the density, and only turns towards where there is more.
    It needs two random numbers or more. The mass matrix is diagonal, and the transition BlackJAX's.

    Attributes:
        steps: Steps of a trajectory on average, drawn anew for each iteration as those of `HMC`.
    """

    target_acceptance: Annotated[float, Number(above=0, below=1)] = 0.9
    steps: Annotated[int, Count()] = 16

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if self.dense or self.engine != "blackjax":
            raise ValueError('MCLMC has a diagonal mass matrix (dense=False) and engine="blackjax"')


@dataclass(frozen=True, kw_only=True)
class StochasticGradient(Setting):
    """Common settings of the samplers on mini-batches.

    Attributes:
        step_size: Step size, or a schedule of the iteration, such as optax's.
        batch_size: Examples in each mini-batch, drawn with replacement for each chain.
        temperature: Temperature of the noise, or a schedule of the iteration; 1 samples the
            posterior, less a sharpened one, 0 descends to an optimum.
    """

    step_size: StepSize
    batch_size: Annotated[int, Count()]
    temperature: StepSize = 1.0

    def step_size_at(self, iteration: Any) -> Any:
        """Returns the step size of an iteration."""
        return self.step_size(iteration) if callable(self.step_size) else self.step_size

    def temperature_at(self, iteration: Any) -> Any:
        """Returns the temperature of an iteration."""
        return self.temperature(iteration) if callable(self.temperature) else self.temperature

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if not callable(self.step_size):
            check_number(f"{type(self).__name__}.step_size", self.step_size, above=0)
        if not callable(self.temperature):
            check_number(f"{type(self).__name__}.temperature", self.temperature, 0)


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradient):
    """Stochastic gradient Langevin dynamics, ``w += e * grad log p(w) + sqrt(2 e) noise``.

    Stable below a step size of about twice the smallest posterior variance.
    """


@dataclass(frozen=True, kw_only=True)
class SGHMC(StochasticGradient):
    """Stochastic gradient Hamiltonian Monte Carlo.

    An iteration draws a momentum and takes a few steps on one mini-batch. The step size is one of
    time: ``step_size * steps`` should stay below the posterior's smallest standard deviation, or
    the chain follows each mini-batch to its own optimum; half its square compares with the step
    size of `SGLD`.

    Attributes:
        steps: Steps of an iteration.
        friction: Decay of the momentum per unit of time; should outweigh the gradient's noise.
            Variances miss theirs by up to half of ``step_size * friction``.
    """

    steps: Annotated[int, Count()] = 20
    friction: Annotated[float, Number(above=0)] = 1.0


Kernel = NUTS | HMC | MCLMC | SGLD | SGHMC


@dataclass(frozen=True)
class Cyclical(Setting):
    """A schedule of the iteration: the step size; `temperature` is that of the noise.

    Attributes:
        peak: Step size at the start of a cycle.
        length: Iterations of a cycle.
        exploring: Share of a cycle that comes first and has no noise.
    """

    peak: Annotated[float, Number(above=0)]
    length: Annotated[int, Count()]
    exploring: Annotated[float, Number(0, below=1)] = 0.5

    def __call__(self, iteration: Array) -> Float[Array, ""]:
        """Computes the step size: half a cosine from the peak towards zero."""
        return self.peak / 2 * (1 + jnp.cos(jnp.pi * self._passed(iteration)))

    def temperature(self, iteration: Array) -> Float[Array, ""]:
        """Computes the temperature: 0 while exploring, then 1."""
        return (self._passed(iteration) >= self.exploring).astype(jnp.float32)

    def _passed(self, iteration: Array) -> Array:
        """Computes the share of the cycle that has passed."""
        return (jnp.asarray(iteration) % self.length).astype(jnp.float32) / self.length


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


class ChainOptions(TypedDict, total=False):
    """The options of `mcmc`, which every sampler takes; `mcmc` has their meaning and defaults."""

    warmup: int
    samples: int
    chains: int
    thin: int
    likelihood: Likelihood
    prior: Prior
    shared: tuple[Any, ...]
    init: Any
    jitter: float
    devices: Sequence[Any] | None
    vectorized: bool | None
    monitor: tuple[Any, ...] | None
    checkpoint: str | os.PathLike[str] | None
    resume: Resume
    settings: Mapping[str, Any] | None
    progress: bool | None


class HamiltonianOptions(ChainOptions, total=False):
    """The options of `mcmc` and the settings that `NUTS` and `HMC` share."""

    step_size: float
    target_acceptance: float
    dense: bool
    pooled: bool
    engine: Engine


class NUTSOptions(HamiltonianOptions, total=False):
    """The options of `nuts`."""

    max_depth: int


class HMCOptions(HamiltonianOptions, total=False):
    """The options of `hmc`."""

    steps: int


class MCLMCOptions(HMCOptions, total=False):
    """The options of `mclmc`."""


class SGLDOptions(ChainOptions, total=False):
    """The options of `sgld`."""

    step_size: Required[StepSize]
    batch_size: Required[int]
    temperature: StepSize


class SGHMCOptions(SGLDOptions, total=False):
    """The options of `sghmc`."""

    steps: int
    friction: float
